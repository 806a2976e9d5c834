"""A connection to a shard server: what it reads in which state, and when it is closed; how a name is resolved."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
import uvloop
from support.routing import identity
from support.scripted_shard import ScriptedShard
from support.waiting import soon

from lookupdb.router.budget import RouterBudget
from lookupdb.router.server_connection import (
    LARGE_REPLY_BYTES,
    PROOF_BYTES,
    READ_BYTES,
    SURPLUS,
    Reading,
    ServerAddress,
    ServerConnection,
)

LARGE = b"x" * (LARGE_REPLY_BYTES + 1)
TRANSITIONS = {
    (Reading.PROVING, Reading.REPLIES),  # the server has proven itself
    (Reading.REPLIES, Reading.ELEMENTS),  # a reply is too large for hiredis
    (Reading.ELEMENTS, Reading.REPLIES),  # the large reply is complete
    (Reading.REPLIES, Reading.END),  # a reply that ends with a full piece is complete
    (Reading.END, Reading.REPLIES),  # nothing follows it
    *((reading, Reading.CLOSED) for reading in Reading if reading is not Reading.CLOSED),
}


class Watched(ServerConnection):
    """A connection that checks its transitions against the table, and its invariants after each event."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "reading" and hasattr(self, "reading") and value is not self.reading:
            assert (self.reading, value) in TRANSITIONS
        super().__setattr__(name, value)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.check()

    def check(self) -> None:
        reading = self.reading
        assert (self.sink is None) <= (reading in (Reading.PROVING, Reading.CLOSED))
        assert (self._elements is not None) == (reading is Reading.ELEMENTS)
        assert not self._chunks or reading in (Reading.PROVING, Reading.REPLIES)
        assert bool(self._counted) == (bool(self._chunks) and reading is Reading.REPLIES)


class Wire:
    """A connection without a socket, its user and its other end."""

    def __init__(self, budget_bytes: int = 256 << 20) -> None:
        self.budget = RouterBudget(budget_bytes)
        self.replies: list[Any] = []
        self.written = b""
        self.closed: list[str] = []
        self.asked = 0
        self.connection = Watched(self._on_reply, self.closed.append, self.budget)
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def used(self) -> Wire:
        """After the server has proven itself."""
        self.connection.use(self._on_reply, self)
        return self

    def _on_reply(self, reply: Any) -> None:
        is_whole = type(reply).__name__ == "ShardReply"
        self.replies.append(list(reply) if is_whole else reply)

    def receive(self, data: bytes, step: int = 1 << 30) -> None:
        for start in range(0, len(data), step):
            self.connection.data_received(data[start : start + step])

    async def receive_now(self, *pieces: bytes) -> None:
        """Receive all ``pieces`` within one turn of the loop."""
        for piece in pieces:
            self.receive(piece)

    # A transport.

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str) -> Wire:
        return self

    def setsockopt(self, *option: int) -> None:
        pass

    # A sink.

    def expected_keys(self) -> int:
        return self.asked

    def accept(self, index: int, size: int) -> bool:
        return True


class TestProving:
    def test_what_the_server_says_of_itself_is_read(self) -> None:
        wire = Wire()
        wire.receive(b"$3\r\nabc\r\n", step=2)
        assert wire.replies == [b"abc"]
        assert wire.connection.reading is Reading.PROVING

    def test_but_not_for_ever(self) -> None:
        wire = Wire()
        wire.receive(b"$1000000\r\n" + b"x" * PROOF_BYTES, step=1000)
        assert wire.closed == [f"sent more than {PROOF_BYTES} bytes about what it serves"]
        assert wire.budget.used == 0

    def test_what_announces_more_than_a_value_is_refused_before_there_is_room_for_it(self) -> None:
        for kind in "*>~%|_(#,=!":
            for pieces in ((f"{kind}200000000\r",), (kind, "2", "00000000\r")):
                wire = Wire()
                for piece in pieces:
                    wire.receive(piece.encode())
                    if wire.closed:
                        break
                assert wire.closed
                assert wire.connection.received <= 11, "hiredis makes room for as much as a whole line announces"


class TestReplies:
    def test_they_come_in_order_however_they_are_cut(self) -> None:
        for step in (1, 3, 1000):
            wire = Wire().used()
            wire.asked = 2
            wire.receive(b"*2\r\n$1\r\na\r\n$-1\r\n", step)
            wire.receive(b"*2\r\n$1\r\nb\r\n$-1\r\n", step)
            assert wire.replies == [[b"a", None], [b"b", None]]
            assert wire.budget.used == 0
            assert wire.connection.received == 32

    def test_what_has_come_of_one_is_counted_until_it_is_whole_or_never_will_be(self) -> None:
        for end in (b"a\r\n", None):
            wire = Wire().used()
            wire.asked = 1
            wire.receive(b"$1001\r\n" + b"a" * 1000)
            assert wire.budget.used == 2 * 1007
            if end is None:
                wire.connection.close("enough")
            else:
                wire.receive(end)
            assert wire.budget.used == 0

    def test_what_is_not_resp_or_not_what_was_asked_for_closes_the_connection(self) -> None:
        for data in (b"HTTP/1.1 400\r\n", b"*3\r\n$1\r\na\r\n", b"*4000000000\r\n"):
            wire = Wire().used()
            wire.asked = 2
            wire.receive(data)
            assert wire.closed[0].startswith("answered something other than RESP")
            assert not wire.replies

    def test_a_list_within_a_list_closes_it_before_there_is_room_for_it(self) -> None:
        for kind in "*>~%|":
            for first in (b"", b"$1\r\na\r\n", b"-ERR damaged\r\n"):
                for step in (1, 5, 1000):
                    wire = Wire().used()
                    wire.asked = 2
                    wire.receive(b"*2\r\n" + first + f"{kind}200000000\r\n".encode(), step)
                    assert wire.closed == ["answered something other than RESP: an element that is not a value"]
                    assert not wire.replies
                    assert wire.budget.used == 0

    def test_a_value_that_looks_like_one_is_a_value(self) -> None:
        for step in (1, 5, 1000):
            first, last = b"a\n*1\r\n>2\r\n", b"\n%"
            wire = Wire().used()
            wire.asked = 3
            wire.receive(b"*3\r\n" + bulk(first) + b"$-1\r\n" + bulk(last), step)
            assert wire.replies == [[first, None, last]]
            assert wire.budget.used == 0

    def test_a_list_of_another_length_is_refused_however_it_is_cut(self) -> None:
        for pieces in ((b"*2", b"00000000\r\n"), (b"*", b"200000000\r\n"), (b"*2\r", b"x\r\n")):
            wire = Wire().used()
            wire.asked = 2
            for piece in pieces:
                wire.receive(piece)
            assert wire.closed[0].startswith("answered something other than RESP")
            assert wire.budget.used == 0

    def test_what_a_server_says_is_not_quoted_when_values_are_asked_for(self) -> None:
        for data in (b"secret\r\n", b"*2\r\n$secret\r\n", b"*2\r\n*secret\r\n", b"*9secret\r\n"):
            wire = Wire().used()
            wire.asked = 2
            wire.receive(data)
            assert "secret" not in wire.closed[0]


class TestElements:
    @pytest.mark.parametrize("step", [100_000, 1 << 30])
    def test_a_large_reply_is_read_value_by_value_and_then_replies_again(self, step: int) -> None:
        wire = Wire().used()
        wire.asked = 2
        wire.receive(b"*2\r\n$%d\r\n%b\r\n$1\r\na" % (len(LARGE), LARGE), step)
        assert wire.connection.reading is Reading.ELEMENTS
        assert wire.budget.used == 0, "its values are their lookups' to count"
        wire.receive(b"\r\n")
        assert wire.replies == [[LARGE, b"a"]]
        wire.receive(b"*2\r\n$-1\r\n$-1\r\n")
        assert wire.replies[1:] == [[None, None]]

    def test_so_is_one_for_which_the_budget_has_no_room(self) -> None:
        wire = Wire(budget_bytes=100).used()
        wire.asked = 1
        wire.receive(b"$1000\r\n" + b"a" * 999)
        assert wire.connection.reading is Reading.ELEMENTS

    def test_what_nobody_asked_for_is_not_read(self) -> None:
        wire = Wire(budget_bytes=100).used()
        wire.receive(b"$1000\r\n" + b"a" * 999)
        assert wire.closed == ["sent more than was requested"]


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def full(head: bytes, tail: bytes = b"") -> bytes:
    """A reply of READ_BYTES that has a large value between ``head`` and ``tail``."""
    size = READ_BYTES - len(head) - len(tail) - len(bulk(b"")) - len(str(READ_BYTES)) + 1
    reply = head + bulk(b"x" * size) + tail
    assert len(reply) == READ_BYTES
    return reply


WHOLE = {
    "a value": (1, [b"$1\r\na\r\n"]),
    "no value": (1, [b"$-1\r\n"]),
    "an error": (2, [b"-ERR damaged\r\n"]),
    "a list": (2, [b"*2\r\n$1\r\na\r\n$-1\r\n"]),
    "a list with an error": (2, [b"*2\r\n$1\r\na\r\n-ERR damaged\r\n"]),
    "a value in pieces": (1, [b"$1\r\n", b"a\r\n"]),
    "a list in pieces": (2, [b"*2\r\n$1\r\na\r", b"\n$-1\r\n"]),
    "a large value": (1, [bulk(LARGE)[:-2], b"\r\n"]),
    "a large list": (2, [b"*2\r\n" + bulk(LARGE) + b"$1\r\na", b"\r\n"]),
}
"""The number of keys requested, and the pieces of a reply."""
FOLLOWING = {
    "the same again": None,
    "a value": b"$5\r\nWRONG\r\n",
    "a list": b"*3\r\n" + 3 * b"$5\r\nWRONG\r\n",
    "a part of a value": b"$5\r\nWR",
    "the head of a list": b"*3\r\n",
    "one byte": b"$",
}
FULL = {
    "a value": full(b""),
    "a list": full(b"*2\r\n", b"$1\r\na\r\n"),
    "a list with an error": full(b"*2\r\n", b"-ERR damaged\r\n"),
}


class TestSurplus:
    """Bytes that come before a request are no reply to it. A user may send its next request during a callback."""

    @staticmethod
    def asking_again() -> Wire:
        """Its user asks for three keys in the callback of a reply."""
        wire = Wire()

        def ask_again(reply: Any) -> None:
            wire.replies.append(reply)
            wire.asked = 3

        wire.connection.use(ask_again, wire)
        return wire

    def test_it_ends_the_connection_and_the_reply_before_it_is_not_told(self) -> None:
        for kind in WHOLE:
            for following in FOLLOWING:
                wire = self.asking_again()
                wire.asked, pieces = WHOLE[kind]
                for piece in pieces[:-1]:
                    wire.receive(piece)
                wire.receive(pieces[-1] + (FOLLOWING[following] or b"".join(pieces)))
                assert wire.replies == []
                assert len(wire.closed) == 1
                assert wire.budget.used == 0

    def test_a_part_of_what_nobody_asked_for_is_not_kept_for_what_is_asked_next(self) -> None:
        for part in (b"$5\r\nWR", b"*", b"*0", b"$", b"+"):
            wire = Wire().used()
            wire.receive(part)
            assert wire.closed == [SURPLUS]

    @pytest.mark.parametrize("kind", FULL)
    async def test_within_the_turn_in_which_a_full_piece_ended_a_reply(self, kind: str) -> None:
        wire = self.asking_again()
        wire.asked = 1 if kind == "a value" else 2
        wire.receive(FULL[kind])
        wire.receive(b"*3\r\n" + 3 * b"$5\r\nWRONG\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (wire.replies, wire.closed) == ([], [SURPLUS])

    @pytest.mark.parametrize("kind", FULL)
    async def test_where_nothing_follows_a_full_piece_its_reply_is_told(self, kind: str) -> None:
        wire = Wire().used()
        wire.asked = 1 if kind == "a value" else 2
        wire.receive(FULL[kind])
        await soon(lambda: wire.replies, "the reply is delivered")
        wire.asked = 1
        wire.receive(b"$1\r\nb\r\n")
        assert wire.replies[1:] == [b"b"]
        assert wire.closed == []

    @pytest.mark.parametrize("kind", FULL)
    async def test_where_the_connection_ends_behind_a_full_piece_its_reply_is_told_and_once(self, kind: str) -> None:
        wire = Wire().used()
        wire.asked = 1 if kind == "a value" else 2
        wire.receive(FULL[kind])
        wire.connection.connection_lost(None)
        assert (len(wire.replies), len(wire.closed)) == (1, 1)
        for _ in range(4):
            await asyncio.sleep(0)
        assert len(wire.replies) == 1

    async def test_the_same_of_a_large_reply_and_of_one_in_pieces(self) -> None:
        for size in (READ_BYTES, LARGE_REPLY_BYTES):
            wire = Wire().used()
            wire.asked = 2
            reply = b"*2\r\n" + bulk(b"x" * size) + bulk(b"x" * size)
            wire.receive(reply[:-READ_BYTES])
            wire.receive(reply[-READ_BYTES:])
            assert wire.connection.reading is Reading.END
            wire.receive(reply[:100])
            assert (wire.replies, wire.closed, wire.budget.used) == ([], [SURPLUS], 0)

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def test_what_has_come_by_then_is_seen_whatever_a_loop_reads_at_once(self, run: Any) -> None:
        """A reply that ends where a read ends, and the surplus waits in the socket."""
        closed, replies, sizes = run(self._read_full())
        assert sizes[0] >= READ_BYTES, f"the loop reads {sizes[0]} bytes at once: READ_BYTES must not be more"
        assert (closed, replies) == ([SURPLUS], [])

    @staticmethod
    async def _read_full() -> tuple[list[str], list[Any], list[int]]:
        wire, sizes = Wire(), []

        class Sized(ServerConnection):
            def data_received(self, data: bytes) -> None:
                sizes.append(len(data))
                super().data_received(data)

        loop = asyncio.get_running_loop()
        ours, shard = socket.socketpair()
        shard.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * READ_BYTES)
        connection = Sized(wire._on_reply, wire.closed.append, wire.budget)
        await loop.create_connection(lambda: connection, sock=ours)
        connection.use(wire._on_reply, wire)
        with shard:
            shard.setblocking(False)
            size = 256_000 if type(loop).__module__.startswith("uvloop") else 256 * 1024
            value = b"x" * (size - len(bulk(b"")) - 5)
            wire.asked = 1
            shard.send(bulk(value) + b"$5\r\nWRONG\r\n")
            await soon(lambda: wire.closed or wire.replies, "it has been read")
        connection.close("done")
        return wire.closed, wire.replies, sizes


class TestClosed:
    @pytest.mark.parametrize("reading", [reading for reading in Reading if reading is not Reading.CLOSED])
    def test_it_says_why_once_and_holds_nothing(self, reading: Reading) -> None:
        wire = Wire()
        if reading is not Reading.PROVING:
            wire.used()
        if reading is Reading.ELEMENTS:
            wire.asked = 1
            wire.receive(b"$%d\r\n%b" % (len(LARGE), LARGE))
        if reading is Reading.END:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(wire.receive_now(FULL["a value"]))
            loop.close()
        assert wire.connection.reading is reading
        wire.connection.close("enough")
        wire.connection.close("once more")
        wire.connection.connection_lost(None)
        wire.receive(b"$1\r\na\r\n")
        assert (wire.closed, wire.replies, wire.budget.used) == (["enough"], [], 0)
        assert wire.connection.reading is Reading.CLOSED

    def test_one_that_breaks_says_why(self) -> None:
        wire = Wire().used()
        wire.connection.connection_lost(ConnectionResetError("reset"))
        assert wire.closed == ["connection lost: reset"]


NOWHERE = ServerAddress("no such host", 7000)


async def _open(address: ServerAddress) -> ServerConnection:
    return await ServerConnection.open(address, lambda reply: None, lambda why: None, RouterBudget(1 << 20))


class TestOpen:
    async def test_a_name_is_connected_to_by_whichever_of_its_addresses_answers(self) -> None:
        async with ScriptedShard(identity(), {}) as shard:  # listens on 127.0.0.1, localhost may be ::1 too
            connection = await _open(ServerAddress("localhost", shard.address.port))
            connection.close("done")

    @pytest.mark.parametrize("host", [NOWHERE.host, "x" * 64 + ".svc"])
    async def test_a_name_that_is_none_is_an_address_that_cannot_be_connected_to(self, host: str) -> None:
        with pytest.raises(OSError, match=r"not known|resolution|cannot be a name|No address"):
            await _open(ServerAddress(host, 7000))

    async def test_a_resolver_that_answers_too_late_is_not_heard(self) -> None:
        unheard: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await _open(NOWHERE)
        with pytest.raises(socket.gaierror):
            await _open(NOWHERE)  # resolvers answer in turn: the first one has by now
        gc.collect()
        await asyncio.sleep(0)
        assert unheard == []
