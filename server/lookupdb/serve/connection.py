"""One client's connection: bytes in, replies out, within limits.

The hot path is ``data_received`` down to ``_answer``: GETs and one MGET of small values, one look at the bytes, one
lookup a key, one write a read. Anything else becomes a generator of replies, which ``_pump`` sends and stops at
whenever the client does not read: memory is bounded by ``output_high`` and one value, whatever is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import repeat
from typing import Final, cast

from lookupdb.serve import counted
from lookupdb.serve.commands import execute
from lookupdb.serve.resp import (
    CRLF,
    GET_HEADS,
    GET_KEYS,
    ProtocolError,
    Requests,
    error,
    keys_of_gets,
    keys_of_mget,
)
from lookupdb.serve.session import Host, Session
from lookupdb.shardfile import FRAMED

FLUSH_BYTES: Final = 64 << 10
"""Replies are collected to so many bytes before they are written."""
_HEADS: Final = len(GET_HEADS)
QUIET_SECONDS: Final = 0.1
"""When the server ends, an idle client is given so long for a request that is on its way."""


class Connection(asyncio.Protocol):
    """See the module. Made by the event loop for each client that connects."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._slot = host.slot
        self._get = host.shard.txn.get
        self._inflate = host.shard.inflate
        self._session = Session(host)
        self._requests = Requests(host.limits)
        self._replies: Iterator[bytes] | None = None
        self._small = host.small_values
        self._plain = False
        """Whether the next bytes begin a request, by a client that may ask, with nothing else under way."""
        self._paused = False
        self._finishing = False
        self._ended = False
        self.active = True
        self.seen = time.monotonic()
        """When the sweep last saw it active, or it was paused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse it when there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        host = self._host
        if len(host.connections) >= host.limits.max_connections:
            self._slot[counted.CONNECTIONS_REFUSED] += 1
            self._transport.write(error("ERR max number of clients reached"))
            self._transport.close()
            self._ended = True
            return
        host.deserted.clear()
        self._transport.set_write_buffer_limits(high=host.limits.output_high)
        host.connections.add(self)
        self._slot[counted.CONNECTIONS] += 1
        self._slot[counted.OPEN_CONNECTIONS] = len(host.connections)
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._ended = True
        self._replies = None
        self._host.connections.discard(self)
        self._slot[counted.OPEN_CONNECTIONS] = len(self._host.connections)
        if not self._host.connections:
            self._host.deserted.set()

    def data_received(self, data: bytes) -> None:
        """The hot path, or the way to the general one."""
        self.active = True
        if self._plain:
            size = len(data)
            if size < _HEADS and data.startswith(GET_HEADS[size]) and data.endswith(CRLF):
                return self._answer_one(data[GET_KEYS[size]])
            parts = data.split(CRLF)
            keys = keys_of_gets(parts)
            if keys is not None:
                return self._answer(b"", keys, len(keys))
            keys = keys_of_mget(parts)
            if keys is not None:
                return self._answer(b"*%d\r\n" % len(keys), keys, 1)
        elif self._ended:
            return None
        self._requests.feed(data)
        if self._replies is None:
            self._replies = self._serve()
            self._pump()
        return None

    def _answer_one(self, key: bytes) -> None:
        """Write what is stored under ``key``: one GET, the most frequent request of all."""
        stored: bytes = self._get(key, self._nil)
        slot = self._slot
        if stored is self._nil:
            slot[counted.MISSES] += 1
        elif stored[0] != FRAMED:
            stored = self._inflate(stored)
        slot[counted.LOOKUPS] += 1
        slot[counted.COMMANDS] += 1
        slot[counted.SENT_BYTES] += len(stored)
        self._transport.write(stored)
        if self._finishing:
            self._end()

    def _answer(self, head: bytes, keys: list[bytes], commands: int) -> None:
        """Write ``head`` and what is stored under ``keys``."""
        slot = self._slot
        slot[counted.COMMANDS] += commands
        slot[counted.LOOKUPS] += len(keys)
        if not self._small:
            self._replies = self._values(head, keys)
            return self._pump()
        replies = list(map(self._get, keys, self._nils))
        misses = replies.count(self._nil)
        if misses:
            slot[counted.MISSES] += misses
        reply = head + b"".join(replies)
        slot[counted.SENT_BYTES] += len(reply)
        self._transport.write(reply)
        if self._finishing:
            self._end()
        return None

    def _values(self, head: bytes, keys: list[bytes]) -> Iterator[bytes]:
        """The same as an iterator, so that ``_pump`` can stop between values."""
        get, inflate, nil = self._get, self._inflate, self._nil
        if head:
            yield head
        for key in keys:
            stored: bytes = get(key, nil)
            if stored is nil:
                self._slot[counted.MISSES] += 1
            elif stored[0] != FRAMED:
                stored = inflate(stored)
            yield stored

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
        if replies is None:
            return
        for piece in replies:
            pending.append(piece)
            size += len(piece)
            if size >= FLUSH_BYTES:
                self._write(pending, size)
                pending, size = [], 0
                if self._paused or self._ended:
                    return
        if pending:
            self._write(pending, size)
        self._replies = None
        self._settle()

    def _write(self, pieces: list[bytes], size: int) -> None:
        self._slot[counted.SENT_BYTES] += size
        self._transport.write(b"".join(pieces))

    def _settle(self) -> None:
        """All replies are written: end it if that is due, and see whether the hot path is open."""
        session = self._session
        if session.closing:
            self._ended = True
            self._transport.close()
        elif self._finishing:
            self._end()
        self._nil, self._nils = session.nil, repeat(session.nil)
        self._plain = session.authorised and self._requests.empty and not self._ended

    def pause_writing(self) -> None:
        """The client does not read what it asked for: ask nothing more of it."""
        self._paused = True
        self.seen = time.monotonic()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._paused = False
        self.seen = time.monotonic()
        self._pump()
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The client sends no more; what it asked for is still answered."""
        if self._replies is None:
            return False
        self._session.closing = True
        return True

    def sweep(self, now: float) -> None:
        """Close the connection when the client has been idle, or has not read, for too long."""
        limits = self._host.limits
        if self._paused:
            overdue = now - self.seen > limits.slow_seconds
        elif self.active:
            self.active, self.seen, overdue = False, now, False
        else:
            overdue = 0 < limits.idle_seconds < now - self.seen
        if overdue:
            self._slot[counted.CONNECTIONS_CUT] += 1
            self._transport.abort()

    def finish(self) -> None:
        """Answer what has arrived, then close: at once after the next reply, or when nothing comes."""
        self._finishing = True
        asyncio.get_running_loop().call_later(QUIET_SECONDS, self._end_quiet)

    def _end_quiet(self) -> None:
        if self._replies is None:
            self._end()

    def _end(self) -> None:
        """Send the end of the stream, but go on reading: closing with unread input would reset the connection and
        could take replies from the client that it has not read yet.
        """
        if not self._ended:
            self._ended, self._plain = True, False
            if not self._transport.is_closing():
                self._transport.write_eof()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
