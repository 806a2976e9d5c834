"""One RESP connection to an endpoint: bytes out, replies in, in order. What they mean is the endpoint's to know."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis

from lookupdb.route.budget import RouterBudget
from lookupdb.route.servers.replies import LARGE_REPLY_BYTES, ElementReader, NotResp, ReplySink
from lookupdb.route.table.routing_table import ServerAddress

_NOTHING: Final = object()
KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds, seconds and probes: an idle connection to a node that vanished is known as broken after about 11 s."""


_ARRAY: Final = ord("*")
PROOF_BYTES: Final = 64 * 1024
"""Of all that an endpoint says before it is asked for values."""
PING: Final = b"*1\r\n$4\r\nPING\r\n"
PONG: Final = b"+PONG\r\n"


class ServerConnection(asyncio.Protocol):
    """Calls ``on_reply`` with each reply (bytes, None, list, int or hiredis.ReplyError), ``on_lost`` once, with why.

    Without ``sink`` no reply may be large. What has come of a reply is counted in ``budget``.
    """

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[str], None], budget: RouterBudget) -> None:
        self.on_reply = on_reply
        self.sink: ReplySink | None = None
        self._on_lost = on_lost
        self._budget = budget
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None
        self._why: str | None = None
        self.received = 0
        """Bytes since the beginning."""
        self._chunks: list[bytes] = []
        """What has come of a reply that is not whole."""
        self._counted = 0
        """What is taken of the budget for it."""
        self._elements: ElementReader | None = None
        self._read: Callable[[bytes], None] | None = None
        """Reads what comes instead of hiredis: an answer to PING, or a large reply."""
        self._pong = b""
        """What has not come of the answer to PING."""
        self._received_before = 0
        """Bytes when ``ping`` was called last."""

    @classmethod
    async def open(
        cls,
        address: ServerAddress,
        on_reply: Callable[[Any], None],
        on_lost: Callable[[str], None],
        budget: RouterBudget,
    ) -> ServerConnection:
        """Resolve the name anew and connect to the first of its addresses that answers. Raises OSError."""
        loop = asyncio.get_running_loop()
        refused: OSError | None = None
        for host in await _resolved(address):
            try:
                _, connection = await loop.create_connection(lambda: cls(on_reply, on_lost, budget), host, address.port)
            except OSError as error:
                refused = error
            else:
                return connection
        raise refused or OSError(f"{address.host} has no address")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have the kernel watch the other end while nothing is asked of it."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour only
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def write(self, data: bytes) -> None:
        """Send ``data``, unless the connection is closed."""
        if self._transport:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Hand over whole replies; close at the first byte that is not RESP."""
        self.received += len(data)
        try:
            if self._read is not None:
                self._read(data)
                return
            reader = self._reader
            if data[0] == _ARRAY and not self._chunks:
                self._check_length(data)
            reader.feed(data)
            reply = reader.gets()
            if reply is _NOTHING:
                self._keep(data)
                return
            if self._counted:
                self._forget_chunks()
            while reply is not _NOTHING and self._why is None:
                self.on_reply(reply)
                reply = reader.gets()
            if reader.has_data():
                self.close("answered more than it was asked")
        except (hiredis.HiredisError, NotResp, UnicodeError, MemoryError) as error:
            self.close(f"answered what is not RESP: {error}")

    def _check_length(self, data: bytes) -> None:
        """hiredis allocates what the head of a list announces: see first that it is what was asked for."""
        head = b"*%d\r\n" % (self.sink.expected_keys() if self.sink else 0)
        if not head.startswith(data[: len(head)]):
            raise NotResp(f"expected a list that begins with {head!r}, found {data[:20]!r}")

    def _keep(self, data: bytes) -> None:
        """A reply has come in part: hiredis holds that, and its bytes are kept, should it turn out to be large."""
        if self.sink is None:
            if self.received > PROOF_BYTES:
                self.close(f"said more than {PROOF_BYTES} bytes of what it serves")
            return
        self._chunks.append(data)
        size = 2 * len(data)
        if self._counted + size <= 2 * LARGE_REPLY_BYTES and self._budget.has_room(size):
            self._counted += size
            self._budget.take(size)
        elif not self.sink.expected_keys():
            self.close("answered more than it was asked")
        else:
            chunks = self._chunks
            self._forget_chunks()
            self._reader = hiredis.Reader(notEnoughData=_NOTHING)
            self._elements = ElementReader(self.sink)
            self._read = self._read_elements
            for chunk in chunks:
                self._read_elements(chunk)

    def _read_elements(self, data: bytes) -> None:
        """Read on in a large reply."""
        elements = self._elements
        if elements is None:
            if self._why is None:
                raise NotResp("more follows than was asked for")
            return
        end = elements.feed(data)
        if elements.is_whole:
            self._elements = self._read = None
            self.on_reply(elements.reply)
            if end < len(data) and self._why is None:
                raise NotResp("more follows than was asked for")

    # Whether the other end is alive (see ``heartbeat``).

    @property
    def is_closed(self) -> bool:
        """Whether it is gone, for whatever reason."""
        return self._why is not None

    @property
    def is_awaited(self) -> bool:
        """Whether a PING is not answered yet."""
        return bool(self._pong)

    def ping(self) -> bool:
        """Send a PING if nothing has come since the last call and nothing is asked for; whether one was sent.

        Replies come in order: what is asked for from now on is answered after it.
        """
        is_idle = self.received == self._received_before and self.sink is not None and not self.sink.expected_keys()
        self._received_before = self.received
        if not is_idle or self._pong:
            return False
        self._pong = PONG
        self._read = self._read_pong
        self.write(PING)
        return True

    def _read_pong(self, data: bytes) -> None:
        """Read the answer to PING; what follows is a reply as any other."""
        piece, rest = data[: len(self._pong)], data[len(self._pong) :]
        if not self._pong.startswith(piece):
            raise NotResp(f"expected {PONG!r}, found {data[:20]!r}")
        self._pong = self._pong[len(piece) :]
        if not self._pong:
            self._read = None
            if rest:
                self.received -= len(rest)
                self.data_received(rest)

    def _forget_chunks(self) -> None:
        self._budget.give(self._counted)
        self._chunks, self._counted = [], 0

    def eof_received(self) -> None:
        """No half-open connections."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell why, once."""
        if self._why is None:
            self._end(f"connection lost: {exc}" if exc else "the connection was closed by the other end")

    def close(self, why: str) -> None:
        """Close at once, for the reason ``why``; no reply that is still on its way will be handed over."""
        if self._why is None:
            if self._transport:
                self._transport.abort()
            self._end(why)

    def _end(self, why: str) -> None:
        self._why = why
        self._elements = self._read = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)  # the heartbeat knows this connection a while longer
        self._forget_chunks()
        self._on_lost(why)


async def _resolved(address: ServerAddress) -> list[str]:
    """The addresses of a name. Asked apart from connecting: uvloop, given up while it does both, lets the resolver's
    late error be nobody's."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{address.host} cannot be a name: {error}") from error
    return [str(at[0]) for *_, at in found]
