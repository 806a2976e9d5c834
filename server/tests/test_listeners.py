"""Which addresses a server listens on: those of both families, where that is asked for."""

from __future__ import annotations

import select
import socket
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import redis
from support.command_line import run_here
from support.ports import free_port
from support.routers import routing
from support.routing import entry, table_file
from support.shards import serving, write_generation

from lookupdb.errors import UsageError
from lookupdb.process import listeners
from support import launching

BOTH = ["127.0.0.1", "::1"]


def answers(listener: socket.socket, host: str) -> bool:
    """Return whether a client of ``host`` gets through. Another process may have the same port of the other family."""
    listener.listen(4)
    try:
        client = socket.create_connection((host, listeners.bound_port(listener)), timeout=60)
    except OSError:
        return False
    with client:
        if not select.select([listener], [], [], 5)[0]:
            return False
        accepted, address = listener.accept()
        accepted.close()
        return bool(address[1] == client.getsockname()[1])


@pytest.mark.parametrize("host", ["*", "::", "[::]"])
def test_everywhere_is_both_families(host: str) -> None:
    with listeners.bind(host, 0) as listener:
        assert [answers(listener, client) for client in BOTH] == [True, True]


@pytest.mark.parametrize(
    ("host", "reached"), [("0.0.0.0", [True, False]), ("::1", [False, True]), ("[::1]", [False, True])]
)
def test_one_address_is_that_one(host: str, reached: list[bool]) -> None:
    with listeners.bind(host, 0) as listener:
        assert [answers(listener, client) for client in BOTH] == reached


def test_where_there_is_no_ipv6_everywhere_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_has_ipv6", lambda: False)
    with listeners.bind("*", 0) as listener:
        assert listener.family == socket.AF_INET
        assert answers(listener, "127.0.0.1")


def test_a_port_that_a_server_of_ipv4_has_is_in_use_for_both() -> None:
    with listeners.bind("127.0.0.1", 0) as listener:
        listener.listen(1)
        with pytest.raises(UsageError, match=r"cannot listen on :: port \d+: Address already in use"):
            listeners.bind_shared("*", listeners.bound_port(listener), 2)


def test_the_sockets_of_a_port_share_its_clients() -> None:
    sockets = listeners.bind_shared("127.0.0.1", 0, 2)
    listeners.listen(sockets)
    address = sockets[0].getsockname()
    clients = [socket.create_connection(address, timeout=60) for _ in range(64)]
    assert all(select.select([listener], [], [], 60)[0] for listener in sockets)
    for opened in (*clients, *sockets):
        opened.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "*"])
@pytest.mark.parametrize("other", ["127.0.0.1", "0.0.0.0", "::", "*"])
def test_of_two_that_were_bound_to_a_port_before_either_listened_one_listens(host: str, other: str) -> None:
    """Two of ours that are started at once: had both asked to share it from the beginning, the kernel would let both
    in, and each would have a part of the other's clients."""
    first = listeners.bind_shared(host, 0, 2)
    port = listeners.bound_port(first[0])
    second = listeners.bind_shared(other, port, 2)
    listeners.listen(first)
    for take in (partial(listeners.listen, second), partial(listeners.check_free, other, port)):
        with pytest.raises(UsageError, match=f"cannot listen on .* port {port}: Address already in use"):
            take()
    for listener in (*first, *second):
        listener.close()
    listeners.check_free(host, port)


def test_a_port_on_which_another_listens_by_now_is_in_use() -> None:
    with listeners.bind("127.0.0.1", 0) as listener:
        port = listeners.bound_port(listener)
        with listeners.bind("127.0.0.1", port) as other:
            other.listen()
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
                listeners.listen([listener])


@pytest.mark.parametrize("second", ["--resp-port", "--admin-port"])
def test_a_router_has_no_port_twice(tmp_path: Path, second: str) -> None:
    (tmp_path / "table.json").write_text("{}")
    words = ["--table", str(tmp_path / "table.json"), "--port", str(free_port()), "--admin-port", "0"]
    words += [second, words[3]]
    code, said = launching.ended("route", *words)
    assert code == UsageError.exit_code
    assert said.startswith(f"error: cannot listen on 127.0.0.1 port {words[3]}: Address already in use")


@pytest.mark.parametrize("host", ["2001:db8::1", "no such host", "a..b"])
def test_an_address_that_is_not_ours_is_refused_with_a_sentence(host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        listeners.bind(host, 0)


def test_a_shard_and_a_router_on_ipv6_alone(tmp_path: Path) -> None:
    """Ports, admin ports and the routing table's addresses."""
    generation = write_generation(tmp_path, {"a": b"1"})
    with serving(generation, "--host", "::1") as shard:
        with redis.Redis(host="::1", port=shard.ports[0]) as client:
            assert client.get("a") == b"1"
        table = tmp_path / "table.json"
        table.write_bytes(table_file(entry([[f"[::1]:{shard.ports[0]}"]], "g1", valueFormat="raw", normalize=[])))
        with routing(table, "--host", "::1") as router:
            for port, path in ((router.port, "/v1/lookup/a"), (router.admin, "/readyz"), (shard.admin, "/readyz")):
                with urllib.request.urlopen(f"http://[::1]:{port}{path}", timeout=60) as answer:
                    assert answer.status == 200
            assert run_here("get", f"http://[::1]:{router.port}", "a").stdout == b"1"


def test_a_router_that_listens_everywhere_answers_both_families(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, {"a": b"1"})
    with serving(generation, "--host", "*") as shard:
        table = tmp_path / "table.json"
        table.write_bytes(table_file(entry([[f"127.0.0.1:{shard.ports[0]}"]], "g1", valueFormat="raw", normalize=[])))
        with routing(table, "--host", "::", workers=2) as router:
            for host in ("127.0.0.1", "[::1]"):
                for port, path in ((router.port, "/v1/lookup/a"), (router.admin, "/readyz"), (shard.admin, "/readyz")):
                    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
                        assert answer.status == 200
