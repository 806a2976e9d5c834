"""Test servers on ports of loopback."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aiohttp import web

ANY: Final = "/{path:.*}"


@contextlib.asynccontextmanager
async def listening(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], path: str = ANY
) -> AsyncIterator[int]:
    """Serve ``handle`` for each request for ``path`` until the block ends, and return the port."""
    app = web.Application()
    app.router.add_route("*", path, handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
