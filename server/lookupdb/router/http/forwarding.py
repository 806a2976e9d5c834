"""Forwards requests outside of the API to a console on this machine, as `lookupdb up` has one, and returns its answers.

Each request has a connection of its own. Answers are bounded, and count in the worker's budget.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lookupdb.router.http import problems
from lookupdb.router.http.exchanges import NOT_COUNTED, ClientConnection, Exchange
from lookupdb.router.http.problems import HttpProblem
from lookupdb.router.http.request import CONTENT_TYPE, FETCH_SITE, HOST, ORIGIN, Request

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

MAX_CONCURRENT: Final = 16
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_HEAD_BYTES: Final = 16 << 10
ANSWER_SECONDS: Final = 60.0
_FIELDS: Final = (HOST, CONTENT_TYPE, ORIGIN, FETCH_SITE)
_DROPPED: Final = (b"connection:", b"keep-alive:", b"server:")


class ConsoleForwarder:
    """Makes the exchanges of requests to the console at ``address``, a host and a port."""

    def __init__(self, address: str) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.turns = asyncio.Semaphore(MAX_CONCURRENT)

    def __call__(self, request: Request, connection: ClientConnection) -> ForwardedExchange:
        """Return the exchange of ``request``."""
        return ForwardedExchange(self, request, connection)


class ForwardedExchange(Exchange):
    """A request that the console answers."""

    __slots__ = ("_forwarder", "_request", "_task")
    is_alone = True

    def __init__(self, forwarder: ConsoleForwarder, request: Request, connection: ClientConnection) -> None:
        super().__init__(
            connection, request.connection_field, bodyless=request.method == b"HEAD", histogram=NOT_COUNTED
        )
        self._forwarder = forwarder
        self._request = request
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask the console."""
        self._task = asyncio.get_running_loop().create_task(self._forward())

    def abandon(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _forward(self) -> None:
        connection = self.connection
        connection.charge(self)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._forwarder.turns:
                head, body = await self._ask()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            detail = f"the console does not answer: {str(error) or type(error).__name__}"
            self.refuse(HttpProblem(problems.UNAVAILABLE, detail))
        except asyncio.CancelledError:
            connection.budget.release(self.charge)
            self.charge = 0
            raise
        else:
            connection.answer(self, b"%b%b\r\n%b" % (head, connection.choose_connection_field(self), body))

    async def _ask(self) -> tuple[bytes, bytes]:
        """Return head and body of the answer. Raises OSError, EOFError, ValueError and LimitOverrunError."""
        reader, writer = await asyncio.open_connection(self._forwarder.host, self._forwarder.port, limit=MAX_HEAD_BYTES)
        try:
            return await self._exchange(reader, writer)
        finally:
            writer.close()

    async def _exchange(self, reader: StreamReader, writer: StreamWriter) -> tuple[bytes, bytes]:
        request = self._request
        fields = [f"{name}: ".encode() + request.fields[name] for name in _FIELDS if name in request.fields]
        length = b"Content-Length: %d" % len(request.body)
        head = (b"%b %b HTTP/1.1" % (request.method, request.target), *fields, length, b"Connection: close", b"", b"")
        writer.write(b"\r\n".join(head) + request.body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n").split(b"\r\n")
        kept = [first, *(line for line in lines if not line.lower().startswith(_DROPPED))]
        sizes = [int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")]
        size = 0 if self.bodyless else sum(sizes)
        if not first.startswith(b"HTTP/1.1 ") or len(sizes) != 1 or not 0 <= size <= MAX_ANSWER_BYTES:
            raise ValueError(f"its answer is not HTTP with a length of at most {MAX_ANSWER_BYTES:,} bytes")
        self.connection.budget.take(size)
        self.charge += size
        return b"".join(line + b"\r\n" for line in kept), await reader.readexactly(size)
