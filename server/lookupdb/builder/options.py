"""The options, memory budget, report and scratch folder of a build."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol, Self

import orjson

from lookupdb.dataset.schema import to_camel_case
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import DISK_FULL_ERRNOS, GateClosed, GenerationExists, LookupdbError, NotEnoughRoom, UsageError
from lookupdb.manifest import GENERATION, DictionaryChoice, Manifest
from lookupdb.process.memory import peak_resident
from lookupdb.wording import check_path, format_count, to_utf8

# The options of a build, in addition to the spec.


_UID: Final = re.compile(r"[A-Za-z0-9]{1,8}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class EarlierDataset:
    """An earlier dataset to adopt from, by its uid or the first eight characters of it, and its generation; None for
    the newest."""

    uid: str
    generation: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``UID`` or ``UID/gN``. Raises UsageError."""
        uid, slash, generation = text.partition("/")
        if not _UID.fullmatch(uid) or (slash and not GENERATION.fullmatch(generation)):
            raise UsageError(
                f"--adopt takes the uid of a dataset, or its first eight characters, got {text[:60]!r}",
                hint="give the uid alone, or with one of its generations: 3f2b9c1e or 3f2b9c1e/g7",
            )
        return cls(uid, generation if slash else None)

    def has_built(self, manifest: Manifest, spec: DatasetSpec) -> bool:
        """Return whether ``manifest`` belongs to this dataset, under the name in ``spec``."""
        is_named = (manifest.namespace, manifest.name) == (spec.namespace, spec.name)
        return is_named and (manifest.uid == self.uid or (len(self.uid) <= 8 and manifest.uid[:8] == self.uid))


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of a build. The spec says what to build."""

    scratch: Path
    memory_limit: int = 1 << 30
    """Bytes that the build and its processes may use together."""
    threads: int = 1
    volume: Path | None = None
    """The folder behind volume:// urls."""
    generation: str | None = None
    """The name of the generation; None takes the next free one."""
    build_id: str | None = None
    """The caller's name for this build: only a generation with this name is adopted. None adopts any that was built
    from this spec."""
    active: str | None = None
    """The generation that the gates compare with; None takes the newest published one that passed. If it cannot be
    read, the newest readable one replaces it."""
    active_records: int | None = None
    """Number of records of the active generation, for gates to compare with if the store has lost them all."""
    unless_fingerprint: str | None = None
    """Build nothing if the source has this fingerprint and the store holds a generation of it, built from the same
    spec."""
    unless_success_file: str | None = None
    """Build nothing and read no source if the success file has this identity, and the store holds a generation of
    ``unless_fingerprint`` from the same spec."""
    seen_success_file: str | None = None
    seen_fingerprint: str | None = None
    """Build nothing if the source has another fingerprint although its success file has not changed: somebody may be
    writing the next one."""
    unless_refused: str | None = None
    """Build nothing if this generation was rejected and another build would give the same result."""
    adopt: EarlierDataset | None = None
    """The earlier dataset to adopt from instead of building, if this one has no generations yet."""
    local_files: bool = True
    """True if the build may read files of this machine outside of the volume."""


class Progress(Protocol):
    """A build reports its progress in phases: ``begin_phase``, any number of ``advance``, ``end_phase``.

    Called from one thread at a time, at most a few hundred times a second.
    """

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase with ``total`` of ``unit`` ("bytes" or "rows"); None if the total is unknown."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """Add ``amount`` of the phase's unit, and ``rows`` rows if that unit is bytes."""

    def end_phase(self) -> None:
        """End a phase that succeeded. A phase that fails is not ended."""


class SilentProgress:
    """Show nothing."""

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Show nothing."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """Show nothing."""

    def end_phase(self) -> None:
        """Show nothing."""


# Divide ``--memory-limit`` among the processes of a build, and within a process among its consumers of memory.
#
# Each consumer gets a share, chosen so that the sum stays under the limit; benchmarks verify that it does.


MIB: Final = 1 << 20
MIN_MEMORY_LIMIT: Final = 256 * MIB
"""No build starts with a smaller limit."""
SAMPLE_BYTES: Final = 9 * MIB
"""Values to train the compression dictionary on: more did not improve it, and training takes time in proportion. They
must fit into the smallest memory limit, because the dictionary must not depend on that limit."""
_DIRTY_BYTES: Final = 32 * MIB
"""Memory of all shards together before it is written: the pages of their transactions."""
_MIN_TRANSACTION_BYTES: Final = 64 << 10
"""Smaller transactions write too many pages twice."""
_OPEN_SHARD_BYTES: Final = 352 << 10
"""Memory of an open shard file in addition to its transaction: LMDB's and Python's own, and what the kernel maps around
touched pages."""
_BATCHES_BYTES: Final = 80 * MIB
"""Records on their way to the shards, and two threads that compress them."""
_PACKERS: Final = 2
_PACKER_BYTES: Final = 4 * MIB
"""Memory of each further thread that compresses natively: zstd's tables, and the largest dictionary with its own."""
_PACKERS_PART: Final = 16
"""Packers together may have this part of the memory limit above the smallest."""
_MIN_SORTING_BYTES: Final = 24 * MIB
_RESIDENT_BYTES: Final = 80 * MIB
"""Memory of Python and the libraries in the build's main process."""
_MEMBER_RESIDENT_BYTES: Final = 32 * MIB
"""Memory of Python and the libraries in a crew member, which only reads."""


@dataclass(frozen=True, slots=True)
class BuildBudget:
    """Bytes for each consumer whose need depends on the data. The writer gets the rest."""

    sorting: int
    """Bytes for records in memory."""
    row: int
    """The longest row: memory holds its text, the parsed row and its value at once."""
    sample: int
    duckdb: int
    """DuckDB's own limit while it reads Parquet."""
    members: int
    """Number of crew members that may read beside the main process."""

    @classmethod
    def for_build(cls, memory_limit: int, *, shards: int, threads: int = 1, needs_sample: bool = True) -> Self:
        """Return the budget of the build's main process. Raises NotEnoughRoom if ``memory_limit`` is too small."""
        minimum = min_memory_limit(shards)
        if memory_limit < minimum:
            raise NotEnoughRoom(
                f"a memory limit of {memory_limit // MIB} MiB is too small, a build of {shards:,} "
                f"{'shard' if shards == 1 else 'shards'} needs {minimum // MIB} MiB or more",
                hint="raise --memory-limit; 1 GiB suits most builds",
            )
        free = memory_limit - _RESIDENT_BYTES
        packers = count_packers(memory_limit, shards=shards, threads=threads)
        max_sorting = free - _writer_bytes(shards) - max(0, packers - _PACKERS) * _PACKER_BYTES
        return cls._divide(free, memory_limit // MIN_MEMORY_LIMIT, needs_sample, max_sorting)

    @classmethod
    def for_member(cls, memory_limit: int, members: int, *, needs_sample: bool) -> Self:
        """Return the budget of each of ``members`` crew members."""
        free = (memory_limit - _RESIDENT_BYTES) // members - _MEMBER_RESIDENT_BYTES
        return cls._divide(free, 0, needs_sample, free)

    @classmethod
    def _divide(cls, free: int, members: int, needs_sample: bool, max_sorting: int) -> Self:
        return cls(
            sorting=min(free * 2 // 5, max_sorting),
            row=max(MIB, free // 12),
            sample=min(SAMPLE_BYTES, free // 16) if needs_sample else 0,
            duckdb=free // 5,
            members=members,
        )


def min_memory_limit(shards: int) -> int:
    """Return the smallest memory limit, in whole MiB, for a build of ``shards`` shards."""
    minimum = max(MIN_MEMORY_LIMIT, _RESIDENT_BYTES + _MIN_SORTING_BYTES + _writer_bytes(shards))
    return -(-minimum // MIB) * MIB


def count_packers(memory_limit: int, *, shards: int, threads: int) -> int:
    """Return how many of ``threads`` may compress at once."""
    spare = max(0, memory_limit - min_memory_limit(shards))
    return min(threads, _PACKERS + spare // _PACKERS_PART // _PACKER_BYTES)


def transaction_bytes(shards: int) -> int:
    """Return the size of a shard's transaction. It may depend only on ``shards``, because the bytes of the shard's file
    depend on the size."""
    return max(_MIN_TRANSACTION_BYTES, _DIRTY_BYTES // shards)


def _writer_bytes(shards: int) -> int:
    """Return what the writer needs beside the sorted records: an eighth more than its pages, because malloc adds as
    much."""
    return shards * (transaction_bytes(shards) * 9 // 8 + _OPEN_SHARD_BYTES) + _BATCHES_BYTES


# The report of a build: one line of JSON, for people, for scripts and for the operator.


log = logging.getLogger(__name__)

MAX_BYTES: Final = 4096
"""Kubernetes truncates a longer termination message."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The outcome of a build. Record bytes count keys and values. Peak memory covers all processes if the build read
    its source, else the main process."""

    outcome: Literal["built", "adopted", "unchanged", "waiting", "failed"]
    """Waiting: the success file is missing, and the source was not read. Adopted: the store already held the
    generation, because its builder died before it could report. With ``adopted_from``, the build copied a generation
    of an earlier dataset, or of the dataset itself."""
    dataset: str
    """``namespace/name``."""
    generation: str | None = None
    fingerprint: str | None = None
    success_file: str | None = None
    """The identity of the success file, if the spec names one."""
    records: int = 0
    rejected: int = 0
    duplicates: int = 0
    record_bytes: int = 0
    file_bytes: int = 0
    largest_shard_bytes: int = 0
    built_at: str | None = None
    """ISO 8601, UTC."""
    source_modified_at: str | None = None
    """When the newest file of the source was modified, in whole seconds, if the source says so."""
    adopted_from: str | None = None
    """The earlier dataset's uid, and the generation of it that this one is a copy of: ``3f2b9c1e-…/g7``."""
    dictionary: DictionaryChoice | None = None
    """Why the generation has its compression dictionary; None without compression."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    next_free: str | None = None
    """With the reason GenerationExists: the generation to build instead."""
    exit_code: int = 0
    reason: str = ""
    """CamelCase: the error's reason if the build failed, else Built, Adopted, Unchanged or WaitingForSource."""
    may_pass: bool = False
    """True if a failed build may succeed although neither manifest nor source changes."""
    message: str = ""

    def to_json(self, limit: int | None = None) -> bytes:
        """Return one line of at most ``limit`` bytes: the message is cut to fit."""
        line = orjson.dumps({to_camel_case(name): value for name, value in asdict(self).items()})
        if limit is None or len(line) <= limit:
            return line
        # JSON escapes make a character at most six times as long, so halving ends soon.
        shorter = self.message[: len(self.message) // 2].removesuffix("…")
        return replace(self, message=shorter + "…").to_json(limit if shorter else None)


class GenerationRefused(GateClosed):
    """A generation failed a gate. Unless empty or pushed, it is in the store, so its gates can be overridden."""

    def __init__(self, message: str, manifest: Manifest | None, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.manifest = manifest
        """The rejected generation's manifest in the store; None if it is not there."""


def report_manifest(manifest: Manifest) -> BuildReport:
    """Report a generation in the store."""
    totals = manifest.totals
    return BuildReport(
        outcome="built",
        dataset=f"{manifest.namespace}/{manifest.name}",
        generation=manifest.generation,
        fingerprint=manifest.fingerprint,
        success_file=manifest.success_file,
        records=totals.records,
        rejected=manifest.rejected.count,
        duplicates=manifest.duplicates.count,
        record_bytes=totals.key_bytes + totals.value_bytes,
        file_bytes=totals.file_bytes,
        largest_shard_bytes=max(shard.bytes for shard in manifest.shards),
        built_at=manifest.built_at,
        source_modified_at=manifest.source_modified_at,
        adopted_from=None if manifest.adopted is None else f"{manifest.adopted.uid}/{manifest.adopted.generation}",
        dictionary=manifest.dictionary,
        seconds=manifest.seconds,
        reason="Built",
    )


def built_report(manifest: Manifest, reading_peak: int) -> BuildReport:
    """Return the report of a generation that was built; reading its source took ``reading_peak`` bytes of memory."""
    return replace(
        report_manifest(manifest),
        peak_memory_bytes=max(reading_peak, peak_resident()),
        message=f"built {manifest.generation}: {format_count(manifest.totals.records, 'record')} in "
        f"{format_count(len(manifest.shards), 'shard')}, "
        f"{manifest.seconds:.1f} s",
    )


def idle_report(
    spec: DatasetSpec,
    started_at: float,
    outcome: Literal["unchanged", "waiting"],
    reason: str,
    message: str,
    fingerprint: str | None = None,
    success_file: str | None = None,
) -> BuildReport:
    """Return the report of a build that built nothing."""
    return BuildReport(
        outcome=outcome,
        dataset=f"{spec.namespace}/{spec.name}",
        fingerprint=fingerprint,
        success_file=success_file,
        seconds=round(time.monotonic() - started_at, 3),
        peak_memory_bytes=peak_resident(),
        reason=reason,
        message=message,
    )


def failure_report(spec: DatasetSpec | None, error: Exception, seconds: float) -> BuildReport:
    """Return the report of a build that ended with ``error``; ``spec`` is None if the manifest was invalid. For a
    rejected generation in the store, it has the fields of a success."""
    lookupdb_error = error if isinstance(error, LookupdbError) else LookupdbError(f"{type(error).__name__}: {error}")
    manifest = error.manifest if isinstance(error, GenerationRefused) else None
    return replace(
        BuildReport(outcome="failed", dataset=_dataset_name(spec)) if manifest is None else report_manifest(manifest),
        outcome="failed",
        seconds=round(seconds, 3),
        peak_memory_bytes=peak_resident(),
        next_free=error.next_free if isinstance(error, GenerationExists) else None,
        exit_code=lookupdb_error.exit_code,
        reason=lookupdb_error.reason,
        may_pass=lookupdb_error.may_pass,
        message=to_utf8(str(lookupdb_error)),
    )


def interruption_report(spec: DatasetSpec | None, exit_code: int, seconds: float) -> BuildReport:
    """Return the report of a build that a signal ended."""
    return BuildReport(
        outcome="failed",
        dataset=_dataset_name(spec),
        seconds=round(seconds, 3),
        peak_memory_bytes=peak_resident(),
        exit_code=exit_code,
        reason="Interrupted",
        may_pass=True,
        message="the build was interrupted and can be run again: a generation that it has published is adopted",
    )


def _dataset_name(spec: DatasetSpec | None) -> str:
    return f"{spec.namespace}/{spec.name}" if spec else ""


_PREFIX: Final = "lookupdb-build-"
_open_folders: dict[Path, list[Path]] = {}
"""The scratch folders of this process, with the folders above each that were made for it, the lowest first."""


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Make a new folder under ``base``, readable by this user only. The build removes it at its end, with any empty
    folders that it made above it. If a build is killed, the next one removes it. Raises NotEnoughRoom if it cannot be
    made, and UsageError for a path that is not UTF-8."""
    check_path(base)
    from lookupdb.store.directory import unlock

    path = base / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    lock_file = path.with_suffix(".lock")
    new_folders: list[Path] = []
    try:
        new_folders += [folder for folder in (base, *base.parents) if not folder.exists()]
        try:
            lock = _make(path, lock_file)
        except FileNotFoundError:  # another build has removed its own folder
            lock = _make(path, lock_file)
    except OSError as error:
        _remove_empty(new_folders)
        raise NotEnoughRoom(
            f"cannot make a scratch folder in {base}: {error.strerror}", hint="choose another one with --scratch"
        ) from error
    _open_folders[path] = new_folders
    try:
        yield path
    finally:
        _open_folders.pop(path, None)
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            unlock(lock_file, lock)
        _remove_empty(new_folders)


def _make(path: Path, lock_file: Path) -> int | None:
    """Make the folder ``path``; return its lock. Raises OSError."""
    from lookupdb.store.directory import try_lock

    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    lock = try_lock(lock_file)
    path.mkdir(mode=0o700)
    return lock


def remove_open_folders() -> None:
    """Remove the scratch folders of this process, which is about to end without their owners."""
    for path, new_folders in tuple(_open_folders.items()):
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        _remove_empty(new_folders)


def _remove_empty(folders: list[Path]) -> None:
    """Remove the empty ones of ``folders``, the lowest first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _remove_abandoned(base: Path) -> None:
    """Remove the folders of dead builders, except those of other users."""
    from lookupdb.store.directory import try_lock, unlock

    for lock_file in base.glob(f"{_PREFIX}*.lock"):
        with suppress(OSError):
            if lock_file.lstat().st_uid != os.geteuid():
                continue
            lock = try_lock(lock_file)
            if lock is not None:
                shutil.rmtree(lock_file.with_suffix(""), ignore_errors=True)
                unlock(lock_file, lock)


@contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """Turn "no space left" into a NotEnoughRoom that names ``folder``."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise NotEnoughRoom(
            f"no room left in the scratch folder {folder}: {error.strerror}",
            hint="a build needs about twice its uncompressed source there; choose a larger folder with --scratch",
        ) from error
