"""Redis' own clients ask a real router over real shards: as a client of one server that has the whole dataset."""

from __future__ import annotations

import asyncio
import inspect
import re
import select
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.fleets import Shards, fleet, fleet_entry
from support.resp import RespClient, command
from support.routers import Router, routing
from support.routing import table_file
from support.shards import write_generation
from support.tls import authority, server_identity
from support.waiting import until

from lookupdb.cli.route import command as route_command
from lookupdb.keys import shard_number
from lookupdb.router.access import hash_token
from lookupdb.router.resp.exchanges import COMMANDS

pytestmark = pytest.mark.long

KEYS = {f"k{number}": b"v%d" % number for number in range(500)} | {"großes K": b"unicode", "large": b"x" * 1_500_000}
RESP = ("--resp-port", "0")


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return write_generation(folder, KEYS, shards=4, normalize=("strip", "casefold"), compression="zstd")


@pytest.fixture(scope="module")
def shards(generation: Path) -> Iterator[Shards]:
    with fleet(generation) as shards:
        yield shards


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, generation: Path, shards: Shards) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.json"
    path.write_bytes(table_file(fleet_entry(generation, shards)))
    return path


@pytest.fixture(scope="module")
def router(table: Path) -> Iterator[Router]:
    with routing(table, *RESP, "--max-keys", "600") as router:
        yield router


def client_of(router: Router, **settings: Any) -> redis.Redis:
    return redis.Redis(port=router.resp, socket_timeout=60, retry=Retry(NoBackoff(), 0), **settings)


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(router: Router, protocol: int) -> None:
    with client_of(router, protocol=protocol, client_name="test") as client:
        assert client.ping() is True
        assert client.get("k1") == b"v1"
        assert client.get(" K1 ") == b"v1"  # normalised by the router
        assert client.get("großes K") == client.get("GROSSES k") == b"unicode"
        assert client.get("nowhere") is None
        assert client.get("large") == KEYS["large"]
        assert client.mget("k1", "nowhere", "k2", "k1", "large") == [b"v1", None, b"v2", b"v1", KEYS["large"]]
        assert client.mget(list(KEYS)) == list(KEYS.values())
        assert client.exists("k1", "k1", "nowhere") == 2
        assert client.dbsize() == len(KEYS)
        assert client.info()["loading"] == 0
        assert client.info("lookupdb")["generation"] == "g1"
        assert client.client_getname() in ("test", b"test")
        with pytest.raises(redis.ReadOnlyError):
            client.set("k1", "x")
        with pytest.raises(redis.ResponseError, match="too many keys"):
            client.mget([f"k{number}" for number in range(601)])
        with client.pipeline(transaction=False) as pipeline:
            for key in KEYS:
                pipeline.get(key)
            pipeline.mget("k3", "k4")
            found = pipeline.execute()
        assert found == [*KEYS.values(), [b"v3", b"v4"]]
        with client.pipeline() as pipeline:  # a transaction
            for key in list(KEYS)[:300]:
                pipeline.get(key).strlen(key)
            found = pipeline.execute()
        assert found == [part for value in list(KEYS.values())[:300] for part in (value, len(value))]


async def test_redis_py_asyncio(router: Router) -> None:
    async with redis.asyncio.Redis(port=router.resp, socket_timeout=60) as client:
        found = await asyncio.gather(*(client.get(f"k{number}") for number in range(50)))
        assert found == [b"v%d" % number for number in range(50)]
        assert await client.mget("k1", "nowhere") == [b"v1", None]


def test_threads_share_a_connection_pool(router: Router) -> None:
    wrong: list[Any] = []
    with client_of(router) as client:

        def ask(start: int) -> None:
            for number in range(start, start + 60):
                if (found := client.get(f"k{number}")) != b"v%d" % number:
                    wrong.append((number, found))

        threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 400, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_thousand_pipelined_over_all_shards(router: Router) -> None:
    keys = [key for key in KEYS if key != "large"]
    asked = (keys * 3)[:1000]
    with RespClient(socket.create_connection(("127.0.0.1", router.resp), timeout=60)) as client:
        client.send(b"".join(command("GET", key) for key in asked))
        assert client.replies(1000) == [KEYS[key] for key in asked]


def test_both_ports_count_the_same_connections(table: Path) -> None:
    with routing(table, *RESP, "--max-connections", "1") as router, client_of(router) as client:
        assert client.ping() is True
        assert router.get("/v1/dataset")[0] == 503
        client.close()
        until(lambda: router.get("/v1/dataset")[0] == 200, "the place is free")


def test_as_many_clients_as_descriptors_allow(table: Path) -> None:
    with routing(table, *RESP, open_files=1024) as router:
        sockets = [socket.create_connection(("127.0.0.1", router.resp), timeout=60) for _ in range(1000)]
        try:
            for raw in sockets:
                raw.sendall(command("PING"))
            found = [_first_bytes(raw) for raw in sockets]
        finally:
            for raw in sockets:
                raw.close()
        assert 700 < found.count(b"+PONG") < 930
        assert set(found) <= {b"+PONG", b"-ERR ", b""}
        with client_of(router) as client:
            until(lambda: _pings(client), "there is room again")


def _first_bytes(raw: socket.socket) -> bytes:
    try:
        return raw.recv(5)
    except ConnectionError:
        return b""


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def _is_refused(client: redis.Redis, key: str) -> bool:
    try:
        client.get(key)
    except redis.ResponseError:
        return True
    return False


class TestFaults:
    def test_a_shard_that_is_gone_is_an_error_for_its_keys_and_never_nil(self, tmp_path: Path) -> None:
        generation = write_generation(tmp_path, {f"k{number}": b"v" for number in range(100)}, shards=2)
        path = tmp_path / "table.json"
        with fleet(generation) as shards:
            path.write_bytes(table_file(fleet_entry(generation, shards)))
            with routing(path, *RESP, "--deadline-ms", "500") as router, client_of(router) as client:
                assert client.mget([f"k{number}" for number in range(100)]) == [b"v"] * 100
                shards[1][0].kill()
                keys = [f"k{number}" for number in range(100)]
                away = [shard_number(key.encode(), 2) == 1 for key in keys]
                until(lambda: _is_refused(client, keys[away.index(True)]), "the shard is gone")
                for _ in range(3):
                    with client.pipeline(transaction=False) as pipeline:
                        for key in keys:
                            pipeline.get(key)
                        found = pipeline.execute(raise_on_error=False)
                    assert [isinstance(value, redis.ResponseError) for value in found] == away
                    assert {value for value in found if isinstance(value, bytes)} == {b"v"}
                    assert all(
                        str(value).startswith("UNAVAILABLE ")
                        for value, is_away in zip(found, away, strict=True)
                        if is_away
                    )
                    with pytest.raises(redis.ResponseError, match=r"^UNAVAILABLE "):
                        client.mget(keys)
                    with pytest.raises(redis.ResponseError, match=r"^UNAVAILABLE "):
                        client.exists(*keys)
                    for key, is_away in zip(keys[:10], away, strict=False):
                        if is_away:
                            with pytest.raises(redis.ResponseError, match=r"^UNAVAILABLE "):
                                client.get(key)
                        else:
                            assert client.get(key) == b"v"

    def test_when_all_shards_are_gone_nothing_is_known_of_any_key(self, tmp_path: Path) -> None:
        generation = write_generation(tmp_path, {"a": b"1"})
        path = tmp_path / "table.json"
        with fleet(generation) as shards:
            path.write_bytes(table_file(fleet_entry(generation, shards)))
            with routing(path, *RESP, "--deadline-ms", "300") as router, client_of(router) as client:
                shards[0][0].kill()
                until(lambda: _is_refused(client, "a"), "the shard is gone")
                for _ in range(5):
                    with pytest.raises(redis.ResponseError, match=r"^UNAVAILABLE "):
                        client.get("a")

    def test_no_mget_mixes_generations_while_tables_change_under_load(self, tmp_path: Path) -> None:
        keys = [f"k{number}" for number in range(64)]
        first = write_generation(tmp_path, dict.fromkeys(keys, b"1"), shards=2, generation="g1")
        second = write_generation(tmp_path, dict.fromkeys(keys, b"2"), shards=3, generation="g2")
        path = tmp_path / "table.json"
        wrong: list[Any] = []
        seen: set[bytes] = set()
        going = threading.Event()
        going.set()
        with fleet(first) as old, fleet(second) as new:
            entries = [fleet_entry(first, old), fleet_entry(second, new)]
            path.write_bytes(table_file(entries[0]))
            with routing(path, *RESP) as router:

                def ask() -> None:
                    with RespClient(socket.create_connection(("127.0.0.1", router.resp), timeout=60)) as client:
                        while going.is_set():
                            gets = b"".join(command("GET", key) for key in keys[:16])
                            client.send((command("MGET", *keys) + gets) * 4)
                            for _ in range(4):
                                found = client.reply()
                                singles = client.replies(16)
                                if not isinstance(found, list) or len(set(found)) != 1:
                                    wrong.append(found)
                                elif not set(singles) <= {b"1", b"2"}:
                                    wrong.append(singles)
                                else:
                                    seen.update(found)

                threads = [threading.Thread(target=ask) for _ in range(3)]
                for thread in threads:
                    thread.start()
                try:
                    for version in range(2, 8):
                        content = table_file(entries[version % 2 == 0], version=version)
                        path.with_suffix(".tmp").write_bytes(content)
                        path.with_suffix(".tmp").rename(path)
                        until(lambda v=version: router.reports("tableVersion") == [v], "the table is in effect")  # type: ignore[misc]
                finally:
                    going.clear()
                    for thread in threads:
                        thread.join()
        assert wrong == []
        assert seen == {b"1", b"2"}


class TestStop:
    def test_what_is_asked_while_it_drains_is_answered_and_nothing_is_lost(self, table: Path) -> None:
        """As clients with a pool do: a connection that is closed while nothing is due is opened again."""
        failures: list[str] = []
        answered = 0
        going = threading.Event()
        going.set()
        with routing(table, *RESP, drain_seconds=2) as router:

            def ask() -> None:
                nonlocal answered
                while going.is_set():
                    with RespClient(socket.create_connection(("127.0.0.1", router.resp), timeout=60)) as client:
                        try:
                            while going.is_set():
                                client.send(command("GET", "k1") * 16)
                                if client.replies(16) != [b"v1"] * 16:
                                    failures.append("a wrong answer")
                                answered += 1
                                if select.select([client.raw], [], [], 0)[0]:
                                    assert client.ended()
                                    break
                        except (OSError, EOFError) as error:
                            failures.append(repr(error))

            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: answered > 20, "pipelines are answered")
            router.process.send_signal(signal.SIGTERM)
            until(lambda: b"draining" in router.get("/readyz", admin=True)[1], "it is draining")
            before = answered
            until(lambda: answered > before + 20, "it goes on answering while it drains")
            going.clear()
            thread.join()
            assert router.process.wait(60) == 0
        # Clients repeat a pipeline that they sent just as the router closed the connection: it has no answer.
        assert all("ConnectionReset" in failure or "EOFError" in failure for failure in failures), failures


TOKEN = "a-token-of-a-client-of-redis-0123456789"


def test_tokens_and_tls(table: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "web").write_text(hash_token(TOKEN.encode()))
    certificate, key = server_identity().write(tmp_path / "tls")
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(authority().certificate_pem)
    options = ("--auth-tokens", str(tokens), "--tls-cert", str(certificate), "--tls-key", str(key))
    with routing(table, *RESP, *options) as router:
        settings: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(trusted), "ssl_check_hostname": False}
        for protocol in (2, 3):
            with client_of(router, password=TOKEN, protocol=protocol, **settings) as client:
                assert client.mget(list(KEYS)) == list(KEYS.values())
                with client.pipeline(transaction=False) as pipeline:
                    for name in KEYS:
                        pipeline.get(name)
                    assert pipeline.execute() == list(KEYS.values())
        with client_of(router, username="web", password=TOKEN, **settings) as client:
            assert client.get("k1") == b"v1"
        with client_of(router, **settings) as client, pytest.raises(redis.AuthenticationError):
            client.get("k1")
        wrong = client_of(router, password="another-token-0123456789", **settings)
        with wrong as client, pytest.raises(redis.AuthenticationError):
            client.get("k1")
        with socket.create_connection(("127.0.0.1", router.resp), timeout=60) as raw:
            raw.sendall(command("PING"))
            assert raw.recv(1000).startswith(b"-ERR this port speaks TLS")
        stranger = client_of(router, password=TOKEN, ssl=True)  # it does not know the certificate's authority
        with stranger as client, pytest.raises((redis.ConnectionError, ssl.SSLError)):
            client.ping()


def test_the_command_line_names_all_commands() -> None:
    """Lookups, transactions, ``DBSIZE INFO``, and what clients ask when they connect."""
    text = inspect.cleandoc(route_command.help or "").partition("--resp-port")[2].partition("never nil")[0]
    named = set(re.findall(r"\b[A-Z]{3,}\b", text)) - {"Redis"}
    assert named == {name.decode() for name in COMMANDS}


def test_metrics(router: Router) -> None:
    with client_of(router) as client:
        client.get("k1")
    text = router.metrics()
    lines = (line for line in text.splitlines() if line.startswith("lookupdb_router_request_duration_seconds_count{"))
    found = {line for line in lines if 'protocol="resp"' in line and not line.endswith(" 0")}
    assert any('endpoint="lookup"' in line and 'outcome="ok"' in line for line in found)
