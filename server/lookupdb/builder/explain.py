"""Look at a source before a build. ``read_first_rows`` also serves `lookupdb init`. ``explain_build`` says what a build
would do, for `lookupdb build --explain`: from the spec, the source's listing and the store."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import orjson
import yaml

from lookupdb import native
from lookupdb.builder import build, existing
from lookupdb.builder.core import max_open_files, open_parser
from lookupdb.builder.csv_rows import BOOLEANS, CsvParser, find_csv_obstacle
from lookupdb.builder.dictionary import MAX_GROWTH, read_dictionary
from lookupdb.builder.files import FIRST_BYTES, LocalFile, Slice, check_kind
from lookupdb.builder.gates import ActiveGeneration
from lookupdb.builder.json_rows import JsonLinesParser, find_json_obstacle
from lookupdb.builder.listing import (
    SourceObject,
    check_beginning,
    fetch_files,
    find_local_file,
    open_source,
    read_beginning,
    read_success_file,
)
from lookupdb.builder.options import MIB, BuildBudget, BuildOptions, SilentProgress, format_quantity, min_memory_limit
from lookupdb.builder.rows import (
    Form,
    NotFinite,
    UnfinishedSlice,
    UniformColumns,
    find_partitions,
    format_names,
    read_partitions,
    shorten_name,
    value_columns,
)
from lookupdb.dataset.spec import LOCAL, DatasetSpec, Gates, Refresh, describe_left_out
from lookupdb.disk import raise_limit
from lookupdb.errors import BadSource, LookupdbError, SourceUnreadable
from lookupdb.keys import file_name
from lookupdb.manifest import Manifest, SourceFile
from lookupdb.store import Store, StoredDataset
from lookupdb.store.directory import free_bytes
from lookupdb.wording import format_count, shorten, strip_secrets

# The first rows of a source, and the types that their values look like.


MAX_ROWS: Final = 10_000
_MAX_CHARACTERS: Final = 32 << 20
"""Characters of values to look at."""
_MAX_FIELDS: Final = 2_000_000
"""The most values to remember, rows times columns."""
_COPIED_BYTES: Final = 8 * MIB
"""Bytes to copy of a file that is remote or compressed."""
_FETCHED_BYTES: Final = 256 * MIB
"""The largest Parquet file to fetch: its columns are described at its end."""
_SHOWN_COLUMNS: Final = 100
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", dict: "json", list: "json"}


@dataclass(slots=True)
class FirstColumn:
    """A column in the first rows of a file."""

    name: str
    kinds: set[str] = field(default_factory=set)
    """The types that its values look like. A field of CSV has the type of the JSON that it looks like."""
    words: set[str] = field(default_factory=set)
    """Its values in lower case, until there are more than a boolean may have."""
    sample: str = ""
    """The first value."""
    values: list[int | None] = field(default_factory=list)
    """A hash of each row's value; None if it is null, empty, or left out."""

    def add(self, value: Any, *, is_csv: bool) -> int:
        """Add the value of the next row, and return its number of characters."""
        if value is None or value == "":
            self.values.append(None)
            return 0
        text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
        parsed: Any = text
        if isinstance(value, NotFinite):
            text, parsed = "NaN", math.nan
        elif text == text.strip() and (is_csv or not isinstance(value, str)):
            with suppress(orjson.JSONDecodeError):
                parsed = orjson.loads(text)
        self.kinds.add(_TYPES.get(type(parsed), "text"))
        if len(self.words) <= len(BOOLEANS):
            self.words.add(text.lower())
        self.sample = self.sample or shorten(" ".join(text.split()), 40)
        self.values.append(hash(text))
        return len(text)

    @property
    def has_empty(self) -> bool:
        """Return whether a row lacks a value."""
        return None in self.values

    @property
    def is_unique(self) -> bool:
        """Return whether every row has a value of its own."""
        return not self.has_empty and len(set(self.values)) == len(self.values)

    def guess_type(self, *, is_csv: bool) -> str:
        """Return the type that all values look like; if they differ, "text" for CSV, else all joined by "or"; "unknown"
        without values."""
        # A boolean column holds a word for true and one for false. Digits alone are numbers, and a single word may
        # mean anything: "no" is also a country.
        are_words = {BOOLEANS.get(word) for word in self.words} == {True, False} and not self.words <= {"0", "1"}
        if is_csv and self.words and (self.words <= {"true", "false"} or are_words):
            return "boolean"
        kinds = self.kinds - ({"integer"} if "number" in self.kinds else set())
        return "text" if is_csv and len(kinds) > 1 else " or ".join(sorted(kinds)) or "unknown"


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of one file."""

    file: str
    is_csv: bool
    columns: dict[str, FirstColumn]
    rows: int
    is_all: bool
    """Whether the file has no more rows."""
    error: LookupdbError | OSError | None
    """Why no more could be read."""

    def describe_rows(self) -> str:
        """Return the number of rows: "the first 10,000 rows"."""
        if self.rows < 2:
            return "the first row" if self.rows else "no rows"
        return f"{'all' if self.is_all else 'the first'} {self.rows:,} rows"

    def describe(self) -> Iterator[str]:
        """Yield a table of the columns: name, guessed type, and a value."""
        table = [("column", "type", "sample")]
        for column in list(self.columns.values())[:_SHOWN_COLUMNS]:
            shown = shorten_name(column.name.replace("\n", "\\n"))
            table.append((shown, column.guess_type(is_csv=self.is_csv), column.sample))
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        for cells in table:
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        if len(self.columns) > _SHOWN_COLUMNS:
            yield f"  and {format_count(len(self.columns) - _SHOWN_COLUMNS, 'more column')}"

    def list_typed(self, excluded: Sequence[str]) -> dict[str, str]:
        """Return the columns of CSV that look typed, with their types."""
        guesses = {
            name: column.guess_type(is_csv=True) for name, column in self.columns.items() if name not in excluded
        }
        return {name: kind for name, kind in guesses.items() if self.is_csv and kind not in ("text", "unknown")}


def write_column(name: str, kind: str) -> str:
    """Return the entry of source.csv.columns that gives a column the type ``kind``, as YAML in one line. Empty fields
    become null: a later row may have one."""
    return write_yaml({"name": name} if kind == "text" else {"name": name, "type": kind, "empty": "null"})


def write_yaml(value: Any) -> str:
    """Return ``value`` as YAML in one line."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    text: str = yaml.safe_dump(value, default_flow_style=True, **options).removesuffix("\n").removesuffix("\n...")
    return (
        text
        if text.isprintable()
        else yaml.safe_dump(value, default_flow_style=True, default_style='"', **options).strip()
    )


def read_first_rows(
    spec: DatasetSpec, item: SourceObject, budget: BuildBudget, scratch: Path, most: int = MAX_ROWS
) -> FirstRows:
    """Return the first rows of ``item``, and why they end early. Copies a part of a remote or compressed file into
    ``scratch``. Raises BadSource if a file that has to be fetched whole is too large for that."""
    file, is_cut = _find_file(item, scratch)
    is_csv = file.format == "csv"
    columns: dict[str, FirstColumn] = {}
    rows, characters, is_all, error = 0, 0, False, None
    records = _read_rows(spec, file, budget)
    try:
        columns |= {name: FirstColumn(name) for name in next(records)}
        while rows < most and characters < _MAX_CHARACTERS and rows * len(columns) < _MAX_FIELDS:
            row = next(records, None)
            if row is None:
                is_all = not is_cut
                break
            for name, value in row.items():
                column = columns.setdefault(name, FirstColumn(name))
                column.values += [None] * (rows - len(column.values))
                characters += column.add(value, is_csv=is_csv)
            rows += 1
    except (LookupdbError, OSError) as failure:
        is_end = is_cut and (isinstance(failure, UnfinishedSlice) or not is_csv)
        error = None if is_end else failure
    finally:
        records.close()
    for column in columns.values():
        column.values += [None] * (rows - len(column.values))
    return FirstRows(file.name, is_csv, columns, rows, is_all, error)


def _find_file(item: SourceObject, scratch: Path) -> tuple[LocalFile, bool]:
    """Return a plain file with the beginning of ``item``, and whether it is cut."""
    if (file := find_local_file(item)) is not None:
        return file, False
    name, size = item.description.url, item.description.bytes
    if item.format == "parquet":
        if size > _FETCHED_BYTES:
            raise BadSource(
                f"{name} has {format_quantity(size, 'bytes')}, too much to fetch for a look at its columns",
                hint="give a smaller file of the same columns, and change source.url afterwards",
            )
        return fetch_files([item], scratch, SilentProgress())[0], False
    content = read_beginning(item, item.compression, _COPIED_BYTES + 1)
    check_kind(content[:FIRST_BYTES], name, item.format, item.compression)
    is_cut = len(content) > _COPIED_BYTES
    if is_cut:
        content = content[:_COPIED_BYTES]
        if item.format in ("csv", "jsonl") and (end := content.rfind(b"\n") + 1):
            content = content[:end]
    target = scratch / "beginning"
    target.write_bytes(content)
    return LocalFile(item.description, item.format, item.delimiter, target, len(content), False), is_cut


def _read_rows(spec: DatasetSpec, file: LocalFile, budget: BuildBudget) -> Generator[Any, None, None]:
    """Yield the names of the columns that ``file`` declares, then its rows as dicts."""
    with ExitStack() as stack:
        parser = open_parser(stack, spec, file, Slice(0, extends_to_row_end=True), budget)
        yield parser.names or []
        for row in parser:
            if isinstance(parser, CsvParser):
                yield dict(zip(parser.names, row, strict=True))
                continue
            content = row[1] if isinstance(row, tuple) else row  # a member's content, or an object
            yield content if isinstance(content, dict) else {}


# The refresh schedule of a cluster, in words.


def describe_refresh(refresh: Refresh, *, uid: str, is_suspended: bool, now: datetime) -> Iterator[str]:
    """Yield the schedule and its next slots after ``now``, with the time of each for the dataset ``uid``; or why there
    is no schedule."""
    if refresh.schedule is None:
        yield (
            "no schedule: the source is read when the spec changes, and for `lookupdb refresh`"
            " (a new value of the annotation lookupdb.dev/refresh)"
        )
        if refresh.suspend:
            yield "  refresh.suspend is true, and there is no schedule to suspend"
    elif is_suspended or refresh.suspend:
        cause = ": refresh.suspend is true" if refresh.suspend else ""
        yield f"{refresh.schedule!r} in {refresh.time_zone}, suspended{cause}"
    else:
        yield f"{refresh.schedule!r} in {refresh.time_zone}: the source is read at"
        from lookupdb.dataset.schedule import Schedule

        zone = ZoneInfo(refresh.time_zone)
        schedule = Schedule(refresh.schedule, zone)
        slot = schedule.last_slot(now)
        if slot is None or uid == LOCAL or schedule.due_moment(slot, uid) <= now:
            slot = schedule.next_slot(now)
        for _ in range(3):
            if slot is None:
                break
            due, note = slot, f"or up to {schedule.longest_jitter(slot):.0f} s later"
            if uid != LOCAL:
                due = schedule.due_moment(slot, uid)
                note = f"{(due - slot).total_seconds():.0f} s after the slot"
            yield f"  {due.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}, {note}"
            slot = schedule.next_slot(slot)
        if uid == LOCAL:
            yield "  the delay depends on the dataset's uid in the cluster: status.nextCheck shows the time"
        if refresh.starting_deadline_seconds is not None:
            yield f"  a refresh that would begin more than {refresh.starting_deadline_seconds:,} s late is skipped"
    if is_suspended:
        yield "  suspend is true: nothing is built or rolled out"


# The source's columns, and the reader of its rows, before a build.


_MAX_FILES: Final = 20

_FIRST_ROWS: Final = 1000
_FIRST_BYTES: Final = 16 << 20
_PLACES: Final = {"avro": "the schema", "csv": "the header", "parquet": "the footer", "jsonl": "the first rows"}
"""Where the column names are, by format."""
_FORMS: Final = {
    "key": "as a key, its text in UTF-8",
    "raw": "taken as it is",
    "text": "its text in UTF-8, as source.parquet.columns says",
    "base64": "base64; to store it as text, set its `type: text` in source.parquet.columns",
}
"""Form of a binary column of Parquet, in words."""


def describe_columns(spec: DatasetSpec, objects: Sequence[SourceObject], budget: BuildBudget) -> Iterator[str]:
    """Check the columns that the spec names in the first local, uncompressed files that are not JSON documents. Of
    other local files, read only the first bytes. Raises BadSource as the build would."""
    not_looked_into = [item for item in objects if isinstance(item.place, Path) and _find_obstacle(item)]
    for item in not_looked_into[:_MAX_FILES]:
        check_beginning(item)
    here = [file for item in objects if not _find_obstacle(item) and (file := find_local_file(item)) is not None]
    checked: Counter[str] = Counter()
    uniform_columns = UniformColumns(spec)
    shown: set[str] = set()
    for number, file in enumerate(here[:_MAX_FILES]):
        try:
            with ExitStack() as stack:
                parser = open_parser(stack, spec, file, Slice(number, extends_to_row_end=True), budget)
                uniform_columns.check(file.name, parser.names)
                binaries: list[tuple[str, Form]] = getattr(parser, "binaries", [])
                lines = _check_first_rows(parser, file) if isinstance(parser, JsonLinesParser) else []
        except OSError as error:
            raise SourceUnreadable(f"{file.name} cannot be read: {error.strerror}") from error
        remarks = [f"{shorten_name(name)} is binary: {_FORMS[form]}" for name, form in binaries]
        yield from lines
        yield from (remark for remark in remarks if remark not in shown)
        shown.update(remarks)
        checked[file.format] += not lines
    for file_format, count in sorted(checked.items()):
        if count:
            files = format_count(count, f"{file_format} file")
            yield f"all that the manifest names are in {_PLACES[file_format]} of {files}"
    partitions: dict[str, None] = {}
    for item in objects:
        if item.data_file is not None:
            continue  # the table knows them
        url = item.description.url
        partitions.update(
            dict.fromkeys(name for name in read_partitions(url) if name not in find_partitions(spec, url))
        )
    if partitions:
        yield f"folders name {format_names(list(partitions))}: not read, unless key, value or csv.columns names them"
    unread = Counter(_find_obstacle(item) for item in objects)
    unread[f"after the first {_MAX_FILES}"] = max(0, unread.pop("", 0) - _MAX_FILES)
    for obstacle, count in sorted(unread.items()):
        if count:
            yield f"not looked at in {format_count(count, 'file')}: {obstacle}"


def _find_obstacle(item: SourceObject) -> str:
    """Return why the columns of ``item`` are not checked before a build; empty if they are."""
    if not isinstance(item.place, Path):
        return "remote"
    if item.compression != "none":
        return "compressed"
    return "" if item.format in _PLACES else "one JSON document"


def _check_first_rows(parser: JsonLinesParser, file: LocalFile) -> list[str]:
    """Return doubts about the columns of ``file``. Raises BadSource."""
    row = 0
    for row, _ in enumerate(parser, 1):
        if not parser.columns.missing:
            return []
        if row == _FIRST_ROWS or parser.position() > _FIRST_BYTES:
            break
    else:
        parser.columns.check(file.name)
        return [] if row else [f"{file.name} has no rows"]
    try:
        parser.columns.check(f"the beginning of {file.name}")
    except BadSource as doubt:
        return [doubt.message, f"  {doubt.hint}"]
    return []


def describe_first_rows(spec: DatasetSpec, objects: Sequence[SourceObject], budget: BuildBudget) -> Iterator[str]:
    """Yield a table of the columns in the first rows of the first local file: name, guessed type, and a value. Then
    list fields of CSV that would be text, although they look typed."""
    here = (
        item
        for item in objects
        if isinstance(item.place, Path)
        # A data file of a table may have rows that the table has deleted.
        and not (item.data_file and (item.data_file.deletes or item.data_file.deleted))
    )
    if (item := next(here, None)) is None:
        return
    with tempfile.TemporaryDirectory(prefix="lookupdb-explain-") as scratch, suppress(LookupdbError, OSError):
        found = read_first_rows(spec, item, budget, Path(scratch), 100)
        yield f"{found.file} (types are a guess{'; fields stay text unless csv.columns has their type' * found.is_csv})"
        yield from found.describe()
        _, chosen = value_columns(spec.value)
        named = {column.name for column in spec.source.csv.columns if column.type != "text"}
        typed = {
            name: kind
            for name, kind in found.list_typed((*spec.key.columns, *named)).items()
            # The value of one column is read as JSON or raw.
            if spec.value.column is None and (not chosen or name in chosen)
        }
        if typed:
            yield (
                'these look typed, but will be stored as text (in Python, the text "false" is true); to store types, '
                "write"
            )
            yield "  source.csv.columns:"
            yield from (f"    - {write_column(name, kind)}" for name, kind in typed.items())


def describe_readers(spec: DatasetSpec, objects: Sequence[SourceObject]) -> Iterator[str]:
    """For each format, say whether native kernels read the rows, and if not, why."""
    has_kernels = native.kernels() is not None
    for file_format, delimiter in sorted({(item.format, item.delimiter) for item in objects}):
        if file_format == "parquet":
            yield "parquet: DuckDB"
        elif file_format == "avro":
            yield "avro: fastavro"
        elif file_format == "json":
            yield "json: Python"
        elif not has_kernels:
            yield f"{file_format}: {native.describe()}"
        else:
            is_csv = file_format == "csv"
            obstacle = find_csv_obstacle(spec, delimiter) if is_csv else find_json_obstacle(spec)
            yield f"{file_format}: " + (f"Python, because {obstacle}" if obstacle else "native kernels")


_SHOWN_FILES: Final = 20
_DUPLICATES: Final = {
    "fail": "the build fails when a key occurs twice",
    "first": "if a key occurs twice, its first row is kept",
    "last": "if a key occurs twice, its last row is kept",
}


def explain_build(spec: DatasetSpec, store: Store, options: BuildOptions) -> str:
    """Return what a build would do, in several lines. Reads the source's listing, the columns of local
    files, and the store; writes nothing.

    Raises what ``build_generation`` would raise before it reads the data.
    """
    build.check_resources(spec, options)
    success_file = read_success_file(spec, volume=options.volume, local_files=options.local_files)
    push = build.find_push(store.inbox(spec)) if spec.source.takes_pushes else None
    source = open_source(spec, volume=options.volume, local_files=options.local_files)
    objects = source.list_files()
    fingerprint = source.fingerprint if push is None else build.fingerprint_push(push)
    budget = BuildBudget.for_build(options.memory_limit, shards=spec.shards, threads=options.threads)
    column_lines = list(describe_columns(spec, objects, budget))
    first_rows = list(describe_first_rows(spec, objects, budget))
    dataset = store.dataset(spec)
    active = existing.find_active(dataset, options.active, options.active_records, spec.gates)
    generation = options.generation or dataset.next_generation()
    shard_names = [file_name(number, spec.shards) for number in (0, spec.shards - 1)]
    now = datetime.now(UTC)
    limit, least, free, source_bytes = (
        format_quantity(size, "bytes")
        for size in (
            options.memory_limit,
            min_memory_limit(spec.shards),
            free_bytes(options.scratch),
            sum(item.description.bytes for item in objects),
        )
    )
    cores, shards = format_count(options.threads, "core"), format_count(spec.shards, "shard")
    memory = f"{limit} at most, on {cores}; a build into {shards} needs at least {least}"
    scratch = f"{options.scratch}, {free} free; a build needs about twice the uncompressed source"
    left_out: Iterable[str] = ()
    if spec.uid == LOCAL:  # outside of a cluster, which would set a uid and use these fields
        left_out = describe_left_out(path for path in spec.cluster_fields if path != "adopt" or options.adopt is None)
    parts: list[tuple[str, Sequence[str]]] = [
        ("dataset", [f"{spec.namespace}/{spec.name}"]),
        (
            "source",
            [_push_line(push, store.inbox(spec), spec)]
            if spec.source.takes_pushes
            else list(_source_lines(objects, source.table)),
        ),
        ("success file", list(_success_file_line(spec, success_file, options))),
        ("refresh", list(describe_refresh(spec.refresh, uid=spec.uid, is_suspended=spec.suspend, now=now))),
        ("format", list(_format_lines(spec, objects))),
        ("first rows", first_rows),
        ("columns", column_lines),
        ("read by", list(describe_readers(spec, objects))),
        ("key", [_key_line(spec)]),
        ("value", [_value_line(spec)]),
        ("dictionary", list(_dictionary_line(spec, dataset, active))),
        ("duplicates", [_DUPLICATES[spec.duplicates]]),
        ("shards", [f"{spec.shards}: {' … '.join(dict.fromkeys(shard_names))}"]),
        ("gates", list(_gate_lines(spec.gates, active))),
        ("engine", list(_engine_line(spec, options))),
        ("memory", [memory]),
        ("open files", [f"{max_open_files(spec.shards):,} at most, {raise_limit():,} allowed"]),
        ("scratch", [f"{scratch} (its files have {source_bytes})"]),
        ("target", [f"{dataset.url}/{generation}", *_store_room_lines(dataset)]),
        (
            "fingerprint",
            [_fingerprint_line(fingerprint, options, dataset, spec)] if push or not spec.source.takes_pushes else [],
        ),
        ("left out", list(left_out)),
    ]
    return "\n".join(
        f"{name if number == 0 else '':<12} {line}" for name, lines in parts for number, line in enumerate(lines)
    )


def _engine_line(spec: DatasetSpec, options: BuildOptions) -> Iterator[str]:
    """Describe Spark, if it builds."""
    spark = spec.spark
    if spec.engine == "Spark":
        size = format_quantity(spark.executor_memory, "bytes")
        yield f"Spark, {spark.master or f'local[{options.threads}]'}"
        if spark.master and not spark.master.startswith("local"):
            yield f"  {format_count(spark.executors, 'executor')}, each of {spark.executor_cores} cores and {size}"


def _source_lines(objects: Sequence[SourceObject], table: SourceFile | None) -> Iterator[str]:
    if table is not None:
        yield f"{table.url}, {'version' if table.url.startswith('delta:') else 'snapshot'} {table.etag}" + (
            f" of {table.modified}" if table.modified else ""
        )
    total = sum(item.description.bytes for item in objects)
    yield f"{format_count(len(objects), 'file')}, {format_quantity(total, 'bytes')}"
    for item in objects[:_SHOWN_FILES]:
        modified = f", {item.description.modified}" if item.description.modified else ""
        yield f"  {item.description.url} ({format_quantity(item.description.bytes, 'bytes')}{modified})"
    if len(objects) > _SHOWN_FILES:
        yield f"  and {len(objects) - _SHOWN_FILES:,} more"


def _push_line(push: Manifest | None, inbox: StoredDataset, spec: DatasetSpec) -> str:
    if push is None:
        return f"pushes to {inbox.url}, which has no push yet: the build would wait"
    records = format_count(push.totals.records, "record")
    differences = existing.describe_differences(push, spec)
    outcome = f"reject it, because it was made for another spec: {differences}" if differences else "verify and copy it"
    return f"push {push.generation} in {inbox.url} ({records}, {push.built_at}): the build would {outcome}"


def _success_file_line(spec: DatasetSpec, success_file: str | None, options: BuildOptions) -> Iterator[str]:
    if spec.refresh.success_file is None:
        return
    if success_file is None:
        yield f"{strip_secrets(spec.refresh.success_file)} does not exist: the build would wait for it"
    elif success_file == options.unless_success_file:
        yield f"{success_file} is the one in --unless-success-file: nothing would be read"
    else:
        yield success_file


def _format_lines(spec: DatasetSpec, objects: Sequence[SourceObject]) -> Iterator[str]:
    source = spec.source
    for file_format, compression in sorted({(item.format, item.compression) for item in objects}):
        yield f"{file_format}, compression {compression}"
    delimiters = sorted({item.delimiter for item in objects if item.format == "csv"})
    if delimiters:
        header = "the first row names the columns" if source.csv.header else "the manifest names the columns"
        escape = f", escape '{source.csv.escape}'" if source.csv.escape else ""
        yield f"delimiter {', '.join(map(repr, delimiters))}, quote {source.csv.quote!r}{escape}, {header}"
        if source.csv.null_values:
            nulls = " or ".join(f"'{text}'" for text in source.csv.null_values)
            yield f"  unquoted {nulls} is null"
        for column in source.csv.columns:
            empty = ", empty is null" if column.empty == "null" else ""
            yield f"  {column.name}: {column.type}{empty}"


def _key_line(spec: DatasetSpec) -> str:
    is_joined = len(spec.key.columns) > 1
    joined = f" joined by {spec.key.separator!r}" if is_joined else ""
    then = ", then, on the joined text, " if is_joined else ", then "
    steps = f"{then}{', '.join(spec.key.normalize)}" if spec.key.normalize else ", as it is"
    what = "the names of the object's members" if spec.key.member_names else ", ".join(spec.key.columns)
    return f"{what}{joined}{steps}"


def _value_line(spec: DatasetSpec) -> str:
    value = spec.value
    if value.column:
        what = f"the column {value.column}"
    elif value.field:
        what = f"the field {value.field}"
    elif value.columns is not None:
        what = f"the columns {', '.join(value.columns)}"
    elif spec.key.member_names:
        what = "all that the member holds"
    else:
        what = "all columns but the key's"
    most = format_quantity(value.max_bytes, "bytes")
    return f"{what}, as {value.format}, compression {value.compression}, at most {most}"


def _dictionary_line(spec: DatasetSpec, dataset: StoredDataset, active: ActiveGeneration | None) -> Iterator[str]:
    if spec.value.compression == "none" or spec.source.takes_pushes:
        return
    previous = read_dictionary(dataset, active)
    if previous.obstacle:
        yield f"trained: {previous.obstacle}"
    else:
        size = format_quantity(len(previous.content), "bytes")
        most = f"{100 * MAX_GROWTH:.0f} %"
        yield f"kept: {previous.generation}'s, {size}, unless files get over {most} larger than with a new one"


def _gate_lines(gates: Gates, active: ActiveGeneration | None) -> Iterator[str]:
    rejected = format_count(gates.max_rejected_rows, "rejected row")
    yield f"at least {format_count(gates.min_records, 'record')}, at most {rejected}"
    baseline = f"{active.generation} with {format_count(active.records, 'record')}" if active else "no generation yet"
    for percent, word in ((gates.max_shrink_percent, "fewer"), (gates.max_growth_percent, "more")):
        if percent is not None:
            yield f"at most {percent} % {word} records than the active generation ({baseline})"
    if gates.max_changed_percent is not None:
        yield f"at most {gates.max_changed_percent} % of the keys differ from it"
    if gates.max_value_bytes is not None:
        yield f"values of at most {gates.max_value_bytes:,} bytes"
    if gates.required_keys:
        yield f"these keys are found: {', '.join(map(repr, gates.required_keys))}"
    if gates.expected_values:
        keys = ", ".join(repr(expected.key) for expected in gates.expected_values)
        yield f"these keys have the expected values: {keys}"


def _store_room_lines(dataset: StoredDataset) -> Iterator[str]:
    if obstacle := dataset.find_write_obstacle():
        yield f"the build would fail: {obstacle}"
    elif (free := dataset.free_bytes()) is not None:
        yield f"{format_quantity(free, 'bytes')} free"


def _fingerprint_line(fingerprint: str | None, options: BuildOptions, dataset: StoredDataset, spec: DatasetSpec) -> str:
    if fingerprint is None:
        return "known once the source is read: its server sends neither ETag nor Last-Modified"
    if options.unless_fingerprint is None:
        return fingerprint
    if fingerprint != options.unless_fingerprint:
        return f"{fingerprint} is not the one in --unless-fingerprint"
    same = f"{fingerprint} is the one in --unless-fingerprint"
    if not existing.has_generation(dataset, spec, fingerprint):
        return f"{same}, but the store has no whole generation of it and this spec"
    return f"{same}: nothing would be built"
