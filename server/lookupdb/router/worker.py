"""A router's worker process: HTTP and RESP on inherited sockets, the lookup core behind it, a routing table watched.

Imports stay few: each is paid for once in every worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lookupdb.process import start as process_start
from lookupdb.router.access import AccessSettings, AccessWatch, Gatekeeper

if TYPE_CHECKING:
    from lookupdb.router.clients.certificates import Certificates
import logging
import random
import signal
from pathlib import Path
from typing import Final

import uvloop

from lookupdb.process import worker
from lookupdb.process.listeners import bound_port
from lookupdb.process.watched_files import Content, Folder, WatchedFiles
from lookupdb.process.worker import WorkerBoot
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients.front import ClientFront
from lookupdb.router.counters import CERTIFICATE_EXPIRY, GAUGES, INDEX, TABLE_VERSION
from lookupdb.router.http.connection import HttpProtocol
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.resp.connection import RespProtocol
from lookupdb.router.servers.link import LinkSettings
from lookupdb.router.servers.proof import Passwords
from lookupdb.router.shards.lane import EndpointSettings
from lookupdb.router.table.cutover import Cutover
from lookupdb.router.table.routing_table import TableWatcher

# What stands between the clients of a worker and its lookups: TLS, and who may look up. What both go by is read from
# files that others replace.


class Entrance:
    """Watched from now on until ``stop``. ``on_change`` is called whenever ``describe`` may say something else."""

    def __init__(
        self, config: Mapping[str, Any], counts: memoryview, on_change: Callable[[], None], *, logs: bool
    ) -> None:
        self._on_change = on_change
        self.certificates = self._watch_certificates(config["tls"], counts) if config["tls"] else None
        """None: clients speak plain HTTP."""
        self._access = self._watch_access(config["access"], logs=logs) if config["access"] else None

    def _watch_certificates(self, files: dict[str, Any], counts: memoryview) -> Certificates:
        process_start.take_in_tls()
        from lookupdb.router.clients.certificates import Certificates, TlsFiles

        certificates = Certificates(TlsFiles.from_config(files), counts, self._on_change)
        certificates.start()
        return certificates

    def _watch_access(self, members: dict[str, Any], *, logs: bool) -> AccessWatch:
        access = AccessWatch(AccessSettings.from_json(members), self._on_change, logs=logs)
        access.start()
        return access

    @property
    def gatekeeper(self) -> Gatekeeper | None:
        """Who lets clients in; None: anybody may ask."""
        return None if self._access is None else self._access.gatekeeper

    @property
    def is_open(self) -> bool:
        """Whether somebody could be let in."""
        has_certificate = self.certificates is None or self.certificates.context is not None
        return has_certificate and (self._access is None or self._access.gatekeeper.can_judge)

    def describe(self, status: dict[str, Any]) -> dict[str, Any]:
        """``status``, and what is to be said of this. What keeps everybody out is the ``error``, and so is a
        certificate that is not taken, unless the routing table is in error."""
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
        """Return once there is a certificate, if one is needed, or ``stop`` is set. Whether there is."""
        if self.certificates is None:
            return True
        waits = [asyncio.create_task(event.wait()) for event in (self.certificates.is_loaded, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for waiting in waits:
            waiting.cancel()
        return self.certificates.context is not None

    def stop(self) -> None:
        """Look no more."""
        for watched in (self.certificates, self._access):
            if watched is not None:
                watched.stop()


log = logging.getLogger(__name__)

FINISH_SECONDS: Final = 4.0
"""After the drain, requests in flight have so long; the supervisor kills a worker a second later."""

REPORT_SECONDS: Final = 0.05
"""How long a change may wait before it is reported to the supervisor."""


def endpoint_settings(
    limits: RouterLimits, slot: memoryview, budget: RouterBudget, passwords: Passwords
) -> EndpointSettings:
    """The settings of all endpoints. A batch that the limits permit must fit an idle endpoint's queue."""
    return EndpointSettings(
        deadline_seconds=limits.deadline_seconds,
        max_queued_keys=max(limits.max_queued_keys, limits.max_keys),
        link=LinkSettings(
            counters=slot,
            random=random.Random(),  # noqa: S311 - spreads load, keeps no secret
            budget=budget,
            passwords=passwords,
        ),
    )


class _StatusReports:
    """Reports to the supervisor what has changed, and once that the worker is ready."""

    def __init__(self, boot: WorkerBoot) -> None:
        self._boot = boot
        self.entrance: Entrance | None = None
        self.is_ready = False
        """Whether that has been reported."""
        self._last: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, cutover: Cutover) -> None:
        """Report soon: many endpoints change at once."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._send, cutover)

    def _send(self, cutover: Cutover) -> None:
        """Report the status. The worker is ready once a routing table is in effect, its shards have been reached, and
        somebody could be let in."""
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
    slot = boot.counters().slot(boot.index)
    for gauge in (*GAUGES, TABLE_VERSION, CERTIFICATE_EXPIRY):
        slot[INDEX[gauge]] = 0  # what the worker before this one left
    budget = RouterBudget(boot.config["budget_bytes"], is_encrypted=boot.config["tls"] is not None)
    lookups = LookupCore(limits, slot, budget)
    reports = _StatusReports(boot)
    complete = asyncio.Event()

    def on_change() -> None:
        reports.schedule(cutover)
        if cutover.is_complete:
            complete.set()

    passwords = Passwords(boot.config["password"])
    endpoints = endpoint_settings(limits, slot, budget, passwords)
    cutover = Cutover(lookups, endpoints, on_change, boot.config["dataset_uid"])
    entrance = reports.entrance = Entrance(boot.config, slot, lambda: reports.schedule(cutover), logs=boot.index == 0)
    keys = _watch_keys(boot.config["password_key_dir"], passwords, on_change)
    watcher = TableWatcher(Path(boot.config["table"]), cutover.offer, cutover.refuse)
    watcher.start()
    if boot.index == 0 and not watcher.has_found:
        log.info(
            "there is no routing table yet: it is looked for, and nothing is answered before",
            extra={"table": boot.config["table"]},
        )
    reports.schedule(cutover)  # that there is no routing table yet, if so
    front = ClientFront(budget, limits, slot, entrance.gatekeeper, entrance.certificates)
    # A worker that is started again finds clients waiting at its socket: better a moment more than a 503.
    await _wait_for_either(complete, stop, limits.deadline_seconds)
    if await entrance.wait_certificate(stop):
        http, *resp = boot.listeners()
        protocol = HttpProtocol(lookups, limits, slot, entrance.gatekeeper, lambda: reports.is_ready)
        await front.listen(http, protocol)
        for listener in resp:
            port = bound_port(listener)
            await front.listen(listener, RespProtocol(lookups, limits, slot, entrance.gatekeeper, port))
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
    """Have ``passwords`` take the keys in ``folder`` now, and whenever they change."""
    if folder is None:
        return None

    def take(content: Content) -> None:
        passwords.take_files(content)
        on_change()

    keys = WatchedFiles(Folder(Path(folder)).list_files, take)
    keys.start()
    return keys


async def _wait_for_either(first: asyncio.Event, second: asyncio.Event, seconds: float) -> None:
    """Return when either event is set, after ``seconds`` at the latest."""
    waits = [asyncio.create_task(event.wait()) for event in (first, second)]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for waiting in waits:
        waiting.cancel()


def start() -> None:
    """Be the worker: see ``runtime.start``."""
    worker.run_worker(lambda boot: uvloop.run(route(boot)))
