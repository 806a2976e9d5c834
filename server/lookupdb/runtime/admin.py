"""The admin port: /healthz, /readyz, /metrics and /status of one supervised service.

Served by the supervisor, so that it answers however busy the workers are. Readiness never depends on memory figures.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from lookupdb.runtime.exposition import CONTENT_TYPE, Collector, render_metrics
from lookupdb.runtime.probe_http import ProbeAnswer, ProbeServer
from lookupdb.wording import render_json, to_utf8

METRICS_SECONDS: Final = 10.0
"""/metrics is answered 503 when its figures take longer, as those of a process that hangs in the kernel may."""


@dataclass(frozen=True, slots=True)
class AdminPort:
    """What the admin port answers. Every function is called at each request."""

    explain_unready: Callable[[], str | None]
    """Returns why the service is not ready, as a sentence, or None when it is."""
    status: Callable[[], Mapping[str, Any]]
    """The members of /status, as JSON can say them."""
    collectors: Iterable[Collector] = field(default=())

    async def start(self, listener: socket.socket) -> ProbeServer:
        """Serve on the bound socket ``listener`` until ``cleanup()`` of what is returned."""
        paths = self._paths()

        async def answer(path: str) -> ProbeAnswer | None:
            return await paths[path]() if path in paths else None

        server = ProbeServer(answer)
        await server.start(listener)
        return server

    def _paths(self) -> Mapping[str, Callable[[], Awaitable[ProbeAnswer]]]:
        """Return the handler of each path."""
        figures = _Figures(self.collectors)

        async def healthz() -> ProbeAnswer:
            return ProbeAnswer(b"ok\n")

        async def readyz() -> ProbeAnswer:
            reason = self.explain_unready()
            return ProbeAnswer(f"{to_utf8(reason or 'ready')}\n".encode(), 503 if reason else 200)

        async def status() -> ProbeAnswer:
            body = render_json(self.status(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            return ProbeAnswer(body, content_type="application/json")

        return {"/healthz": healthz, "/readyz": readyz, "/metrics": figures.answer, "/status": status}


class _Figures:
    """Answers /metrics."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = tuple(collectors)
        self._collecting: asyncio.Future[bytes] | None = None

    async def answer(self) -> ProbeAnswer:
        # In a thread: collectors read files in /proc, which takes long for a process with a large map. Scrapes that
        # wait share one: threads are few.
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.ensure_future(asyncio.to_thread(render_metrics, self._collectors))
        try:
            async with asyncio.timeout(METRICS_SECONDS):  # wait_for would swallow a cancellation in the same turn
                text = await asyncio.shield(self._collecting)
        except TimeoutError:
            return ProbeAnswer(f"no figures within {METRICS_SECONDS:g} s\n".encode(), 503)
        return ProbeAnswer(text, content_type=CONTENT_TYPE)
