"""One client's connection off the hot path: bytes in, replies out, within limits.

A lone GET is answered by ``loop``; what else a client sends comes here. Pipelined GETs and one MGET are recognised by
one look at the bytes. Anything else, and what a client does not read, becomes an iterator of replies, which
``_pump`` sends and stops at: memory is bounded by ``output_high`` and one value, whatever is asked, and no client keeps
the others waiting for longer than its turn.
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


class Phase(enum.IntEnum):
    """Of a connection's life. It only goes forward."""

    OPEN = 0
    """Requests are read and answered."""
    FINISHING = 1
    """The worker ends: the next reply is the last. Then ENDED."""
    CLOSING = 2
    """Nothing more is read: the client has ended, or said QUIT, or what is not RESP. What it asked for before is
    answered and sent. Then CLOSED."""
    ENDED = 3
    """The end of the stream is sent, and what still arrives is dropped until the client closes: closing with unread
    input would reset the connection and could take replies from the client that it has not read yet."""
    CLOSED = 4


class Connection:
    """See the module. ``states[fd]`` of the watch says whether the loop may answer it by itself."""

    __slots__ = (
        "_active",
        "_events",
        "_host",
        "_lookups",
        "_output",
        "_phase",
        "_replies",
        "_requests",
        "_seen",
        "_session",
        "_slot",
        "_socket",
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
        self._phase = Phase.OPEN
        self._active = True
        """Whether it did what it is waited for since the last sweep: took replies if it is to, else asked."""
        self._seen = time.monotonic()
        """When the sweep last saw it active."""
        self._events = READ
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
        elif self._is_quiet():
            self._active = True
        if events & READ and self._phase is not Phase.CLOSED:
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
            self._hung_up()
        elif self._phase <= Phase.FINISHING:
            self._requests.feed(data)
            if self._replies is None:
                self._replies = self._serve()
                self._pump()

    def _hung_up(self) -> None:
        """The client sends no more; what it asked for is still answered."""
        if self._is_quiet():
            self.close()
        else:
            self._phase = max(self._phase, Phase.CLOSING)
            self._settle()

    def _answer(self, head: bytes, keys: list[bytes], commands: int) -> None:
        """Send ``head`` and what is stored under ``keys``."""
        self._slot[counted.COMMANDS] += commands
        replies, count = self._lookups.begin(head, keys, self._session.nil)
        self._send(replies)
        if count < len(keys):
            self._replies = self._lookups.rest(keys, self._session.nil, count)
            self._pump()
        elif self._phase is not Phase.OPEN or self._output.owed:
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
        return self._output.paused or self._phase is Phase.CLOSED

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

    def _is_quiet(self) -> bool:
        """Whether nothing is under way to the client."""
        return self._replies is None and not self._output.owed

    def _may_ask(self) -> bool:
        """Whether the next bytes begin a request, by a client that may ask, with nothing else under way."""
        may_ask = self._phase <= Phase.FINISHING and self._session.authorised
        return may_ask and self._is_quiet() and self._requests.empty

    def _settle(self) -> None:
        """Wait for what is to be waited for now, and end the connection if that is due."""
        if self._phase is Phase.CLOSED:
            return
        if self._session.closing and self._phase < Phase.CLOSING:
            self._phase = Phase.CLOSING
        if self._is_quiet():
            if self._phase is Phase.CLOSING:
                self.close()
                return
            if self._phase is Phase.FINISHING:
                self.end()
        self._host.budget.hold(self, self._held_bytes())
        if self._phase is not Phase.CLOSED:
            self._wait()

    def _wait(self) -> None:
        output = self._output
        reading = self._replies is None and not output.paused and self._phase is not Phase.CLOSING
        writing = bool(output.owed) or self._replies is not None
        events = READ * reading | WRITE * writing
        if events != self._events:
            self._events = events
            self._active = True  # it has all its time for what it is waited for from now on
            self._watch.change(self.fd, events)
        self._watch.states[self.fd] = ACTIVE if self._phase is Phase.OPEN and self._may_ask() else BUSY

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
            patience = limits.idle_seconds if self._is_quiet() else limits.slow_seconds
            overdue = 0 < patience < now - self._seen
        if overdue:
            self.cut()

    def cut(self) -> None:
        """Close at once, because of what the client does or does not do."""
        self._slot[counted.CONNECTIONS_CUT] += 1
        self.close()

    def finish(self) -> None:
        """The worker ends: answer what has arrived or is on its way, then close. The next reply is the last."""
        self._phase = max(self._phase, Phase.FINISHING)
        self._watch.states[self.fd] = BUSY

    def end(self) -> None:
        """Send the end of the stream, unless replies are still to be sent."""
        if self._phase < Phase.ENDED and self._is_quiet():
            self._phase = Phase.ENDED
            self._watch.states[self.fd] = BUSY
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()

    def close(self) -> None:
        """Close at once, and forget it."""
        if self._phase is Phase.CLOSED:
            return
        self._phase, self._replies = Phase.CLOSED, None
        self._host.budget.hold(self, 0)
        self._host.strangers.pop(self.fd, None)
        self._watch.remove(self.fd)
        self._socket.close()
        del self._host.connections[self.fd]
        self._slot[counted.OPEN_CONNECTIONS] = len(self._host.connections)
