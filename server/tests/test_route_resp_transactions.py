"""MULTI … EXEC on a router: one lookup for all keys, errors in their places, bounds, and what ends a transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.http import ScriptedLookups, eventually
from support.resp import RespClient, RespServer, command, left_in_order, serving_resp

from lookupdb.router.budget import RouterBudget
from lookupdb.router.resp import exchanges

VALUES = {"a": b"1", "b": b'{"x": 2}', "é": b"3", "large": b"x" * 100_000}
PIPELINE = (("GET", "a"), ("HGET", "b", "x"), ("MGET", "a", "none", "away"), ("EXISTS", "a", "a"), ("PING",))


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


def multi(*commands: tuple[bytes | str, ...]) -> bytes:
    return b"".join(command(*words) for words in (("MULTI",), *commands, ("EXEC",)))


def execute(client: RespClient, *commands: tuple[bytes | str, ...]) -> Any:
    """Send a transaction; return the reply to EXEC."""
    *queued, found = client.send(multi(*commands)).replies(len(commands) + 2)
    assert queued == [b"OK", *[b"QUEUED"] * len(commands)]
    return found


class TestReplies:
    def test_replies_that_are_made_in_many_turns_are_the_same(
        self, server: RespServer, client: RespClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each reply may take a large value apart."""
        monkeypatch.setattr(exchanges, "_TURN_SECONDS", 0)
        commands = [("STRLEN", "a"), ("GET", "away"), *[("ECHO", str(number)) for number in range(40)]]
        found = client.send(multi(*commands)).replies(len(commands) + 2)[-1]
        assert (found[0], found[-1], len(found)) == (1, b"39", len(commands))
        eventually(lambda: server.lookups.budget.used == 0)

    def test_who_goes_while_replies_are_made_leaves_nothing(
        self, server: RespServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchanges, "_TURN_SECONDS", 0)
        with server.connect() as gone:
            gone.send(multi(*[("STRLEN", "a")] * 50))
        eventually(lambda: server.lookups.budget.used == 0)
        with server.connect() as client:
            assert execute(client, ("STRLEN", "a")) == [1]

    def test_all_keys_are_looked_up_together(self, server: RespServer, client: RespClient) -> None:
        found = execute(client, *PIPELINE)
        assert [found[0], found[1], *found[3:]] == [b"1", b"2", 2, b"PONG"]
        assert server.lookups.batches == [["a", "b", "a", "none", "away", "a", "a"]]
        assert server.lookups.asked == []

    def test_a_key_that_is_unavailable_is_an_error_in_its_place(self, client: RespClient) -> None:
        commands = ("GET", "MGET", "EXISTS", "TOUCH", "TYPE", "TTL", "STRLEN", "HGETALL", "HLEN")
        found = execute(client, ("GET", "a"), *((name, "away") for name in commands), ("GET", "none"))
        assert (found[0], found[-1]) == (b"1", None)
        assert all(str(error).startswith("UNAVAILABLE Unreachable ") for error in found[1:-1])
        found = execute(client, ("GET", "away"), ("PING",))
        assert str(found[0]).startswith("UNAVAILABLE Unreachable ")
        assert found[1] == b"PONG"

    @pytest.mark.parametrize("name", ["TYPE", "TTL", "PTTL", "STRLEN", "TOUCH", "HGETALL", "HKEYS", "HLEN"])
    def test_outside_a_key_that_is_unavailable_is_an_error_too(self, client: RespClient, name: str) -> None:
        assert str(client.ask(name, "away")).startswith("UNAVAILABLE Unreachable ")

    def test_it_comes_in_any_pieces(self, client: RespClient) -> None:
        data = command("GET", "a") + multi(("GET", "a"), ("MGET", "b", "none"), ("get", "é")) + command("GET", "b")
        expected = [b"1", b"OK", *[b"QUEUED"] * 3, [b"1", [VALUES["b"], None], b"3"], VALUES["b"]]
        for cut in range(1, len(data), 3):
            assert client.send(data[:cut], data[cut:]).replies(7) == expected
        for _ in range(3):  # one by one
            client.ask("MULTI")
            assert [client.ask("GET", "a"), client.ask("GET", "none")] == [b"QUEUED"] * 2
            assert client.ask("EXEC") == [b"1", None]
            assert client.ask("GET", "a") == b"1"

    def test_keys_that_no_record_can_have_and_large_values(self, client: RespClient) -> None:
        found = execute(client, ("GET", ""), ("GET", b"\xff"), ("TYPE", b"\xff"), ("GET", "large"), ("GET", "é"))
        assert found == [None, None, b"none", VALUES["large"], b"3"]

    def test_the_protocol_may_change_within(self, client: RespClient) -> None:
        client.send(multi(("HGETALL", "b"), ("HELLO", "3"), ("HGETALL", "b"), ("GET", "none")))
        assert client.replies(5) == [b"OK", *[b"QUEUED"] * 4]
        found = client.reply()
        assert (found[0], found[2], found[3]) == ([b"x", b"2"], {b"x": b"2"}, None)

    def test_what_follows_waits_for_it(self, server: RespServer, client: RespClient) -> None:
        server.lookups.held = {"a"}
        client.send(multi(("GET", "a")) + command("PING") + command("GET", "b"))
        assert client.replies(2) == [b"OK", b"QUEUED"]
        server.call(server.lookups.release)
        assert client.replies(3) == [[b"1"], b"PONG", VALUES["b"]]


class TestBounds:
    def test_keys(self, server: RespServer, client: RespClient) -> None:
        client.send(multi(*[("GET", "a")] * 100, ("PING",), ("GET", "a")))
        found = client.replies(104)
        assert str(found[101]).startswith("ERR too many keys in one transaction: 101, the limit is 100")
        assert found[102] == b"QUEUED"  # and forgotten
        assert str(found[103]).startswith("EXECABORT ")
        assert execute(client, *[("GET", "a")] * 100) == [b"1"] * 100
        client.ask("MULTI")
        assert str(client.ask("MGET", *["a"] * 101)).startswith("ERR too many keys")
        assert str(client.ask("EXEC")).startswith("EXECABORT ")

    def test_bytes(self, client: RespClient) -> None:
        client.ask("MULTI")
        assert [client.ask("ECHO", "x" * 300_000) for _ in range(3)] == [b"QUEUED"] * 3
        assert "larger than 1048576 bytes" in str(client.ask("ECHO", "x" * 300_000))
        assert str(client.ask("EXEC")).startswith("EXECABORT ")

    def test_values_are_not_more_than_a_batchs(self, server: RespServer, client: RespClient) -> None:
        limit, server.lookups.budget.answer_bytes = server.lookups.budget.answer_bytes, 150_000
        try:
            found = execute(client, ("GET", "large"), ("GET", "large"))
            assert str(found).startswith("ERR the values are more than 150000 bytes together")
            found = execute(client, ("GET", "a"), *[("ECHO", "x" * 40_000)] * 4)
            assert str(found).startswith("ERR the values are more than 150000 bytes together")
        finally:
            server.lookups.budget.answer_bytes = limit

    def test_what_is_queued_is_counted_until_it_is_not_held(self, server: RespServer, client: RespClient) -> None:
        budget = server.lookups.budget
        for ending in ("EXEC", "DISCARD", "RESET", "FOO"):
            client.ask("MULTI")
            client.ask("ECHO", "x" * 50_000)
            eventually(lambda: 50_000 < budget.used < 60_000)
            client.ask(ending)
            eventually(lambda: budget.used == 0)
            client.ask("RESET")
        with server.connect() as gone:
            gone.ask("MULTI")
            gone.ask("ECHO", "x" * 50_000)
            eventually(lambda: budget.used > 50_000)
        eventually(lambda: budget.used == 0)

    def test_many_open_transactions_do_not_pass_the_budget(self) -> None:
        lookups = ScriptedLookups(values=dict(VALUES), budget=RouterBudget(8 << 20))
        with serving_resp(lookups, max_body_bytes=1 << 20) as server, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(server.connect()) for _ in range(40)]
            refused = 0
            for client in clients:
                client.ask("MULTI")
                found = [client.ask("ECHO", "x" * 100_000) for _ in range(4)]
                refused += any(str(reply).startswith("UNAVAILABLE Overloaded") for reply in found)
                assert lookups.budget.used <= lookups.budget.batch_mark + 150_000
            assert refused > 20
            assert clients[0].ask("EXEC") == [b"x" * 100_000] * 4
            assert str(clients[-1].ask("EXEC")).startswith("EXECABORT ")
            with server.connect() as other:
                assert other.ask("GET", "a") == b"1"


class TestWatch:
    @pytest.mark.parametrize(("protocol", "nothing"), [("2", b"*-1\r\n"), ("3", b"_\r\n")])
    def test_exec_does_nothing_once_another_table_is_in_effect(
        self, server: RespServer, client: RespClient, protocol: str, nothing: bytes
    ) -> None:
        client.ask("HELLO", protocol)
        assert client.ask("WATCH", "a") == b"OK"
        server.lookups.live = set()
        assert [client.ask("MULTI"), client.ask("GET", "a")] == [b"OK", b"QUEUED"]
        client.send(command("EXEC"))
        assert client.raw.recv(100) == nothing
        assert execute(client, ("GET", "a")) == [b"1"]

    def test_unwatch_and_discard_forget(self, server: RespServer, client: RespClient) -> None:
        for words in ((("UNWATCH",),), (("MULTI",), ("DISCARD",))):
            client.ask("WATCH", "a")
            server.lookups.live = set()
            assert [client.ask(*each) for each in words] == [b"OK"] * len(words)
            assert execute(client, ("GET", "a")) == [b"1"]
        client.ask("WATCH", "a")
        server.lookups.live = set()
        client.ask("WATCH", "b")  # does not forget the first
        assert execute(client, ("GET", "a")) is None
