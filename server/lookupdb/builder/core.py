"""The core of a build, for any engine: plan, map, merge, reduce.

- ``plan_source``: the source's files become slices, which can be read separately.
- ``map_slice``: a slice becomes records (key, place, value) in a sorter, values in a sample, and a ``SliceOutcome``. A
  place is the number of the slice and of the row in it. ``keys.shard_number`` is a key's shard.
- ``MergedSlices`` merges the outcomes in the source's order, and finds the slices that must be mapped again.
- ``reduce_shards``: records in the order of key and place become shard files, with their sums and checksums.

``build`` and ``crew`` run these functions in the processes of one machine, and reduce all shards from one stream.
However slices and shards are divided, files are the same, byte for byte, and so are counts and messages.
"""

from __future__ import annotations

import csv
import enum
import gc
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from io import FileIO
from itertools import islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

from lookupdb import keys, native
from lookupdb.builder.avro_rows import AvroParser
from lookupdb.builder.csv_rows import CsvParser, NativeCsv, check_quotes, find_csv_obstacle
from lookupdb.builder.files import LocalFile, Slice, SliceFile
from lookupdb.builder.json_rows import (
    JsonArrayParser,
    JsonLinesParser,
    JsonMembersParser,
    NativeJsonLines,
    find_json_obstacle,
)
from lookupdb.builder.options import BuildBudget, Progress, transaction_bytes
from lookupdb.builder.rows import (
    UNFINISHED,
    ColumnTracker,
    QuotesSeen,
    ReportProgress,
    Row,
    RowParser,
    SliceRecords,
    UniformColumns,
    open_csv_reader,
)
from lookupdb.builder.write import (
    Batch,
    PackedRecords,
    Packer,
    Record,
    Sample,
    ShardSums,
    ShardWriter,
    ShareSums,
    Sorter,
    decode_place,
    describe_shard,
    make_packer,
)
from lookupdb.dataset.spec import Csv, DatasetSpec
from lookupdb.disk import raise_limit
from lookupdb.errors import RAISE_OPEN_FILES, BadSource, NotEnoughRoom, SourceUnreadable
from lookupdb.manifest import SAMPLES, ExcludedRows, RowSample, ShardFile, Totals
from lookupdb.shardfile import ShardMeta

# Guess where rows begin in a CSV file, from the bytes near an intended cut.
#
# Quoted fields may hold line breaks, so only the whole file before a line end proves that it ends a row, too. The
# reader of the slice before a cut proves or corrects the cut. A guess accepts a line end if the text after it parses as
# rows with as many fields as the header, and with quotes in pairs. Lines within quoted text seldom look like that.


_ROWS_JUDGED: Final = 16
_CANDIDATES: Final = 2000
_JUDGED_WINDOWS: Final = 4
"""To judge the line ends of one window, parse at most this many times its bytes."""


class _Verdict(enum.IntEnum):
    NO_ROWS = 0
    ROWS_WITH_ODD_QUOTES = 1
    ROWS = 2


@dataclass(frozen=True, slots=True)
class RowShape:
    """The dialect of one CSV file, and the number of fields in its rows."""

    options: Csv
    delimiter: str
    fields: int

    @classmethod
    def from_first_bytes(cls, options: Csv, delimiter: str, top: bytes) -> RowShape | None:
        """Return the shape from the file's first bytes; None if they hold no whole header."""
        if not options.header:
            return cls(options, delimiter, len(options.columns))
        text = io.TextIOWrapper(io.BytesIO(top), encoding="utf-8-sig", errors="replace", newline="")
        try:
            names = next(open_csv_reader(text, options, delimiter), None)
        except csv.Error:
            return None
        return cls(options, delimiter, len(names)) if names and text.read(1) else None

    def find_row_start(self, window: bytes) -> int | None:
        """Return the offset in ``window`` at which a row most likely begins; None if nothing in it looks like rows."""
        second_best, position, parsed = None, 0, 0
        for _ in range(_CANDIDATES):
            position = window.find(b"\n", position) + 1
            if not position or parsed > _JUDGED_WINDOWS * len(window):
                break
            verdict, characters = self._judge(window, position)
            parsed += characters
            if verdict is _Verdict.ROWS:
                return position
            if verdict is _Verdict.ROWS_WITH_ODD_QUOTES and second_best is None:
                second_best = position
        return second_best

    def _judge(self, window: bytes, position: int) -> tuple[_Verdict, int]:
        """Return whether rows begin at ``position``, and how many characters were parsed to decide."""
        content = io.BytesIO(window)  # shares the bytes
        content.seek(position)
        text = io.TextIOWrapper(content, encoding="utf-8", errors="replace", newline="")
        quote, escape = self.options.quote, self.options.escape
        row_lines: list[str] = []

        def read_lines() -> Iterator[str]:
            for line in text:
                row_lines.append(line)
                yield line

        rows, characters, verdict = 0, 0, _Verdict.ROWS
        try:
            for fields in open_csv_reader(read_lines(), self.options, self.delimiter):
                row = "".join(row_lines)
                row_lines.clear()
                characters += len(row)
                if not row.endswith(("\n", "\r")):
                    break  # the window ends within this row
                if fields and len(fields) != self.fields:
                    return _Verdict.NO_ROWS, characters
                if escape:
                    row = row.replace(escape * 2, "").replace(escape + quote, "")
                if quote and row.count(quote) % 2:
                    verdict = _Verdict.ROWS_WITH_ODD_QUOTES
                rows += bool(fields)
                if rows == _ROWS_JUDGED:
                    break
        except csv.Error as error:
            characters += sum(map(len, row_lines))
            if UNFINISHED not in str(error):
                return _Verdict.NO_ROWS, characters
        return (verdict if rows else _Verdict.NO_ROWS), characters


# Plan: where to cut the files.
#
# JSON lines are cut at line ends, which is exact. Cuts in CSV are guesses (``RowShape``). A slice that begins and ends
# with a whole row proves the cut after it, because a CSV parser is in the same state at the start of every row. So
# slices are proven in the source's order. After a wrong cut, reading starts again where the row before it really ends:
# no byte is read more than twice. Other formats are read whole.

PARALLEL_FROM: Final = 64 << 20
"""This process reads a source of fewer bytes alone: starting other processes takes 0.2 s and memory."""
_MAX_SLICE_BYTES: Final = 128 << 20
"""Smaller slices balance the load better; larger ones need fewer files and samples."""
_SLICES_A_WORKER: Final = 4
_LOOK_AHEAD: Final = 1 << 20
"""Search this far after an intended cut for a row's start, but at most ``1 / _LOOK_AHEAD_PART`` of a slice."""
_LOOK_AHEAD_PART: Final = 8
_MIN_LOOK_AHEAD: Final = 4 << 10


def plan_source(files: Sequence[LocalFile], workers: int, parallel_from: int, options: Csv) -> list[Slice]:
    """Return the slices for ``workers``, in the source's order: one per file if cutting does not pay. ``options`` are
    the CSV options."""
    total = sum(file.bytes for file in files)
    slices = [Slice(number) for number in range(len(files))]
    if workers > 1 and total >= parallel_from and all(file.format != "parquet" for file in files):
        size = max(
            parallel_from // (2 * _SLICES_A_WORKER), min(_MAX_SLICE_BYTES, total // (workers * _SLICES_A_WORKER) + 1)
        )
        slices = []
        for number, file in enumerate(files):
            cuts: list[int] = []
            if file.format in ("jsonl", "csv") and file.bytes > size + size // 2:
                with FileIO(file.path) as raw:
                    cuts += _find_cuts(raw, file, size, options)
            slices += [Slice(number, start, end) for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    return slices


def _find_cuts(raw: FileIO, file: LocalFile, size: int, options: Csv) -> Iterator[int]:
    """Yield offsets to cut at, about every ``size`` bytes. A place without a row's start nearby is skipped."""
    look_ahead = min(_LOOK_AHEAD, max(size // _LOOK_AHEAD_PART, _MIN_LOOK_AHEAD))
    shape = RowShape.from_first_bytes(options, file.delimiter, raw.read(look_ahead)) if file.format == "csv" else None
    if shape is None and file.format == "csv":
        return
    position = size
    while file.bytes - position > size // 2:
        raw.seek(position)
        window = raw.read(look_ahead)
        offset = window.find(b"\n") + 1 or None if shape is None else shape.find_row_start(window)
        if offset is not None and position + offset < file.bytes:
            position += offset
            yield position
        position += size


# Map: read a slice.


_REPORT_EVERY_ROWS: Final = 2000
_PARSERS: Final[dict[str, Callable[[DatasetSpec, LocalFile, Slice, SliceFile, int], RowParser]]] = {
    "avro": AvroParser,
    "csv": CsvParser,
    "json": JsonArrayParser,
    "jsonl": JsonLinesParser,
}


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """Facts about a slice, apart from its records."""

    rows: int = 0
    """Number of rows, including rejected ones."""
    lines: int = 0
    rejected: int = 0
    samples: list[tuple[int, str]] = field(default_factory=list)
    """The first rejected rows, numbered within the slice from 1, and why."""
    names: list[str] | None = None
    """The columns that the file declares; None if it declares none, or this is not the file's first slice."""
    columns: ColumnTracker | None = None
    end: int | None = None
    """Offset in the file at which the slice's last row ends, if the reader read beyond the slice."""
    quotes: QuotesSeen = (False, False)
    """Which quotes the slice's fields have, escaped and plain, for ``check_quotes``."""


def open_parser(
    stack: ExitStack, spec: DatasetSpec, file: LocalFile, piece: Slice, budget: BuildBudget, threads: int = 1
) -> RowParser:
    """Return the parser of ``piece``, which ``stack`` closes. Raises BadSource."""
    try:
        raw = stack.enter_context(SliceFile(file.path, piece))
    except OSError as error:
        raise SourceUnreadable(f"{file.name} cannot be read: {error.strerror}") from error
    if file.format == "parquet":
        # Imported here, because DuckDB takes 20 MB that other formats do not need.
        from lookupdb.builder.parquet_rows import ParquetParser

        return stack.enter_context(closing(ParquetParser(spec, file, raw, budget.duckdb, threads)))
    parser = JsonMembersParser if spec.key.member_names else _PARSERS[file.format]
    return parser(spec, file, piece, raw, budget.row)


def map_slice(
    spec: DatasetSpec,
    file: LocalFile,
    number: int,
    piece: Slice,
    sorter: Sorter,
    sample: Sample,
    budget: BuildBudget,
    report: ReportProgress,
    *,
    threads: int = 1,
    explains: bool = True,
) -> SliceOutcome:
    """Read ``piece``, slice ``number`` of the source, into ``sorter`` and ``sample``. Without ``explains``, an error
    may have no message. Raises BadSource, NotEnoughRoom."""
    with ExitStack() as stack:
        records = SliceRecords(spec, sorter, sample, number)
        parser = open_parser(stack, spec, file, piece, budget, threads)
        reader: RowParser | NativeCsv | NativeJsonLines = parser
        native_rows = _open_native_rows(spec, file, piece, budget.row, parser, records)
        if native_rows is None:
            _read_rows(parser, parser, records, report, (0, 0))
        elif native_rows.read(report):
            reader = native_rows
        elif not explains:
            raise BadSource("")
        else:
            reader = parser = open_parser(stack, spec, file, piece, budget, threads)
            rest, reported = islice(parser, records.row, None), (native_rows.position, records.row)
            native_rows = None
            _read_rows(rest, parser, records, report, reported)
        names = None if parser.names is None or piece.start else list(parser.names)
        return SliceOutcome(
            records.row,
            reader.lines,
            records.rejected,
            records.samples,
            names,
            parser.columns,
            reader.end,
            reader.quotes_seen,
        )


def _open_native_rows(
    spec: DatasetSpec, file: LocalFile, piece: Slice, max_row: int, parser: RowParser, records: SliceRecords
) -> NativeCsv | NativeJsonLines | None:
    """Return the native reader of a slice; None if there are no kernels for it. Nothing has been read from
    ``parser`` yet."""
    kernels = native.kernels()
    if kernels is None or getattr(parser, "partitions", None):
        return None  # Python adds the columns from the file's path
    if isinstance(parser, JsonLinesParser) and find_json_obstacle(spec) is None:
        return NativeJsonLines(kernels, spec, file, piece, max_row, parser, records)
    if isinstance(parser, CsvParser) and find_csv_obstacle(spec, file.delimiter) is None:
        return NativeCsv(kernels, spec, file, piece, max_row, parser, records)
    return None


def _read_rows(
    rows: Iterable[Row], parser: RowParser, records: SliceRecords, report: ReportProgress, reported: tuple[int, int]
) -> None:
    """Take ``rows`` of ``parser``, and report progress beyond the bytes and rows already ``reported``."""
    take, extract_key, extract_value = records.take, parser.key, parser.value

    def advance() -> tuple[int, int]:
        position = max(parser.position(), reported[0])
        report(position - reported[0], records.row - reported[1])
        return position, records.row

    for fields in rows:
        take(extract_key, extract_value, fields)
        if records.row % _REPORT_EVERY_ROWS == 0:
            reported = advance()
    advance()


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector: millions of records make no reference cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Merge: outcomes in the source's order.


class MergedSlices:
    """The outcomes of slices, merged in the source's order: rows, rejected rows, columns, and where each record was."""

    def __init__(self, spec: DatasetSpec, files: Sequence[LocalFile], slices: Sequence[Slice], max_row: int) -> None:
        self._spec, self._files, self._slices, self._max_row = spec, files, slices, max_row
        self.rows = 0
        """Number of rows, including rejected rows."""
        self._rejected = 0
        self._samples: list[RowSample] = []
        self._rows_before: dict[int, int] = {}
        """Slice → number of its file's rows before it."""
        self._file_rows = self._file_lines = self._row_end = 0
        self._quotes: list[QuotesSeen] = []
        self._columns = ColumnTracker(spec)
        self._uniform_columns = UniformColumns(spec)

    @property
    def rejected(self) -> ExcludedRows:
        """The rejected rows."""
        return ExcludedRows(self._rejected, tuple(self._samples))

    def next_slice(self, number: int) -> Slice | None:
        """Return slice ``number`` with its true start; None if a row of an earlier slice covers all of it. Call this
        after all earlier slices were merged. If the slice was mapped from another start, map it again.
        """
        piece = self._slices[number]
        start = self._row_end if piece.start else 0
        if piece.end is not None and start >= piece.end:
            return None
        rows, lines = self._file_rows, self._file_lines
        return replace(piece, start=start, rows_before=rows, lines_before=lines, extends_to_row_end=True)

    def merge(self, number: int, outcome: SliceOutcome) -> None:
        """Merge the outcome of slice ``number``. Raises BadSource if its file cannot be used as a whole."""
        file_number = self._slices[number].file
        file = self._files[file_number]
        self._uniform_columns.check(file.name, outcome.names)
        self._rows_before[number] = self._file_rows
        for row, reason in outcome.samples[: SAMPLES - len(self._samples)]:
            self._samples.append(RowSample(file.name, self._file_rows + row, reason))
        self._rejected += outcome.rejected
        self.rows += outcome.rows
        self._file_rows += outcome.rows
        self._file_lines += outcome.lines
        self._row_end = outcome.end or self._slices[number].end or 0
        self._quotes.append(outcome.quotes)
        if outcome.columns is not None:
            self._columns.merge(outcome.columns)
        if number + 1 == len(self._slices) or self._slices[number + 1].file != file_number:
            if outcome.columns is not None:
                self._columns.check(file.name)
            check_quotes(file, self._spec.source.csv, self._quotes, self._max_row)
            file.check_unchanged()
            self._file_rows = self._file_lines = 0
            self._quotes.clear()
            self._columns = ColumnTracker(self._spec)

    def find_origin(self, place: int) -> tuple[int, int]:
        """Return where the record at ``place`` comes from: the number of its file, from 0, and of its row in the file,
        from 1.
        """
        number, row = decode_place(place)
        return self._slices[number].file, self._rows_before[number] + row


# Reduce: drop duplicates, write shard files.


_BATCHES_AHEAD: Final = 2
_BYTES_AHEAD: Final = 24 << 20
"""Bytes of native batches that wait for earlier ones to be written; their packed form takes as much again."""
_FILES_A_SHARD: Final = 2
_OTHER_FILES: Final = 128
"""For the store's sockets, pipes, and runs to merge; merges adapt to the limit of open files."""

Policy = Literal["fail", "first", "last"]


@dataclass(slots=True)
class Duplicates:
    """The rows dropped because their keys occur again."""

    count: int = 0
    samples: list[tuple[bytes, int, int]] = field(default_factory=list)
    """The first dropped rows, in the order of keys: key, place, and place of the row that is kept."""

    def describe(
        self, policy: Policy, files: Sequence[str], find_origin: Callable[[int], tuple[int, int]]
    ) -> ExcludedRows:
        """Return the dropped rows for the manifest; ``find_origin`` returns the file (its number in ``files``) and the
        row of a place. Raises BadSource if rows were dropped and ``policy`` is fail."""
        rows: list[RowSample] = []
        for key, *places in self.samples:
            (file, row), (other, other_row) = map(find_origin, sorted(places) if policy == "fail" else places)
            if policy == "fail":
                raise BadSource(
                    f"the key {key.decode()!r} occurs twice: row {row} of {files[file]} and row {other_row} of"
                    f" {files[other]}",
                    hint="correct the source, or set `duplicates: first` or `duplicates: last` to keep one of them",
                )
            reason = f"the key {key.decode()!r} also occurs in row {other_row} of {files[other]}, which is kept"
            rows.append(RowSample(files[file], row, reason))
        return ExcludedRows(self.count, tuple(rows))


def merge_duplicates(parts: Iterable[Duplicates]) -> Duplicates:
    """Return the duplicates of shards that were reduced separately."""
    merged = Duplicates()
    for part in parts:
        merged.count += part.count
        merged.samples += part.samples
    merged.samples.sort(key=itemgetter(0))  # a key's rows are all in one part, in their order
    del merged.samples[SAMPLES:]
    return merged


def drop_duplicates(batches: Iterable[Batch], policy: Policy, duplicates: Duplicates) -> Iterator[Batch]:
    """Yield ``batches``, in the order of key and place, with one record per key; count the others in ``duplicates``. If
    ``policy`` is fail, end at the first key that occurs twice.

    The last record of a batch waits until the next batch shows whether its key occurs again.
    """
    kernels = native.kernels()
    unique = _UniqueRecords(policy == "last") if kernels is None else kernels.UniqueRecords(policy == "last", SAMPLES)
    for batch in batches:
        if kernels is not None and not isinstance(batch, kernels.RecordBatch):
            batch = kernels.RecordBatch(list(batch))  # noqa: PLW2901 - the list is freed while it is packed
        kept, count, first = unique.filter(batch)
        duplicates.count += count
        duplicates.samples += first[: SAMPLES - len(duplicates.samples)]
        if policy == "fail" and count:
            return
        del batch  # free it while the kept records are packed and written
        if len(kept):
            yield kept
        del kept
    if len(last := unique.finish()):
        yield last


class _UniqueRecords:
    """Keep one record per key: the Python fallback of the native filter."""

    def __init__(self, keeps_last: bool) -> None:
        self._keeps_last = keeps_last
        self._last: Record | None = None

    def filter(self, batch: Batch) -> tuple[list[Record], int, list[tuple[bytes, int, int]]]:
        """Return the records to keep, the number of dropped ones, and the first dropped ones."""
        kept: list[Record] = []
        count, last = 0, self._last
        samples: list[tuple[bytes, int, int]] = []
        for record in batch:
            if last is None or record[0] != last[0]:
                kept += [] if last is None else [last]
                last = record
                continue
            count += 1
            older, newer = (last, record) if self._keeps_last else (record, last)
            if len(samples) < SAMPLES:
                samples.append((record[0], older[1], newer[1]))
            if self._keeps_last:
                last = record
        self._last = last
        return kept, count, samples

    def finish(self) -> list[Record]:
        """Return the last record."""
        return [] if self._last is None else [self._last]


@dataclass(frozen=True, slots=True)
class ReducedShards:
    """Shard files, in the requested order."""

    files: tuple[ShardFile, ...]
    """Empty if a key occurs twice and the policy is fail."""
    sums: tuple[ShardSums, ...]
    duplicates: Duplicates


def reduce_shards(
    batches: Iterable[Batch],
    folder: Path,
    meta: ShardMeta,
    dictionary: bytes,
    policy: Policy,
    progress: Progress,
    *,
    shards: Sequence[int] | None = None,
    attempt: str = "",
    rows: int | None = None,
    threads: int = 1,
    packers: int = 1,
) -> ReducedShards:
    """Write the files of ``shards`` into ``folder``, by default of all shards; their names end with ``attempt``.
    ``batches`` are their records in the order of key and place, ``rows`` their number, if known.

    ``meta`` is the metadata that all shards share. Up to ``packers`` threads compress natively at once. Raises
    NotEnoughRoom, StoreError.
    """
    numbers = range(meta.shards) if shards is None else shards
    packer = make_packer(meta.shards, compressed=meta.compression == "zstd", dictionary=dictionary)
    check_open_files(len(numbers))
    share = transaction_bytes(meta.shards)
    dropped = Duplicates()
    with ExitStack() as stack:
        names = [keys.file_name(number, meta.shards, attempt) for number in numbers]
        writers = [stack.enter_context(closing(ShardWriter(folder / name, share))) for name in names]
        progress.begin_phase("writing", rows, "rows")
        threads_packing = 1 if isinstance(packer, Packer) else packers
        packed = _pack_ahead(packer, threads_packing, drop_duplicates(batches, policy, dropped))
        for count, batch in packed:
            written = 0
            for number, writer in zip(numbers, writers, strict=True):
                items, sums = batch.items(number)
                writer.append(items, ShareSums(*sums))
                written += len(items)
            if written != count:
                raise AssertionError(f"{count - written} of {count} records belong to other shards")
            progress.advance(count)
        if policy == "fail" and dropped.count:
            return ReducedShards((), (), dropped)
        progress.end_phase()
        progress.begin_phase("syncing", None, "bytes")
        with ThreadPoolExecutor(threads, "finish") as pool:
            metas = (describe_shard(meta, number, writer.sums) for number, writer in zip(numbers, writers, strict=True))
            files = tuple(pool.map(ShardWriter.finish, writers, metas, repeat(dictionary)))
        progress.end_phase()
        return ReducedShards(files, tuple(writer.sums for writer in writers), dropped)


def _pack_ahead(packer: Any, packers: int, batches: Iterable[Batch]) -> Iterator[tuple[int, PackedRecords]]:
    """Yield the number of records of each batch, and the packed batch. Other threads pack some batches ahead."""
    queue: deque[tuple[int, int, Future[PackedRecords]]] = deque()
    bytes_ahead = 0
    with ThreadPoolExecutor(packers, "pack") as pool:
        for batch in batches:
            size = getattr(batch, "data_bytes", 0)
            bytes_ahead += size
            queue.append((len(batch), size, pool.submit(packer.pack, batch)))
            del batch  # free it once packed
            while len(queue) > packers + _BATCHES_AHEAD or (queue and bytes_ahead > _BYTES_AHEAD):
                count, size, packed = queue.popleft()
                bytes_ahead -= size
                yield count, packed.result()
                del packed
        while queue:
            count, _, packed = queue.popleft()
            yield count, packed.result()
            del packed


def add_up(files: Sequence[ShardFile], sums: Sequence[ShardSums]) -> Totals:
    """Return the totals of all shards."""
    return Totals(
        records=sum(shard.records for shard in sums),
        key_bytes=sum(shard.key_bytes for shard in sums),
        value_bytes=sum(shard.value_bytes for shard in sums),
        stored_bytes=sum(shard.stored_bytes for shard in sums),
        file_bytes=sum(file.bytes for file in files),
        largest_value_bytes=max(shard.largest_value_bytes for shard in sums),
    )


def max_open_files(shards: int) -> int:
    """Return the most files that a build of ``shards`` shards opens at once."""
    return _FILES_A_SHARD * shards + _OTHER_FILES


def check_open_files(shards: int) -> None:
    """Raise this process's limit of open files. Raises NotEnoughRoom if the system does not allow enough."""
    count, limit = max_open_files(shards), raise_limit()
    if limit < count:
        raise NotEnoughRoom(
            f"this build needs {count:,} open files, the limit is {limit:,}",
            hint=f"{RAISE_OPEN_FILES}, or give the dataset fewer shards",
        )
