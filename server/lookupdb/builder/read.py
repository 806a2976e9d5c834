"""Read slices: rows become records in a sorter, values in the sample, or rejected rows.

The parts: rules for the native row kernels, the records of a slice, the native reader, ``SliceReader``, and the jobs
and results that a build and its crew exchange as JSON and files.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, Self

import orjson

from lookupdb import native
from lookupdb.builder.csv_rows import CsvParser, QuotesSeen
from lookupdb.builder.fetched_file import LocalFile
from lookupdb.builder.json_rows import JsonLinesParser, make_json_parser
from lookupdb.builder.options import BuildBudget, scratch_errors
from lookupdb.builder.rows import Row, RowParser, RowRejected, SeenColumns, describe_encode_error, value_columns
from lookupdb.builder.slices import Slice, SliceFile
from lookupdb.builder.sort import SPOOL_BYTES, Sample, Sorter, encode_place, make_sample
from lookupdb.dataset.spec import CsvColumn, DatasetSpec
from lookupdb.errors import BadSource, SourceUnreadable
from lookupdb.keys import InvalidKey, make_key_encoder
from lookupdb.manifest import SAMPLES, SourceFile

# Rules for the native row kernels, made from a spec; None if the kernels do not support it.


def find_json_obstacle(spec: DatasetSpec) -> str | None:
    """Return why the native kernel cannot read JSON lines for ``spec``; None if it can."""
    nested = [name for name in (*spec.key.columns, *value_columns(spec.value)[1]) if "." in name]
    if nested:
        return f"the column {nested[0]} may be a nested one"
    return None if spec.key.columns else "keys are names of members"


def find_csv_obstacle(spec: DatasetSpec, delimiter: str) -> str | None:
    """Return why the native kernel cannot read CSV for ``spec``; None if it can."""
    quote = spec.source.csv.quote
    if not delimiter.isascii() or not quote.isascii() or delimiter in (quote, "\r", "\n") or quote in ("\r", "\n"):
        return f"the delimiter is {delimiter!r} and the quote {quote!r}"
    return None


def make_json_rules(kernels: Any, spec: DatasetSpec, max_row: int, encode: Callable[[str], bytes]) -> Any:
    """Return the kernel that reads JSON lines; None if the spec reaches into nested objects."""
    if find_json_obstacle(spec) is not None:
        return None
    value = spec.value
    _, columns = value_columns(value)
    rule = "columns"
    if value.column is not None:
        rule = value.format
    elif value.field is not None:
        rule = "field"
    elif value.columns is None:
        rule = "all"
    return kernels.JsonRows(
        list(spec.key.normalize),
        encode,
        [orjson.dumps(name) for name in spec.key.columns],
        spec.key.separator.encode(),
        rule,
        [orjson.dumps(name) for name in columns],
        _max_value(spec),
        max_row,
    )


def make_csv_rules(
    kernels: Any, spec: DatasetSpec, delimiter: str, names: list[str], max_row: int, encode: Callable[[str], bytes]
) -> Any:
    """Return the kernel that reads CSV; None if it does not support the dialect."""
    if find_csv_obstacle(spec, delimiter) is not None:
        return None
    quote, escape = spec.source.csv.quote, spec.source.csv.escape
    nulls = [text.encode() for text in spec.source.csv.null_values]
    positions = {name: number for number, name in enumerate(names)}
    return kernels.CsvRows(
        list(spec.key.normalize),
        encode,
        (ord(delimiter), ord(quote) if quote else None, ord(escape) if escape else None, nulls),
        len(names),
        [positions[name] for name in spec.key.columns],
        spec.key.separator.encode(),
        "object" if spec.value.column is None else spec.value.format,
        _csv_columns(spec, positions),
        _max_value(spec),
        max_row,
    )


def _csv_columns(spec: DatasetSpec, positions: dict[str, int]) -> list[tuple[int, bytes, str, bool]]:
    """Return field number, text before the member, type, and whether empty means null, for each column."""
    _, chosen = value_columns(spec.value)
    columns = chosen or [name for name in positions if name not in spec.key.columns]
    types = {column.name: column for column in spec.source.csv.columns}
    found: list[tuple[int, bytes, str, bool]] = []
    for number, name in enumerate(columns):
        column = types.get(name, CsvColumn(name))
        head = (b"," if number else b"{") + orjson.dumps(name) + b":"
        found.append((positions[name], head, column.type, column.empty == "null"))
    return found


def _max_value(spec: DatasetSpec) -> int:
    """Return the limit beyond which Python takes a value: it rejects it, or puts it in a spool."""
    return min(spec.value.max_bytes, SPOOL_BYTES)


class SliceRecords:
    """Take the rows of one slice, in their order."""

    def __init__(self, spec: DatasetSpec, sorter: Sorter, sample: Sample, number: int) -> None:
        self.sorter, self.sample = sorter, sample
        self.encode = make_key_encoder(spec.key.normalize)
        self._max_bytes = spec.value.max_bytes
        self._start = encode_place(number, 0)
        self.row = 0
        """Number of rows taken, including rejected ones."""
        self.rejected = 0
        self.samples: list[tuple[int, str]] = []
        """The first rejected rows, and why."""

    def take(self, extract_key: Callable[[Row], str], extract_value: Callable[[Row], bytes], fields: Row) -> None:
        """Take the next row, with its parser's ``key`` and ``value``. Raises NotEnoughRoom."""
        self.row += 1
        try:
            key = self.encode(extract_key(fields))
            value = extract_value(fields)
            if len(value) > self._max_bytes:
                raise RowRejected(f"its value is {len(value)} bytes long, value.maxBytes is {self._max_bytes}")
        except (RowRejected, InvalidKey) as error:
            self._reject(str(error))
        except orjson.JSONEncodeError as error:
            self._reject(describe_encode_error(error))
        else:
            value = bytes(memoryview(value))  # copy: orjson's result sits in a far larger block
            self.sorter.put(key, self.place, value)
            self.sample.offer(key, self.place, value)

    def _reject(self, reason: str) -> None:
        self.rejected += 1
        if len(self.samples) < SAMPLES:
            self.samples.append((self.row, reason))

    @property
    def place(self) -> int:
        """The place of the last row."""
        return self._start + self.row


# Read slices of JSON lines and CSV with the native row kernels.
#
# A kernel turns usual rows into records and stops at any other. Python's parser takes such a line of JSON, or such a
# row of CSV; if the rest of a slice is not CSV, Python takes it all. So only Python rejects rows and reports errors.


_WINDOW: Final = 1 << 20
_ROW_END_WINDOW: Final = 32 << 10
"""Bytes read at first behind a slice: most rows end soon."""
_BOM: Final = b"\xef\xbb\xbf"

ReportProgress = Callable[[int, int], None]
"""Called from time to time with the bytes and rows read since the last call."""


class NativeRows(Protocol):
    """Read a slice into its records."""

    lines: int
    """Number of lines read."""
    end: int | None
    """Offset in the file at which the last row ends, as ``RowParser.end``."""
    position: int
    """Number of bytes of the slice that were read."""

    @property
    def quotes_seen(self) -> QuotesSeen:
        """The quotes found, if the slice is CSV."""

    def read(self, report: ReportProgress) -> bool:
        """Read the slice to its end. Return False if Python's parser must continue after the rows taken so far. Raises
        BadSource, NotEnoughRoom."""


def open_native_rows(
    spec: DatasetSpec, file: LocalFile, piece: Slice, max_row: int, parser: RowParser, records: SliceRecords
) -> NativeRows | None:
    """Return the reader of a slice; None if there are no kernels for it. ``parser`` is the slice's, not yet read
    from."""
    kernels = native.kernels()
    if kernels is None or getattr(parser, "partitions", None):
        return None  # Python adds the columns from the file's path
    if isinstance(parser, JsonLinesParser):
        rules = make_json_rules(kernels, spec, max_row, records.encode)
        return None if rules is None else _NativeJsonLines(rules, file, piece, max_row, parser, records)
    if isinstance(parser, CsvParser):
        rules = make_csv_rules(kernels, spec, file.delimiter, parser.names, max_row, records.encode)
        return None if rules is None else _NativeCsv(rules, spec, file, piece, max_row, parser, records)
    return None


class _NativeJsonLines:
    def __init__(
        self, rules: Any, file: LocalFile, piece: Slice, max_row: int, parser: JsonLinesParser, records: SliceRecords
    ) -> None:
        self._rules, self._file, self._piece, self._max_row = rules, file, piece, max_row
        self._parser, self._records = parser, records
        self._watched: tuple[int, int | None] | None = None
        self.end: int | None = None
        self.lines = self.position = 0
        self.quotes_seen: QuotesSeen = (False, False)

    def read(self, report: ReportProgress) -> bool:
        records, sorter = self._records, self._records.sorter
        self._watch()
        reported = (0, 0)
        for block in self._blocks():
            at = 0
            while at < len(block):
                at, rows, lines = self._rules.read(
                    block, at, records.place, sorter.records, sorter.memory, records.sample
                )
                records.row += rows
                self.lines += lines
                if self._parser.columns.missing:
                    self._parser.columns.count_more(rows)
                if at < len(block) and not sorter.spill_if_full():
                    end = block.find(b"\n", at) + 1 or len(block)
                    if self._parser.is_cut(block[at:end]) and block[at:end].strip():
                        return False  # Python's parser finds rows in parts of a line
                    self._read_unusual_line(block[at:end])
                    at = end
            report(self.position - reported[0], records.row - reported[1])
            reported = (self.position, records.row)
        sorter.spill_if_full()
        self._parser.lines = self.lines
        return True

    def _blocks(self) -> Iterator[bytes]:
        """Yield the slice in blocks of whole lines. A line that is too long comes in pieces, as Python's parser reads
        it."""
        rest: list[bytes] = []
        rest_bytes = 0
        with SliceFile(self._file.path, self._piece) as raw:
            while chunk := raw.read(_WINDOW):
                self.position += len(chunk)
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield b"".join([*rest, chunk[:end]])
                    rest, rest_bytes = [], 0
                rest.append(chunk[end:])
                rest_bytes += len(chunk) - end
                if rest_bytes > self._max_row:
                    line = b"".join(rest)
                    yield line[: self._max_row]
                    rest = [line[self._max_row :]]
                    rest_bytes -= self._max_row
            yield b"".join(rest)

    def _read_unusual_line(self, line: bytes) -> None:
        piece, parser, records = self._piece, self._parser, self._records
        self.lines += not parser.is_cut(line)
        row, number = piece.rows_before + records.row + 1, piece.lines_before + self.lines
        for record in parser.parse_line(line, row, number)[0]:
            records.take(parser.key, parser.value, record)
            self._watch()

    def _watch(self) -> None:
        """Give the kernel the columns to watch for, if they have changed."""
        columns = self._parser.columns
        names = columns.names
        watched = (len(columns.missing), None if names is None else len(names))
        if watched != self._watched:
            known = None if names is None or not columns.missing else _in_quotes(names)
            self._rules.watch(_in_quotes(columns.missing), known)
            self._watched = watched


def _in_quotes(names: Iterable[str]) -> set[bytes]:
    """Return ``names`` as JSON writes them, without those with a lone surrogate, which the kernel finds in no row."""
    quoted: set[bytes] = set()
    for name in names:
        with suppress(orjson.JSONEncodeError):
            quoted.add(orjson.dumps(name))
    return quoted


class _NativeCsv:
    def __init__(
        self,
        rules: Any,
        spec: DatasetSpec,
        file: LocalFile,
        piece: Slice,
        max_row: int,
        parser: CsvParser,
        records: SliceRecords,
    ) -> None:
        self._rules, self._file, self._piece, self._max_row = rules, file, piece, max_row
        self._parser, self._records = parser, records
        self._has_header = spec.source.csv.header and not piece.start
        self._extends = piece.extends_to_row_end and piece.end is not None
        self.end = piece.end if self._extends else None
        self.lines = self.position = 0
        self._block, self._at, self._is_last = b"", 0, False
        self._window = _WINDOW

    def read(self, report: ReportProgress) -> bool:
        records, sorter = self._records, self._records.sorter
        with SliceFile(self._file.path, self._piece) as raw:
            while len(self._block) < len(_BOM) and not self._is_last:
                self._read_more(raw)
            if not self._piece.start and self._block.startswith(_BOM):
                self._at = len(_BOM)
            if self._has_header and self._next_fields(raw, is_header=True) != self._parser.names:
                return False
            reported = (0, 0)
            while True:
                stop, self._at, rows, lines = self._rules.read(
                    self._block,
                    self._at,
                    self._is_last,
                    records.place,
                    sorter.records,
                    sorter.memory,
                    records.sample,
                )
                records.row += rows
                self.lines += lines
                if stop == "full":
                    sorter.spill_if_full()
                elif stop == "odd":
                    self._take_next(raw)
                elif stop == "end":
                    report(self.position - reported[0], records.row - reported[1])
                    reported = (self.position, records.row)
                    if self._is_last:
                        sorter.spill_if_full()
                        return True
                    if len(self._block) - self._at > self._max_row:
                        return False
                    if self._at:
                        self._window = _WINDOW
                    self._read_more(raw)
                else:
                    return stop == "open quote" and self._finish_row()

    @property
    def quotes_seen(self) -> QuotesSeen:
        """The quotes found."""
        seen: tuple[bool, bool] = self._rules.quotes_seen()
        return seen

    def _read_more(self, raw: SliceFile) -> None:
        """Read on after the rest of the block. Windows grow until a row fits."""
        rest = self._block[self._at :]
        chunk = raw.read(min(self._window, self._max_row + _WINDOW - len(rest)))
        self._window *= 2
        self.position += len(chunk)
        self._block, self._at, self._is_last = rest + chunk, 0, not chunk

    def _next_fields(self, raw: SliceFile, *, is_header: bool = False) -> list[str | None] | None:
        """Return the fields of the next row; None if Python would not read it."""
        while True:
            try:
                found = self._rules.read_fields(self._block, self._at, self._is_last, is_header)
            except UnicodeDecodeError:
                return None
            if found is not None or self._is_last or len(self._block) - self._at > self._max_row:
                break
            self._read_more(raw)
        if found is None:
            return None
        end, fields = found
        self.lines += len(self._block[self._at : end].splitlines())
        self._at = end
        return list(fields)

    def _take_next(self, raw: SliceFile) -> None:
        fields = self._next_fields(raw)
        assert fields is not None, "the kernel found this row"
        self._records.take(self._parser.key, self._parser.value, fields)

    def _finish_row(self) -> bool:
        """If the slice ends within quotes and extends to its row's end, read that row to its end."""
        if not self._extends:
            rest = self._block[self._at :]
            raise self._parser.unfinished_error(self._records.row + 1, self.lines + len(rest.splitlines()), rest)
        assert self._piece.end is not None
        inside = len(self._block) - self._at
        with SliceFile(self._file.path, Slice(self._piece.file, self._piece.end)) as behind:
            self._is_last, self._window = False, _ROW_END_WINDOW
            fields = self._next_fields_behind(behind)
            if fields is None or len(fields) != len(self._parser.names):
                return False
            self.end = self._piece.end + self._row_bytes - inside
        self._records.take(self._parser.key, self._parser.value, fields)
        return True

    def _next_fields_behind(self, file: SliceFile) -> list[str | None] | None:
        position = self.position
        self._read_more(file)
        fields = self._next_fields(file)
        self._row_bytes, self.position = self._at, position
        return fields


# Read one slice: its rows become records in a sorter. Runs in the main process or in a crew member.


_REPORT_EVERY_ROWS: Final = 2000


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
    """The columns that its file declares; None if it declares none, or the slice is not its first."""
    columns: SeenColumns | None = None
    end: int | None = None
    """Offset in the file at which its last row ends, if the reader read behind the slice."""
    quotes: QuotesSeen = (False, False)
    """Quotes in CSV, for ``check_quotes``."""


class SliceReader:
    """Read slices into one sorter and one sample."""

    def __init__(
        self,
        spec: DatasetSpec,
        sorter: Sorter,
        sample: Sample,
        budget: BuildBudget,
        threads: int,
        report: ReportProgress,
        *,
        explains: bool = True,
    ) -> None:
        """Without ``explains``, the error of a slice may have no message."""
        self._explains = explains
        self._spec, self._sorter, self._sample, self._budget = spec, sorter, sample, budget
        self._threads, self._report = threads, report

    def read(self, number: int, piece: Slice, file: LocalFile) -> SliceOutcome:
        """Read slice ``number`` of the source. Raises BadSource, NotEnoughRoom."""
        with ExitStack() as stack:
            records = SliceRecords(self._spec, self._sorter, self._sample, number)
            parser = self._open_parser(file, piece, stack)
            native_rows = open_native_rows(self._spec, file, piece, self._budget.row, parser, records)
            if native_rows is None:
                self._read_rows(parser, parser, records, (0, 0))
            elif not native_rows.read(self._report):
                if not self._explains:
                    raise BadSource("")
                parser = self._open_parser(file, piece, stack)
                rest, reported = islice(parser, records.row, None), (native_rows.position, records.row)
                native_rows = None
                self._read_rows(rest, parser, records, reported)
            lines, end = (parser.lines, parser.end) if native_rows is None else (native_rows.lines, native_rows.end)
            quotes: QuotesSeen = (False, False)
            if native_rows is not None:
                quotes = native_rows.quotes_seen
            elif isinstance(parser, CsvParser):
                quotes = parser.quotes_seen
            columns = None if parser.columns is None else parser.columns.snapshot()
            names = None if parser.names is None or piece.start else list(parser.names)
            return SliceOutcome(records.row, lines, records.rejected, records.samples, names, columns, end, quotes)

    def _open_parser(self, file: LocalFile, piece: Slice, stack: ExitStack) -> RowParser:
        try:
            raw = stack.enter_context(SliceFile(file.path, piece))
        except OSError as error:
            raise SourceUnreadable(f"{file.name} cannot be read: {error.strerror}") from error
        if file.format == "parquet":
            # Imported here, because DuckDB takes 20 MB that other formats do not need.
            from lookupdb.builder.parquet_rows import ParquetParser

            return stack.enter_context(ParquetParser(self._spec, file, self._budget.duckdb, self._threads))
        return _PARSERS[file.format](self._spec, file, piece, raw, self._budget.row)

    def _read_rows(
        self, rows: Iterable[Row], parser: RowParser, records: SliceRecords, reported: tuple[int, int]
    ) -> None:
        """Take ``rows`` of ``parser``, after the bytes and rows that were ``reported`` before."""
        take, extract_key, extract_value = records.take, parser.key, parser.value
        for fields in rows:
            take(extract_key, extract_value, fields)
            if records.row % _REPORT_EVERY_ROWS == 0:
                reported = self._report_progress(parser.position(), records.row, reported)
        self._report_progress(parser.position(), records.row, reported)

    def _report_progress(self, position: int, row: int, reported: tuple[int, int]) -> tuple[int, int]:
        position = max(position, reported[0])
        self._report(position - reported[0], row - reported[1])
        return position, row


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector: millions of records make no reference cycles."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_PARSERS: Final[dict[str, Callable[[DatasetSpec, LocalFile, Slice, SliceFile, int], RowParser]]] = {
    "csv": CsvParser,
    "json": make_json_parser,
    "jsonl": JsonLinesParser,
}


@dataclass(frozen=True, slots=True)
class SliceResult:
    """A crew member's result for a slice; its files are in the job's folder."""

    outcome: SliceOutcome
    runs: list[str]
    spool: str | None
    sample: str

    def save(self, folder: Path, number: int) -> None:
        """Write the result for ``load``. Raises NotEnoughRoom."""
        with scratch_errors(folder):
            (folder / f"slice-{number:05d}.json").write_bytes(orjson.dumps(asdict(self)))

    def discard(self, folder: Path) -> None:
        """Remove the files: the slice does not hold whole rows."""
        for name in (*self.runs, self.sample, *([self.spool] if self.spool else [])):
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, number: int) -> Self:
        """Load the result that was saved for slice ``number``."""
        members = orjson.loads((folder / f"slice-{number:05d}.json").read_bytes())
        outcome = members.pop("outcome")
        columns, samples = outcome.pop("columns"), [(row, why) for row, why in outcome.pop("samples")]
        seen_columns = None if columns is None else SeenColumns(**columns)
        return cls(outcome=SliceOutcome(columns=seen_columns, samples=samples, **outcome), **members)


@dataclass(frozen=True, slots=True)
class SliceJob:
    """The data that every crew member needs."""

    spec: DatasetSpec
    files: Sequence[LocalFile]
    pieces: Sequence[Slice]
    folder: Path
    """A folder in scratch for the results."""
    budget: BuildBudget

    def to_json(self) -> bytes:
        """Return the JSON for a memory file."""
        return orjson.dumps(
            {
                "spec": self.spec.to_json().decode(),
                "files": [asdict(file) for file in self.files],
                "pieces": [asdict(piece) for piece in self.pieces],
                "folder": str(self.folder),
                "budget": asdict(self.budget),
            },
            default=str,
        )

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return the job that ``to_json`` wrote."""
        members = orjson.loads(text)
        return cls(
            DatasetSpec.from_json(members["spec"]),
            [_parse_local_file(file) for file in members["files"]],
            [Slice(**piece) for piece in members["pieces"]],
            Path(members["folder"]),
            BuildBudget(**members["budget"]),
        )

    def read(self, number: int, piece: Slice, report: ReportProgress, *, explains: bool = True) -> SliceResult:
        """Read ``piece``, slice ``number`` of the source, into files. Raises BadSource (see ``SliceReader``),
        NotEnoughRoom."""
        name = f"slice-{number:05d}-{uuid.uuid4().hex[:8]}"
        sample = make_sample(self.budget.sample, sum(file.bytes for file in self.files))
        with Sorter(self.folder, self.budget.sorting, name) as sorter:
            reader = SliceReader(self.spec, sorter, sample, self.budget, 1, report, explains=explains)
            outcome = reader.read(number, piece, self.files[piece.file])
            with scratch_errors(self.folder):
                sample.write_run(self.folder / f"{name}-sample")
            names, spool = sorter.detach()
        return SliceResult(outcome, names, spool, f"{name}-sample")


def _parse_local_file(members: dict[str, Any]) -> LocalFile:
    description, path = SourceFile(**members.pop("description")), Path(members.pop("path"))
    return LocalFile(description=description, path=path, **members)
