"""Commands of RESP besides lookups, on a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.http import ScriptedLookups, generation
from support.resp import RespClient, RespServer, command, left_in_order, serving_resp, sweeping_often

VALUES = {"a": b"1", "b": b'{"x": 2}', "é": b"3"}


@pytest.fixture(autouse=True, scope="module")
def _frequent_sweeps() -> Iterator[None]:
    with sweeping_often():
        yield


@pytest.fixture(scope="module")
def module_server() -> Iterator[RespServer]:
    lookups = ScriptedLookups(values=dict(VALUES), unavailable={"away"})
    with serving_resp(lookups, max_keys=100, max_body_bytes=1 << 20) as server:
        yield server


@pytest.fixture
def server(module_server: RespServer) -> Iterator[RespServer]:
    with left_in_order(module_server):
        yield module_server


@pytest.fixture
def client(server: RespServer) -> Iterator[RespClient]:
    with server.connect() as client:
        yield client


class TestCommonCommands:
    def test_writes_are_refused(self, client: RespClient) -> None:
        for words in (("SET", "a", "b"), ("DEL", "a"), ("FLUSHALL",), ("expire", "a", "1")):
            assert str(client.ask(*words)).startswith("READONLY ")

    def test_unknown_commands_and_wrong_arguments(self, client: RespClient) -> None:
        assert str(client.ask("FOO", "0")) == "ERR unknown command 'FOO', with args beginning with: '0' "
        assert str(client.ask("GET", "a", "b")) == "ERR wrong number of arguments for 'get' command"
        assert str(client.ask("MGET")) == "ERR wrong number of arguments for 'mget' command"

    def test_keys_are_not_listed_and_it_says_who_lists_them(self, client: RespClient) -> None:
        for words in (("SCAN", "0"), ("KEYS", "*"), ("RANDOMKEY",)):
            refusal = str(client.ask(*words))
            assert refusal.startswith(
                f"ERR unknown command '{words[0]}': the router lists no keys. DBSIZE counts them;"
            )
            assert "lookupdb.open()" in refusal

    def test_resp_3(self, client: RespClient) -> None:
        about = client.ask("HELLO", "3")
        assert (about[b"proto"], about[b"server"]) == (3, b"redis")
        client.send(command("GET", "nowhere"))
        assert client.raw.recv(100) == b"_\r\n"
        client.send(command("GET", "nowhere") * 2)
        assert client.raw.recv(100) == b"_\r\n_\r\n"
        client.send(command("MGET", "a", "nowhere"))
        assert client.raw.recv(100) == b"*2\r\n$1\r\n1\r\n_\r\n"
        assert client.ask("RESET") == b"RESET"
        client.send(command("GET", "nowhere"))
        assert client.raw.recv(100) == b"$-1\r\n"

    def test_what_clients_say_of_themselves(self, server: RespServer, client: RespClient) -> None:
        assert client.ask("CLIENT", "SETINFO", "LIB-NAME", "x") == b"OK"
        assert client.ask("CLIENT", "SETNAME", "web") == b"OK"
        assert client.ask("CLIENT", "GETNAME") == b"web"
        first = client.ask("CLIENT", "ID")
        with server.connect() as other:
            assert other.ask("CLIENT", "ID") > first
        assert client.ask("SELECT", "0") == b"OK"
        assert str(client.ask("SELECT", "1")) == "ERR DB index is out of range"
        assert client.ask("READONLY") == b"OK"
        assert client.ask("COMMAND", "COUNT") > 10
        assert client.ask("COMMAND", "DOCS") == []
        assert client.ask("CONFIG", "GET", "save") == [b"save", b""]

    def test_a_password_that_nobody_asks_for_is_taken_as_redis_takes_it(self, client: RespClient) -> None:
        assert client.ask("AUTH", "default", "x") == b"OK"
        assert client.ask("DBSIZE") == 3
        assert client.ask("HELLO", "3", "AUTH", "anybody", "x") is not None
        assert str(client.ask("AUTH", "x")).startswith("ERR AUTH called without any password")

    def test_dbsize_and_info(self, client: RespClient) -> None:
        assert client.ask("DBSIZE") == 3
        info = client.ask("INFO").decode()
        for line in ("redis_version:7.0.0", "loading:0", "tcp_port:6379", "generation:g1", "db0:keys=3,"):
            assert line in info
        assert client.ask("INFO", "lookupdb").decode().splitlines()[:3] == [
            *("# Lookupdb", "dataset:default/airports", "generation:g1"),
        ]

    def test_info_of_a_mixed_table_and_of_none(self) -> None:
        lookups = ScriptedLookups(active=generation("g1", "g2"), candidates=(generation("g3"),))
        with serving_resp(lookups) as server, server.connect() as client:
            assert "shard_generations:g1=2,g2=2" in client.ask("INFO", "lookupdb").decode()
            lookups.live = None
            lookups.describe_dataset = lambda: None  # type: ignore[method-assign, assignment, return-value]
            info = client.ask("INFO").decode()
            assert "loading:1" in info
            assert "generation:\r\n" in info
            assert str(client.ask("DBSIZE")).startswith("UNAVAILABLE NoTable")
