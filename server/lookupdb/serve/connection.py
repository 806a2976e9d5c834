"""One client's connection off the hot path: bytes in, replies out, within limits.

A lone GET is answered by ``loop``; what else a client sends comes here. Pipelined GETs and one MGET are recognised by
one look at the bytes. Anything else, and what a client does not read, becomes an iterator of replies, which
``_pump`` sends and stops at: memory is bounded by ``output_high`` and one value, whatever is asked.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Final

from lookupdb.serve import counted
from lookupdb.serve.commands import execute
from lookupdb.serve.resp import (
    CRLF,
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


class Connection:
    """See the module. ``states[fd]`` of the watch says whether the loop may answer it by itself."""

    __slots__ = (
        "_active",
        "_ended",
        "_events",
        "_finishing",
        "_host",
        "_lookups",
        "_owed",
        "_paused",
        "_replies",
        "_requests",
        "_seen",
        "_session",
        "_slot",
        "_socket",
        "_watch",
        "closed",
        "fd",
    )

    def __init__(self, host: Host, watch: Watch, client: socket.socket) -> None:
        self._host, self._watch, self._socket = host, watch, client
        self.fd: Final = client.fileno()
        self._slot = host.slot
        self._lookups = host.lookups
        self._session = Session(host)
        self._requests = Requests(host.limits)
        self._replies: Iterator[bytes] | None = None
        """Those that are still to be made."""
        self._owed = bytearray()
        """Replies that the client has not taken yet."""
        self._paused = False
        """Whether too much is owed to read and answer any more."""
        self._finishing = False
        """Whether the next reply is the last."""
        self._ended = False
        """Whether what the client sends is no longer answered."""
        self._active = True
        self._seen = time.monotonic()
        """When the sweep last saw it active, or it was paused."""
        self.closed = False
        self._events = READ
        watch.add(self.fd)
        self._settle()

    @property
    def nil(self) -> bytes:
        """What answers for a key that is not there."""
        return self._session.nil

    def received(self, data: bytes) -> None:
        """``data`` has been read while nothing was under way; empty: the client sends no more."""
        parts = data.split(CRLF)
        keys = keys_of_gets(parts)
        if keys is not None:
            self._answer(b"", keys, len(keys))
            return
        keys = keys_of_mget(parts)
        if keys is not None:
            self._answer(b"*%d\r\n" % len(keys), keys, 1)
            return
        self._take(data)

    def ready(self, events: int) -> None:
        """Something can be read or written while the loop is not to answer by itself."""
        if events & BROKEN:
            self.close()
            return
        self._active = True
        if events & WRITE:
            self._settle_debts()
        if events & READ and not self.closed:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            if self._may_ask() and data:
                self.received(data)
            else:
                self._take(data)

    def _take(self, data: bytes) -> None:
        if not data:
            self._hung_up()
        elif not self._ended:
            self._requests.feed(data)
            if self._replies is None:
                self._replies = self._serve()
                self._pump()

    def _hung_up(self) -> None:
        """The client sends no more; what it asked for is still answered."""
        if self._replies is None and not self._owed:
            self.close()
        else:
            self._session.closing = True
            self._settle()

    def _answer(self, head: bytes, keys: list[bytes], commands: int) -> None:
        """Send ``head`` and what is stored under ``keys``."""
        self._slot[counted.COMMANDS] += commands
        replies, count = self._lookups.begin(keys, self._session.nil)
        self._send(head + replies)
        if count < len(keys):
            self._replies = self._lookups.rest(keys, self._session.nil, count)
            self._pump()
        elif self._finishing or self._owed:
            self._settle()

    def _serve(self) -> Iterator[bytes]:
        """The replies to all requests that have arrived whole."""
        session, requests = self._session, self._requests
        try:
            while not session.closing and (command := requests.next()) is not None:
                yield from execute(session, command)
        except ProtocolError as problem:
            self._slot[counted.ERRORS] += 1
            session.closing = True
            yield error(f"ERR Protocol error: {problem}")

    def _pump(self) -> None:
        """Send replies until there are no more, or the client is to read first."""
        replies, pending, size = self._replies, [], 0
        if replies is None or self._is_stopped():
            self._settle()
            return
        for piece in replies:
            pending.append(piece)
            size += len(piece)
            if size >= FLUSH_BYTES:
                self._send(b"".join(pending))
                pending, size = [], 0
                if self._is_stopped():
                    self._settle()
                    return
        if pending:
            self._send(b"".join(pending))
        self._replies = None
        self._settle()

    def _is_stopped(self) -> bool:
        return self._paused or self.closed

    def _send(self, data: bytes) -> None:
        """Write ``data``, now or when the client takes it."""
        sent = 0
        if not self._owed:
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                pass
            except OSError:
                self.close()
                return
        self._slot[counted.SENT_BYTES] += sent
        if sent != len(data):
            self._owe(data, sent)

    def _owe(self, data: bytes, sent: int) -> None:
        self._owed += memoryview(data)[sent:]
        self._slot[counted.SENT_BYTES] += len(data) - sent
        if not self._paused and len(self._owed) > self._host.limits.output_high:
            self._paused = True
            self._seen = time.monotonic()

    def owe(self, data: bytes, sent: int) -> None:
        """The client took only so many bytes of the reply ``data``: write the rest later."""
        self._owe(data, sent)
        self._settle()

    def _settle_debts(self) -> None:
        """Write what is owed. When the client has taken half of what is too much, it may ask again."""
        try:
            del self._owed[: os.write(self.fd, self._owed)]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if self._paused and len(self._owed) <= self._host.limits.output_high // 2:
            self._paused = False
            self._seen = time.monotonic()
            self._pump()
        elif not self._owed:
            self._settle()

    def _may_ask(self) -> bool:
        """Whether the next bytes begin a request, by a client that may ask, with nothing else under way."""
        session = self._session
        if self._ended or session.closing or not session.authorised:
            return False
        return self._replies is None and not self._owed and self._requests.empty

    def _settle(self) -> None:
        """Wait for what is to be waited for now, and end the connection if that is due."""
        if self.closed:
            return
        if self._replies is None and not self._owed:
            if self._session.closing:
                self.close()
                return
            if self._finishing:
                self.end()
        reading = not (self._paused or self._session.closing)
        events = READ * reading | WRITE * bool(self._owed)
        if events != self._events:
            self._events = events
            self._watch.change(self.fd, events)
        self._watch.states[self.fd] = ACTIVE if self._may_ask() and not self._finishing else BUSY

    def sweep(self, now: float) -> None:
        """Close the connection when the client has been idle, or has not read, for too long."""
        limits, states = self._host.limits, self._watch.states
        if self._paused:
            overdue = now - self._seen > limits.slow_seconds
        elif self._active or states[self.fd] == ACTIVE:
            self._active, self._seen, overdue = False, now, False
            states[self.fd] = min(states[self.fd], IDLE)
        else:
            overdue = 0 < limits.idle_seconds < now - self._seen
        if overdue:
            self._slot[counted.CONNECTIONS_CUT] += 1
            self.close()

    def finish(self) -> None:
        """Answer what has arrived or is on its way, then close: the next reply is the last."""
        self._finishing = True
        self._watch.states[self.fd] = BUSY

    def end(self) -> None:
        """Send the end of the stream, unless replies are still to be sent, but go on reading: closing with unread
        input would reset the connection and could take replies from the client that it has not read yet.
        """
        if self._replies is None and not self._owed and not self._ended:
            self._ended = True
            self._watch.states[self.fd] = BUSY
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()

    def close(self) -> None:
        """Close at once, and forget it."""
        if self.closed:
            return
        self.closed, self._ended, self._replies = True, True, None
        self._watch.remove(self.fd)
        self._socket.close()
        del self._host.connections[self.fd]
        self._slot[counted.OPEN_CONNECTIONS] = len(self._host.connections)
