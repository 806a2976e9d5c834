"""As many clients as the descriptors allow are answered; all others get an error: real processes, real limits."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest
from support.fleets import fleet, fleet_entry
from support.routers import routing
from support.routing import entry, table_file
from support.shards import serving, write_generation
from support.waiting import until
from test_serve import admin, connected, metrics

from lookupdb.disk import raise_limit
from lookupdb.errors import UsageError
from lookupdb.process.listeners import MIN_DESCRIPTORS, RESERVED_DESCRIPTORS, limit_connections, max_client_connections
from lookupdb.router.replicas import CONNECTIONS_AN_ENDPOINT

pytestmark = pytest.mark.long

PING = b"*1\r\n$4\r\nPING\r\n"
TOO_MANY = b"-ERR max number of clients reached\r\n"


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("store"), {"a": b"1", "b": b"2"})


@contextlib.contextmanager
def clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    assert raise_limit() > count + 100
    with contextlib.ExitStack() as exit_stack:
        yield [
            exit_stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(count)
        ]


def answers(sockets: list[socket.socket], request: bytes) -> list[bytes]:
    """Return the first bytes that each client gets: b"" if its connection was closed without a word."""

    def ask(client: socket.socket) -> bytes:
        with contextlib.suppress(ConnectionError):
            client.sendall(request)
        try:
            return client.recv(4096)
        except ConnectionError:
            return b""

    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(ask, sockets))


@pytest.mark.parametrize(("limit", "count"), [(256, 400), (1024, 1000)])
def test_a_shard_answers_as_many_as_it_may_and_tells_the_others(
    generation: Path, limit: int, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    possible = limit - RESERVED_DESCRIPTORS
    with serving(generation, open_files=limit) as server:
        with clients(server.ports[0], count) as sockets:
            replies = answers(sockets, PING)
            assert (replies.count(b"+PONG\r\n"), replies.count(TOO_MANY)) == (possible, count - possible)
            assert admin(server, "/readyz")[0] == 200
            assert metrics(server)["lookupdb_shard_connections_refused_total"] == count - possible
            admitted = [client for client, answer in zip(sockets, replies, strict=True) if answer != TOO_MANY]
            assert set(answers(admitted, PING)) == {b"+PONG\r\n"}
        until(lambda: metrics(server)["lookupdb_shard_open_connections"] == 0, "the clients are gone")
        with connected(server) as client:
            assert client.get("a") == b"1"
            assert client.info("clients")["maxclients"] == possible
    lines = [line for line in capfd.readouterr().err.splitlines() if "connections, not" in line]
    assert len(lines) == 1
    assert f"a worker takes {possible} connections, not 10000: it may open {limit} files" in lines[0]


def open_descriptors(pid: int) -> int:
    """Count descriptors that stay open: a worker opens files of /proc now and then, for a moment."""
    counts = []
    for _ in range(20):
        counts.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        time.sleep(0.01)
    return min(counts)


def test_a_shard_without_a_descriptor_left_lets_new_clients_wait(generation: Path) -> None:
    """The limit is lowered while the server runs, as if something else had taken the descriptors."""
    with serving(generation) as server, clients(server.ports[0], 5) as early:
        assert set(answers(early, PING)) == {b"+PONG\r\n"}
        worker = orjson.loads(admin(server, "/status")[1])["workers"][0]["pid"]
        limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (open_descriptors(worker), limits[1]))
        with clients(server.ports[0], 20) as late:
            assert set(answers(early, PING)) == {b"+PONG\r\n"}
            resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
            assert set(answers(late, PING)) == {b"+PONG\r\n"}
        assert metrics(server)["lookupdb_shard_worker_restarts_total"] == 0


@pytest.mark.parametrize(("limit", "count"), [(256, 400), (1024, 1000)])
def test_a_router_answers_as_many_as_it_may_and_tells_the_others(
    generation: Path, tmp_path: Path, limit: int, count: int
) -> None:
    request = b"GET /v1/lookup/a HTTP/1.1\r\nHost: x\r\n\r\n"
    table = tmp_path / "table.json"
    with fleet(generation) as shards:
        table.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(table, open_files=limit) as router, clients(router.port, count) as sockets:
            replies = answers(sockets, request)
            statuses = [answer[:12] for answer in replies]
            possible = max_client_connections(limit, endpoints=CONNECTIONS_AN_ENDPOINT)
            assert statuses.count(b"HTTP/1.1 200") == possible
            refusals = [answer for answer in replies if answer.startswith(b"HTTP/1.1 503")]
            assert len(refusals) == count - possible
            assert all(b"connection: close" in answer.lower() for answer in refusals)
            admitted = [client for client, answer in zip(sockets, replies, strict=True) if b"200" in answer[:12]]
            assert {answer[:12] for answer in answers(admitted, request)} == {b"HTTP/1.1 200"}
            assert router.get("/readyz", admin=True)[0] == 200
            refused = f"lookupdb_router_connections_refused_total {float(count - possible)}"
            assert refused in router.metrics()


def test_endpoints_of_a_router_count_too(generation: Path, tmp_path: Path) -> None:
    """Ten endpoints leave fewer descriptors to clients, and as many are kept for those of the next table."""
    table = tmp_path / "table.json"
    with serving(generation, workers=10) as server:
        described = entry([[f"127.0.0.1:{port}" for port in server.ports]], "g1", valueFormat="raw", normalize=[])
        table.write_bytes(table_file(described))
        with routing(table, open_files=MIN_DESCRIPTORS) as router, clients(router.port, 140) as sockets:
            replies = answers(sockets, b"GET /v1/lookup/a HTTP/1.1\r\nHost: x\r\n\r\n")
            possible = max_client_connections(MIN_DESCRIPTORS, 10 * CONNECTIONS_AN_ENDPOINT)
            assert sum(answer.startswith(b"HTTP/1.1 200") for answer in replies) == possible == 24
            assert sum(answer.startswith(b"HTTP/1.1 503") for answer in replies) == 116
            assert router.status()["workers"][0]["restarts"] == 0


def test_a_limit_that_leaves_nothing_is_refused_with_a_sentence() -> None:
    assert limit_connections(10_000, 1 << 20) == 10_000
    with pytest.raises(UsageError, match=f"may open 100 files and sockets, a server needs {MIN_DESCRIPTORS}"):
        limit_connections(10_000, 100)


def test_many_endpoints_leave_room_for_some_clients_and_for_the_next_table() -> None:
    available = 1024 - RESERVED_DESCRIPTORS - 500
    assert max_client_connections(1024, endpoints=500) == available - available // 2
    assert max_client_connections(1024, endpoints=100) == 1024 - RESERVED_DESCRIPTORS - 200
    assert max_client_connections(256, endpoints=5000) == 1


def test_this_process_may_open_as_many_as_the_system_lets_it() -> None:
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
