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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from lookupdb.process import start as process_start
from lookupdb.process import worker
from lookupdb.process.listeners import bound_port
from lookupdb.process.watched_files import Content, Folder, WatchedFiles
from lookupdb.process.worker import WorkerBoot
from lookupdb.router.access import AccessSettings, AccessWatch, Gatekeeper
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients.front import ClientFront
from lookupdb.router.counters import CERTIFICATE_EXPIRY, GAUGES, INDEX, TABLE_VERSION
from lookupdb.router.http.connection import HttpConnection
from lookupdb.router.http.exchanges import HttpService
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.resp.connection import RedisClientConnection
from lookupdb.router.resp.exchanges import RespService
from lookupdb.router.servers.link import LinkSettings, Passwords
from lookupdb.router.shards.lane import EndpointSettings
from lookupdb.router.table.cutover import Cutover
from lookupdb.router.table.routing_table import TableWatcher

if TYPE_CHECKING:
    from lookupdb.router.clients.certificates import Certificates

log = logging.getLogger(__name__)

FINISH_SECONDS: Final = 4.0
"""Time for requests in flight after the drain; the supervisor kills a worker a second later."""

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
            process_start.take_in_tls()
            from lookupdb.router.clients.certificates import Certificates, TlsFiles

            self.certificates = Certificates(TlsFiles.from_config(config["tls"]), counters, on_change)
            self.certificates.start()
        self._access: AccessWatch | None = None
        if config["access"]:
            self._access = AccessWatch(AccessSettings.from_json(config["access"]), on_change, logs=logs)
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

        ``error`` is the routing table's error, else a certificate problem, else what keeps every client out.
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

    async def wait_certificate(self, stop: asyncio.Event) -> bool:
        """Wait for a certificate, if one is needed, or for ``stop``. Return whether clients can connect."""
        if self.certificates is None:
            return True
        await _wait_for_either(self.certificates.is_loaded, stop)
        return self.certificates.context is not None

    def stop(self) -> None:
        """Stop watching."""
        for watched in (self.certificates, self._access):
            if watched is not None:
                watched.stop()


class _StatusReports:
    """Reports changes to the supervisor, and once that the worker is ready."""

    def __init__(self, boot: WorkerBoot) -> None:
        self._boot = boot
        self.entrance: Entrance | None = None
        self.is_ready = False
        """True if the worker has reported that it is ready."""
        self._last: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, cutover: Cutover) -> None:
        """Report soon, once for many endpoints that change together."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._send, cutover)

    def _send(self, cutover: Cutover) -> None:
        """Report the status. The worker is ready when a routing table is in effect, its shards have been reached and a
        client could be admitted."""
        self._timer = None
        assert self.entrance is not None
        status = self.entrance.describe(cutover.status())
        if not self.is_ready and cutover.is_complete and self.entrance.is_open:
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
    counters = boot.counters().slot(boot.index)
    for gauge in (*GAUGES, TABLE_VERSION, CERTIFICATE_EXPIRY):
        counters[INDEX[gauge]] = 0  # from the previous worker
    budget = RouterBudget(boot.config["budget_bytes"], is_encrypted=boot.config["tls"] is not None)
    lookups = LookupCore(limits, counters, budget)
    reports = _StatusReports(boot)
    complete = asyncio.Event()

    def on_change() -> None:
        reports.schedule(cutover)
        if cutover.is_complete:
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
    cutover = Cutover(lookups, endpoints, on_change, boot.config["dataset_uid"])
    entrance = Entrance(boot.config, counters, lambda: reports.schedule(cutover), logs=boot.index == 0)
    reports.entrance = entrance
    keys = _watch_keys(boot.config["password_key_dir"], passwords, on_change)
    watcher = TableWatcher(Path(boot.config["table"]), cutover.offer, cutover.refuse)
    watcher.start()
    if boot.index == 0 and not watcher.has_found:
        log.info(
            "no routing table yet; lookups start when it arrives",
            extra={"table": boot.config["table"]},
        )
    reports.schedule(cutover)  # reports that the routing table is missing, if so
    front = ClientFront(budget, limits, counters, entrance.gatekeeper, entrance.certificates)
    # Clients may be waiting at a restarted worker's socket: a short wait is better than a 503.
    await _wait_for_either(complete, stop, limits.deadline_seconds)
    if await entrance.wait_certificate(stop):
        http, *resp = boot.listeners()
        service = HttpService(lookups, limits, counters, entrance.gatekeeper, lambda: reports.is_ready)
        await front.listen(http, service, HttpConnection)
        for listener in resp:
            redis = RespService(lookups, limits, counters, entrance.gatekeeper, bound_port(listener))
            await front.listen(listener, redis, RedisClientConnection)
    await stop.wait()
    front.drain()
    await asyncio.sleep(boot.drain_seconds)
    await front.close(FINISH_SECONDS)
    watcher.stop()
    entrance.stop()
    if keys:
        keys.stop()
    cutover.close()


def _watch_keys(folder: str | None, passwords: Passwords, on_change: Callable[[], None]) -> WatchedFiles | None:
    """Give ``passwords`` the keys in ``folder`` now and after each change."""
    if folder is None:
        return None

    def take(content: Content) -> None:
        passwords.take_files(content)
        on_change()

    keys = WatchedFiles(Folder(Path(folder)).list_files, take)
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
