"""The shard server's supervisor: waits for the file, and builds the service with workers, ports and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from lookupdb import disk, keys
from lookupdb.errors import (
    CorruptFile,
    LookupdbError,
    NotOnVolume,
    StoreError,
    UsageError,
    opening_error,
    reading_error,
)
from lookupdb.keys import UNICODE_VERSION, has_same_normalization
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.process import admin, listeners, memory
from lookupdb.process.launch import render_failure, run_supervisor, write_termination_log
from lookupdb.process.supervisor import Fleet, Supervisor
from lookupdb.process.worker import REQUEST_SECONDS, Counters
from lookupdb.shard import limits
from lookupdb.shard.limits import ServerIdentity, ServerLimits, WarmPolicy

# Locates a shard file, and verifies its size and checksum against the manifest before a worker maps it.
#
# Reading the file also warms it up. If it fits into memory, its pages stay in the page cache; otherwise they are
# dropped, to displace nothing hot.


CHUNK_BYTES: Final = 4 << 20
_SHOWN_SHARDS: Final = 20


@dataclass(frozen=True, slots=True)
class ServedShard:
    """The file of a shard server."""

    path: Path
    manifest: Manifest
    shard: int

    @property
    def entry(self) -> ShardFile:
        """The manifest's entry of the file."""
        return self.manifest.shards[self.shard]


def locate_shard(path: Path, shard: int | None) -> ServedShard:
    """Return the shard file named by a generation's directory and a shard number, or by its own path.

    Raises UsageError if that is ambiguous, CorruptFile if the manifest is missing or unusable. The file itself may be
    missing or damaged, which verification reports.
    """
    directory = path if path.is_dir() else path.parent
    try:
        text = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory") from None
        raise CorruptFile(
            f"{directory}: expected {FILE_NAME} in it, found none, so this is not a complete generation",
            hint="build it again, or fetch manifest.json together with the shard file",
        ) from None
    except OSError as error:
        raise opening_error(directory / FILE_NAME, error.errno or 0) from error
    manifest = Manifest.from_json(text, str(directory / FILE_NAME))
    shards = len(manifest.shards)
    if path.is_dir():
        return _locate_in_directory(directory, manifest, shards, shard)
    for number, entry in enumerate(manifest.shards):
        if entry.file == path.name and shard in (None, number):
            return ServedShard(path, manifest, number)
    raise UsageError(
        f"{path.name} is not {'a shard' if shard is None else f'shard {shard}'} of the generation beside it",
        hint=f"{directory / FILE_NAME} names {manifest.shards[0].file} and {shards - 1} more",
    )


def _locate_in_directory(directory: Path, manifest: Manifest, shards: int, shard: int | None) -> ServedShard:
    if shard is None:  # the only one, or the only one that is present, as after a fetch for one server
        present = [0] if shards == 1 else _list_present(directory, manifest)
        if len(present) != 1:
            raise UsageError(
                f"{directory} holds {len(present)} of {shards} shards, and a server serves one",
                hint=f"choose: --shard {_render_numbers(present)}" if present else "fetch one: lookupdb fetch --help",
            )
        shard = present[0]
    if shard >= shards:
        raise UsageError(f"there is no shard {shard} in {directory}: it holds 0 to {shards - 1}")
    entry = manifest.shards[shard]
    if keys.parse_attempt(entry.file, shard, shards) is None:
        raise CorruptFile(f"{directory / FILE_NAME}: shard {shard} is called {entry.file!r}")
    return ServedShard(directory / entry.file, manifest, shard)


def _list_present(directory: Path, manifest: Manifest) -> list[int]:
    return [number for number, entry in enumerate(manifest.shards) if (directory / entry.file).is_file()]


def _render_numbers(shards: list[int]) -> str:
    if len(shards) > 2 and shards[-1] - shards[0] == len(shards) - 1:
        return f"{shards[0]} … {shards[-1]}"
    return ", ".join(map(str, shards[:_SHOWN_SHARDS])) + (" …" if len(shards) > _SHOWN_SHARDS else "")


@dataclass(slots=True)
class Verification:
    """One pass over the file. Call ``run`` in its own thread; ``stop`` ends it early."""

    served: ServedShard
    warm: WarmPolicy
    bytes_per_second: int
    """Limit of the read rate, which leaves the disk to servers."""
    done_bytes: int = 0
    seconds: float = 0.0
    keeps_pages: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self._stop.set()

    def run(self) -> None:
        """Read the file. Raises CorruptFile if it is missing, or its size or checksum differ from the manifest's;
        NotEnoughRoom or StoreError if it cannot be opened or read."""
        path, entry = self.served.path, self.served.entry
        started = time.monotonic()
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise CorruptFile(f"{path}: {error.strerror}", hint="fetch or build it again") from error
        except OSError as error:
            raise opening_error(path, error.errno or 0) from error
        try:
            size = os.fstat(file).st_size
            if size != entry.bytes:
                raise _mismatch(path, "bytes", entry.bytes, size)
            self.keeps_pages = self.warm == "always"
            if self.warm == "auto":
                self.keeps_pages = size - (memory.resident_bytes(path) or 0) <= memory.page_cache_room()
            digest = self._read(file, started)
        finally:
            os.close(file)
        self.seconds = time.monotonic() - started
        if not self._stop.is_set() and digest != entry.sha256:
            raise _mismatch(path, "sha256", entry.sha256, digest)

    def _read(self, file: int, started: float) -> str:
        """Read at most ``bytes_per_second``, and return the checksum."""
        digest = hashlib.sha256()
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        # A mapped buffer goes back to the system; the heap would keep such blocks.
        with mmap.mmap(-1, CHUNK_BYTES) as buffer:
            while not self._stop.is_set():
                try:
                    size = os.readv(file, [buffer])
                except OSError as error:  # a network file system may lose its server, and a disk has bad sectors
                    raise reading_error(self.served.path, self.done_bytes, error.errno or 0) from error
                if not size:
                    break
                with memoryview(buffer) as view, view[:size] as chunk:
                    digest.update(chunk)
                if not self.keeps_pages:
                    # Only unused pages are dropped: those that a server has mapped stay.
                    os.posix_fadvise(file, self.done_bytes, size, os.POSIX_FADV_DONTNEED)
                self.done_bytes += size
                ahead = self.done_bytes / self.bytes_per_second - (time.monotonic() - started)
                if ahead > 0:
                    self._stop.wait(ahead)
        return digest.hexdigest()


def _mismatch(path: Path, attribute: str, expected: object, found: object) -> CorruptFile:
    return CorruptFile(
        f"{path}: its index says {attribute} {expected}, found {found}",
        hint="the file is damaged or of another generation: fetch or build it again",
    )


# A server may start before its generation appears on a volume, or before a network file system shows it. It looks every
# second, and does not listen while it waits.

log = logging.getLogger(__name__)

T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0
_SHOULD_SHOW: Final = "a volume has to show the store's folders: <cluster id>/<namespace>/<dataset>-<uid>/<generation>"


def await_shard(folder: Path, shard: int | None, seconds: float) -> ServedShard:
    """Return the shard file once it is complete in the generation's ``folder``, beside its manifest.

    Both may be incomplete at first. After ``seconds``, raises NotOnVolume if the file is missing, too short or
    unreadable, and CorruptFile if manifest.json is unusable. Raises UsageError at once if the generation has no such
    shard.
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
                    log.info("waiting for the generation to serve", extra={"reason": said, "seconds": round(remaining)})
            time.sleep(min(_LOOK_SECONDS, remaining))


def find_shard(folder: Path, shard: int | None) -> ServedShard:
    """Return the shard file in ``folder``. Raises NotOnVolume if it is missing or unreadable."""
    _read(folder / FILE_NAME, lambda path: path.open("rb").close())
    try:
        served = locate_shard(folder, shard)
    except CorruptFile:
        raise
    except StoreError as error:  # it was readable a moment ago
        raise NotOnVolume(error.message, hint=error.hint) from error
    size = _read(served.path, lambda path: path.stat().st_size)
    if size < served.entry.bytes:
        raise NotOnVolume(
            f"{served.path} has {size} bytes, {FILE_NAME} beside it says {served.entry.bytes}",
            hint="it is still being copied; copy manifest.json last",
        )
    return served


def _read(path: Path, read: Callable[[Path], T]) -> T:
    """Return ``read(path)``. Raises NotOnVolume if that fails."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotOnVolume(_describe_gap(path), hint=_SHOULD_SHOW) from None
    except OSError as error:
        raise NotOnVolume(f"{path} cannot be read: {error.strerror}", hint="check the volume") from error


def _describe_gap(path: Path) -> str:
    """Say which part of ``path`` is missing: it shows whether the path is wrong or the generation late."""
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
    """Make SIGTERM end the program while it waits: a container's first process ignores signals without a handler."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


PREFIX = "lookupdb_shard"


def collect_shard(served: ServedShard, totals: admin.CounterTotals) -> Iterator[admin.MetricFamily]:
    """Yield the metrics of the served file, read at scrape time."""
    durations = (
        series
        for (command, outcome), names in limits.DURATIONS.items()
        for series in totals.observations(names, 1e-9, command=command, outcome=outcome)
    )
    yield admin.histogram(f"{PREFIX}_request_duration_seconds", limits.DURATIONS_HELP, REQUEST_SECONDS, durations)
    manifest = served.manifest
    families = [
        admin.gauge(f"{PREFIX}_records", "Records of the shard.", served.entry.records),
        admin.gauge(f"{PREFIX}_file_bytes", "Size of the shard file.", served.entry.bytes),
    ]
    resident = memory.resident_bytes(served.path)
    if resident is not None:
        families.append(admin.gauge(f"{PREFIX}_resident_bytes", "Bytes of the shard file in the page cache.", resident))
    labels = {"generation": manifest.generation, "shards": str(len(manifest.shards))}
    families.append(admin.info(f"{PREFIX}_generation", "The generation and shard that are served.", labels))
    for family in families:
        yield admin.add_labels(family, _shard_labels(served))


def _shard_labels(served: ServedShard) -> admin.Labels:
    """Return the labels of all metrics."""
    return {"namespace": served.manifest.namespace, "dataset": served.manifest.name, "shard": str(served.shard)}


def collectors(served: ServedShard, counters: Counters, supervisor: Supervisor) -> list[admin.Collector]:
    """Return all collectors of a shard server."""
    labels = _shard_labels(served)
    totals = admin.CounterTotals(counters, lambda: (labels,))
    return [
        partial(admin.collect_counters, PREFIX, totals, limits.COUNTERS, limits.GAUGES),
        partial(admin.collect_service, "shard", supervisor, labels),
        partial(collect_shard, served, totals),
    ]


_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""Idle seconds, seconds between probes, and their number: a client's lost machine is noticed after two minutes."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a shard server. ``port`` is the first worker's; 0 gives each worker a free one."""

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
    """Bytes per second for verifying and warming the file."""
    password_sha256: str | None
    """Hash of the clients' password as 64 hexadecimal digits, or None if they need none."""
    wait: float
    """Seconds for which the generation may be missing; 0: it must be present."""
    ready_file: Path | None
    termination_log: Path | None
    """File for a failure as JSON, or None."""
    log_format: str
    limits: ServerLimits


def main(settings: Mapping[str, Any]) -> None:
    """Run the shard server's supervisor until SIGTERM. ``settings`` are ServerSettings."""
    paths = {name: settings[name] for name in ("ready_file", "termination_log")}
    members = {
        **settings,
        "path": Path(settings["path"]),
        **{name: None if path is None else Path(path) for name, path in paths.items()},
        "limits": ServerLimits(**settings["limits"]),
    }
    server = ServerSettings(**members)
    try:
        asyncio.run(admin.run_service(shard_service(server)))
    except LookupdbError as error:
        write_termination_log(server.termination_log, render_failure(error))
        raise


def shard_service(settings: ServerSettings) -> admin.Service:
    """Return the service to run. Raises UsageError if a port cannot be bound, CorruptFile without a complete
    generation, NotOnVolume if there is still none after ``settings.wait`` seconds."""
    if settings.wait:
        served = await_shard(settings.path, settings.shard, settings.wait)
    else:
        served = locate_shard(settings.path, settings.shard)
    _compare_tables(served.manifest)
    # Workers inherit this process's limit of descriptors.
    connections = listeners.limit_connections(settings.limits.max_connections, disk.raise_limit())
    settings = replace(settings, limits=replace(settings.limits, max_connections=connections))
    sockets = [_listener(settings, index) for index in range(settings.workers)]
    counters = Counters(limits.NAMES, settings.workers)
    config = {
        "path": str(served.path.absolute()),
        "bytes": served.entry.bytes,
        "identity": asdict(server_identity(served)),
        "dictionary_bytes": served.manifest.dictionary_bytes,
        "limits": asdict(settings.limits),
        "password_sha256": settings.password_sha256,
    }
    fleet = Fleet(
        module="lookupdb.shard.worker",
        configs=[config] * settings.workers,
        sockets=[[listener] for listener in sockets],
        counters=counters,
        drain_seconds=settings.drain_seconds,
        log_format=settings.log_format,
    )
    verification = Verification(served, settings.warm, settings.read_rate)
    return admin.Service(
        fleet=fleet,
        ports=fleet.sockets,
        admin_listener=listeners.bind_admin(settings.host, settings.admin_port),
        ready_members={"ports": [listeners.bound_port(listener) for listener in sockets]},
        ready_file=settings.ready_file,
        prepare=lambda: _verify(verification),
        collectors=lambda supervisor: collectors(served, counters, supervisor),
        status=lambda: _status(served, verification, settings.limits.max_connections),
    )


def _compare_tables(manifest: Manifest) -> None:
    """Warn if keys were normalised with other Unicode tables than those of this lookupdb, and probably its router."""
    if not has_same_normalization(manifest.normalize, manifest.unicode):
        log.warning(
            "keys were normalised with another version of Unicode: keys with characters of the newer version may not "
            "be found; refresh the dataset to build it again",
            extra={
                "generation": manifest.generation,
                "normalize": ",".join(manifest.normalize),
                "builtWith": manifest.unicode,
                "servedWith": UNICODE_VERSION,
            },
        )


def server_identity(served: ServedShard) -> ServerIdentity:
    """Return the identity that the workers report."""
    manifest = served.manifest
    return ServerIdentity(
        format_version=keys.FORMAT_VERSION,
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
    """Run the supervisor."""
    run_supervisor(main)
