"""What can be said of a source's columns before a build reads it, and of what will read its rows: for ``--explain``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lookupdb import native
from lookupdb.build.budget import BuildBudget
from lookupdb.build.parse.csv_parser import CsvParser
from lookupdb.build.parse.json_lines_parser import JsonLinesParser
from lookupdb.build.parse.rows import find_partitions, format_names, read_partitions, shorten_name
from lookupdb.build.parse.uniform_columns import UniformColumns
from lookupdb.build.read.native_rules import find_csv_obstacle, find_json_obstacle
from lookupdb.build.source.fetch import check_beginning, find_local_file
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.listing import SourceObject
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, SourceUnreadable
from lookupdb.spec import DatasetSpec
from lookupdb.wording import format_count

_MAX_FILES: Final = 20
_MAX_HEADER_BYTES: Final = 1 << 20
_FIRST_ROWS: Final = 1000
_FIRST_BYTES: Final = 16 << 20
_PLACES: Final = {"csv": "the header", "parquet": "the footer", "jsonl": "the first rows"}
"""Where files of a format have the names of their columns."""
_FORMS: Final = {
    "key": "as a key, its text in UTF-8",
    "raw": "taken as it is",
    "text": "its text in UTF-8, as source.parquet.columns says",
    "base64": "base64; `type: text` for it in source.parquet.columns takes its text",
}
"""What becomes of the binary columns of Parquet."""


def describe_columns(spec: DatasetSpec, objects: Sequence[SourceObject], budget: BuildBudget) -> Iterator[str]:
    """Look for the columns that the spec names in the first files that are here as they are: neither remote nor
    compressed, nor one JSON document. Of the others that are here, only the first bytes are read. Raises BadSource as
    the build would."""
    not_looked_into = [item for item in objects if isinstance(item.place, Path) and _find_obstacle(item)]
    for item in not_looked_into[:_MAX_FILES]:
        check_beginning(item)
    here = [file for item in objects if not _find_obstacle(item) and (file := find_local_file(item)) is not None]
    checked: Counter[str] = Counter()
    uniform_columns = UniformColumns(spec)
    told: set[str] = set()
    for number, file in enumerate(here[:_MAX_FILES]):
        try:
            lines, remarks = _check_file(spec, number, file, budget, uniform_columns)
        except OSError as error:
            raise SourceUnreadable(f"{file.name} cannot be read: {error.strerror}") from error
        yield from lines
        yield from (remark for remark in remarks if remark not in told)
        told.update(remarks)
        checked[file.format] += not lines
    for file_format, count in sorted(checked.items()):
        if count:
            yield f"all are in {_PLACES[file_format]} of {format_count(count, f'{file_format} file')}"
    partitions: dict[str, None] = {}
    for item in objects:
        url = item.description.url
        partitions.update(
            dict.fromkeys(name for name in read_partitions(url) if name not in find_partitions(spec, url))
        )
    if partitions:
        yield f"folders name {format_names(list(partitions))}: not read, unless key, value or csv.columns names it"
    unread = Counter(_find_obstacle(item) for item in objects)
    unread[f"behind the first {_MAX_FILES}"] = max(0, unread.pop("", 0) - _MAX_FILES)
    for obstacle, count in sorted(unread.items()):
        if count:
            yield f"not looked at in {format_count(count, 'file')}: {obstacle}"


def _find_obstacle(item: SourceObject) -> str:
    """Why the columns of ``item`` are not looked for before a build; empty if they are."""
    if not isinstance(item.place, Path):
        return "remote"
    if item.compression != "none":
        return "compressed"
    return "" if item.format in _PLACES else "one JSON document"


def _check_file(
    spec: DatasetSpec, number: int, file: LocalFile, budget: BuildBudget, uniform_columns: UniformColumns
) -> tuple[list[str], list[str]]:
    """Doubts about the columns of ``file``, and remarks. Raises BadSource, OSError."""
    piece = Slice(number, extends_to_row_end=True)
    if file.format == "parquet":
        # Imported here, because DuckDB takes 20 MB that other formats do not need.
        from lookupdb.build.parse.parquet_parser import ParquetParser

        with ParquetParser(spec, file, budget.duckdb, 1) as parquet:
            uniform_columns.check(file.name, parquet.names)
            return [], [f"{shorten_name(name)} is binary: {_FORMS[form]}" for name, form in parquet.binaries]
    with SliceFile(file.path, piece) as raw:
        if file.format == "csv":
            uniform_columns.check(file.name, CsvParser(spec, file, piece, raw, _MAX_HEADER_BYTES).names)
            return [], []
        return _check_first_rows(JsonLinesParser(spec, file, piece, raw, budget.row), file), []


def _check_first_rows(parser: JsonLinesParser, file: LocalFile) -> list[str]:
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


def describe_readers(spec: DatasetSpec, objects: Sequence[SourceObject]) -> Iterator[str]:
    """For each format, whether native kernels read the rows, and why not."""
    has_kernels = native.kernels() is not None
    for file_format, delimiter in sorted({(item.format, item.delimiter) for item in objects}):
        if file_format == "parquet":
            yield "parquet: DuckDB"
        elif file_format == "json":
            yield "json: Python"
        elif not has_kernels:
            yield f"{file_format}: {native.describe()}"
        else:
            is_csv = file_format == "csv"
            obstacle = find_csv_obstacle(spec, delimiter) if is_csv else find_json_obstacle(spec)
            yield f"{file_format}: " + (f"Python, because {obstacle}" if obstacle else "native kernels")
