"""A client of RESP on a real socket: what is answered, in which order, and what ends the connection."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest
from support.http import ScriptedLookups, eventually
from support.resp import RespClient, RespServer, command, left_in_order, serving_resp, sweeping_often

from lookupdb.router.clients import HIGH_WATER_BYTES
from lookupdb.router.lookups import Waiter
from lookupdb.router.resp.connection import RedisClientConnection
from lookupdb.router.resp.reader import GROUP_KEYS, TURN_BYTES, TURN_COMMANDS

BIG = b"v" * 100_000
VALUES = {"a": b"1", "b": b'{"x": 2}', "é": b"3", "big": BIG, "held": b"4", "empty": b"", "late": b"5"}


@pytest.fixture(autouse=True, scope="module")
def _frequent_sweeps() -> Iterator[None]:
    with sweeping_often():
        yield


@pytest.fixture(scope="module")
def module_server(transport: str) -> Iterator[RespServer]:
    lookups = ScriptedLookups(values=dict(VALUES), unavailable={"away", "gone"}, delays={"late": 0.02})
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


def connection_of(server: RespServer) -> RedisClientConnection:
    (connection,) = server.front._connections
    assert isinstance(connection, RedisClientConnection)
    return connection


def test_who_sends_much_is_read_no_further_before_others_had_their_turn(
    server: RespServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    receive = RedisClientConnection.data_received

    def watch(connection: RedisClientConnection, data: bytes) -> None:
        before = connection._turn_bytes
        receive(connection, data)
        seen.append((before + len(data), connection._is_paused))

    monkeypatch.setattr(RedisClientConnection, "data_received", watch)
    with server.connect() as client:
        client.send(command("MGET", *["k" * 60] * 10_000))
        assert "too many keys: 10000" in str(client.reply())
    assert any(size >= TURN_BYTES for size, _ in seen)
    assert all(is_paused for size, is_paused in seen if size >= TURN_BYTES)


class TestLookups:
    def test_one_key(self, client: RespClient) -> None:
        assert client.ask("GET", "a") == b"1"
        assert client.ask("get", "b") == b'{"x": 2}'
        assert client.ask("GET", "é") == b"3"
        assert client.ask("GET", "empty") == b""
        assert client.ask("GET", "nowhere") is None
        assert client.ask("GET", "big") == BIG

    @pytest.mark.parametrize("key", [b"", b"\xff", b"a\xc3", b"x" * 512, b"x" * 100_000, b"   "])
    def test_keys_that_no_record_can_have_are_missing(self, client: RespClient, key: bytes) -> None:
        assert client.ask("GET", key) is None
        assert client.ask("MGET", "a", key, "b") == [b"1", None, b'{"x": 2}']
        assert client.ask("EXISTS", key, "a") == 1

    def test_many_keys(self, client: RespClient) -> None:
        assert client.ask("MGET", "a", "nowhere", "b", "a", "big") == [b"1", None, b'{"x": 2}', b"1", BIG]
        assert client.ask("MGET", "a") == [b"1"]
        assert client.ask("EXISTS", "a", "a", "nowhere", "b") == 3

    def test_unavailable_is_an_error_and_never_nil(self, client: RespClient) -> None:
        reason = "UNAVAILABLE Unreachable shard 1: no endpoint of 2 answers"
        assert str(client.ask("GET", "away")) == reason
        assert str(client.ask("MGET", "a", "away", "nowhere")) == reason
        assert str(client.ask("MGET", "away", "gone")) == reason
        assert "2 of 3 keys requested together cannot be looked up now" in str(client.ask("MGET", "away", "gone", "a"))
        assert str(client.ask("EXISTS", "a", "away")) == reason
        for _ in range(3):
            assert isinstance(client.ask("GET", "away"), hiredis.ReplyError)
        assert client.ask("GET", "a") == b"1"

    def test_pipelined_gets_leave_together_and_are_answered_in_order(
        self, server: RespServer, client: RespClient
    ) -> None:
        keys = ["a", "nowhere", "away", "b", "é", "gone"]
        client.send(b"".join(command("GET", key) for key in keys))
        found = client.replies(len(keys))
        assert server.lookups.batches == [keys]
        assert [value for value in found if not isinstance(value, hiredis.ReplyError)] == [
            *(b"1", None),
            *(b'{"x": 2}', b"3"),
        ]
        assert "2 of 6 keys" in str(found[2])
        assert str(found[5]).startswith("UNAVAILABLE Unreachable")

    def test_when_all_pipelined_keys_are_unavailable_each_is_an_error(self, client: RespClient) -> None:
        client.send(command("GET", "away") * 3 + command("GET", "a"))
        assert [str(reply)[:11] for reply in client.replies(3)] == ["UNAVAILABLE"] * 3
        assert client.reply() == b"1"

    def test_a_pipeline_of_a_thousand(self, server: RespServer, client: RespClient) -> None:
        keys = [("a", "b", "nowhere", "é")[number % 4] for number in range(1000)]
        client.send(b"".join(command("GET", key) for key in keys))
        assert client.replies(1000) == [VALUES.get(key) for key in keys]
        assert max(map(len, server.lookups.batches)) <= GROUP_KEYS

    def test_whatever_is_pipelined_is_answered_in_order(self, client: RespClient) -> None:
        words = [
            ("GET", "a"),
            ("PING",),
            ("MGET", "a", "b"),
            ("GET", "b"),
            ("GET", "é"),
            ("EXISTS", "a"),
            ("ECHO", "x"),
        ]
        client.send(b"".join(command(*part) for part in words) * 20)
        once: list[Any] = [b"1", b"PONG", [b"1", b'{"x": 2}'], b'{"x": 2}', b"3", 1, b"x"]
        assert client.replies(20 * len(words)) == once * 20

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 21])
    def test_commands_in_any_pieces(self, client: RespClient, size: int) -> None:
        data = command("GET", "a") + command("MGET", "a", "b") + b"PING\r\n" + command("get", "é") + command("GET", "a")
        client.send(*(data[at : at + size] for at in range(0, len(data), size)))
        assert client.replies(5) == [b"1", [b"1", b'{"x": 2}'], b"PONG", b"3", b"1"]

    def test_raw_and_json_values_are_the_bytes_that_they_are(self, client: RespClient) -> None:
        assert client.ask("MGET", "b", "big") == [b'{"x": 2}', BIG]

    def test_commands_wait_for_the_one_before(self, server: RespServer, client: RespClient) -> None:
        server.lookups.held.add("held")
        client.send(command("GET", "held"))
        eventually(lambda: server.lookups.asked)
        client.send(command("GET", "a") + command("MGET", "a", "b"), command("PING"))
        assert client.silent()
        assert server.lookups.batches == []
        server.call(server.lookups.release)
        assert client.replies(4) == [b"4", b"1", [b"1", b'{"x": 2}'], b"PONG"]

    def test_a_client_is_read_on_after_what_waited(self, server: RespServer, client: RespClient) -> None:
        """Commands that came in the meantime are answered in later turns of the loop, and none is left."""
        server.lookups.held.add("held")
        client.send(command("GET", "held"))
        eventually(lambda: server.lookups.asked)
        client.send(command("MGET", "a", "b") + command("GET", "late"))
        eventually(lambda: server.call(lambda: connection_of(server)._is_paused))
        server.call(server.lookups.release)
        assert client.replies(3) == [b"4", [b"1", b'{"x": 2}'], b"5"]
        assert client.ask("GET", "a") == b"1"


class TestLimits:
    def test_too_many_keys_are_an_error_and_the_connection_stays(self, client: RespClient) -> None:
        for name in ("MGET", "EXISTS", "mget"):
            message = str(client.ask(name, *["a"] * 101))
            assert message == "ERR too many keys: 101, the limit is 100; send them in several commands"
        assert len(client.ask("MGET", *["a"] * 100)) == 100

    def test_a_command_of_too_many_bytes_closes_the_connection(self, client: RespClient) -> None:
        client.send(command("ECHO", b"x" * ((1 << 20) + 1))[: 1 << 19])
        assert client.refusal() == "ERR Protocol error: invalid bulk length"
        assert client.ended()

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"*1\r\nPING\r\n", "ERR Protocol error: expected '$', got 'P'"),
            (b"*1000000000\r\n", "ERR Protocol error: invalid multibulk length"),
            (b"*2\r\n$3\r\nGET\r\n$-5\r\n", "ERR Protocol error: invalid bulk length"),
            (b"*2\r\n$3\r\nGET\r\n:1\r\n", "ERR Protocol error: expected '$', got ':'"),
            (b"x" * 70_000, "ERR Protocol error: too big inline request"),
            (b"GET 'a\r\n", "ERR Protocol error: unbalanced quotes in request"),
        ],
    )
    def test_what_is_no_resp_is_answered_after_what_came_before_and_closes(
        self, server: RespServer, client: RespClient, data: bytes, message: str
    ) -> None:
        before = server.count("requests_refused")
        client.send(command("GET", "a") * 3 + data)
        assert client.replies(3) == [b"1"] * 3
        assert client.refusal() == message
        assert client.ended()
        assert server.count("requests_refused") == before + 1

    def test_inline_commands_are_for_people(self, client: RespClient) -> None:
        client.send(b"PING\r\n", b"get a\r\n", b"\r\n", b'MGET a "b"\n', b"ping 'hello there'\r\n")
        assert client.replies(4) == [b"PONG", b"1", [b"1", b'{"x": 2}'], b"hello there"]

    def test_a_client_of_http_is_told_errors(self, client: RespClient) -> None:
        client.send(b"GET /v1/lookup/a HTTP/1.1\r\nHost: router\r\n\r\n")
        assert client.refusal() == "ERR wrong number of arguments for 'get' command"
        assert client.refusal().startswith("ERR unknown command 'Host:'")

    def test_values_that_are_too_many_bytes_together(self) -> None:
        """An MGET of them is refused; GETs are answered one by one."""
        large = b"v" * 5_000_000
        lookups = ScriptedLookups(values={"large": large, "a": b"1"}, unavailable={"away"})
        lookups.budget.answer_bytes = 8_000_000
        with serving_resp(lookups) as server, server.connect() as client:
            message = str(client.ask("MGET", "large", "large"))
            assert message.startswith("ERR the values are more than 8000000 bytes together")
            keys = ["large", "nowhere", "large", "away", "large", "a"]
            client.send(b"".join(command("GET", key) for key in keys) + command("PING"))
            found = client.replies(7)
            assert found[:3] + found[4:] == [large, None, large, large, b"1", b"PONG"]
            assert str(found[3]).startswith("UNAVAILABLE Unreachable")
            eventually(lambda: lookups.budget.used == 0)

    def test_gets_of_which_each_is_answered_at_once_do_not_nest(self) -> None:
        lookups = ScriptedLookups(values={"large": b"v" * 600})
        lookups.budget.answer_bytes = 1000
        with serving_resp(lookups) as server, server.connect() as client:
            client.send(command("GET", "large") * GROUP_KEYS)
            assert client.replies(GROUP_KEYS) == [b"v" * 600] * GROUP_KEYS


class TestOthersTurn:
    def test_what_is_answered_at_once_leaves_the_others_their_turn(
        self, server: RespServer, client: RespClient
    ) -> None:
        client.ask("PING")

        def receive() -> tuple[bool, bool, int]:
            connection = connection_of(server)
            connection.data_received(command("PING") * 1000)
            return connection._is_resting, connection._reader.has_unread, server.count_commands()

        before = server.count_commands()
        assert server.call(receive) == (True, True, before + TURN_COMMANDS)
        assert client.replies(1000) == [b"PONG"] * 1000

    def test_a_client_that_takes_nothing_is_not_answered_any_more(self, server: RespServer) -> None:
        with server.connect(receive_buffer=4096) as client:
            sender = threading.Thread(target=_send_for_ever, args=(client.raw,))
            sender.start()
            try:

                def measure() -> tuple[bool, int, int]:
                    connection = connection_of(server)
                    is_at_rest = connection.is_blocked and connection._exchange is None
                    unsent = connection._transport.get_write_buffer_size()
                    return is_at_rest, unsent, server.lookups.budget.used

                eventually(lambda: server.front._connections and server.call(measure)[0])
                _, unsent, used = server.call(measure)
                assert unsent <= HIGH_WATER_BYTES + GROUP_KEYS * (len(BIG) + 200)
                assert used >= unsent
            finally:
                getattr(client.raw, "raw", client.raw).shutdown(socket.SHUT_RDWR)  # no close_notify: it is not read
                sender.join()

    def test_a_client_that_takes_its_replies_late_gets_all_of_them(
        self, server: RespServer, client: RespClient
    ) -> None:
        client.send(command("GET", "big") * 300 + command("PING") * 300 + command("MGET", "big", "a"))
        time.sleep(0.1)
        assert client.replies(300) == [BIG] * 300
        assert client.replies(300) == [b"PONG"] * 300
        assert client.reply() == [BIG, b"1"]


def _send_for_ever(raw: socket.socket) -> None:
    try:
        while True:
            raw.sendall(command("GET", "big") * 100)
    except OSError:
        return


class TestEnds:
    def test_quit(self, client: RespClient) -> None:
        client.send(command("GET", "a") + command("QUIT") + command("GET", "b"))
        assert client.replies(2) == [b"1", b"OK"]
        assert client.ended()

    def test_a_client_that_sends_no_more_gets_what_is_due(self, server: RespServer, client: RespClient) -> None:
        server.lookups.held.add("held")
        client.send(command("GET", "held") + command("GET", "a") * 2 + command("PING")).half_close()
        eventually(lambda: server.lookups.batches)
        server.call(server.lookups.release)
        assert client.replies(4) == [b"4", b"1", b"1", b"PONG"]
        assert client.ended()

    def test_the_end_in_the_middle_of_a_command(self, client: RespClient) -> None:
        client.send(command("GET", "a") + command("GET", "b")[:-3]).half_close()
        assert client.reply() == b"1"
        assert client.refusal() == "ERR Protocol error: the connection ended in the middle of a request"
        assert client.ended()

    def test_a_client_that_is_gone_leaves_nothing(self, server: RespServer, client: RespClient) -> None:
        server.lookups.held.add("held")
        client.send(command("GET", "held") * 3)
        eventually(lambda: server.lookups.batches)
        client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        eventually(lambda: server.count("connections") == 0)
        assert server.lookups.budget.used == 0

    @pytest.mark.parametrize("part", [command("GET", "a")[:-1], b"PIN", command("ECHO", "x" * 1000)[:500], b"*"])
    def test_a_command_that_is_not_whole_in_time(self, part: bytes) -> None:
        with (
            serving_resp(ScriptedLookups(values=dict(VALUES)), header_timeout_seconds=0.2) as server,
            server.connect() as client,
        ):
            client.send(command("GET", "a") + part)
            assert client.reply() == b"1"
            assert client.refusal() == "ERR Protocol error: no complete request within 0.2 seconds"
            assert client.ended()
            assert server.count("clients_timed_out") == 1

    def test_an_idle_client_is_closed(self) -> None:
        with (
            serving_resp(ScriptedLookups(values=dict(VALUES)), idle_timeout_seconds=0.3) as server,
            server.connect() as client,
        ):
            assert client.ask("GET", "a") == b"1"
            assert client.ended()

    def test_a_slow_reader_is_cut_off(self) -> None:
        lookups = ScriptedLookups(values={"huge": b"v" * 20_000_000})
        with serving_resp(lookups, write_timeout_seconds=0.3) as server, server.connect(receive_buffer=4096) as client:
            client.send(command("GET", "huge"))
            eventually(lambda: server.count("clients_timed_out") == 1)
            eventually(lambda: lookups.budget.used == 0)

    def test_an_error_in_a_lookup_core_is_no_wrong_answer(self) -> None:
        """A lookup that never ends gets no answer: its connection waits, but others do not."""

        class Silent(ScriptedLookups):
            def find(self, key: str, waiter: Waiter, generation: str | None = None, **options: Any) -> None:
                if key != "silent":
                    super().find(key, waiter, generation)

        with serving_resp(Silent(values=dict(VALUES))) as server, server.connect() as client, server.connect() as other:
            client.send(command("GET", "silent") + command("GET", "a"))
            assert other.ask("GET", "a") == b"1"


class TestDrain:
    def test_the_next_reply_is_the_last(self) -> None:
        with (
            serving_resp(ScriptedLookups(values=dict(VALUES))) as server,
            server.connect() as client,
            server.connect() as other,
        ):
            assert client.ask("GET", "a") == b"1"
            assert other.ask("PING") == b"PONG"
            server.call(server.front.drain)
            assert client.ask("GET", "a") == b"1"
            assert client.ended()
            other.send(command("GET", "a") * 20 + command("MGET", "a", "b"))
            assert other.replies(21)[-1] == [b"1", b'{"x": 2}']
            assert other.ended()

    def test_what_is_in_flight_is_answered_before_the_front_closes(self) -> None:
        lookups = ScriptedLookups(values=dict(VALUES), held={"held"})
        with serving_resp(lookups) as server, server.connect() as client, server.connect() as idle:
            idle.ask("PING")
            client.send(command("GET", "held") + command("GET", "a"))
            eventually(lambda: lookups.batches)
            closing = threading.Thread(target=lambda: server.call(lambda: server.front.close(20)))
            closing.start()
            assert idle.ended()
            server.call(lookups.release)
            assert client.replies(2) == [b"4", b"1"]
            assert client.ended()
            closing.join()


class TestBudget:
    def test_beyond_the_budget_single_keys_are_refused_and_the_connection_stays(
        self, server: RespServer, client: RespClient
    ) -> None:
        """The lookup core refuses them; the front's own input is not counted here."""
        assert client.ask("GET", "a") == b"1"
        budget = server.lookups.budget
        server.call(lambda: budget.take(budget.limit + 1))
        try:
            assert client.ask("GET", "a") == b"1"  # scripted lookups have no bound
            assert client.ask("PING") == b"PONG"
        finally:
            server.call(lambda: budget.release(budget.limit + 1))

    def test_beyond_the_budget_what_is_not_whole_is_refused_and_closed(
        self, server: RespServer, client: RespClient
    ) -> None:
        budget, before = server.lookups.budget, server.count("requests_overloaded")
        assert client.ask("PING") == b"PONG"
        server.call(lambda: budget.take(budget.limit + 1))
        try:
            client.send(command("MGET", "a" * 100)[:50])
            assert client.refusal().startswith("UNAVAILABLE Overloaded")
            assert client.ended()
        finally:
            server.call(lambda: budget.release(budget.limit + 1))
        assert server.count("requests_overloaded") == before + 1

    def test_what_comes_behind_a_command_under_way_is_counted(self, server: RespServer, client: RespClient) -> None:
        server.lookups.held.add("held")
        client.send(command("GET", "held"))
        eventually(lambda: server.lookups.asked)
        client.send(command("GET", "a") * 1000)
        eventually(lambda: server.lookups.budget.used >= 20_000)
        server.call(server.lookups.release)
        assert client.replies(1001)[0] == b"4"


class TestCounters:
    def test_commands_and_errors(self, server: RespServer, client: RespClient) -> None:
        before = server.count_commands(), server.count("resp_errors")
        client.send(command("GET", "a") * 5 + command("MGET", "a", "b") + command("PING") + command("GET", "away") * 2)
        client.replies(9)
        client.ask("SET", "a", "b")
        client.ask("MGET", "away")
        client.ask("GET")
        assert server.count_commands() - before[0] == 12
        assert server.count("resp_errors") - before[1] == 5
