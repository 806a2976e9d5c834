"""One RESP connection to an endpoint: bytes out, replies in, in order. What they mean is the endpoint's to know."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis

from lookupdb.route.table import Address

_NOTHING: Final = object()
KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds, seconds and probes: an idle connection to a node that vanished is known as broken after about 11 s."""


class Connection(asyncio.Protocol):
    """Calls ``on_reply`` with each reply (bytes, None, list, int or hiredis.ReplyError), ``on_lost`` once, with why."""

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        self.on_reply = on_reply
        self._on_lost = on_lost
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None
        self._why: str | None = None
        self.received = 0
        """Bytes since the beginning."""

    @classmethod
    async def open(
        cls, address: Address, on_reply: Callable[[Any], None], on_lost: Callable[[str], None]
    ) -> Connection:
        """Resolve the name anew and connect to the first of its addresses that answers. Raises OSError."""
        loop = asyncio.get_running_loop()
        refused: OSError | None = None
        for host in await _resolved(address):
            try:
                _, connection = await loop.create_connection(lambda: cls(on_reply, on_lost), host, address.port)
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
        reader = self._reader
        self.received += len(data)
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not _NOTHING and self._why is None:
                self.on_reply(reply)
                reply = reader.gets()
        except (hiredis.HiredisError, UnicodeError, MemoryError) as error:
            self.close(f"answered what is not RESP: {error}")

    def eof_received(self) -> None:
        """No half-open connections."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell why, once."""
        if self._why is None:
            self._why = f"connection lost: {exc}" if exc else "the connection was closed by the other end"
            self._on_lost(self._why)

    def close(self, why: str) -> None:
        """Close at once, for the reason ``why``; no reply that is still on its way will be handed over."""
        if self._why is None:
            self._why = why
            if self._transport:
                self._transport.abort()
            self._on_lost(why)


async def _resolved(address: Address) -> list[str]:
    """The addresses of a name. Asked apart from connecting: uvloop, given up while it does both, lets the resolver's
    late error be nobody's."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{address.host} cannot be a name: {error}") from error
    return [str(at[0]) for *_, at in found]
