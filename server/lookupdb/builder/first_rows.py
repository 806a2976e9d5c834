"""The first rows of a source, and the types that their values look like: for `--explain` and `lookupdb init`."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from lookupdb.builder.avro_rows import AvroParser
from lookupdb.builder.csv_rows import BOOLEANS, CsvParser
from lookupdb.builder.files import FIRST_BYTES, LocalFile, Slice, SliceFile, check_kind, decompress
from lookupdb.builder.json_rows import JsonLinesParser, make_json_parser
from lookupdb.builder.listing import SourceObject, fetch_files, find_local_file, read_chunks
from lookupdb.builder.options import MIB, BuildBudget, SilentProgress
from lookupdb.builder.progress import format_quantity
from lookupdb.builder.rows import NotFinite, UnfinishedSlice, shorten_name
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, LookupdbError
from lookupdb.wording import format_count, shorten

MAX_ROWS: Final = 10_000
_MAX_CHARACTERS: Final = 32 << 20
"""Characters of values to look at."""
_MAX_FIELDS: Final = 2_000_000
"""Rows times columns to remember."""
_COPIED_BYTES: Final = 8 * MIB
"""Bytes to copy of a file that is remote or compressed."""
_FETCHED_BYTES: Final = 256 * MIB
"""The largest Parquet file to fetch: its columns are described at its end."""
_SHOWN_COLUMNS: Final = 100
_SAMPLE_CHARACTERS: Final = 40
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
        self.sample = self.sample or shorten(" ".join(text.split()), _SAMPLE_CHARACTERS)
        self.values.append(hash(text))
        return len(text)

    @property
    def has_empty(self) -> bool:
        """Return whether a row has no value."""
        return None in self.values

    @property
    def is_unique(self) -> bool:
        """Return whether every row has a value of its own."""
        return not self.has_empty and len(set(self.values)) == len(self.values)

    def guess_type(self, *, is_csv: bool) -> str:
        """Return the type that all values look like, or several for a file with types; "unknown" without a value."""
        if is_csv and self._is_boolean():
            return "boolean"
        kinds = self.kinds - ({"integer"} if "number" in self.kinds else set())
        return "text" if is_csv and len(kinds) > 1 else " or ".join(sorted(kinds)) or "unknown"

    def _is_boolean(self) -> bool:
        """Return whether the values are words for true and false. Digits alone are numbers, and a single word, such as
        a country's no, may mean anything."""
        if self.words <= {"true", "false"}:
            return bool(self.words)
        return {BOOLEANS.get(word) for word in self.words} == {True, False} and not self.words <= {"0", "1"}


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
        if "\n" not in text
        else yaml.safe_dump(value, default_flow_style=True, default_style='"', **options).strip()
    )


def read_first_rows(
    spec: DatasetSpec, item: SourceObject, budget: BuildBudget, scratch: Path, most: int = MAX_ROWS
) -> FirstRows:
    """Return the first rows of ``item``, and why they end early. Of a file that is remote or compressed, copies a part
    into ``scratch``. Raises BadSource if a file that has to be fetched whole is too large for that."""
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
    chunks = read_chunks(item)
    if item.compression != "none":
        chunks = decompress(chunks, item.compression, name)
    target, is_cut, content = scratch / "beginning", False, bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > _COPIED_BYTES:
            is_cut = True
            del content[_COPIED_BYTES:]
            break
    check_kind(bytes(content[:FIRST_BYTES]), name, item.format, item.compression)
    if is_cut and item.format in ("csv", "jsonl") and (end := content.rfind(b"\n") + 1):
        del content[end:]
    target.write_bytes(content)
    return LocalFile(item.description, item.format, item.delimiter, target, len(content), False), is_cut


def _read_rows(spec: DatasetSpec, file: LocalFile, budget: BuildBudget) -> Generator[Any, None, None]:
    """Yield the names of the columns that ``file`` declares, then its rows as dicts."""
    if file.format == "parquet":
        # Imported here, because DuckDB takes 20 MB that other formats do not need.
        from lookupdb.builder.parquet_rows import ParquetParser

        with ParquetParser(spec, file, budget.duckdb, 1) as parquet:
            yield parquet.names
            yield from parquet
        return
    piece = Slice(0, extends_to_row_end=True)
    with SliceFile(file.path, piece) as raw:
        match file.format:
            case "avro":
                avro = AvroParser(spec, file, piece, raw, budget.row)
                yield avro.names
                yield from avro
            case "csv":
                parser = CsvParser(spec, file, piece, raw, budget.row)
                yield parser.names
                yield from (dict(zip(parser.names, fields, strict=True)) for fields in parser)
            case "jsonl":
                yield []
                yield from JsonLinesParser(spec, file, piece, raw, budget.row)
            case _:
                yield []
                for row in make_json_parser(spec, file, piece, raw, budget.row):
                    content = row[1] if isinstance(row, tuple) else row
                    yield content if isinstance(content, dict) else {}
