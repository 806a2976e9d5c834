"""Assembles the shard server: the file, its workers, their ports, the admin port."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lookupdb import shard_name
from lookupdb.errors import LookupdbError
from lookupdb.keys import UNICODE_VERSION, has_same_normalization
from lookupdb.manifest import Manifest
from lookupdb.runtime import capacity, descriptors, listeners
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.launch import run_supervisor
from lookupdb.runtime.process import Fleet
from lookupdb.runtime.service import Service, run_service
from lookupdb.runtime.termination_log import render_failure, write_termination_log
from lookupdb.serve import metrics, shard_counters
from lookupdb.serve.arrival import await_shard
from lookupdb.serve.identity import ServerIdentity
from lookupdb.serve.limits import ServerLimits, WarmPolicy
from lookupdb.serve.verify import ServedShard, Verification, locate_shard

log = logging.getLogger(__name__)

_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""Seconds, seconds, probes: a client whose machine is gone is noticed after two minutes."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What is served, and how. ``port`` is the first worker's; 0 lets each worker take a free one."""

    path: Path
    """A generation's directory, or a shard file in it."""
    shard: int | None
    workers: int
    host: str
    port: int
    admin_port: int
    drain_seconds: float
    warm: WarmPolicy
    read_rate: int
    """Bytes a second at which the file is verified and warmed."""
    password_sha256: str | None
    """Of what clients must show first: 64 hexadecimal digits. None: nothing."""
    wait: float
    """Seconds for which the generation may be missing in its folder; 0: it has to be there."""
    ready_file: Path | None
    termination_log: Path | None
    """Where a failure is written as JSON. None: nowhere."""
    log_format: str
    limits: ServerLimits


def main(settings: Mapping[str, Any]) -> None:
    """Serve until SIGTERM: the shard server's supervisor. ``settings`` are ServerSettings."""
    paths = {name: settings[name] for name in ("ready_file", "termination_log")}
    members = {
        **settings,
        "path": Path(settings["path"]),
        **{name: None if path is None else Path(path) for name, path in paths.items()},
        "limits": ServerLimits(**settings["limits"]),
    }
    server = ServerSettings(**members)
    try:
        asyncio.run(run_service(shard_service(server)))
    except LookupdbError as error:
        write_termination_log(server.termination_log, render_failure(error))
        raise


def shard_service(settings: ServerSettings) -> Service:
    """Return the service to run. Raises UsageError when a port cannot be listened on, CorruptFile when there is no
    whole generation, NotOnVolume when there is still none after ``settings.wait`` seconds."""
    served = _locate(settings)
    _compare_tables(served.manifest)
    settings = replace(settings, limits=_limit_connections(settings.limits))
    sockets = [_listener(settings, index) for index in range(settings.workers)]
    counters = Counters(shard_counters.NAMES, settings.workers)
    fleet = Fleet(
        module="lookupdb.serve.worker",
        configs=[_config(served, settings)] * settings.workers,
        sockets=[[listener] for listener in sockets],
        counters=counters,
        drain_seconds=settings.drain_seconds,
        log_format=settings.log_format,
    )
    verification = Verification(served, settings.warm, settings.read_rate)
    return Service(
        fleet=fleet,
        ports=fleet.sockets,
        admin_listener=listeners.bind_admin(settings.host, settings.admin_port),
        ready_members={"ports": [listeners.bound_port(listener) for listener in sockets]},
        ready_file=settings.ready_file,
        prepare=lambda: _verify(verification),
        collectors=lambda supervisor: metrics.collectors(served, counters, supervisor),
        status=lambda: _status(served, verification, settings.limits.max_connections),
    )


def _locate(settings: ServerSettings) -> ServedShard:
    if settings.wait:
        return await_shard(settings.path, settings.shard, settings.wait)
    return locate_shard(settings.path, settings.shard)


def _compare_tables(manifest: Manifest) -> None:
    """Warn when keys were normalised by other character tables than this lookupdb, and likely its router, has."""
    if not has_same_normalization(manifest.normalize, manifest.unicode):
        log.warning(
            "keys were normalised by another version of Unicode: those that hold characters of the newer one only may "
            "not be found; build the dataset again, which a refresh does",
            extra={
                "generation": manifest.generation,
                "normalize": ",".join(manifest.normalize),
                "builtWith": manifest.unicode,
                "servedWith": UNICODE_VERSION,
            },
        )


def _limit_connections(limits: ServerLimits) -> ServerLimits:
    """Return ``limits`` with no more connections than this process's children may open."""
    return replace(
        limits, max_connections=capacity.limit_connections(limits.max_connections, descriptors.raise_limit())
    )


def server_identity(served: ServedShard) -> ServerIdentity:
    """Return what the workers say that they serve."""
    manifest = served.manifest
    return ServerIdentity(
        format_version=shard_name.FORMAT_VERSION,
        dataset=f"{manifest.namespace}/{manifest.name}",
        dataset_uid=manifest.uid,
        generation=manifest.generation,
        shard=served.shard,
        shards=len(manifest.shards),
        records=served.entry.records,
        normalize=manifest.normalize,
        value_format=manifest.value_format,
    )


def _listener(settings: ServerSettings, index: int) -> socket.socket:
    listener = listeners.bind(settings.host, settings.port and settings.port + index)
    # Connections inherit these from the socket that accepts them.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        listener.setsockopt(socket.IPPROTO_TCP, name, value)
    return listener


def _config(served: ServedShard, settings: ServerSettings) -> Mapping[str, Any]:
    return {
        "path": str(served.path.absolute()),
        "bytes": served.entry.bytes,
        "identity": asdict(server_identity(served)),
        "dictionary_bytes": served.manifest.dictionary_bytes,
        "limits": settings.limits.to_config(),
        "password_sha256": settings.password_sha256,
    }


async def _verify(verification: Verification) -> None:
    try:
        await asyncio.to_thread(verification.run)
    except asyncio.CancelledError:
        verification.stop()
        raise
    log.info(
        "verified",
        extra={
            "file": verification.served.path.name,
            "bytes": verification.done_bytes,
            "seconds": round(verification.seconds, 2),
            "warm": verification.keeps_pages,
        },
    )


def _status(served: ServedShard, verification: Verification, max_connections: int) -> Mapping[str, Any]:
    return {
        "serves": asdict(server_identity(served)),
        "unicode": {"built": served.manifest.unicode, "here": UNICODE_VERSION},
        "maxConnections": max_connections,
        "file": {"path": str(served.path), "bytes": served.entry.bytes, "sha256": served.entry.sha256},
        "verified": {
            "bytes": verification.done_bytes,
            "seconds": round(verification.seconds, 3),
            "warm": verification.keeps_pages,
        },
    }


def start() -> None:
    """Be the supervisor: see ``runtime.start``."""
    run_supervisor(main)
