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
        await web.SockSite(runner, listener).start()
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

        async def metrics(_: web.Request) -> web.Response:
            # In a thread: collectors read files in /proc, which takes long for a process with a large map.
            text = await asyncio.to_thread(generate_latest, registry)
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
