"""One client: what is asked for it ends with it, and what is no HTTP is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from lookupdb_operator.gateway.problems import BrokenOff, invalid


class Connection(web.RequestHandler):
    """One client."""

    _scope: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """End the block as soon as the client is gone. Raises BrokenOff then."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                if self.transport is None or self.transport.is_closing():
                    scope.reschedule(0)
                yield
        except TimeoutError as error:
            if scope.expired():
                raise BrokenOff("the client went away") from error
            raise
        finally:
            self._scope = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what goes on for the client."""
        if self._scope:
            self._scope.reschedule(0)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is not HTTP, or over a limit. Neither answer nor log repeat it: it may hold a token."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun")
        response = invalid("the request is not HTTP/1.1 as it should be, or larger than its limits").render()
        response.force_close()
        return response
