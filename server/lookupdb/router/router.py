"""The router's supervisor: settings, sockets, shares of memory, metrics and the service with its workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from lookupdb import telemetry
from lookupdb.disk import raise_limit
from lookupdb.process import admin, listeners, memory
from lookupdb.process.launch import run_supervisor
from lookupdb.process.listeners import limit_connections
from lookupdb.process.supervisor import Fleet, Supervisor
from lookupdb.process.worker import REQUEST_SECONDS, Counters
from lookupdb.router import budget
from lookupdb.router import counters as metrics
from lookupdb.router.access import AccessSettings
from lookupdb.router.budget import RouterLimits

PREFIX: Final = "lookupdb_router"


def label_blocks(supervisor: Supervisor, names: Iterable[str]) -> Callable[[], Sequence[admin.Labels]]:
    """Return a function that returns the labels of each block of counters. With several ``names``, the first block
    belongs to no dataset.

    Workers report the datasets of their routing tables; until then the namespace is unknown.
    """
    found = {name: {"namespace": "", "dataset": name} for name in names or ("",)}

    def labels() -> Sequence[admin.Labels]:
        for worker in supervisor.workers:
            statuses = worker.report.get("datasets") or {"": worker.report}
            for name, status in statuses.items():
                if status.get("dataset"):
                    namespace, _, dataset = status["dataset"].partition("/")
                    found[name] = {"namespace": namespace, "dataset": dataset}
        blocks = list(found.values())
        return blocks if len(blocks) == 1 else [{"namespace": "", "dataset": ""}, *blocks]

    return labels


def collect_router(totals: admin.CounterTotals, *, has_resp: bool) -> Iterator[admin.MetricFamily]:
    """Yield the metrics that need more than a name: requests by status, durations, and the minimum over workers of
    table version and certificate expiry."""
    requests = [sample for name, code in metrics.REQUESTS.items() for sample in totals.samples(name, code=code)]
    yield admin.labelled_counter(f"{PREFIX}_requests", metrics.REQUESTS_HELP, requests)
    protocols = metrics.PROTOCOLS if has_resp else metrics.PROTOCOLS[:1]
    durations = (
        series
        for (protocol, endpoint, outcome), names in metrics.DURATIONS.items()
        if protocol in protocols
        for series in totals.observations(names, 1e-9, protocol=protocol, endpoint=endpoint, outcome=outcome)
    )
    yield admin.histogram(f"{PREFIX}_request_duration_seconds", metrics.DURATIONS_HELP, REQUEST_SECONDS, durations)
    batches = totals.observations((*metrics.BATCH_BUCKETS, metrics.BATCH_MICROSECONDS), 1e-6)
    yield admin.histogram(
        f"{PREFIX}_batch_duration_seconds", metrics.BATCH_SECONDS_HELP, metrics.BATCH_SECONDS, batches
    )
    blocks, source = list(enumerate(totals.labels())), totals.source
    help_text = "Version of the routing table in effect, the lowest of all workers; 0 without a table."
    versions = [(labels, min(source.values(metrics.TABLE_VERSION, block))) for block, labels in blocks]
    yield admin.labelled_gauge(f"{PREFIX}_{metrics.TABLE_VERSION}", help_text, versions[len(versions) > 1 :])
    help_text = "Expiry of the public port's certificate, the earliest of all workers; 0 without TLS."
    expiry = [(blocks[0][1], min(source.values(metrics.CERTIFICATE_EXPIRY)))]
    yield admin.labelled_gauge(f"{PREFIX}_{metrics.CERTIFICATE_EXPIRY}", help_text, expiry)


def collectors(
    counters: Counters, supervisor: Supervisor, names: Iterable[str] = (), *, has_resp: bool = True
) -> Sequence[admin.Collector]:
    """Return all collectors of a router of the datasets ``names``."""
    labels = label_blocks(supervisor, names)
    totals = admin.CounterTotals(counters, labels)
    return (
        partial(admin.collect_counters, PREFIX, totals, metrics.COUNTERS, metrics.GAUGES),
        partial(collect_router, totals, has_resp=has_resp),
        lambda: admin.collect_service("router", supervisor, labels()[0]),
    )


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Settings of the router. Port 0 means a free one."""

    table: str | None
    dataset_uid: str | None
    """None for any dataset."""
    host: str
    port: int
    admin_port: int
    workers: int
    drain_seconds: float
    memory_limit: int | None
    password: str | None
    """Password of shard servers for which the routing table names no key."""
    password_key_dir: str | None
    """Folder of the keys from which other passwords are derived."""
    tls: dict[str, str | None] | None
    """Paths for ``TlsFiles``, or None for plain HTTP."""
    ready_file: str | None
    log_format: str
    limits: RouterLimits
    access: AccessSettings | None = None
    """Access rules, or None if every client may look up."""
    resp_port: int | None = None
    datasets: dict[str, str] = field(default_factory=dict)
    """Instead of ``table``: the path of each dataset's routing table, by the name that requests give."""
    console: str | None = None
    """Host and port of the console that answers requests outside of the API."""


def main(settings: Mapping[str, Any]) -> None:
    """Run the router's supervisor until SIGTERM. ``settings`` are RouterSettings."""
    limits, access = RouterLimits(**settings["limits"]), settings["access"]
    members = {**settings, "limits": limits, "access": None if access is None else AccessSettings(**access)}
    asyncio.run(admin.run_service(router_service(RouterSettings(**members))))


def router_service(settings: RouterSettings) -> admin.Service:
    """Return the service to run. Raises UsageError if a port cannot be bound."""
    possible = limit_connections(settings.limits.max_connections, raise_limit())
    # The public ports, HTTP first: name in the ready file → one socket per worker.
    bind = partial(listeners.bind_shared, settings.host, count=settings.workers)
    public = {"port": bind(settings.port)}
    if settings.resp_port is not None:
        public["resp"] = bind(settings.resp_port)
    datasets = len(settings.datasets)
    counters = Counters(metrics.NAMES, settings.workers, 1 + datasets if datasets > 1 else 1)
    limits, budget_bytes = _share_memory(replace(settings.limits, max_connections=possible), settings)
    config = {**asdict(settings), "limits": asdict(limits), "budget_bytes": budget_bytes}
    fleet = Fleet(
        module="lookupdb.router.worker",
        configs=[config] * settings.workers,
        sockets=[list(sockets) for sockets in zip(*public.values(), strict=True)],
        counters=counters,
        drain_seconds=settings.drain_seconds,
        log_format=settings.log_format,
    )
    return admin.Service(
        fleet=fleet,
        ports=list(public.values()),
        admin_listener=listeners.bind_admin(settings.host, settings.admin_port),
        ready_members={name: listeners.bound_port(sockets[0]) for name, sockets in public.items()},
        ready_file=None if settings.ready_file is None else Path(settings.ready_file),
        collectors=lambda supervisor: collectors(
            counters, supervisor, settings.datasets, has_resp=settings.resp_port is not None
        ),
    )


def _share_memory(limits: RouterLimits, settings: RouterSettings) -> tuple[RouterLimits, int]:
    """Return the limits with the connections that the memory allows, and each worker's budget."""
    workers, connection_bytes = settings.workers, budget.CONNECTION_BYTES
    memory_limit = settings.memory_limit or memory.container_memory().limit
    if memory_limit is not None and settings.access is not None and settings.access.keys is not None:
        memory_limit -= workers * budget.ACCOUNTS_BYTES
    if memory_limit is not None and telemetry.is_wanted():
        memory_limit -= workers * budget.TRACES_BYTES
    if settings.tls is not None:
        connection_bytes = budget.TLS_CONNECTION_BYTES + (
            budget.CLIENT_CERTIFICATE_BYTES if settings.tls["client_ca"] else 0
        )
    affordable, budget_bytes = budget.share_memory(
        memory_limit, workers, limits.max_connections, limits.max_body_bytes, connection_bytes
    )
    if affordable < limits.max_connections:
        log.warning(
            "a worker accepts %d connections instead of %d: the memory for %d workers allows no more; raise the "
            "container's memory limit (or --memory-limit), or lower --max-connections",
            *(affordable, limits.max_connections, workers),
        )
    return replace(limits, max_connections=affordable), budget_bytes


def start() -> None:
    """Run the supervisor."""
    run_supervisor(main)
