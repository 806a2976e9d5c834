"""The options of a build, its progress, its memory budget, its report, and its scratch folder."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, TextIO

import orjson

from lookupdb.dataset.schema import to_camel_case
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import DISK_FULL_ERRNOS, GateClosed, GenerationExists, LookupdbError, NotEnoughRoom, UsageError
from lookupdb.manifest import GENERATION, DictionaryChoice, Manifest
from lookupdb.telemetry import LOG_FILE, open_log
from lookupdb.wording import check_path, format_count, to_utf8

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import Task, TaskID

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
        """Return whether ``manifest`` has this dataset's uid, and the namespace and name in ``spec``."""
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
    """The caller's name for this build: only a generation built under it is adopted. None adopts any that was built
    from this spec."""
    active: str | None = None
    """The generation that the gates compare with; None takes the newest published one that passed. If it cannot be
    read, the newest readable one replaces it."""
    active_records: int | None = None
    """Number of records of the active generation, for gates to compare with if the store has lost all generations."""
    unless_fingerprint: str | None = None
    """Build nothing if the source has this fingerprint and the store holds a generation with it, built from the same
    spec."""
    unless_success_file: str | None = None
    """Build nothing and read no source if the success file has this identity, and the store holds a generation with
    ``unless_fingerprint`` from the same spec."""
    unless_refused: str | None = None
    """Build nothing if this generation was rejected and another build would give the same result."""
    adopt: EarlierDataset | None = None
    """The earlier dataset to adopt from instead of building, if the spec's dataset has no generations yet."""
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


# The display of a build's progress: bars on a terminal, or plain lines elsewhere.


def format_quantity(count: float, unit: str) -> str:
    """Format ``count`` for people: 1,234,567 rows, 1.2 GiB."""
    if unit != "bytes" or count < 1024:
        return format_count(round(count), unit.removesuffix("s"))
    size = count / 1024
    for name in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {name}"
        size /= 1024
    return f"{size:,.1f} TiB"


LINE_SECONDS: Final = 3.0
"""Seconds between two lines of one phase."""


class ProgressLines:
    """Write a line every few seconds during a phase, and one at its end."""

    def __init__(self, out: TextIO, dataset: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._prefix = f"{dataset}: " if dataset else ""
        self._clock = clock
        self._name = self._unit = ""
        self._total: int | None = None
        self._count = self._rows = 0
        self._started_at = self._last_line_at = 0.0

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase."""
        self._name, self._unit, self._total = name, unit, total
        self._count = self._rows = 0
        self._started_at = self._last_line_at = self._clock()

    def advance(self, amount: int, rows: int = 0) -> None:
        """Write a line if the last one is a few seconds old."""
        self._count += amount
        self._rows += rows
        if self._clock() - self._last_line_at >= LINE_SECONDS:
            self._last_line_at = self._clock()
            total = f" of {format_quantity(self._total, self._unit)}" if self._total else ""
            self._write_line(total, "")

    def end_phase(self) -> None:
        """Write the phase's totals."""
        self._write_line("", ", done")

    def _write_line(self, total: str, end: str) -> None:
        seconds = self._clock() - self._started_at
        parts = [f"{format_quantity(self._count, self._unit)}{total}"] if self._count else []
        if self._rows:
            parts.append(format_quantity(self._rows, "rows"))
        pace, unit = (self._rows, "rows") if self._rows else (self._count, self._unit)
        if pace and seconds >= 0.1:
            parts.append(f"{format_quantity(pace / seconds, unit)}/s")
        self._out.write(f"{self._prefix}{self._name}{end}: {', '.join([*parts, f'{seconds:.1f} s'])}\n")
        self._out.flush()


@contextmanager
def open_progress(
    style: Literal["auto", "rich", "plain", "none"] | str, phases: Progress | None = None, dataset: str = ""
) -> Iterator[Progress]:
    """Open the progress display of this ``style``; auto is rich on a terminal and plain elsewhere. Plain lines name the
    ``dataset``. The file that LOG_FILE names, if any, gets the lines too. ``phases`` gets the same calls."""
    with ExitStack() as stack:
        shown: Progress
        if style == "none":
            shown = SilentProgress()
        elif style == "rich" or (style == "auto" and sys.stderr.isatty()):
            shown = stack.enter_context(open_bars(is_forced=style == "rich"))
        else:
            shown = ProgressLines(sys.stderr, dataset)
        if path := os.environ.get(LOG_FILE):
            shown = _Both(shown, ProgressLines(stack.enter_context(open_log(path))))
        yield shown if phases is None else _Both(shown, phases)


class _Both:
    """Several displays of the same progress."""

    def __init__(self, *displays: Progress) -> None:
        self._displays = displays

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase."""
        for display in self._displays:
            display.begin_phase(name, total, unit)

    def advance(self, amount: int, rows: int = 0) -> None:
        """Advance the phase."""
        for display in self._displays:
            display.advance(amount, rows)

    def end_phase(self) -> None:
        """End the phase."""
        for display in self._displays:
            display.end_phase()


@contextmanager
def open_bars(*, is_forced: bool) -> Iterator[ProgressBars]:
    """Show bars on standard error; with ``is_forced`` even if that is not a terminal."""
    # Imported here, because only bars need rich.
    from rich import progress
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class AmountColumn(progress.ProgressColumn):
        """The amount, the total and the rate."""

        def render(self, task: Task) -> Text:
            if task.fields.get("empty"):
                return Text("")
            count, unit = task.completed, str(task.fields["unit"])
            total = f" of {format_quantity(task.total, unit)}" if task.total and not task.finished else ""
            if task.fields["rows"]:  # the bar itself shows the share of bytes
                count, unit, total = task.fields["rows"], "rows", ""
            parts = [format_quantity(count, unit) + total]
            seconds = task.finished_time or task.elapsed or 0.0
            if seconds >= 0.1 and count:
                parts.append(f"{format_quantity(count / seconds, unit)}/s")
            return Text("  ".join(parts))

    columns = (
        progress.SpinnerColumn(finished_text="✓"),
        progress.TextColumn("{task.description:<10}"),
        progress.BarColumn(20),
        AmountColumn(table_column=Column(no_wrap=True)),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True, force_terminal=is_forced or None)) as bars:
        yield ProgressBars(bars)


class ProgressBars:
    """Show a bar per phase on a terminal: amount, rate, remaining time."""

    def __init__(self, bars: Bar) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a bar."""
        self._task = self._bars.add_task(name, total=total, unit=unit, rows=0)

    def advance(self, amount: int, rows: int = 0) -> None:
        """Move the bar."""
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            self._bars.update(self._task, advance=amount, rows=task.fields["rows"] + rows)

    def end_phase(self) -> None:
        """Fill the bar, which stays on the terminal."""
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            whole = task.completed or 1
            self._bars.update(self._task, total=whole, completed=whole, empty=not task.completed)
            self._task = None


# Divide ``--memory-limit`` among the processes of a build, and within a process among its consumers of memory.
#
# Each consumer gets a share, chosen so that the sum stays under the limit; benchmarks verify that it does.


MIB: Final = 1 << 20
MIN_MEMORY_LIMIT: Final = 256 * MIB
"""No build starts with a smaller limit."""
SAMPLE_BYTES: Final = 9 * MIB
"""Size of the sample for the compression dictionary: more did not improve it, and training takes time in proportion. It
must fit into the smallest memory limit, because the dictionary must not depend on that limit."""
_DIRTY_BYTES: Final = 32 * MIB
"""Memory of the unwritten pages of all shards' transactions together."""
_MIN_TRANSACTION_BYTES: Final = 64 << 10
"""Smaller transactions write too many pages twice."""
_OPEN_SHARD_BYTES: Final = 352 << 10
"""Memory of an open shard file in addition to its transaction: what LMDB and Python allocate, and the pages that the
kernel maps around touched ones.
"""
_BATCHES_BYTES: Final = 80 * MIB
"""Memory of records on their way to the shards, and of two threads that compress them."""
_PACKERS: Final = 2
_PACKER_BYTES: Final = 4 * MIB
"""Memory of each further thread that compresses natively: zstd's tables, and the largest dictionary with its tables."""
_PACKERS_PART: Final = 16
"""The memory above the smallest limit, divided by this, is for further packers."""
_MIN_SORTING_BYTES: Final = 24 * MIB
_RESIDENT_BYTES: Final = 80 * MIB
"""Memory of Python and the libraries in the build's main process."""
_MEMBER_RESIDENT_BYTES: Final = 32 * MIB
"""Memory of Python and the libraries in a crew member, which only reads."""
_M_MMAP_THRESHOLD: Final = -3
"""The mallopt parameter for the size from which blocks are mapped individually."""


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
    """Return the writer's memory besides the sorted records: an eighth more than its pages, because malloc adds as
    much."""
    return shards * (transaction_bytes(shards) * 9 // 8 + _OPEN_SHARD_BYTES) + _BATCHES_BYTES


def return_large_blocks() -> None:
    """Make freed blocks of 1 MiB or more return to the system.

    glibc keeps such blocks of up to 32 MiB after the first was freed. With several threads it kept 100 MiB in a build
    of values of 11 MB.
    """
    with suppress(AttributeError):  # another C library lacks this setting
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def peak_resident() -> int:
    """Return the peak resident size of this process since its program began.

    VmHWM, because getrusage would include the parent's memory before exec.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


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
    """The uid of the dataset and the generation that this one is a copy of: ``3f2b9c1e-…/g7``."""
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
    """Return the report of a build that had nothing to build."""
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
    """Return the report of a build that ended with ``error``; ``spec`` is None if the manifest was invalid. If a gate
    rejected a generation that is in the store, the report describes that generation, as after a success.
    """
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
_open_folders: set[Path] = set()
"""The scratch folders of this process."""


@contextmanager
def scratch_folder(base: Path) -> Iterator[Path]:
    """Make a new folder under ``base``, readable by this user only. The build removes it at its end. If a build is
    killed, the next one removes it. Raises NotEnoughRoom if it cannot be made, and UsageError for a path that is not
    UTF-8."""
    check_path(base)
    from lookupdb.store.directory import try_lock, unlock

    path = base / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    lock_file = path.with_suffix(".lock")
    try:
        base.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(base)
        lock = try_lock(lock_file)
        path.mkdir(mode=0o700)
    except OSError as error:
        raise NotEnoughRoom(
            f"cannot make a scratch folder in {base}: {error.strerror}", hint="choose another one with --scratch"
        ) from error
    _open_folders.add(path)
    try:
        yield path
    finally:
        _open_folders.discard(path)
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            unlock(lock_file, lock)


def remove_open_folders() -> None:
    """Remove the scratch folders of this process, which is about to exit without closing them."""
    for path in tuple(_open_folders):
        shutil.rmtree(path, ignore_errors=True)
        path.with_suffix(".lock").unlink(missing_ok=True)


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
