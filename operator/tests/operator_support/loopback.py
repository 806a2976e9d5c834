"""Test servers on ports of loopback, and their clients."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final
from unittest.mock import patch

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


@contextlib.contextmanager
def without_authorities() -> Iterator[None]:
    """Make clients without the system's certificate authorities, which take most of a short test to load. They use
    no TLS."""
    with patch.object(ssl.SSLContext, "load_default_certs"):
        yield
