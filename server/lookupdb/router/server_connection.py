"""One RESP connection to a shard server: it sends bytes and hands over replies in order.

``Reading`` is the state, which says what is read next:

    PROVING   small replies about what the server serves
    REPLIES   replies of any kind: lists with the native kernels, all others with hiredis
    ELEMENTS  a large reply, or a list that the kernels do not read, value by value, then replies
    END       nothing until the loop has polled the socket once more: a reply is complete, but more may follow it
    CLOSED    nothing

A reply is handed over only if no further bytes follow it. The receiver may send the next request at once, and earlier
bytes cannot answer that request. Further bytes end the connection, and the reply before them is dropped.

Invariants: there is a sink, except in PROVING, or if the connection was closed while PROVING. Only ELEMENTS has an
element reader. Chunks are kept only in PROVING and REPLIES, and counted in the budget only in REPLIES. hiredis sees no
list, because it would allocate what the list's head announces.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import io
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import hiredis

from lookupdb import native
from lookupdb.router.budget import RouterBudget


@dataclass(frozen=True, slots=True, order=True)
class ServerAddress:
    """The address at which one worker of a shard server listens."""

    host: str
    """Name or IP address; IPv6 without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Large RESP replies. hiredis returns a reply only when it is complete. So a reply that turns out to be large is read
# element by element: the size of each element is known before the element is kept, so it can be skipped.


LARGE_REPLY_BYTES: Final = 1 << 20
"""An incomplete reply of this size is read element by element."""
_MAX_LINE_BYTES: Final = 4096
"""Limit of a line: the head of an element, or an element of one line, such as an error."""
_CRLF: Final = b"\r\n"
_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,8}")


class NotResp(Exception):
    """The bytes are not the expected reply. The message quotes no value."""


SKIPPED: Final = object()
"""Marks a value of a reply that nobody waits for any longer."""


class ReplySink(Protocol):
    """The consumer of a large reply."""

    def expected_keys(self) -> int:
        """Return the number of keys in flight; 0 if nothing was requested."""

    def accept(self, index: int, size: int) -> bool:
        """Return whether to keep the value of key ``index``, of ``size`` bytes."""


class ElementReader:
    """Reads one reply to a GET or MGET of ``sink``: feed it until ``is_whole``, then take ``reply``."""

    def __init__(self, sink: ReplySink) -> None:
        self._sink = sink
        self._line = b""
        self._remaining = 0
        """Bytes of the current value that are still to come, including its line end."""
        self._value: io.BytesIO | None = None
        """The current value, unless it is skipped."""
        self._values: list[Any] = []
        self._expected = sink.expected_keys()
        self._is_array: bool | None = None
        self.is_whole = False

    @property
    def reply(self) -> Any:
        """The reply as hiredis returns it, with SKIPPED for values that were not kept."""
        return self._values if self._is_array else self._values[0]

    def feed(self, data: bytes) -> int:
        """Read on. Return the number of bytes of ``data`` that belong to this reply. Raises NotResp."""
        offset, size = 0, len(data)
        view = memoryview(data)
        while offset < size and not self.is_whole:
            offset = self._read_value(view, offset) if self._remaining else self._read_line(data, offset)
        return offset

    def _read_value(self, view: memoryview, offset: int) -> int:
        piece = view[offset : offset + self._remaining]
        if self._value is not None:
            self._value.write(piece[: max(self._remaining - 2, 0)])
        self._remaining -= len(piece)
        if self._remaining < len(_CRLF):  # the piece includes some of the line end
            line_end = _CRLF[: len(_CRLF) - self._remaining]
            if not line_end.endswith(piece[-len(line_end) :]):
                raise NotResp("a value is longer than announced")
        if not self._remaining:
            self._add(SKIPPED if self._value is None else self._value.getvalue())
            self._value = None
        return offset + len(piece)

    def _read_line(self, data: bytes, offset: int) -> int:
        end = data.find(b"\n", offset)
        piece = data[offset:] if end < 0 else data[offset : end + 1]
        self._line += piece
        if len(self._line) > _MAX_LINE_BYTES:
            raise NotResp(f"a line of more than {_MAX_LINE_BYTES} bytes")
        if end >= 0:
            line, self._line = self._line, b""
            if line.find(b"\r") != len(line) - len(_CRLF):
                raise NotResp("a line that does not end")
            self._begin_element(line[:1], line[1:-2])
        return offset + len(piece)

    def _begin_element(self, kind: bytes, rest: bytes) -> None:
        if kind == b"*" and self._is_array is None:
            count = _number(rest)
            if count != self._expected:
                raise NotResp(f"answered {self._expected} keys with a list of {count}")
            self._is_array = True
            return
        if self._is_array is None:
            self._is_array, expected = False, 1
            if self._expected != expected and kind != b"-":
                raise NotResp(f"{self._expected} keys were answered with one value")
            self._expected = expected
        if kind == b"$":
            size = _number(rest)
            if size < -1:
                raise NotResp(f"a value of {size} bytes")
            if size < 0:
                self._add(None)
                return
            self._value = io.BytesIO() if self._sink.accept(len(self._values), size) else None
            self._remaining = size + 2
        elif kind == b"-":
            self._add(hiredis.ReplyError(rest.decode(errors="replace")))
        elif kind == b"_" and not rest:
            self._add(None)
        else:
            raise NotResp("an element that is not a value")

    def _add(self, value: Any) -> None:
        self._values.append(value)
        self.is_whole = len(self._values) == self._expected


def _number(digits: bytes) -> int:
    """Return a number as strictly as hiredis: no plus sign or leading zeros."""
    if not _NUMBER.fullmatch(digits):
        raise NotResp("a size that is not a number")
    return int(digits)


_NOTHING: Final = object()
KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Idle seconds, seconds between probes, and their number: a connection to a vanished node breaks after about 11 s."""


_ARRAY: Final = ord("*")
_SCALARS: Final = b"+-:$"
PROOF_BYTES: Final = 64 * 1024
"""Limit of all bytes that an endpoint sends before the first lookup."""
READ_BYTES: Final = 256_000
"""uvloop reads this many bytes at once, and again if it got all of them; asyncio reads 256 KiB."""
SURPLUS: Final = "sent more than was requested"
"""The reason for closing a connection after unrequested bytes."""


class Reading(enum.Enum):
    """The state of a connection: what it reads next."""

    PROVING = enum.auto()
    REPLIES = enum.auto()
    ELEMENTS = enum.auto()
    END = enum.auto()
    CLOSED = enum.auto()


_REPLIES: Final = Reading.REPLIES
_CLOSED: Final = Reading.CLOSED


class ServerConnection(asyncio.Protocol):
    """Calls ``on_reply`` with each reply (bytes, None, list, int or hiredis.ReplyError), and ``on_lost`` once with a
    reason.

    With the native kernels, a list of bytes and None is a ``ShardReply`` unless it is large. Without ``sink`` no reply
    may be large. Incomplete replies are counted in ``budget``.
    """

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[str], None], budget: RouterBudget) -> None:
        self.on_reply = on_reply
        self.sink: ReplySink | None = None
        self._on_lost = on_lost
        self._budget = budget
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._kernels = native.kernels()
        self._scan: Any = None
        """A ``ReplyScan`` of the chunks."""
        self._transport: asyncio.Transport | None = None
        self.reading = Reading.PROVING
        self.received = 0
        self._chunks: list[bytes] = []
        self._counted = 0
        self._elements: ElementReader | None = None
        self._late: Any = None
        """At END, the reply to hand over if nothing follows it."""

    @classmethod
    async def open(
        cls,
        address: ServerAddress,
        on_reply: Callable[[Any], None],
        on_lost: Callable[[str], None],
        budget: RouterBudget,
    ) -> ServerConnection:
        """Resolve the name, and connect to its first address that answers. Raises OSError."""
        loop = asyncio.get_running_loop()
        refused: OSError | None = None
        for host in await _resolve(address):
            try:
                _, connection = await loop.create_connection(lambda: cls(on_reply, on_lost, budget), host, address.port)
            except OSError as error:
                refused = error
            else:
                return connection
        raise refused or OSError(f"{address.host} has no address")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enable TCP keepalive, for idle connections."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def use(self, on_reply: Callable[[Any], None], sink: ReplySink) -> None:
        """Start to use the connection, whose server has proven itself. From now on replies may be large."""
        self.on_reply = on_reply
        self.sink = sink
        self.reading = Reading.REPLIES

    def write(self, data: bytes) -> None:
        """Send ``data``, unless the connection is closed."""
        if self._transport:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Hand over complete replies; close at the first byte that is not RESP."""
        self.received += len(data)
        try:
            if self.reading is not _REPLIES and self.reading is not Reading.PROVING:
                if self.reading is Reading.ELEMENTS:
                    self._read_elements(data)
                elif self.reading is Reading.END:
                    self.close(SURPLUS)
                return
            kind = self._chunks[0][0] if self._chunks else data[0]
            if kind == _ARRAY and self.sink is not None:
                self._read_list(self.sink, data)
                return
            if kind not in _SCALARS:
                # Do not quote what may be a value.
                found = repr(data[:20]) if self.sink is None else f"{len(data)} bytes of something else"
                raise NotResp(f"expected a value, found {found}")
            reader = self._reader
            reader.feed(data)
            reply = reader.gets()
            if reply is _NOTHING:
                self._keep(data)
                return
            if self._chunks:
                self._forget_chunks()
            if reader.has_data():
                self.close(SURPLUS)
            elif len(data) < READ_BYTES:
                self.on_reply(reply)  # inlines _hand_over: this is the hot path
            else:
                self._hand_over(reply, data)
        except (hiredis.HiredisError, NotResp, UnicodeError, MemoryError) as error:
            self.close(f"answered something other than RESP: {error}")

    def _hand_over(self, reply: Any, data: bytes) -> None:
        """Hand over a reply that ends with ``data``. If more may follow, check that first, because more bytes would end
        the connection."""
        if len(data) < READ_BYTES:
            self.on_reply(reply)
            return
        if self.sink is None:
            self.close(f"sent more than {PROOF_BYTES} bytes about what it serves")
            return
        self.reading, self._late = Reading.END, reply
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._end_reply)  # the loop polls sockets before the second call

    def _end_reply(self) -> None:
        if self.reading is Reading.END:
            reply, self._late = self._late, None
            self.reading = Reading.REPLIES
            self.on_reply(reply)

    def _read_list(self, sink: ReplySink, data: bytes) -> None:
        """Read what begins or continues a list of values: natively, or else value by value."""
        expected = sink.expected_keys()
        if not expected:
            self.close(SURPLUS)
            return
        reply = None
        if self._kernels is not None and expected > 1 and not self._chunks:
            reply = self._kernels.ShardReply.read(data, expected)
            self._scan = self._kernels.ReplyScan(expected) if reply is None else None
        if self._scan is not None:
            is_whole = self._scan.feed(data)
            if is_whole is False:
                self._keep(data)
                return
            if is_whole:
                reply = self._scan.join([*self._chunks, data])
        if reply is None:
            self._begin_elements(sink, [*self._chunks, data])
            return
        if self._chunks:
            self._forget_chunks()
        self._hand_over(reply, data)

    def _keep(self, data: bytes) -> None:
        """Keep a chunk of an incomplete reply, in case the reply turns out to be large."""
        if self.sink is None:  # the server is proving itself
            self._chunks.append(data)
            if self.received > PROOF_BYTES:
                self.close(f"sent more than {PROOF_BYTES} bytes about what it serves")
            return
        if not self.sink.expected_keys():  # nothing was requested
            self.close(SURPLUS)
            return
        self._chunks.append(data)
        size = 2 * len(data)
        if self._counted + size <= 2 * LARGE_REPLY_BYTES and self._budget.has_room(size):
            self._counted += size
            self._budget.take(size)
        else:
            self._begin_elements(self.sink, self._chunks)

    def _begin_elements(self, sink: ReplySink, chunks: list[bytes]) -> None:
        """Read a reply again from its start, value by value."""
        self._forget_chunks()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._elements = ElementReader(sink)
        self.reading = Reading.ELEMENTS
        for chunk in chunks:
            self._read_elements(chunk)

    def _read_elements(self, data: bytes) -> None:
        elements = self._elements
        if elements is None:
            if self.reading is not _CLOSED:
                raise NotResp("more follows than was requested")
            return
        end = elements.feed(data)
        if end < len(data):
            raise NotResp("more follows than was requested")
        if elements.is_whole:
            self._elements = None
            self.reading = Reading.REPLIES
            self._hand_over(elements.reply, data)

    def _forget_chunks(self) -> None:
        self._budget.release(self._counted)
        self._chunks, self._counted = [], 0
        self._scan = None

    def eof_received(self) -> None:
        """Close: half-open connections are not supported."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand over a complete reply, which nothing can follow now, and report once why the connection ended."""
        self._transport = None
        self._end_reply()
        if self.reading is not _CLOSED:
            self._end(f"connection lost: {exc}" if exc else "the connection was closed by the other end")

    def close(self, why: str) -> None:
        """Close at once for the reason ``why``; later replies are dropped."""
        if self.reading is not _CLOSED:
            if self._transport:
                self._transport.abort()
            self._end(why)

    def _end(self, why: str) -> None:
        self.reading = Reading.CLOSED
        self._elements = self._late = None
        self._forget_chunks()
        self._on_lost(why)


async def _resolve(address: ServerAddress) -> list[str]:
    """Return the IP addresses of the host. Raises OSError.

    Connecting must not resolve: if uvloop is cancelled while it does both, nobody handles the resolver's late error.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{address.host} cannot be a name: {error}") from error
    return [str(socket_address[0]) for *_, socket_address in found]
