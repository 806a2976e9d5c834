"""Assembles the router: its workers, their limits and shares of the memory, its ports, the admin port."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lookupdb.route import metrics
from lookupdb.route.access.settings import AccessSettings
from lookupdb.route.budget import (
    ACCOUNTS_BYTES,
    CLIENT_CERTIFICATE_BYTES,
    CONNECTION_BYTES,
    TLS_CONNECTION_BYTES,
    affordable_connections,
    worker_budget,
)
from lookupdb.route.counters import NAMES
from lookupdb.route.limits import RouterLimits
from lookupdb.runtime import capacity, descriptors, listeners, memory
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.launch import run_supervisor
from lookupdb.runtime.process import Fleet
from lookupdb.runtime.service import Service, run_service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Which routing table is answered from, and how. A port 0 is a free one."""

    table: str
    dataset_uid: str | None
    """None: any."""
    host: str
    port: int
    admin_port: int
    workers: int
    drain_seconds: float
    memory_limit: int | None
    """None: the container's."""
    password: str | None
    """Of the shard servers whose routing table entry names no key."""
    password_key_dir: str | None
    """The folder of the keys from which the others' passwords are derived."""
    tls: dict[str, str | None] | None
    """Paths, as ``TlsFiles`` takes them; None: plain HTTP."""
    ready_file: Path | None
    log_format: str
    limits: RouterLimits
    access: AccessSettings | None = None
    """Who may ask; None: anybody."""
    resp_port: int | None = None
    """Where clients speak RESP; None: nowhere."""


def main(settings: Mapping[str, Any]) -> None:
    """Route until SIGTERM: the router's supervisor. ``settings`` are RouterSettings."""
    ready_file, access = settings["ready_file"], settings["access"]
    members = {
        **settings,
        "ready_file": None if ready_file is None else Path(ready_file),
        "limits": RouterLimits(**settings["limits"]),
        "access": None if access is None else AccessSettings.from_json(access),
    }
    asyncio.run(run_service(router_service(RouterSettings(**members))))


def router_service(settings: RouterSettings) -> Service:
    """Return the service to run. Raises UsageError when a port cannot be listened on."""
    possible = capacity.limit_connections(settings.limits.max_connections, descriptors.raise_limit())
    public = _bind_public(settings)
    counters = Counters(NAMES, settings.workers)
    limits, budget_bytes = _share_memory(
        replace(settings.limits, max_connections=possible),
        _spare_memory(settings),
        settings.workers,
        _connection_bytes(settings),
    )
    config = {
        "table": settings.table,
        "dataset_uid": settings.dataset_uid,
        "limits": asdict(limits),
        "budget_bytes": budget_bytes,
        "password": settings.password,
        "tls": settings.tls,
        "password_key_dir": settings.password_key_dir,
        "access": None if settings.access is None else asdict(settings.access),
    }
    fleet = Fleet(
        module="lookupdb.route.worker",
        configs=[config] * settings.workers,
        sockets=[list(sockets) for sockets in zip(*public.values(), strict=True)],
        counters=counters,
        drain_seconds=settings.drain_seconds,
        log_format=settings.log_format,
    )
    return Service(
        fleet=fleet,
        ports=list(public.values()),
        admin_listener=listeners.bind_admin(settings.host, settings.admin_port),
        ready_members={name: listeners.bound_port(sockets[0]) for name, sockets in public.items()},
        ready_file=settings.ready_file,
        collectors=lambda supervisor: metrics.collectors(counters, supervisor),
    )


def _bind_public(settings: RouterSettings) -> dict[str, list[socket.socket]]:
    """The sockets of the public ports, one a worker, by the names of the ports in the ready file; HTTP's come first."""
    bind = partial(listeners.bind_shared, settings.host, count=settings.workers)
    public = {"port": bind(settings.port)}
    if settings.resp_port is not None:
        public["resp"] = bind(settings.resp_port)
    return public


def _connection_bytes(settings: RouterSettings) -> int:
    if settings.tls is None:
        return CONNECTION_BYTES
    return TLS_CONNECTION_BYTES + (CLIENT_CERTIFICATE_BYTES if settings.tls["client_ca"] else 0)


def _spare_memory(settings: RouterSettings) -> int | None:
    """The memory limit without what workers need to judge service accounts; None: no limit is known."""
    limit = settings.memory_limit or memory.container_memory().limit
    if limit is None or settings.access is None or settings.access.keys is None:
        return limit
    return limit - settings.workers * ACCOUNTS_BYTES


def _share_memory(
    limits: RouterLimits, memory_limit: int | None, workers: int, connection_bytes: int
) -> tuple[RouterLimits, int]:
    """The limits with as many connections as the memory allows, and each worker's budget."""
    affordable = affordable_connections(
        memory_limit, workers, limits.max_connections, limits.max_body_bytes, connection_bytes
    )
    if affordable < limits.max_connections:
        log.warning(
            "%d connections a worker are accepted and not %d: the memory of %d workers allows no more; raise the "
            "container's memory limit (or --memory-limit), or lower --max-connections",
            *(affordable, limits.max_connections, workers),
        )
    budget = worker_budget(memory_limit, workers, affordable, limits.max_body_bytes, connection_bytes)
    return replace(limits, max_connections=affordable), budget


def start() -> None:
    """Be the supervisor: see ``runtime.start``."""
    run_supervisor(main)
