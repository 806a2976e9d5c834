"""One client's connection off the hot path: it reads requests and sends replies within limits, and ends.

A turn of the event loop answers lookups (``worker``); everything else comes here. ``NativeReplies.answer`` answers
lookups that arrive here while nothing is pending. Anything else, and replies that the client does not read, become an
iterator, which ``_send_replies`` sends and may interrupt. So ``output_high`` and one value bound the memory, and no
client blocks the others for longer than its time slice.

``RespState`` says what a connection may do next, ``TRANSITIONS`` which state follows and why. A connection ends because
of:

| cause | place | time |
| --- | --- | --- |
| the client closes, or only ends its own stream | ``_read`` → ``_end_of_stream`` | after its requests are answered |
| it is gone in both directions, or a read or write fails | ``handle_events``, ``_read``, ``_send``… | at once |
| QUIT, or invalid RESP | ``_make_replies`` sets ``session.is_closing`` | after the replies |
| the worker ends | ``drain``, then ``end`` | after the next reply, or when none is due |
| the client is still there 2 s later (``LINGER_SECONDS``) | ``worker._drain`` → ``close`` | at once |
| no password, no request, or replies unread for too long | ``sweep`` → ``cut`` | at once |
| all clients together hold too much, or it is before AUTH and a new client needs the place | ``cut`` | at once |
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

from lookupdb.process.worker import observe
from lookupdb.resp.requests import ProtocolError, RequestParser, bulk, error, list_keys, may_look_up
from lookupdb.shard import limits
from lookupdb.shard.commands import Session, WorkerContext, execute
from lookupdb.shard.limits import READ_BYTES, TIME_SLICE_SECONDS

_HISTOGRAMS: Final = {b"GET": limits.GET, b"MGET": limits.MGET, b"EXISTS": limits.EXISTS, b"TOUCH": limits.EXISTS}
"""The histograms of commands; others have ``limits.OTHER``."""


class ReplyOutput:
    """Replies to one client on the non-blocking socket ``fd``. Every method may raise OSError if the client is gone."""

    __slots__ = ("_fd", "_slot", "is_paused", "unsent")

    def __init__(self, fd: int, slot: memoryview) -> None:
        self._fd = fd
        self._slot = slot
        self.unsent = bytearray()
        self.is_paused = False
        """True if so much is unsent that nothing more is read and answered."""

    def send(self, data: bytes, high: int) -> None:
        """Write ``data`` now, or when the client reads. More than ``high`` unsent bytes pause the client."""
        try:
            sent = 0 if self.unsent else os.write(self._fd, data)
        except BlockingIOError:
            sent = 0
        self._slot[limits.SENT_BYTES] += sent
        if sent != len(data):
            self.keep_unsent(data, sent, high)

    def keep_unsent(self, data: bytes, sent: int, high: int) -> None:
        """Keep the unsent part of ``data``, without the first ``sent`` bytes."""
        self.unsent += memoryview(data)[sent:]
        self._slot[limits.SENT_BYTES] += len(data) - sent
        if len(self.unsent) > high:
            self.is_paused = True

    def flush(self, high: int) -> None:
        """Write unsent bytes. The client may continue when at most half of ``high`` remains."""
        try:
            del self.unsent[: os.write(self._fd, self.unsent)]
        except BlockingIOError:
            return
        if len(self.unsent) <= high // 2:
            self.is_paused = False


READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
"""The client is gone, in both directions."""

BUSY: Final = 0
"""Not for the hot path: no client, or one with a pending request or reply."""
IDLE: Final = 1
"""The next bytes begin a request, and no request has come since the last sweep."""
ACTIVE: Final = 2
"""The next bytes begin a request."""


class Poller:
    """A level-triggered epoll, and the clients that the hot path may answer."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.fast_path = bytearray()
        """BUSY, IDLE or ACTIVE by file descriptor."""
        self.protocols = bytearray()
        """The RESP version of each client on the hot path, by file descriptor."""
        self.park: Callable[[Any], None] | None = None
        """Set while data is cold. Then no client is on the hot path: connections pass themselves to this function,
        which reads the pages for their ``parked`` requests and then calls ``unpark``."""

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


FLUSH_BYTES: Final = 64 << 10
"""Replies are collected up to this size before they are written."""


class RespState(enum.IntEnum):
    """The states of a connection: the first three while the worker serves, the next three while it ends."""

    READING = 0
    """Requests are awaited; no reply is due."""
    SENDING = 1
    """All replies are made, but some are unsent. The client may send more requests."""
    ANSWERING = 2
    """Replies are still to be made, or too many are unsent: nothing is read."""
    DRAIN_READING = 3
    """Like READING, but the next reply is the last."""
    DRAIN_SENDING = 4
    """Like SENDING, but our stream ends with the unsent replies."""
    DRAIN_ANSWERING = 5
    """Like ANSWERING, but our stream ends with these replies."""
    CLOSING = 6
    """Nothing more is read; earlier requests are answered."""
    HALF_CLOSED = 7
    """The end of the stream is sent, and input is dropped until the client closes: closing with unread input would
    reset the connection, and the client could lose replies."""
    CLOSED = 8
    """The socket is closed, and nothing refers to the connection."""


(READING, SENDING, ANSWERING, DRAIN_READING, DRAIN_SENDING, DRAIN_ANSWERING, CLOSING, HALF_CLOSED, CLOSED) = RespState

_UNSENT: Final = "the client does not take all of a reply at once"
_MORE: Final = "the client's time slice is over before all replies are made, or too many of them are unread"
_TAKEN: Final = "the client has taken all of its replies"
_MADE: Final = "all replies are made, and the client has taken enough of them"
_TERM: Final = "the worker ends"
_LAST: Final = "after QUIT, or bytes that are not RESP, the client has not taken all replies"
_EOF: Final = "the client ends its stream, or " + _LAST
_END: Final = "a cause in the table above"

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
"""The states that may follow each state, and when."""

EVENTS: Final = (READ, READ | WRITE, WRITE, READ, READ | WRITE, WRITE, WRITE, READ, 0)
NOTHING_DUE: Final = (READING, DRAIN_READING, HALF_CLOSED)

_OPEN: Final = (READING, SENDING, ANSWERING)
_DRAIN: Final = (HALF_CLOSED, DRAIN_SENDING, DRAIN_ANSWERING)
_CLOSE: Final = (CLOSED, CLOSING, CLOSING)
_OUTCOMES: Final = (*[_OPEN] * 3, *[_DRAIN] * 3, _CLOSE)
"""For each state, the next ones: if no reply is due, if some are unsent, and if some are still to be made."""


class RespConnection:
    """One client connection. The poller's ``fast_path[fd]`` says whether the loop may answer it by itself."""

    def __init__(self, worker: WorkerContext, poller: Poller, client: socket.socket) -> None:
        self._worker, self._poller, self._socket = worker, poller, client
        self.fd: Final = client.fileno()
        self.held_bytes = 0
        """Bytes that the worker holds for this client. Only the budget sets it."""
        self._slot = worker.slot
        self._stored_replies = worker.replies
        self._session = Session(worker)
        self._requests = RequestParser(self._session.limits)
        self._replies: Iterator[bytes] | None = None
        """Replies that are still to be made. Nothing is read meanwhile."""
        self._output = ReplyOutput(self.fd, worker.slot)
        self.parked = b""
        """Requests to answer when their pages are in memory (``ColdData``). Nothing is read meanwhile."""
        self._state = READING
        self._is_active = True
        """True if the client made progress since the last sweep: read pending replies, or else sent requests."""
        self._active_at = time.monotonic()
        self._arrived = 0
        """When the first byte of the unanswered requests was read."""
        self._due: list[tuple[int, int]] = []
        """Histograms and numbers of requests whose replies are made but not sent yet."""
        poller.add(self.fd)
        if not self._session.is_authorised:
            worker.unauthenticated[self.fd] = self
        self._settle()

    def receive(self, data: bytes) -> None:
        """Answer ``data``, read while nothing was pending. Empty ``data`` is the end of the client's stream."""
        if not data:
            self._end_of_stream()
            return
        replies, keys, rest, is_part, is_mget = self._stored_replies.answer(data, self._session.nil, self._arrived)
        if replies:
            self._send(replies)
        if keys or rest:
            self._go_on(keys, rest, is_part=is_part, is_mget=is_mget)
        elif self._state is not READING or self._output.unsent or self.held_bytes:
            self._settle()

    def resume(
        self,
        unsent: bytes,
        keys: list[bytes],
        rest: bytes,
        is_part: bool,
        is_mget: bool,
        arrived: int,
        *,
        is_late: bool,
    ) -> None:
        """Continue where a turn of the loop stopped: write ``unsent``, then answer ``keys`` and the requests behind
        them, which arrived at ``arrived``.

        ``is_late`` postpones that to a later turn, because this one's time is up.
        """
        self._arrived = arrived
        if unsent:
            self._output.keep_unsent(unsent, 0, self._session.limits.output_high)
        if keys or rest:
            self._go_on(keys, rest, is_part=is_part, is_mget=is_mget, is_late=is_late)
        elif unsent:
            self._settle()
        else:
            self._end_of_stream()

    def handle_events(self, events: int) -> None:
        """Read or write what is ready while the loop must not answer by itself.

        An event may be outdated, or of an earlier client with this descriptor. So events that are not awaited are
        ignored: reading while replies are still to be made would lose them.
        """
        if events & BROKEN:
            poll = select.poll()
            poll.register(self.fd, 0)
            if poll.poll(0):  # else the event is outdated
                if self._state is HALF_CLOSED:
                    # Closing with unread input would reset the connection, and the client could lose replies.
                    with suppress(OSError):
                        while os.read(self.fd, READ_BYTES):
                            pass
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
        if self._requests.is_empty:
            self._arrived = time.monotonic_ns()
        if (
            self._poller.park is not None
            and self._awaits_lookups()
            # Requests that need no pages, such as PING, do not wait for the disk.
            and (not self._requests.is_empty or may_look_up(data))
        ):
            self.parked = data
            self._poller.change(self.fd, 0)
            self._poller.park(self)
            self._worker.budget.charge(self, self._measure_held_bytes())
        else:
            self._take(data)

    def list_lookups(self) -> bytes:
        """Return the parked requests; if EXEC may be among them, also the queued keys, whose pages may have left
        memory."""
        parked, transaction = self.parked, self._session.transaction
        if transaction is None or b"EXEC" not in parked.upper():
            return parked
        return parked + b"".join(bulk(key) for command in transaction.commands for key in list_keys(command))

    def unpark(self) -> None:
        """Answer the parked requests."""
        if self._state is not CLOSED:
            data, self.parked = self.parked, b""
            self._poller.change(self.fd, EVENTS[self._state])
            self._take(data)
            self._settle()

    def choose_path(self) -> None:
        """Join or leave the hot path, as the poller requires."""
        self._enter(self._state)

    def _take(self, data: bytes) -> None:
        if self._awaits_lookups() and self._session.transaction is None:
            data = self._requests.take_part(len(data)) + data
            if self._requests.is_empty:
                self.receive(data)
                return
        if self._state is not HALF_CLOSED:
            self._go_on([], data)

    def _go_on(
        self, keys: list[bytes], rest: bytes, *, is_part: bool = False, is_mget: bool = False, is_late: bool = False
    ) -> None:
        """Answer ``keys``, then ``rest``, unless that is only the beginning of a lookup."""
        if self._state is CLOSED:
            return
        assert self._replies is None, "replies are still to be made, and would be lost"
        self._requests.feed(rest)
        if keys:
            lookups = self._make_rest(keys, is_mget=is_mget)
            self._replies = chain(lookups, self._make_replies()) if rest else lookups
        elif not is_part:
            self._replies = self._make_replies()
        if is_late:
            self._settle()  # the next poll reports that the client can receive replies
        else:
            self._send_replies()

    def _end_of_stream(self) -> None:
        """Answer the remaining requests, then close, because the client sends no more."""
        if self._state in NOTHING_DUE:
            self.close()
        else:
            self._enter(CLOSING)

    def _make_rest(self, keys: list[bytes], *, is_mget: bool) -> Iterator[bytes]:
        """Yield the replies to ``keys``, in chunks."""
        damaged = self._slot[limits.DAMAGED_LOOKUPS]
        yield from self._stored_replies.remaining_replies(keys, self._session.nil)
        errors = self._slot[limits.DAMAGED_LOOKUPS] - damaged
        if is_mget:
            self._due.append((limits.MGET + (limits.FAILED if errors else 0), 1))
        else:
            errors = min(errors, len(keys))  # other clients' may be among them
            self._due += ((limits.GET, len(keys) - errors), (limits.GET + limits.FAILED, errors))

    def _make_replies(self) -> Iterator[bytes]:
        session, requests, slot = self._session, self._requests, self._slot
        try:
            while not session.is_closing:
                requests.limits = session.limits
                command = requests.next()
                if command is None:
                    return
                errors = slot[limits.ERRORS] + slot[limits.DAMAGED_LOOKUPS]
                slot[limits.COMMANDS] += 1
                yield from execute(session, command)
                is_failed = slot[limits.ERRORS] + slot[limits.DAMAGED_LOOKUPS] > errors
                histogram = _HISTOGRAMS.get(command[0].upper(), limits.OTHER)
                self._due.append((histogram + (limits.FAILED if is_failed else 0), 1))
                if session.is_authorised:
                    self._worker.unauthenticated.pop(self.fd, None)
        except ProtocolError as problem:
            self._slot[limits.ERRORS] += 1
            session.is_closing = True
            self._due.append((limits.OTHER + limits.FAILED, 1))
            yield error(f"ERR Protocol error: {problem}")

    def _send_replies(self) -> None:
        """Send replies until there are no more, too many are unsent, or the time slice is over."""
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
                self._count_due()
                pending, size = [], 0
                if is_over or self._is_stopped():
                    self._settle()
                    return
        if pending:
            self._send(b"".join(pending))
        self._count_due()
        self._replies = None
        self._settle()

    def _count_due(self) -> None:
        """Count the requests whose replies have been sent."""
        for histogram, count in self._due:
            observe(self._slot, histogram, self._arrived, count)
        self._due.clear()

    def _is_stopped(self) -> bool:
        return self._output.is_paused or self._state is CLOSED

    def _send(self, data: bytes) -> None:
        try:
            self._output.send(data, self._session.limits.output_high)
        except OSError:
            self.close()

    def _write(self) -> None:
        """Write unsent bytes, then make further replies, because the client reads again."""
        if self._output.unsent:
            try:
                self._output.flush(self._session.limits.output_high)
            except OSError:
                self.close()
                return
        self._send_replies()

    def _awaits_lookups(self) -> bool:
        """Return whether an admitted client may send requests, with no reply pending."""
        return (self._state is READING or self._state is DRAIN_READING) and self._session.is_authorised

    def _is_for_hot_path(self) -> bool:
        """Return whether the next bytes begin a request of an admitted client with nothing pending, and no
        transaction."""
        return (
            self._state is READING
            and self._session.is_authorised
            and self._requests.is_empty
            and self._session.transaction is None
            and not self.parked
            and self._poller.park is None
        )

    def _settle(self) -> None:
        """Enter the state that follows from what is pending, and end the connection if that is due."""
        if self._state >= HALF_CLOSED:
            return
        none_due, to_send, to_make = _CLOSE if self._session.is_closing else _OUTCOMES[self._state]
        if self._replies is not None or self._output.is_paused:
            state = to_make
        else:
            state = to_send if self._output.unsent else none_due
        if state is CLOSED:
            self.close()
            return
        self._enter(state)
        if state is HALF_CLOSED:
            self._shut_down()
        if self._state is not CLOSED:
            self._worker.budget.charge(self, self._measure_held_bytes())

    def _enter(self, state: RespState) -> None:
        """Enter ``state`` and wait for its events. Raises RuntimeError if it cannot follow the current state."""
        if state is not self._state:
            if state not in TRANSITIONS[self._state]:
                raise RuntimeError(f"a connection cannot go from {self._state.name} to {state.name}")
            if EVENTS[state] != EVENTS[self._state]:
                self._is_active = True  # the client gets the full time for the new events
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
        """Cut the client off if it has not authenticated, read replies or sent requests for too long."""
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
        self._slot[limits.CONNECTIONS_CUT] += 1
        self.close()

    def drain(self) -> None:
        """Make the pending or next reply the last, because the worker ends."""
        if self._state <= ANSWERING:
            self._enter((DRAIN_READING, DRAIN_SENDING, DRAIN_ANSWERING)[self._state])

    def end(self) -> None:
        """Send the end of the stream if no reply is due."""
        if self._state is DRAIN_READING and not self.parked:
            self._enter(HALF_CLOSED)
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close at once, and free what the worker holds for the client."""
        if self._state is CLOSED:
            return
        self._state, self._replies, self.parked = CLOSED, None, b""
        self._worker.budget.charge(self, 0)
        self._worker.unauthenticated.pop(self.fd, None)
        self._poller.remove(self.fd)
        self._socket.close()
        del self._worker.connections[self.fd]
        self._slot[limits.OPEN_CONNECTIONS] = len(self._worker.connections)
