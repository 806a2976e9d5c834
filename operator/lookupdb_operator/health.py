"""Whether the operator does its work, and the port that answers ``/healthz`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from lookupdb.runtime import listeners
from lookupdb_operator.metrics import CONTENT_TYPE, Metrics

_PATIENCE: Final = 900.0
"""Seconds at least: three resyncs of the default, and an API server that is away for a while, fail no probe."""
_RESYNCS: Final = 3


class Health:
    """What ``/healthz`` answers."""

    def __init__(
        self, metrics: Metrics, *, resync: float, is_alive: Callable[[], bool], longest_look: Callable[[], float]
    ) -> None:
        """``longest_look`` returns for how many seconds some dataset has been looked at by now."""
        self._metrics = metrics
        self._longest_look = longest_look
        self._patience = max(_RESYNCS * resync, _PATIENCE)
        self._is_alive = is_alive
        self._failure: str | None = None

    def report_failure(self, why: str) -> None:
        """Fail from now on: only a new process can mend what ``why`` says."""
        self._failure = why

    def find_problem(self) -> str | None:
        """Why the operator should be restarted, as a sentence; None while it should not."""
        if self._failure:
            return self._failure
        if not self._is_alive():
            return "a worker of the queue has ended"
        if (age := self._metrics.progress_age()) > self._patience:
            return f"no look at a dataset has succeeded for {age:.0f} s, nor has a resync where there are none"
        if (age := self._longest_look()) > self._patience:
            return f"a look at a dataset has not ended for {age:.0f} s"
        return None


class HealthServer:
    """Serves health and metrics until it is closed."""

    def __init__(self, health: Health, metrics: Metrics, *, host: str, port: int) -> None:
        self._health = health
        self._metrics = metrics
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def bound_port(self) -> int:
        """The port that it listens on: the one asked for, or the one found free when that was 0."""
        return int(self._runner.addresses[0][1]) if self._runner else self._port

    async def open(self) -> None:
        """Listen; on ``::`` for IPv4 too. Raises UsageError when the port is taken."""
        listener = listeners.bind(self._host, self._port)
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        """Stop listening."""
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _request: web.Request) -> web.Response:
        problem = self._health.find_problem()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})
