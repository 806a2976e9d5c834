"""A request's body: its length is known beforehand, and whoever sends it must go on sending."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from lookupdb.store.gateway_wire import ErrorKind
from lookupdb_operator.gateway.problems import RequestProblem, invalid, too_large

CHUNK_BYTES: Final = 256 << 10
IDLE_SECONDS: Final = 60.0
"""In which a chunk must have come, or gone: 4 KiB a second at least."""
SHORT_SECONDS: Final = 30.0
"""In which all of a short body must have come."""
_MAX_DIGITS: Final = 18


def read_length(request: web.BaseRequest, most: int) -> int:
    """The length that ``request`` says its body has. Raises RequestProblem, also if that is more than ``most``."""
    text = request.headers.get("Content-Length", "")
    if not text:
        raise RequestProblem(ErrorKind.INVALID, "expected a Content-Length", status=411)
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise invalid("expected a body without Content-Encoding")
    if not (text.isascii() and text.isdecimal()):
        raise invalid("the Content-Length is no number")
    if len(text) > _MAX_DIGITS or int(text) > most:
        raise too_large(f"the body has {text[:_MAX_DIGITS]} bytes, {most} are the most")
    return int(text)


class Body:
    """Reads the bytes of one body."""

    def __init__(
        self,
        request: web.BaseRequest,
        length: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        whole_seconds: float = math.inf,
    ) -> None:
        """``whole_seconds`` after the first chunk was asked for, the last must be there."""
        self._request = request
        self.length = length
        self.received = 0
        self._idle_seconds = idle_seconds
        self._whole_seconds = whole_seconds

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield it, ``length`` bytes in all. Raises RequestProblem if it ends early, or takes too long."""
        self._accept()
        end = time.monotonic() + self._whole_seconds
        while self.received < self.length:
            size = min(CHUNK_BYTES, self.length - self.received)
            seconds = min(self._idle_seconds, end - time.monotonic())
            try:
                async with asyncio.timeout(seconds):
                    chunk = await self._request.content.readexactly(size)
            except TimeoutError as error:
                limit = f"{size} bytes did not come within {seconds:.3g} s"
                if seconds < self._idle_seconds:
                    limit = f"it did not come within {self._whole_seconds:g} s"
                raise self._end_early(limit, 408) from error
            except (EOFError, OSError, web.RequestPayloadError) as error:
                raise self._end_early("the client went away", 400) from error
            self.received += size
            yield chunk

    def _accept(self) -> None:
        """Ask for the body, if the client waits to be asked."""
        transport = self._request.transport
        if transport and self._request.headers.get("Expect", "").lower() == "100-continue":
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _end_early(self, why: str, status: int) -> RequestProblem:
        detail = f"the body ends after {self.received} of {self.length} bytes, nothing was put: {why}"
        return RequestProblem(ErrorKind.INVALID, detail, status=status)
