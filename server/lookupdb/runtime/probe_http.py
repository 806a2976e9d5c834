"""HTTP as probes and scrapers speak it: GET or HEAD without a body, one after the other on a connection.

It knows no path; httptools parses. A web framework would take longer to import than all else that a server starts with,
and every pod of every shard would pay 16 MiB for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import httptools

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 32
"""One more closes the oldest, so that no client that holds them open keeps a probe away."""
MAX_HEAD_BYTES: Final = 16 << 10
_KEEPALIVE_SECONDS: Final = 75.0
"""Until the next request is whole, and until an answer is taken. Longer than a scrape interval, so that scrapers keep
their connection."""
_METHODS: Final = ("GET", "HEAD")
_VERSIONS: Final = ("1.0", "1.1")
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a path is answered."""

    body: bytes
    status: int = 200
    content_type: str = _TEXT


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    is_last: bool
    """Whether the connection is to be closed behind it: the client says so, or a body follows, which is not read."""


class _BadRequest(Exception):
    """What was sent is no request."""


class ProbeServer:
    """Answers every path with what ``answer`` returns for it; None is 404."""

    def __init__(self, answer: Callable[[str], Awaitable[ProbeAnswer | None]]) -> None:
        self._answer = answer
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """The open ones, the oldest first."""
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept clients of the bound socket ``listener`` until ``cleanup``."""
        # So many are accepted at once, before the first of them counts.
        backlog = MAX_CONNECTIONS
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=backlog, limit=MAX_HEAD_BYTES)

    async def cleanup(self) -> None:
        """Close the port and all connections."""
        if self._server:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).transport.abort()
            oldest.cancel()
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections[connection] = writer
        connection.add_done_callback(lambda ended: self._connections.pop(ended, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first request to its last."""
        try:
            is_last = False
            while not is_last:
                async with asyncio.timeout(_KEEPALIVE_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                request = _HeadParser().parse(head)
                is_last = request.is_last
                writer.write(_render_answer(await self._answer_to(request), request))
                async with asyncio.timeout(_KEEPALIVE_SECONDS):
                    await writer.drain()
        except (_BadRequest, asyncio.LimitOverrunError):
            writer.write(_render_answer(_status_answer(400), _Request("GET", "", is_last=True)))
        except (TimeoutError, OSError, EOFError):
            writer.transport.abort()  # the client has gone, or is to go
        finally:
            writer.close()

    async def _answer_to(self, request: _Request) -> ProbeAnswer:
        if request.method not in _METHODS:
            return _status_answer(405)
        try:
            return await self._answer(request.path) or _status_answer(404)
        except Exception:
            log.exception("a request of the admin port failed", extra={"path": request.path[:100]})
            return _status_answer(500)


class _HeadParser:
    """Parses one head; httptools calls its ``on_…``."""

    def __init__(self) -> None:
        self._target = b""
        self._is_last = False
        self._parser = httptools.HttpRequestParser(self)

    def parse(self, head: bytes) -> _Request:
        """The request whose head, to its empty line, is ``head``. Raises _BadRequest."""
        try:
            with contextlib.suppress(httptools.HttpParserUpgrade):  # an offer, which need not be taken
                self._parser.feed_data(head)
            path = httptools.parse_url(self._target).path or b""
        except httptools.HttpParserError as error:
            raise _BadRequest from error
        if self._parser.get_http_version() not in _VERSIONS:
            raise _BadRequest
        return _Request(self._parser.get_method().decode(), path.decode("latin-1"), self._is_last)

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        field = name.lower()
        self._is_last |= field == b"transfer-encoding" or (field == b"content-length" and value.strip() != b"0")

    def on_headers_complete(self) -> None:
        self._is_last |= not self._parser.should_keep_alive()


def _status_answer(status: int) -> ProbeAnswer:
    return ProbeAnswer(f"{status}: {http.HTTPStatus(status).phrase}\n".encode(), status)


def _render_answer(answer: ProbeAnswer, request: _Request) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        *(["Allow: GET, HEAD"] if answer.status == 405 else []),
        *(["Connection: close"] if request.is_last else []),
    ]
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    return head.encode() + (b"" if request.method == "HEAD" else answer.body)
