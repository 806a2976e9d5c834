"""One client's connection off the hot path: bytes in, replies out, within limits; and all that ends it.

A turn of the loop answers lookups (``turn``); what it does not take comes here. Lookups alone, with nothing under way,
are for ``KeyReplies.answer``. Anything else, and what a client does not read, becomes an iterator of replies, which
``_send_replies`` sends and stops at: memory is bounded by ``output_high`` and one value, whatever is asked, and no
client keeps the others waiting for longer than its time slice.

``RespState`` says what a connection may do next, ``TRANSITIONS`` where it goes from there, and why. These end it:

| what | where | how |
| --- | --- | --- |
| the client closes, or only ends its own stream | ``_read`` → ``_end_of_stream`` | its requests are answered first |
| it is gone in both directions, or a read or write fails | ``handle_events``, ``_read``, ``_send``… | at once |
| QUIT, or bytes that are not RESP | ``_make_replies`` sets ``session.is_closing`` | after the replies |
| the worker ends | ``drain``, then ``end`` | after the next reply, or when none is due |
| the client is still there 2 s after that (``LINGER_SECONDS``) | ``worker._drain`` → ``close`` | at once |
| no password, no request, or no replies taken for too long | ``sweep`` → ``cut`` | at once |
| all clients together hold too much, or another client needs its place before AUTH | ``cut`` | at once |
| an error in the server | ``close``, by the loop | at once |
"""

from __future__ import annotations

import enum
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from lookupdb.resp.requests import ProtocolError, RequestParser, bulk, error, list_keys, may_look_up
from lookupdb.shard import limits
from lookupdb.shard import limits as shard_counters
from lookupdb.shard.commands import Session, WorkerContext, execute
from lookupdb.shard.limits import READ_BYTES, TIME_SLICE_SECONDS

# Replies on their way to one client: what it has not taken yet is kept, and too much of that pauses the client.


class ReplyOutput:
    """Writes to the non-blocking socket ``fd``. Every method may raise OSError: the client is gone."""

    __slots__ = ("_fd", "_slot", "is_paused", "unsent")

    def __init__(self, fd: int, slot: memoryview) -> None:
        self._fd = fd
        self._slot = slot
        self.unsent = bytearray()
        self.is_paused = False
        """Whether too much is unsent to read and answer any more."""

    def send(self, data: bytes, high: int) -> None:
        """Write ``data``, now or when the client takes it. More than ``high`` unsent pauses the client."""
        try:
            sent = 0 if self.unsent else os.write(self._fd, data)
        except BlockingIOError:
            sent = 0
        self._slot[limits.SENT_BYTES] += sent
        if sent != len(data):
            self.keep_unsent(data, sent, high)

    def keep_unsent(self, data: bytes, sent: int, high: int) -> None:
        """Keep what the client has not taken of ``data``: all but the first ``sent`` bytes."""
        self.unsent += memoryview(data)[sent:]
        self._slot[limits.SENT_BYTES] += len(data) - sent
        if len(self.unsent) > high:
            self.is_paused = True

    def flush(self, high: int) -> None:
        """Write what is unsent. The client may go on when no more than half of ``high`` remains."""
        try:
            del self.unsent[: os.write(self._fd, self.unsent)]
        except BlockingIOError:
            return
        if len(self.unsent) <= high // 2:
            self.is_paused = False


# The sockets that the worker waits for, by one epoll, and the clients that the hot path may answer.


READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
"""The client is gone, in both directions."""

BUSY: Final = 0
"""Not for the hot path: no client, or one with a request or replies under way."""
IDLE: Final = 1
"""Its next bytes begin a request, and it has asked nothing since the last sweep."""
ACTIVE: Final = 2
"""Its next bytes begin a request."""


class Poller:
    """Level-triggered: the next poll reports again what an event leaves unread or unwritten."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.fast_path = bytearray()
        """By file descriptor: BUSY, IDLE or ACTIVE."""
        self.protocols = bytearray()
        """By file descriptor: which version of RESP a client on the hot path speaks."""
        self.park: Callable[[Any], None] | None = None
        """While data is cold, no client is for the hot path: its connection gives itself to this, which reads what is
        needed for what it has ``parked``, and is called back by ``unpark``."""

    def add(self, fd: int) -> None:
        """Wait for ``fd`` to be readable."""
        missing = fd + 1 - len(self.fast_path)
        if missing > 0:
            self.fast_path += bytes(missing)  # BUSY
            self.protocols += bytes(missing)
        self.epoll.register(fd, READ)

    def change(self, fd: int, events: int) -> None:
        """Wait for ``events`` of ``fd``. ``BROKEN`` is always reported."""
        self.epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop waiting for ``fd``, which is still open."""
        self.fast_path[fd] = BUSY
        self.epoll.unregister(fd)


def is_broken(fd: int) -> bool:
    """Whether ``fd`` has an event of ``BROKEN`` now."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


FLUSH_BYTES: Final = 64 << 10
"""Replies are collected to so many bytes before they are written."""


class RespState(enum.IntEnum):
    """What a connection does. The first three are its life while the worker serves, the next three while it ends."""

    READING = 0
    """Requests are awaited; no reply is due."""
    SENDING = 1
    """All replies are made, and the client has not taken all of them. It may go on asking."""
    ANSWERING = 2
    """Replies are still to be made, or too much of them has not been taken: nothing more is read."""
    DRAIN_READING = 3
    """As READING, and the next reply is the last."""
    DRAIN_SENDING = 4
    """As SENDING, and the client's stream ends with what is still to be sent."""
    DRAIN_ANSWERING = 5
    """As ANSWERING, and the client's stream ends with these replies."""
    CLOSING = 6
    """Nothing more is read; what the client asked for before is answered and sent."""
    HALF_CLOSED = 7
    """The end of the stream is sent, and what still arrives is dropped until the client closes: closing with unread
    input would reset the connection and could take replies from the client that it has not read yet."""
    CLOSED = 8
    """The socket is closed, and nothing refers to the connection."""


(
    READING,
    SENDING,
    ANSWERING,
    DRAIN_READING,
    DRAIN_SENDING,
    DRAIN_ANSWERING,
    CLOSING,
    HALF_CLOSED,
    CLOSED,
) = RespState

_UNSENT: Final = "the client does not take all of a reply at once"
_MORE: Final = "its time slice is over before all replies are made, or it leaves too many of them unread"
_TAKEN: Final = "the client has taken all of its replies"
_MADE: Final = "all replies are made, and the client has taken enough of them"
_TERM: Final = "the worker ends"
_LAST: Final = "QUIT, or bytes that are not RESP, and the client has not taken the reply to it"
_EOF: Final = "the client ends its stream, or " + _LAST
_END: Final = "an event of the first column of the table above"

TRANSITIONS: Final[dict[RespState, dict[RespState, str]]] = {
    READING: {SENDING: _UNSENT, ANSWERING: _MORE, DRAIN_READING: _TERM, CLOSING: _LAST, CLOSED: _END},
    SENDING: {READING: _TAKEN, ANSWERING: _MORE, DRAIN_SENDING: _TERM, CLOSING: _EOF, CLOSED: _END},
    ANSWERING: {READING: _TAKEN, SENDING: _MADE, DRAIN_ANSWERING: _TERM, CLOSING: _LAST, CLOSED: _END},
    DRAIN_READING: {
        DRAIN_SENDING: _UNSENT,
        DRAIN_ANSWERING: _MORE,
        CLOSING: _LAST,
        HALF_CLOSED: "the next request is answered, or none has come in time",
        CLOSED: _END,
    },
    DRAIN_SENDING: {DRAIN_ANSWERING: _MORE, CLOSING: _EOF, HALF_CLOSED: _TAKEN, CLOSED: _END},
    DRAIN_ANSWERING: {DRAIN_SENDING: _MADE, CLOSING: _LAST, HALF_CLOSED: _TAKEN, CLOSED: _END},
    CLOSING: {CLOSED: _TAKEN + ", or " + _END},
    HALF_CLOSED: {CLOSED: _END},
    CLOSED: {},
}
"""From each state to which others, and when."""

EVENTS: Final = (READ, READ | WRITE, WRITE, READ, READ | WRITE, WRITE, WRITE, READ, 0)
"""What is waited for in each state."""
NOTHING_DUE: Final = (READING, DRAIN_READING, HALF_CLOSED)
"""The states in which no reply is made or to be sent."""

_OPEN: Final = (READING, SENDING, ANSWERING)
_DRAIN: Final = (HALF_CLOSED, DRAIN_SENDING, DRAIN_ANSWERING)
_CLOSE: Final = (CLOSED, CLOSING, CLOSING)
_OUTCOMES: Final = (*[_OPEN] * 3, *[_DRAIN] * 3, _CLOSE)
"""By state: which follows when no reply is due, when some are to be sent, when some are to be made."""


class RespConnection:
    """See the module. ``fast_path[fd]`` of the poller says whether the loop may answer it by itself."""

    __slots__ = (
        "_active_at",
        "_is_active",
        "_output",
        "_poller",
        "_replies",
        "_requests",
        "_session",
        "_slot",
        "_socket",
        "_state",
        "_stored_replies",
        "_worker",
        "fd",
        "held_bytes",
        "parked",
    )

    def __init__(self, worker: WorkerContext, poller: Poller, client: socket.socket) -> None:
        self._worker, self._poller, self._socket = worker, poller, client
        self.fd: Final = client.fileno()
        self.held_bytes = 0
        """The bytes that the worker holds for this client. Only the budget sets it."""
        self._slot = worker.slot
        self._stored_replies = worker.replies
        self._session = Session(worker)
        self._requests = RequestParser(self._session.limits)
        self._replies: Iterator[bytes] | None = None
        """The replies that are still to be made. Nothing is read meanwhile."""
        self._output = ReplyOutput(self.fd, worker.slot)
        self.parked = b""
        """What is answered when its pages are in memory (``cold_data``). Nothing is read meanwhile."""
        self._state = READING
        self._is_active = True
        """Whether it has made progress since the last sweep: taken replies if there are any, else asked."""
        self._active_at = time.monotonic()
        """When the sweep last saw it active."""
        poller.add(self.fd)
        if not self._session.is_authorised:
            worker.unauthenticated[self.fd] = self
        self._settle()

    @property
    def nil(self) -> bytes:
        """The reply for a missing key."""
        return self._session.nil

    def receive(self, data: bytes) -> None:
        """Answer ``data``, which was read while nothing was under way. When empty, the client sends no more."""
        if not data:
            self._end_of_stream()
            return
        replies, keys, rest, is_part = self._stored_replies.answer(data, self._session.nil)
        if replies:
            self._send(replies)
        if keys or rest:
            self._go_on(keys, rest, is_part)
        elif self._state is not READING or self._output.unsent or self.held_bytes:
            self._settle()

    def resume(self, unsent: bytes, keys: list[bytes], rest: bytes, is_part: bool, *, is_late: bool) -> None:
        """Go on where a turn of the loop stopped: write what is ``unsent``, answer ``keys`` and what is behind them.

        ``is_late``: in a turn that follows, for others have had the time of this one.
        """
        if unsent:
            self._output.keep_unsent(unsent, 0, self._session.limits.output_high)
        if keys or rest:
            self._go_on(keys, rest, is_part, is_late=is_late)
        elif unsent:
            self._settle()
        else:
            self._end_of_stream()

    def handle_events(self, events: int) -> None:
        """Read or write what is ready while the loop must not answer by itself.

        An event may be older than what the connection waits for, or of the client that had this descriptor before:
        what is not waited for is not done. To read while replies are still to be made would lose these.
        """
        if events & BROKEN:
            if is_broken(self.fd):
                self._drop_input()
                self.close()
            return
        if events & WRITE & self._awaited_events():
            self._is_active = True
            self._write()
        elif self._state in NOTHING_DUE:
            self._is_active = True
        if events & READ & self._awaited_events():
            self._read()

    def _awaited_events(self) -> int:
        return 0 if self.parked else EVENTS[self._state]

    def keep_unsent(self, data: bytes, sent: int) -> None:
        """Write later what the client has not taken of the reply ``data``: all but the first ``sent`` bytes."""
        self._output.keep_unsent(data, sent, self._session.limits.output_high)
        self._settle()

    def _read(self) -> None:
        try:
            data = os.read(
                self.fd, READ_BYTES if self._session.is_authorised else self._session.limits.max_request_bytes
            )
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            self._end_of_stream()
            return
        if self._poller.park is not None and self._awaits_lookups() and self._may_look_up(data):
            self.parked = data
            self._poller.change(self.fd, 0)
            self._poller.park(self)
            self._worker.budget.charge(self, self._measure_held_bytes())
        else:
            self._take(data)

    def _may_look_up(self, data: bytes) -> bool:
        """Return whether ``data`` may need pages. What does not, such as a PING, waits for no disk."""
        return not self._requests.is_empty or may_look_up(data)

    def list_lookups(self) -> bytes:
        """What was parked and, if EXEC may be in it, the keys that are queued: their pages may have left memory."""
        parked, transaction = self.parked, self._session.transaction
        if transaction is None or b"EXEC" not in parked.upper():
            return parked
        return parked + b"".join(bulk(key) for command in transaction.commands for key in list_keys(command))

    def unpark(self) -> None:
        """Answer what was parked."""
        if self._state is not CLOSED:
            data, self.parked = self.parked, b""
            self._poller.change(self.fd, EVENTS[self._state])
            self._take(data)
            self._settle()

    def choose_path(self) -> None:
        """Let the hot path answer the client, or not, as the poller says now."""
        self._enter(self._state)

    def _take(self, data: bytes) -> None:
        if self._awaits_lookups() and self._session.transaction is None:
            data = self._requests.take_part(len(data)) + data
            if self._requests.is_empty:
                self.receive(data)
                return
        if self._state is not HALF_CLOSED:
            self._go_on([], data, is_part=False)

    def _go_on(self, keys: list[bytes], rest: bytes, is_part: bool, *, is_late: bool = False) -> None:
        """Answer ``keys``, then ``rest``, unless that is but the beginning of a lookup."""
        if self._state is CLOSED:
            return
        assert self._replies is None, "replies are still to be made, and would be lost"
        self._requests.feed(rest)
        if keys:
            lookups = self._stored_replies.remaining_replies(keys, self._session.nil)
            self._replies = chain(lookups, self._make_replies()) if rest else lookups
        elif not is_part:
            self._replies = self._make_replies()
        if is_late:
            self._settle()  # the next poll tells that the client takes replies
        else:
            self._send_replies()

    def _end_of_stream(self) -> None:
        """Answer what the client asked for, then close: it sends no more."""
        if self._state in NOTHING_DUE:
            self.close()
        else:
            self._enter(CLOSING)

    def _make_replies(self) -> Iterator[bytes]:
        """Yield the replies to all requests that have arrived whole."""
        session, requests = self._session, self._requests
        try:
            while not session.is_closing:
                requests.limits = session.limits
                command = requests.next()
                if command is None:
                    return
                yield from execute(session, command)
                if session.is_authorised:
                    self._worker.unauthenticated.pop(self.fd, None)
        except ProtocolError as problem:
            self._slot[shard_counters.ERRORS] += 1
            session.is_closing = True
            yield error(f"ERR Protocol error: {problem}")

    def _send_replies(self) -> None:
        """Send replies until there are no more, the client leaves too many unread, or its time slice is over."""
        if self._replies is None or self._is_stopped():
            self._settle()
            return
        pending, size, end = [], 0, time.monotonic() + TIME_SLICE_SECONDS
        for piece in self._replies:
            pending.append(piece)
            size += len(piece)
            is_over = time.monotonic() > end
            if is_over or size >= FLUSH_BYTES:
                self._send(b"".join(pending))
                pending, size = [], 0
                if is_over or self._is_stopped():
                    self._settle()
                    return
        if pending:
            self._send(b"".join(pending))
        self._replies = None
        self._settle()

    def _is_stopped(self) -> bool:
        return self._output.is_paused or self._state is CLOSED

    def _send(self, data: bytes) -> None:
        """Write ``data``, now or when the client takes it."""
        try:
            self._output.send(data, self._session.limits.output_high)
        except OSError:
            self.close()

    def _write(self) -> None:
        """Write what is unsent, then what is still to be made: the client takes more."""
        if self._output.unsent:
            try:
                self._output.flush(self._session.limits.output_high)
            except OSError:
                self.close()
                return
        self._send_replies()

    def _may_ask(self) -> bool:
        """Return whether the next bytes begin a request of a client that may ask, with nothing else under way: no
        transaction either, which queues lookups."""
        return self._awaits_lookups() and self._requests.is_empty and self._session.transaction is None

    def _awaits_lookups(self) -> bool:
        """Return whether a client that may ask is asking, with no reply under way."""
        return (self._state is READING or self._state is DRAIN_READING) and self._session.is_authorised

    def _is_for_hot_path(self) -> bool:
        return self._state is READING and self._may_ask() and not self.parked and self._poller.park is None

    def _settle(self) -> None:
        """Enter the state that follows from what is under way, and end the connection if that is due."""
        if self._state >= HALF_CLOSED:
            return
        state = self._following_state()
        if state is CLOSED:
            self.close()
            return
        self._enter(state)
        if state is HALF_CLOSED:
            self._shut_down()
        if self._state is not CLOSED:
            self._worker.budget.charge(self, self._measure_held_bytes())

    def _following_state(self) -> RespState:
        none_due, to_send, to_make = _CLOSE if self._session.is_closing else _OUTCOMES[self._state]
        if self._replies is not None or self._output.is_paused:
            return to_make
        return to_send if self._output.unsent else none_due

    def _enter(self, state: RespState) -> None:
        """Go to ``state``, and wait for its events. Raises RuntimeError when it cannot follow the present one."""
        if state is not self._state:
            if state not in TRANSITIONS[self._state]:
                raise RuntimeError(f"a connection cannot go from {self._state.name} to {state.name}")
            if EVENTS[state] != EVENTS[self._state]:
                self._is_active = True  # the client has all its time for what is awaited from now on
                self._poller.change(self.fd, EVENTS[state])
            self._state = state
        self._poller.fast_path[self.fd] = ACTIVE if self._is_for_hot_path() else BUSY
        self._poller.protocols[self.fd] = self._session.protocol

    def _measure_held_bytes(self) -> int:
        return (
            len(self._output.unsent)
            + len(self.parked)
            + (0 if self._replies is None and self._requests.is_empty else self._requests.held_bytes)
            + (0 if self._session.transaction is None else self._session.transaction.held_bytes)
        )

    def sweep(self, now: float) -> None:
        """Cut the client off when it has not authenticated, has taken no replies, or has asked nothing for too long."""
        limits, fast_path = self._session.limits, self._poller.fast_path
        if not self._session.is_authorised and now - self._session.unauthenticated_since > limits.auth_seconds:
            overdue = True
        elif self._is_active or fast_path[self.fd] == ACTIVE:
            self._is_active, self._active_at, overdue = False, now, False
            fast_path[self.fd] = min(fast_path[self.fd], IDLE)
        else:
            patience = limits.idle_seconds if self._state in NOTHING_DUE else limits.slow_seconds
            overdue = 0 < patience < now - self._active_at
        if overdue:
            self.cut()

    def cut(self) -> None:
        """Count the client as cut off, and close at once."""
        self._slot[shard_counters.CONNECTIONS_CUT] += 1
        self.close()

    def check_invariants(self) -> None:
        """Raise AssertionError when an invariant does not hold between two events. Tests call it."""
        state, replies, output = self._state, self._replies, self._output
        if state in NOTHING_DUE:
            assert replies is None, f"{state.name}: replies are still to be made"
            assert not output.unsent, f"{state.name}: replies are still to be sent"
        elif state in (SENDING, DRAIN_SENDING):
            assert replies is None, f"{state.name}: replies are still to be made"
            assert output.unsent, f"{state.name}: everything is sent"
            assert not output.is_paused, f"{state.name}: more is read from a client that leaves too much unread"
        elif state in (ANSWERING, DRAIN_ANSWERING):
            assert replies is not None or output.is_paused, f"{state.name}: nothing keeps the client from asking"
        elif state is CLOSING:
            assert replies is not None or output.unsent, "CLOSING: there is nothing to wait for"
        assert output.unsent or not output.is_paused, "nothing unsent, and yet too much of it"
        assert state in (CLOSING, CLOSED) or not self._session.is_closing, f"{state.name}: its last reply is made"
        assert state is CLOSED or self.held_bytes == self._measure_held_bytes(), "the budget counts something else"
        assert (self.fd in self._worker.connections) is (state is not CLOSED), "the worker's list is wrong"
        if state is not CLOSED:
            is_fast = self._is_for_hot_path()
            assert (self._poller.fast_path[self.fd] != BUSY) is is_fast, f"{state.name}: fast path {not is_fast}"

    def drain(self) -> None:
        """Make the next reply the last: the worker ends, and answers what has arrived or is on its way."""
        if self._state <= ANSWERING:
            self._enter((DRAIN_READING, DRAIN_SENDING, DRAIN_ANSWERING)[self._state])

    def end(self) -> None:
        """Send the end of the stream if no reply is due."""
        if self._state is DRAIN_READING and not self.parked:
            self._enter(HALF_CLOSED)
            self._shut_down()

    def _drop_input(self) -> None:
        """Read what has arrived and will not be answered, to the end of the client's stream: closing with it unread
        would reset the connection and take from the client the replies that are on their way."""
        if self._state is HALF_CLOSED:
            with suppress(OSError):
                while os.read(self.fd, READ_BYTES):
                    pass

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close at once, and free what the worker holds for it."""
        if self._state is CLOSED:
            return
        self._state, self._replies, self.parked = CLOSED, None, b""
        self._worker.budget.charge(self, 0)
        self._worker.unauthenticated.pop(self.fd, None)
        self._poller.remove(self.fd)
        self._socket.close()
        del self._worker.connections[self.fd]
        self._slot[shard_counters.OPEN_CONNECTIONS] = len(self._worker.connections)
