"""The operator's metrics, its health, and the port that serves both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lookupdb import __version__
from lookupdb.process.admin import CONTENT_TYPE, ProbeAnswer
from lookupdb_operator.model import Unattended, parse_moment
from lookupdb_operator.status import DatasetStatus

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG_BUCKETS: Final = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)
_OUTCOMES: Final = {
    "built": "succeeded",
    "adopted": "succeeded",
    "unchanged": "succeeded",
    "failed": "failed",
    "gateClosed": "rejected",
}
"""The label of each counted outcome of a build."""
_TRUTHS: Final = ("True", "False", "Unknown")


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
            "Reconcile passes that failed because of an unreachable API server or a bug. They are retried.",
            registry=self._registry,
        )
        self.seconds = Histogram(
            "lookupdb_operator_reconcile_duration_seconds",
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
        self.waits = Histogram(
            "lookupdb_operator_queue_duration_seconds",
            "Time that a dataset waits for a worker.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.events = DatasetEvents(self._registry)
        build = Info("lookupdb_build", "The version that runs.", registry=self._registry)
        build.info({"component": "operator", "version": __version__})
        self.depth = Gauge("lookupdb_operator_queue_depth", "Datasets waiting for a worker.", registry=self._registry)
        self._last_success_time = Gauge(
            "lookupdb_operator_last_success_timestamp_seconds",
            "Time of the last successful reconcile pass; without datasets, of the last resync; at first, of startup.",
            registry=self._registry,
        )
        self._last_success_time.set_to_current_time()

    def note_success(self) -> None:
        """Note a successful reconcile pass or, without datasets, resync."""
        self._last_success = self._clock()
        self._last_success_time.set_to_current_time()

    def note_progress(self) -> None:
        """Note progress at startup: something was listed."""
        self._last_progress = self._clock()

    def progress_age(self) -> float:
        """Return seconds since ``note_success`` or ``note_progress``, or since startup."""
        return self._clock() - max(self._last_success, self._last_progress)

    def set_status(self, namespace: str, name: str, status: DatasetStatus, *, stale_after: int | None = None) -> None:
        """Show ``status`` as a dataset's state, and the age in seconds beyond which its data are stale."""
        self._datasets.unattended.pop((namespace, name), None)
        self.events.show(namespace, name)
        table, cutovers = status.table, self._datasets.cutovers
        if table and table.confirmed_at and cutovers.get((namespace, name), ("",))[0] != table.generation:
            cutovers[namespace, name] = table.generation, parse_moment(table.confirmed_at).timestamp()
        self._datasets.statuses[namespace, name] = status
        self._datasets.limits[namespace, name] = stale_after

    def set_unattended(self, namespace: str, name: str, why: Unattended) -> None:
        """Show that a dataset is left alone, and why."""
        self._datasets.unattended[namespace, name] = why

    def forget(self, namespace: str, name: str) -> None:
        """Remove a dataset that is gone or not acted on."""
        known = self._datasets
        for by_name in (known.statuses, known.cutovers, known.limits, known.unattended):
            by_name.pop((namespace, name), None)
        self.events.forget(namespace, name)

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class DatasetEvents:
    """Ends of builds, rollouts and cutovers, found by comparing a dataset's statuses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.builds = Counter(
            "lookupdb_operator_builds_total",
            "Builds that ended: succeeded (also if the source is unchanged), failed, or rejected by a gate.",
            ["namespace", "dataset", "outcome"],
            registry=registry,
        )
        self.build_seconds = Histogram(
            "lookupdb_operator_build_duration_seconds",
            "Time from the start of a build to its end.",
            buckets=_LONG_BUCKETS,
            registry=registry,
        )
        self.rollout_seconds = Histogram(
            "lookupdb_operator_rollout_duration_seconds",
            "Time from the start of a rollout until all its servers are in a routing table, or offered for promotion.",
            buckets=_LONG_BUCKETS,
            registry=registry,
        )
        self.cutover_seconds = Histogram(
            "lookupdb_operator_cutover_duration_seconds",
            "Time from writing a routing table until all routers have confirmed it.",
            buckets=_BUCKETS,
            registry=registry,
        )

    def show(self, namespace: str, dataset: str) -> None:
        """Show 0 for events that have not happened yet, so that the first one is an increase."""
        for outcome in _OUTCOMES.values():
            self.builds.labels(namespace, dataset, outcome)

    def note(self, namespace: str, dataset: str, before: DatasetStatus, after: DatasetStatus) -> None:
        """Count the builds and rollouts that ended between two successive statuses of a dataset."""
        ended = {(record.generation, record.finished_at) for record in before.builds}
        for record in after.builds:
            if record.outcome in _OUTCOMES and (record.generation, record.finished_at) not in ended:
                self.builds.labels(namespace, dataset, _OUTCOMES[record.outcome]).inc()
                self.build_seconds.observe(_seconds_between(record.started_at, record.finished_at))
        starting = {rollout.rollout for rollout in before.rollouts if rollout.is_starting}
        for rollout in after.rollouts:
            if rollout.rollout in starting and not rollout.is_starting:
                self.rollout_seconds.observe(max(0.0, time.time() - parse_moment(rollout.started_at).timestamp()))
        if after.table and after.table.confirmed_at and before.table:
            was_confirmed = before.table.confirmed_at and before.table.version == after.table.version
            if not was_confirmed:
                self.cutover_seconds.observe(_seconds_between(after.table.written_at, after.table.confirmed_at))

    def forget(self, namespace: str, dataset: str) -> None:
        """Remove the labels of a dataset that is gone or not acted on."""
        for outcome in _OUTCOMES.values():
            with contextlib.suppress(KeyError):
                self.builds.remove(namespace, dataset, outcome)


def _seconds_between(start: str, end: str) -> float:
    return max(0.0, (parse_moment(end) - parse_moment(start)).total_seconds())


def _make_gauge(name: str, help_text: str) -> GaugeMetricFamily:
    """Return a gauge that has one value for each dataset."""
    return GaugeMetricFamily(name, help_text, labels=["namespace", "dataset"])


class _DatasetCollector(Collector):
    """Gauges of datasets, computed from their statuses at each scrape."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, str], DatasetStatus] = {}
        self.limits: dict[tuple[str, str], int | None] = {}
        self.unattended: dict[tuple[str, str], Unattended] = {}
        self.cutovers: dict[tuple[str, str], tuple[str, float]] = {}
        """The generation that all routers serve, and since when."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "lookupdb_dataset_info",
            "Active generation and rollout of a dataset.",
            labels=["namespace", "dataset", "generation", "rollout"],
        )
        records = _make_gauge("lookupdb_dataset_records", "Records of the active generation.")
        conditions = GaugeMetricFamily(
            "lookupdb_dataset_condition",
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
            "lookupdb_dataset_unattended",
            "1 for a dataset that needs action but that this operator leaves alone.",
            labels=["namespace", "dataset", "reason", "operator"],
        )
        for key, why in sorted(self.unattended.items()):
            unattended.add_metric([*key, why.reason, why.operator], 1)
        yield from (info, records, conditions, unattended, *self._collect_ages())

    def _collect_ages(self) -> Iterator[Metric]:
        """Yield when the served data were built and refreshed, and when they become stale."""
        built = _make_gauge(
            "lookupdb_dataset_built_timestamp_seconds", "When the active generation was built, by the builder's clock."
        )
        refreshed = _make_gauge(
            "lookupdb_dataset_refreshed_timestamp_seconds",
            "Start of the last refresh after which the served data matched their source.",
        )
        limits = _make_gauge(
            "lookupdb_dataset_stale_after_seconds", "Age at which the data are stale (refresh.staleAfterSeconds)."
        )
        cutovers = _make_gauge(
            "lookupdb_dataset_cutover_timestamp_seconds",
            "Time when all routers had confirmed the generation that they serve or, after a restart of the operator, "
            "the last routing table.",
        )
        for key, (_, moment_seconds) in sorted(self.cutovers.items()):
            cutovers.add_metric(key, moment_seconds)
        sources = _make_gauge(
            "lookupdb_dataset_source_timestamp_seconds",
            "When the source of the active generation was last modified, if the source says so.",
        )
        rollouts = _make_gauge(
            "lookupdb_dataset_rollout_started_timestamp_seconds",
            "Start of the oldest rollout whose servers are not all in a routing table yet.",
        )
        for key, status in sorted(self.statuses.items()):
            running = [
                parse_moment(rollout.started_at).timestamp() for rollout in status.rollouts if rollout.is_starting
            ]
            if running:
                rollouts.add_metric(key, min(running))
            active = next((item for item in status.generations if item.generation == status.generation), None)
            modified = active.source_modified_at if active else ""
            moments = (built, status.built_at), (refreshed, status.last_refreshed), (sources, modified)
            for family, moment in moments:
                if moment:
                    family.add_metric(key, parse_moment(moment).timestamp())
            limit = self.limits.get(key)
            if limit is not None:
                limits.add_metric(key, limit)
        yield from (built, refreshed, limits, sources, cutovers, rollouts)


# Health, and the answers to ``/healthz`` and ``/metrics``.


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
            return f"no reconcile pass (without datasets: no resync) has succeeded for {age:.0f} s"
        if (age := self._longest_look()) > self._patience:
            return f"a reconcile pass has not ended for {age:.0f} s"
        return None

    async def answer(self, path: str) -> ProbeAnswer | None:
        """Answer ``/healthz`` and ``/metrics``; None for any other path."""
        if path == "/metrics":
            return ProbeAnswer(self._metrics.render(), content_type=CONTENT_TYPE)
        problem = self.find_problem()
        answer = ProbeAnswer(f"{problem or 'ok'}\n".encode(), 503 if problem else 200)
        return answer if path == "/healthz" else None
