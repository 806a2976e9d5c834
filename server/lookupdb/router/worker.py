"""A router's worker process.

It watches the routing table, TLS certificate, access rules and passwords, and connects the HTTP and RESP ports to the
lookup core. It serves until SIGTERM, and then drains.

Imports stay few because every worker pays for each.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from lookupdb import telemetry
from lookupdb.process import take_in_tls, worker
from lookupdb.process.listeners import bound_port
from lookupdb.process.watched_files import Content, WatchedFiles, list_folder
from lookupdb.process.worker import WorkerBoot
from lookupdb.router.access import AccessSettings, AccessWatch, Gatekeeper
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients import ClientFront
from lookupdb.router.counters import CERTIFICATE_EXPIRY, GAUGES, INDEX, TABLE_VERSION
from lookupdb.router.cutover import Cutover
from lookupdb.router.http.connection import HttpConnection
from lookupdb.router.http.exchanges import ConsoleForwarder, HttpService
from lookupdb.router.http.traces import RequestTraces
from lookupdb.router.lane import EndpointSettings
from lookupdb.router.link import LinkSettings, Passwords
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.resp.connection import RedisClientConnection
from lookupdb.router.resp.exchanges import RespService
from lookupdb.router.routing_table import TableWatcher

if TYPE_CHECKING:
    from lookupdb.router.tls import Certificates
    from lookupdb.spans import Spans

log = logging.getLogger(__name__)

FINISH_SECONDS: Final = 4.0
"""Time for requests in flight after the drain; the supervisor kills a worker a second later."""

FLUSH_SECONDS: Final = 0.5
"""Time for sending the last spans, in the second before the supervisor kills the worker."""

EXPORTER_TURN_SECONDS: Final = 0.0005
"""The longest time for which lookups wait for the thread that encodes spans; Python's default is ten times as long."""

REPORT_SECONDS: Final = 0.05
"""The longest delay before a change is reported to the supervisor."""


class Entrance:
    """TLS certificates and access rules, watched until ``stop``. Calls ``on_change`` when ``describe`` may have
    changed."""

    def __init__(
        self, config: Mapping[str, Any], counters: memoryview, on_change: Callable[[], None], *, logs: bool
    ) -> None:
        self.certificates: Certificates | None = None
        """None if clients speak plain HTTP."""
        if config["tls"]:
            take_in_tls()
            from lookupdb.router.tls import Certificates, TlsFiles

            paths = config["tls"]
            client_ca = Path(paths["client_ca"]) if paths["client_ca"] else None
            files = TlsFiles(Path(paths["certificate"]), Path(paths["key"]), client_ca)
            self.certificates = Certificates(files, counters, on_change)
            self.certificates.start()
        self._access: AccessWatch | None = None
        if config["access"]:
            self._access = AccessWatch(AccessSettings(**config["access"]), on_change, logs=logs)
            self._access.start()

    @property
    def gatekeeper(self) -> Gatekeeper | None:
        """The judge of client tokens, or None if every client may look up."""
        return None if self._access is None else self._access.gatekeeper

    @property
    def is_open(self) -> bool:
        """Return whether any client could be admitted."""
        has_certificate = self.certificates is None or self.certificates.context is not None
        return has_certificate and (self._access is None or self._access.gatekeeper.can_judge)

    def describe(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return ``status`` with the state of access added.

        ``error`` is the routing table's error, else a certificate problem, else the reason why no client can connect.
        """
        error = status["error"]
        if self.certificates is not None:
            error = error or self.certificates.problem
        if self._access is None:
            return {**status, "error": error}
        described = self._access.describe()
        if error is None and not self._access.gatekeeper.can_judge:
            error = "; ".join(described["problems"])
        return {**status, "error": error, "access": described}

    def stop(self) -> None:
        """Stop watching."""
        for watched in (self.certificates, self._access):
            if watched is not None:
                watched.stop()


class _Datasets:
    """The datasets of a router: each has a lookup core, and a routing table that is watched until ``stop``."""

    def __init__(
        self,
        config: Mapping[str, Any],
        make_core: Callable[[memoryview], LookupCore],
        slots: Sequence[memoryview],
        endpoints: EndpointSettings,
        on_change: Callable[[], None],
    ) -> None:
        """``slots`` are the counters of each dataset."""
        self.cores: dict[str, LookupCore] = {}
        self._cutovers: dict[str, Cutover] = {}
        self._watchers: list[TableWatcher] = []
        tables = config["datasets"] or {"": config["table"]}
        for (name, table), slot in zip(tables.items(), slots, strict=True):
            core = self.cores[name] = make_core(slot)
            own_endpoints = replace(endpoints, link=replace(endpoints.link, counters=slot))
            cutover = self._cutovers[name] = Cutover(core, own_endpoints, on_change, config["dataset_uid"])
            self._watchers.append(TableWatcher(Path(table), cutover.offer, cutover.refuse))

    def start(self) -> bool:
        """Begin to watch. Return whether there is a routing table already."""
        for watcher in self._watchers:
            watcher.start()
        return any(watcher.has_found for watcher in self._watchers)

    @property
    def is_complete(self) -> bool:
        """Return whether any dataset can be asked: one that fails does not affect the others."""
        return any(cutover.is_complete for cutover in self._cutovers.values())

    def describe(self) -> dict[str, Any]:
        """Return the status of the only dataset, or the status of each dataset by its name."""
        statuses = {name: cutover.status() for name, cutover in self._cutovers.items()}
        if "" in statuses:
            return statuses[""]
        error = next((status["error"] for status in statuses.values() if status["error"]), None)
        return {"datasets": statuses, "error": error}

    def stop(self) -> None:
        """Stop watching, and close all connections."""
        for watcher in self._watchers:
            watcher.stop()
        for cutover in self._cutovers.values():
            cutover.close()


class _StatusReports:
    """Reports changes, and the worker's readiness, to the supervisor."""

    def __init__(self, boot: WorkerBoot) -> None:
        self._boot = boot
        self.datasets: _Datasets | None = None
        self.entrance: Entrance | None = None
        self.is_ready = False
        """True if the worker has reported that it is ready."""
        self._last: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Report soon, once for many endpoints that change together."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._send)

    def _send(self) -> None:
        """Report the status. The worker is ready when a routing table is in effect, its shards have been reached and a
        client could be admitted."""
        self._timer = None
        assert self.entrance is not None
        assert self.datasets is not None
        status = self.entrance.describe(self.datasets.describe())
        if not self.is_ready and self.datasets.is_complete and self.entrance.is_open:
            self.is_ready = True
            self._boot.report_ready(**status)
        elif status != self._last:
            self._boot.report(**status)
        self._last = status


async def route(boot: WorkerBoot) -> None:
    """Serve until SIGTERM and the drain that follows."""
    loop = asyncio.get_running_loop()
    boot.start_heartbeat(loop)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    limits = RouterLimits(**boot.config["limits"])
    shared = boot.counters()
    counters, *others = slots = [shared.slot(boot.index, block) for block in range(shared.blocks)]
    for slot in slots:
        for gauge in (*GAUGES, TABLE_VERSION, CERTIFICATE_EXPIRY):
            slot[INDEX[gauge]] = 0  # the previous worker's value is still there
    budget = RouterBudget(boot.config["budget_bytes"], is_encrypted=boot.config["tls"] is not None)
    reports = _StatusReports(boot)
    complete = asyncio.Event()

    def on_change() -> None:
        reports.schedule()
        if datasets.is_complete:
            complete.set()

    passwords = Passwords(boot.config["password"])
    endpoints = EndpointSettings(
        deadline_seconds=limits.deadline_seconds,
        max_queued_keys=max(limits.max_queued_keys, limits.max_keys),  # the largest batch must fit an idle queue
        link=LinkSettings(
            counters=counters,
            random=random.Random(),  # noqa: S311 - spreads load, keeps no secret
            budget=budget,
            passwords=passwords,
        ),
    )
    dataset_slots = others or slots
    datasets = _Datasets(
        boot.config, lambda slot: LookupCore(limits, slot, budget), dataset_slots, endpoints, on_change
    )
    entrance = Entrance(boot.config, counters, reports.schedule, logs=boot.index == 0)
    reports.entrance, reports.datasets = entrance, datasets
    keys = _watch_keys(boot.config["password_key_dir"], passwords, on_change)
    if not datasets.start() and boot.index == 0:
        log.info(
            "no routing table yet; lookups start when it arrives",
            extra={"table": boot.config["table"] or ", ".join(boot.config["datasets"].values())},
        )
    reports.schedule()  # reports that the routing table is missing, if so
    spans = _open_spans(counters)
    traces = None if spans is None else RequestTraces(spans, is_encrypted=entrance.certificates is not None)
    encrypt = None if entrance.certificates is None else entrance.certificates.encrypt
    front = ClientFront(budget, limits, counters, entrance.gatekeeper, encrypt, dataset_slots)
    # Clients may be waiting at a restarted worker's socket: a short wait is better than a 503.
    await _wait_for_either(complete, stop, limits.deadline_seconds)
    certificates = entrance.certificates
    if certificates is not None:
        await _wait_for_either(certificates.is_loaded, stop)
    if certificates is None or certificates.context is not None:
        http, *resp = boot.listeners()
        named = {} if boot.config["table"] else datasets.cores
        # With several datasets, requests that name none have a core of their own, without a table.
        lookups = LookupCore(limits, counters, budget) if others else next(iter(datasets.cores.values()))
        service = HttpService(
            *(lookups, limits, entrance.gatekeeper, lambda: reports.is_ready, named),
            begin_trace=None if traces is None else traces.begin,
            samples_roots=traces is not None and traces.samples_roots,
        )
        if boot.config["console"]:
            service.console = ConsoleForwarder(boot.config["console"])
        await front.listen(http, service, HttpConnection)
        for listener in resp:
            redis = RespService(lookups, limits, entrance.gatekeeper, bound_port(listener))
            await front.listen(listener, redis, RedisClientConnection)
    await stop.wait()
    front.drain()
    await asyncio.sleep(boot.drain_seconds)
    await front.close(FINISH_SECONDS)
    if spans is not None:
        spans.close(FLUSH_SECONDS)
    entrance.stop()
    if keys:
        keys.stop()
    datasets.stop()


def _open_spans(counters: memoryview) -> Spans | None:
    """Return the maker of spans, which counts them; None if no spans are wanted or possible."""
    if not telemetry.is_wanted():
        return None
    take_in_tls()
    sys.setswitchinterval(EXPORTER_TURN_SECONDS)
    spans = telemetry.open_spans("lookupdb-router", samples_roots=False)
    if spans is not None:

        def count(exports: int, drops: int) -> None:  # no other thread writes these two
            counters[INDEX["spans_exported"]] += exports
            counters[INDEX["spans_dropped"]] += drops

        spans.count_by(count)
    return spans


def _watch_keys(folder: str | None, passwords: Passwords, on_change: Callable[[], None]) -> WatchedFiles | None:
    """Give ``passwords`` the keys in ``folder`` now and after each change."""
    if folder is None:
        return None

    def take(content: Content) -> None:
        passwords.take_files(content)
        on_change()

    keys = WatchedFiles(lambda: list_folder(Path(folder)), take)
    keys.start()
    return keys


async def _wait_for_either(first: asyncio.Event, second: asyncio.Event, seconds: float | None = None) -> None:
    """Return when either event is set, or after ``seconds``."""
    waits = [asyncio.create_task(event.wait()) for event in (first, second)]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for waiting in waits:
        waiting.cancel()


def start() -> None:
    """Run a worker."""
    worker.run_worker(lambda boot: uvloop.run(route(boot)))
