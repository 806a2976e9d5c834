"""The operator's metrics, its health, and the port that serves both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lookupdb.process import listeners
from lookupdb_operator.model import Unattended
from lookupdb_operator.plan import clock
from lookupdb_operator.status import DatasetStatus

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TRUTHS: Final = ("True", "False", "Unknown")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics, in their own registry: a process may hold several operators, as in tests."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._last_success = self._last_progress = clock()
        self._datasets = _DatasetCollector()
        self._registry.register(self._datasets)
        ProcessCollector(registry=self._registry)
        self.identity = Gauge(
            "lookupdb_operator_info",
            "1 for the identity of this operator: NAMESPACE/RELEASE.",
            ["operator"],
            registry=self._registry,
        )
        self.reconciles = Counter(
            "lookupdb_operator_reconciles_total", "Reconcile passes, by outcome.", ["outcome"], registry=self._registry
        )
        self.errors = Counter(
            "lookupdb_operator_reconcile_errors_total",
            "Failed reconcile passes, which are retried.",
            registry=self._registry,
        )
        self.seconds = Histogram(
            "lookupdb_operator_reconcile_seconds",
            "Duration of a reconcile pass.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.writes = Counter(
            "lookupdb_operator_api_writes_total",
            "Write requests to the API server.",
            ["verb", "kind"],
            registry=self._registry,
        )
        self.depth = Gauge("lookupdb_operator_queue_depth", "Datasets waiting for a worker.", registry=self._registry)
        Gauge(
            "lookupdb_operator_last_success_age_seconds",
            "Seconds since the last successful reconcile pass; without datasets, since the last resync.",
            registry=self._registry,
        ).set_function(self.success_age)

    def note_success(self) -> None:
        """Note a successful reconcile pass or, without datasets, resync."""
        self._last_success = self._clock()

    def note_progress(self) -> None:
        """Note progress at startup: something was listed."""
        self._last_progress = self._clock()

    def progress_age(self) -> float:
        """Return seconds since ``note_success`` or ``note_progress``, or since startup."""
        return self._clock() - max(self._last_success, self._last_progress)

    def success_age(self) -> float:
        """Return seconds since ``note_success``, or since startup."""
        return self._clock() - self._last_success

    def set_status(self, namespace: str, name: str, status: DatasetStatus, *, stale_after: int | None = None) -> None:
        """Show ``status`` as a dataset's state, and the age in seconds beyond which its data are stale."""
        self._datasets.unattended.pop((namespace, name), None)
        self._datasets.statuses[namespace, name] = status
        self._datasets.limits[namespace, name] = stale_after

    def set_unattended(self, namespace: str, name: str, why: Unattended) -> None:
        """Show that a dataset is left alone, and why."""
        self._datasets.unattended[namespace, name] = why

    def forget(self, namespace: str, name: str) -> None:
        """Remove a dataset that is gone or not acted on."""
        self._datasets.statuses.pop((namespace, name), None)
        self._datasets.limits.pop((namespace, name), None)
        self._datasets.unattended.pop((namespace, name), None)

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _DatasetCollector(Collector):
    """Gauges of datasets, computed from their statuses at each scrape."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, str], DatasetStatus] = {}
        self.limits: dict[tuple[str, str], int | None] = {}
        self.unattended: dict[tuple[str, str], Unattended] = {}

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "lookupdb_operator_dataset_info",
            "Active generation and rollout of a dataset.",
            labels=["namespace", "dataset", "generation", "rollout"],
        )
        records = GaugeMetricFamily(
            "lookupdb_operator_dataset_records", "Records of the active generation.", labels=["namespace", "dataset"]
        )
        conditions = GaugeMetricFamily(
            "lookupdb_operator_dataset_condition",
            "1 for the current status of a condition, 0 for its other statuses.",
            labels=["namespace", "dataset", "condition", "status"],
        )
        for key, status in sorted(self.statuses.items()):
            info.add_metric([*key, status.generation, status.table.rollout if status.table else ""], 1)
            records.add_metric(key, status.records)
            for condition in status.conditions:
                for truth in _TRUTHS:
                    conditions.add_metric([*key, condition.type, truth], float(condition.status == truth))
        unattended = GaugeMetricFamily(
            "lookupdb_operator_dataset_unattended",
            "1 for a dataset that needs action but that this operator leaves alone.",
            labels=["namespace", "dataset", "reason", "operator"],
        )
        for key, why in sorted(self.unattended.items()):
            unattended.add_metric([*key, why.reason, why.operator], 1)
        yield from (info, records, conditions, unattended, *self._collect_ages())

    def _collect_ages(self) -> Iterator[Metric]:
        """Yield when the served data were built and refreshed, and when they become stale."""
        built = GaugeMetricFamily(
            "lookupdb_dataset_built_timestamp_seconds",
            "Build time of the active generation, by the builder's clock.",
            labels=["namespace", "dataset"],
        )
        refreshed = GaugeMetricFamily(
            "lookupdb_dataset_refreshed_timestamp_seconds",
            "Start of the last refresh after which the served data matched their source.",
            labels=["namespace", "dataset"],
        )
        limits = GaugeMetricFamily(
            "lookupdb_dataset_stale_after_seconds",
            "Age at which the data are stale (refresh.staleAfterSeconds).",
            labels=["namespace", "dataset"],
        )
        for key, status in sorted(self.statuses.items()):
            for family, moment in ((built, status.built_at), (refreshed, status.last_refreshed)):
                if moment:
                    family.add_metric(key, clock.parse_moment(moment).timestamp())
            limit = self.limits.get(key)
            if limit is not None:
                limits.add_metric(key, limit)
        yield from (built, refreshed, limits)


# Health, and the server for ``/healthz`` and ``/metrics``.


_PATIENCE: Final = 900.0
"""Minimum seconds before a probe fails: three default resyncs, or an outage of the API server."""
_RESYNCS: Final = 3


class Health:
    """The answer of ``/healthz``."""

    def __init__(
        self, metrics: Metrics, *, resync: float, is_alive: Callable[[], bool], longest_look: Callable[[], float]
    ) -> None:
        """``longest_look`` returns the age of the longest running reconcile pass in seconds."""
        self._metrics = metrics
        self._longest_look = longest_look
        self._patience = max(_RESYNCS * resync, _PATIENCE)
        self._is_alive = is_alive
        self._failure: str | None = None

    def report_failure(self, why: str) -> None:
        """Fail permanently: only a restart can fix ``why``."""
        self._failure = why

    def find_problem(self) -> str | None:
        """Return why the operator should be restarted, as a sentence; None if it should not."""
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
        """The listening port; a free one if 0 was requested."""
        return int(self._runner.addresses[0][1]) if self._runner else self._port

    async def open(self) -> None:
        """Listen; ``::`` includes IPv4. Raises UsageError if the port is taken."""
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
