"""Assembles the shard server: the file, its workers, their ports, the admin port."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from lookupdb import shard_name
from lookupdb.errors import CorruptFile, LookupdbError, NotOnVolume, StoreError
from lookupdb.keys import UNICODE_VERSION, has_same_normalization
from lookupdb.manifest import FILE_NAME, Manifest
from lookupdb.process import limits as capacity
from lookupdb.process import limits as descriptors
from lookupdb.process import listeners, memory
from lookupdb.process.admin import Collector, CounterCollector, MetricFamily, ServiceCollector, counter, gauge, info
from lookupdb.process.launch import render_failure, run_supervisor, write_termination_log
from lookupdb.process.service import Service, run_service
from lookupdb.process.supervisor import Fleet, Supervisor
from lookupdb.process.worker import Counters
from lookupdb.shard import limits
from lookupdb.shard import limits as shard_counters
from lookupdb.shard.limits import ServerIdentity, ServerLimits, WarmPolicy
from lookupdb.shard.verify import ServedShard, Verification, locate_shard

# Waits for what is to be served, in a folder that somebody else fills: a volume on which a generation appears later
# than the server, or that a network file system does not show yet.
#
# What is not there is looked for again every second. A server that waits listens nowhere.


log = logging.getLogger(__name__)

T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0
_SHOULD_SHOW: Final = "a volume has to show the store's folders: <cluster id>/<namespace>/<dataset>-<uid>/<generation>"


def await_shard(folder: Path, shard: int | None, seconds: float) -> ServedShard:
    """Return the shard file once it is in ``folder``, a generation's, with its size and beside its manifest.

    Raises, after ``seconds``, NotOnVolume when it is not, or cannot be read, and CorruptFile when manifest.json cannot
    be used: somebody may have been writing it. Raises UsageError at once when the generation has no such shard.
    """
    deadline = time.monotonic() + seconds
    said = ""
    with _ended_by_sigterm():
        while True:
            try:
                return find_shard(folder, shard)
            except (NotOnVolume, CorruptFile) as obstacle:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise
                if obstacle.message != said:
                    said = obstacle.message
                    log.info("waiting for what is to be served", extra={"reason": said, "seconds": round(remaining)})
            time.sleep(min(_LOOK_SECONDS, remaining))


def find_shard(folder: Path, shard: int | None) -> ServedShard:
    """Return the shard file in ``folder``. Raises NotOnVolume when it is not there, or cannot be read."""
    _read(folder / FILE_NAME, lambda path: path.open("rb").close())
    try:
        served = locate_shard(folder, shard)
    except CorruptFile:
        raise
    except StoreError as error:  # it was there a moment ago
        raise NotOnVolume(error.message, hint=error.hint) from error
    size = _read(served.path, lambda path: path.stat().st_size)
    if size < served.entry.bytes:
        raise NotOnVolume(
            f"{served.path} has {size} bytes, {FILE_NAME} beside it says {served.entry.bytes}",
            hint="whoever copies it there is not done: manifest.json should come last",
        )
    return served


def _read(path: Path, read: Callable[[Path], T]) -> T:
    """What ``read`` returns of ``path``. Raises NotOnVolume when it cannot."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotOnVolume(_describe_gap(path), hint=_SHOULD_SHOW) from None
    except OSError as error:
        raise NotOnVolume(f"{path} cannot be read: {error.strerror}", hint="look at the volume") from error


def _describe_gap(path: Path) -> str:
    """Which part of ``path`` is the first that is not there: a wrong path differs from what is yet to come."""
    for folder in path.parents:
        try:
            is_there = folder.is_dir()
        except OSError:
            is_there = False
        if is_there:
            missing = path.relative_to(folder)
            return f"{folder} holds no {missing.parts[0]}, expected {missing}"
    return f"{path} is not there"


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the program while it waits: the first process of a container ignores what it does not handle."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# A shard server's metrics.


PREFIX = "lookupdb_shard"


class ShardCollector:
    """The figures of the file that is served."""

    def __init__(self, served: ServedShard, counters: Counters) -> None:
        self.served = served
        self.counters = counters

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families, read at scrape time."""
        served, manifest = self.served, self.served.manifest
        hits = self.counters.total("lookups") - self.counters.total("misses") - self.counters.total("damaged_lookups")
        yield counter(f"{PREFIX}_hits", "Keys looked up that the shard holds.", hits)
        yield gauge(f"{PREFIX}_records", "Records of the shard.", served.entry.records)
        yield gauge(f"{PREFIX}_file_bytes", "Size of the shard file.", served.entry.bytes)
        resident = memory.resident_bytes(served.path)
        if resident is not None:
            yield gauge(f"{PREFIX}_resident_bytes", "Bytes of the shard file in the page cache.", resident)
        labels = {
            "dataset": f"{manifest.namespace}/{manifest.name}",
            "generation": manifest.generation,
            "shard": str(served.shard),
            "shards": str(len(manifest.shards)),
        }
        yield info(f"{PREFIX}_generation", "What is served.", labels)


def collectors(served: ServedShard, counters: Counters, supervisor: Supervisor) -> list[Collector]:
    """Return all collectors of a shard server."""
    return [
        CounterCollector(PREFIX, counters, limits.COUNTERS, limits.GAUGES),
        ServiceCollector(PREFIX, supervisor),
        ShardCollector(served, counters),
    ]


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
        module="lookupdb.shard.worker",
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
        collectors=lambda supervisor: collectors(served, counters, supervisor),
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
