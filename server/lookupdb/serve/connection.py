"""One client's connection off the hot path: bytes in, replies out, within limits; and all that ends it.

A lone GET is answered by ``loop``; what else a client sends comes here. Pipelined GETs and one MGET are recognised by
one look at the bytes. Anything else, and what a client does not read, becomes an iterator of replies, which
``_pump`` sends and stops at: memory is bounded by ``output_high`` and one value, whatever is asked, and no client keeps
the others waiting for longer than its turn.

``RespState`` says what a connection may do next, ``TRANSITIONS`` where it goes from there, and why. These end it:

| what | where | how |
| --- | --- | --- |
| the client closes, or only ends its own stream | ``_read`` → ``_end_of_stream`` | its requests are answered first |
| it is gone in both directions, or a read or write fails | ``ready``, ``_read``, ``_send``, ``_write`` | at once |
| QUIT, or bytes that are not RESP | ``_serve`` sets ``session.closing`` | after the replies |
| the worker ends | ``drain``, then ``end`` | after the next reply, or when none is due |
| no password, no request, or no replies taken for too long | ``sweep`` → ``cut`` | at once |
| all clients together hold too much, or another needs the place of one without password | ``cut`` | at once |
| an error in the server | ``close``, by the loop | at once |
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Iterator
from typing import Final

from lookupdb.serve import counted
from lookupdb.serve.commands import execute
from lookupdb.serve.output import Output
from lookupdb.serve.resp import (
    ProtocolError,
    Requests,
    error,
    keys_of_gets,
    keys_of_mget,
)
from lookupdb.serve.session import Host, Session
from lookupdb.serve.watch import ACTIVE, BROKEN, BUSY, IDLE, READ, WRITE, Watch

READ_BYTES: Final = 16 << 10
"""Of one read: a batch of some 500 keys."""
FLUSH_BYTES: Final = 64 << 10
"""Replies are collected to so many bytes before they are written."""
TURN_SECONDS: Final = 0.01
"""After so long a client's further replies are left to its next turn, behind those of all others."""


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
_MORE: Final = "its turn is over before all replies are made, or it leaves too many of them unread"
_TAKEN: Final = "the client has taken all of its replies"
_MADE: Final = "all replies are made, and the client has taken enough of them"
_TERM: Final = "the worker ends"
_LAST: Final = "QUIT, or bytes that are not RESP, and the client has not taken the reply to it"
_EOF: Final = "the client ends its stream, or " + _LAST
_END: Final = "an event of the last column of the table above"

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
    CLOSING: {CLOSED: _END},
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
        "_active",
        "_host",
        "_lookups",
        "_output",
        "_replies",
        "_requests",
        "_seen",
        "_session",
        "_slot",
        "_socket",
        "_state",
        "_watch",
        "fd",
        "held",
    )

    def __init__(self, host: Host, watch: Watch, client: socket.socket) -> None:
        self._host, self._watch, self._socket = host, watch, client
        self.fd: Final = client.fileno()
        self.held = 0
        """The budget's: bytes that are held for this client."""
        self._slot = host.slot
        self._lookups = host.lookups
        self._session = Session(host)
        self._requests = Requests(self._session.limits)
        self._replies: Iterator[bytes] | None = None
        """Those that are still to be made. Nothing is read meanwhile."""
        self._output = Output(self.fd, host.slot)
        self._state = READING
        self._active = True
        """Whether it did what it is waited for since the last sweep: took replies if it is to, else asked."""
        self._seen = time.monotonic()
        """When the sweep last saw it active."""
        watch.add(self.fd)
        if not self._session.authorised:
            host.strangers[self.fd] = self
        self._settle()

    @property
    def nil(self) -> bytes:
        """What answers for a key that is not there."""
        return self._session.nil

    def received(self, data: bytes) -> None:
        """``data`` has been read while nothing was under way; empty: the client sends no more."""
        keys = keys_of_gets(data)
        if keys is not None:
            self._answer(b"", keys, len(keys))
            return
        keys = keys_of_mget(data)
        if keys is not None:
            self._answer(b"*%d\r\n" % len(keys), keys, 1)
            return
        self._take(data)

    def ready(self, events: int) -> None:
        """Something can be read or written while the loop is not to answer by itself."""
        if events & BROKEN:
            self.close()
            return
        if events & WRITE:
            self._active = True
            self._write()
        elif self._state in NOTHING_DUE:
            self._active = True
        if events & READ and self._state is not CLOSED:
            self._read()

    def owe(self, data: bytes, sent: int) -> None:
        """The client took only so many bytes of the reply ``data``: write the rest later."""
        self._output.owe(data, sent, self._session.limits.output_high)
        self._settle()

    def _read(self) -> None:
        try:
            data = os.read(self.fd, READ_BYTES if self._session.authorised else self._session.limits.max_request_bytes)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if data and self._may_ask():
            self.received(data)
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        if not data:
            self._end_of_stream()
        elif self._state is not HALF_CLOSED:
            self._requests.feed(data)
            self._replies = self._serve()
            self._pump()

    def _end_of_stream(self) -> None:
        """The client sends no more; what it asked for is still answered."""
        if self._state in NOTHING_DUE:
            self.close()
        else:
            self._enter(CLOSING)

    def _answer(self, head: bytes, keys: list[bytes], commands: int) -> None:
        """Send ``head`` and what is stored under ``keys``."""
        self._slot[counted.COMMANDS] += commands
        replies, count = self._lookups.begin(head, keys, self._session.nil)
        self._send(replies)
        if count < len(keys):
            self._replies = self._lookups.rest(keys, self._session.nil, count)
            self._pump()
        elif self._state is not READING or self._output.owed:
            self._settle()

    def _serve(self) -> Iterator[bytes]:
        """The replies to all requests that have arrived whole."""
        session, requests = self._session, self._requests
        try:
            while not session.closing:
                requests.limits = session.limits
                command = requests.next()
                if command is None:
                    return
                yield from execute(session, command)
                if session.authorised:
                    self._host.strangers.pop(self.fd, None)
        except ProtocolError as problem:
            self._slot[counted.ERRORS] += 1
            session.closing = True
            yield error(f"ERR Protocol error: {problem}")

    def _pump(self) -> None:
        """Send replies until there are no more, the client is to read first, or its turn is over."""
        if self._replies is None or self._is_stopped():
            self._settle()
            return
        pending, size, end = [], 0, time.monotonic() + TURN_SECONDS
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
        return self._output.paused or self._state is CLOSED

    def _send(self, data: bytes) -> None:
        """Write ``data``, now or when the client takes it."""
        try:
            self._output.send(data, self._session.limits.output_high)
        except OSError:
            self.close()

    def _write(self) -> None:
        """The client takes more: first of what it is owed, then of what it has asked for."""
        if self._output.owed:
            try:
                self._output.flush(self._session.limits.output_high)
            except OSError:
                self.close()
                return
        self._pump()

    def _may_ask(self) -> bool:
        """Whether the next bytes begin a request, by a client that may ask, with nothing else under way."""
        is_awaiting = self._state is READING or self._state is DRAIN_READING
        return is_awaiting and self._session.authorised and self._requests.empty

    def _settle(self) -> None:
        """Enter the state that follows from what is under way now, and end the connection if that is due."""
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
            self._host.budget.hold(self, self._held_bytes())

    def _following_state(self) -> RespState:
        none_due, to_send, to_make = _CLOSE if self._session.closing else _OUTCOMES[self._state]
        if self._replies is not None or self._output.paused:
            return to_make
        return to_send if self._output.owed else none_due

    def _enter(self, state: RespState) -> None:
        """Be in ``state``, and wait for its events. Raises RuntimeError when it cannot follow the present one."""
        if state is not self._state:
            if state not in TRANSITIONS[self._state]:
                raise RuntimeError(f"a connection cannot go from {self._state.name} to {state.name}")
            if EVENTS[state] != EVENTS[self._state]:
                self._active = True  # it has all its time for what it is waited for from now on
                self._watch.change(self.fd, EVENTS[state])
            self._state = state
        self._watch.states[self.fd] = ACTIVE if state is READING and self._may_ask() else BUSY

    def _held_bytes(self) -> int:
        return len(self._output.owed) + (0 if self._replies is None and self._requests.empty else self._requests.held)

    def sweep(self, now: float) -> None:
        """Cut the client off when it has not authenticated, has taken no replies, or has asked nothing for too long."""
        limits, states = self._session.limits, self._watch.states
        if not self._session.authorised and now - self._session.unauthorised_at > limits.auth_seconds:
            overdue = True
        elif self._active or states[self.fd] == ACTIVE:
            self._active, self._seen, overdue = False, now, False
            states[self.fd] = min(states[self.fd], IDLE)
        else:
            patience = limits.idle_seconds if self._state in NOTHING_DUE else limits.slow_seconds
            overdue = 0 < patience < now - self._seen
        if overdue:
            self.cut()

    def cut(self) -> None:
        """Close at once, because of what the client does or does not do."""
        self._slot[counted.CONNECTIONS_CUT] += 1
        self.close()

    def check(self) -> None:
        """Raise AssertionError unless what is always true between two events is true now. Tests call it."""
        state, replies, output = self._state, self._replies, self._output
        if state in NOTHING_DUE:
            assert replies is None, f"{state.name}: replies are still to be made"
            assert not output.owed, f"{state.name}: replies are still to be sent"
        elif state in (SENDING, DRAIN_SENDING):
            assert replies is None, f"{state.name}: replies are still to be made"
            assert output.owed, f"{state.name}: everything is sent"
            assert not output.paused, f"{state.name}: more is read from a client that leaves too much unread"
        elif state in (ANSWERING, DRAIN_ANSWERING):
            assert replies is not None or output.paused, f"{state.name}: nothing keeps the client from asking"
        elif state is CLOSING:
            assert replies is not None or output.owed, "CLOSING: there is nothing to wait for"
        assert output.owed or not output.paused, "nothing unsent, and yet too much of it"
        assert state in (CLOSING, CLOSED) or not self._session.closing, f"{state.name}: its last reply is made"
        assert state is CLOSED or self.held == self._held_bytes(), "the budget counts something else"
        assert (self.fd in self._host.connections) is (state is not CLOSED), "the worker's list is wrong"
        if state is not CLOSED:
            is_fast = state is READING and self._session.authorised and self._requests.empty
            assert (self._watch.states[self.fd] != BUSY) is is_fast, f"{state.name}: fast path {not is_fast}"

    def drain(self) -> None:
        """The worker ends: answer what has arrived or is on its way, then close. The next reply is the last."""
        if self._state <= ANSWERING:
            self._enter((DRAIN_READING, DRAIN_SENDING, DRAIN_ANSWERING)[self._state])

    def end(self) -> None:
        """Send the end of the stream, unless replies are still to be sent."""
        if self._state is DRAIN_READING:
            self._enter(HALF_CLOSED)
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close at once, and forget it."""
        if self._state is CLOSED:
            return
        self._state, self._replies = CLOSED, None
        self._host.budget.hold(self, 0)
        self._host.strangers.pop(self.fd, None)
        self._watch.remove(self.fd)
        self._socket.close()
        del self._host.connections[self.fd]
        self._slot[counted.OPEN_CONNECTIONS] = len(self._host.connections)
