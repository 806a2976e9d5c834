"""The admin port: /healthz, /readyz, /metrics and /status of one supervised service.

Served by the supervisor, so that it answers however busy the workers are. Readiness never depends on memory figures.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

_KEEPALIVE_SECONDS: Final = 75.0
"""Longer than a scrape interval, so that scrapers keep their connection."""
MAX_CONNECTIONS: Final = 32
"""Of probes and scrapers. One more closes the oldest: whoever holds them open keeps no probe away."""
METRICS_SECONDS: Final = 10.0
"""/metrics is answered 503 when its figures take longer, as those of a process that hangs in the kernel may."""


@dataclass(frozen=True, slots=True)
class Admin:
    """What the admin port tells. Every function is called at each request."""

    unready: Callable[[], str | None]
    """Why the service is not ready, as a sentence, or None when it is."""
    status: Callable[[], Mapping[str, Any]]
    """The members of /status, as JSON can say them."""
    collectors: Iterable[Collector] = field(default=())

    async def start(self, listener: socket.socket) -> web.AppRunner:
        """Serve on the bound socket ``listener`` until ``cleanup()`` of what is returned."""
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        await _BoundedSite(runner, listener).start()
        return runner

    def application(self) -> web.Application:
        """The four handlers."""
        registry = CollectorRegistry(auto_describe=False)
        for collector in self.collectors:
            registry.register(collector)

        async def healthz(_: web.Request) -> web.Response:
            return web.Response(text="ok\n")

        async def readyz(_: web.Request) -> web.Response:
            reason = self.unready()
            return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

        collecting: asyncio.Future[bytes] | None = None

        async def metrics(_: web.Request) -> web.Response:
            # In a thread: collectors read files in /proc, which takes long for a process with a large map. In one for
            # all who ask meanwhile: threads are few.
            nonlocal collecting
            if collecting is None or collecting.done():
                collecting = asyncio.ensure_future(asyncio.to_thread(generate_latest, registry))
            try:
                text = await asyncio.wait_for(asyncio.shield(collecting), METRICS_SECONDS)
            except TimeoutError:
                return web.Response(text=f"no figures within {METRICS_SECONDS:g} s\n", status=503)
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

        async def status(_: web.Request) -> web.Response:
            body = orjson.dumps(self.status(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            return web.Response(body=body, content_type="application/json")

        application = web.Application(client_max_size=1024)
        for path, handler in {
            "/healthz": healthz,
            "/readyz": readyz,
            "/metrics": metrics,
            "/status": status,
        }.items():
            application.router.add_get(path, handler)
        return application


class _BoundedSite(web.SockSite):
    """A listening socket that has no more than ``MAX_CONNECTIONS`` clients."""

    async def start(self) -> None:
        """Accept clients until ``stop``."""
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None

        def accept() -> asyncio.Protocol:
            connections = server.connections
            for handler in connections[: max(0, len(connections) - MAX_CONNECTIONS + 1)]:
                if handler.transport is not None:
                    handler.transport.abort()  # closing would wait until the client takes its answers
            return server()

        # So many are accepted at once, before the first of them counts.
        backlog = MAX_CONNECTIONS
        self._server = await asyncio.get_running_loop().create_server(accept, sock=self._sock, backlog=backlog)
