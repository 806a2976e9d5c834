"""CSV that is cut in the wrong places costs little, and gives the same records, rows and errors as when read alone."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from support.crews import thread_crew
from support.sources import Read, dataset

from lookupdb.builder.build import SortedRecords
from lookupdb.builder.core import RowShape
from lookupdb.builder.listing import fetch_files, resolve_source
from lookupdb.builder.options import SilentProgress
from lookupdb.builder.rows import DialectReader, open_csv_reader
from lookupdb.dataset.spec import Csv, DatasetSpec
from lookupdb.errors import LookupdbError

__all__ = ["thread_crew"]

pytestmark = pytest.mark.usefixtures("thread_crew")

MIB: Final = 1 << 20
MEMORY: Final = 2 << 30
MOST_READ: Final = 2.25
"""Twice the source, and an eighth of it to look for cuts, and the header for each slice."""


def read(spec: DatasetSpec, scratch: Path, threads: int, parallel_from: int) -> Read | str:
    """The records, or the error."""
    scratch.mkdir(exist_ok=True)
    files = fetch_files(resolve_source(spec, volume=None), scratch, SilentProgress())
    try:
        with SortedRecords(spec, files, scratch, MEMORY, threads, SilentProgress(), parallel_from) as records:
            found = [(key, value, *records.find_origin(place)) for batch in records for key, place, value in batch]
            return Read(found, records.rows, records.rejected, records.sample)
    except LookupdbError as error:
        return f"{type(error).__name__}: {error}"


def bytes_read(spec: DatasetSpec, scratch: Path, threads: int, parallel_from: int) -> int:
    """While the source is read."""
    files = fetch_files(resolve_source(spec, volume=None), scratch, SilentProgress())
    before = _bytes_read_so_far()
    try:
        with SortedRecords(spec, files, scratch, MEMORY, threads, SilentProgress(), parallel_from):
            pass
    except LookupdbError:
        pass
    return _bytes_read_so_far() - before


def _bytes_read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().splitlines()[0].split()[1])


def rows(row: Callable[[int], str], size: int) -> str:
    """A header and rows until they take ``size`` characters."""
    text, number, length = ["k,a\n"], 0, 0
    while length < size:
        text.append(row(number))
        length += len(text[-1])
        number += 1
    return "".join(text)


PATTERNS: Final[dict[str, Callable[[int], str]]] = {
    "no quotes": lambda size: rows(lambda n: f"{n},{'x' * 300}\n", size),
    "line breaks in every field": lambda size: rows(lambda n: f'{n},"{"x" * 99}\n{"y" * 99}\n{"z" * 99}"\n', size),
    "a table of its own in every field": lambda size: rows(lambda n: f'{n},"' + "555,666\n" * 900 + '"\n', size),
    "quotes that end where they seem to begin": lambda size: rows(lambda n: f'{n},"' + '"",5\n6,""' * 40 + '"\n', size),
    "quotes in fields that are not quoted": lambda size: rows(lambda n: f'{n},5 inch" {"y" * 200}"\n', size),
    "one field of rows": lambda size: 'k,a\n1,"' + f"55,{'6' * 99}\n" * (size // 103) + '"\n2,b\n',
    "one field of text": lambda size: 'k,a\n1,"' + "words and words\n" * (size // 16) + '"\n2,b\n',
    "a quote that is never closed": lambda size: 'k,a\n1,"' + f"55,{'6' * 99}\n" * (size // 103),
    "no line breaks": lambda size: "k,a\n1," + "x" * size,
}
ESCAPED_PATTERNS: Final[dict[str, Callable[[int], str]]] = {
    "an escaped quote in every field": lambda size: rows(lambda n: f'{n},"{"x" * 99}\\"\n{"y" * 99}"\n', size),
    "a table of its own in every field": lambda size: rows(lambda n: f'{n},"\\",' + "555,666\n" * 900 + '"\n', size),
}


THREADS: Final = 4
NO_SAMPLE: Final[dict[str, Any]] = {"value": {"compression": "none"}}
"""A sample is written and read."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_byte_is_read_more_than_twice(tmp_path: Path, pattern: str) -> None:
    size = 6 * MIB
    (tmp_path / "f.csv").write_text(PATTERNS[pattern](size))
    assert size <= bytes_read(dataset(tmp_path, "f.csv", **NO_SAMPLE), tmp_path, THREADS, size) <= MOST_READ * size


@pytest.mark.parametrize("pattern", ESCAPED_PATTERNS)
def test_no_byte_of_a_file_with_escapes_is_read_more_than_twice(tmp_path: Path, pattern: str) -> None:
    size = 6 * MIB
    (tmp_path / "f.csv").write_text(ESCAPED_PATTERNS[pattern](size))
    spec = dataset(tmp_path, "f.csv", source={"csv": {"escape": "\\"}}, **NO_SAMPLE)
    assert size <= bytes_read(spec, tmp_path, THREADS, size) <= MOST_READ * size


FRAGMENTS: Final = [
    "a",
    "\n",
    "\r\n",
    "\r",
    '"',
    ",",
    '\n1,"x',
    "é",
    ";",
    "'",
    "long text " * 9,
    '","',
    '"\n',
    "\n7,8,9\n",
]


@pytest.mark.parametrize("seed", range(8))
def test_any_text_gives_the_same_for_any_number_of_threads(tmp_path: Path, seed: int) -> None:
    """Records and row numbers, or the error: of text that is mostly CSV, in several dialects, and broken at times."""
    chance = random.Random(seed)
    quote, delimiter = chance.choice(['"', "'", "é", ""]), chance.choice([",", ";", "§"])
    broken = seed % 4 == 3

    def field() -> str:
        text = "".join(chance.choices(FRAGMENTS, k=chance.randrange(6)))
        if quote and chance.random() < 0.7:
            return quote + text.replace(quote, quote * 2) + quote
        return "".join(
            c for c in text if c not in ("\r", "\n", delimiter) and (c != quote or chance.random() < 0.5)
        ).lstrip(quote or None)

    lines = [delimiter.join([str(n), field(), field()]) + chance.choice(["\n", "\r\n"]) for n in range(400)]
    if broken:
        lines[chance.randrange(400)] += chance.choice([quote, "1", f"1{delimiter}{quote}x", "\udcff"])
    content = delimiter.join("kab") + "\n" + "".join(lines)
    (tmp_path / "f.csv").write_bytes(content.encode(errors="surrogateescape"))
    spec = dataset(tmp_path, "f.csv", source={"csv": {"quote": quote, "delimiter": delimiter}})
    alone = read(spec, tmp_path / "scratch", 1, 1 << 62)
    for threads in (2, 3):
        assert read(spec, tmp_path / "scratch", threads, 2000) == alone
    if not broken:
        assert isinstance(alone, Read)
        assert alone.rows == 400


@pytest.mark.parametrize("quote", ['"', ""])
@pytest.mark.parametrize("seed", range(8))
def test_escapes_and_nulls_give_the_same_for_any_number_of_threads(tmp_path: Path, quote: str, seed: int) -> None:
    """Cuts fall behind escaped line breaks, within quotes and without, and behind escaped quotes."""
    chance = random.Random(seed)
    texts = ["a", "\n", "\r\n", '"', ",", "\\", '\n1,"x",y\n', "NULL", "long text " * 9, "\n7,8,9\n"]
    broken = seed % 4 == 3

    def field() -> tuple[str, str | None]:
        if chance.random() < 0.2:
            return "\\N", None
        text = "".join(chance.choices(texts, k=chance.randrange(6)))
        escaped = text.replace("\\", "\\\\").replace(",", "\\,").replace("\r\n", "\n").replace("\n", "\\\n")
        return quote + (escaped.replace('"', '\\"') if quote else escaped) + quote, text.replace("\r\n", "\n")

    rows = [(str(n), field(), field()) for n in range(400)]
    lines = [f"{n},{a[0]},{b[0]}\n" for n, a, b in rows]
    if broken:
        lines[chance.randrange(400)] += chance.choice(["\\x", "1,2", "\\"])
    (tmp_path / "f.csv").write_text("k,a,b\n" + "".join(lines), newline="")
    options = {"quote": quote, "escape": "\\", "nullValues": ["\\N"]}
    spec = dataset(tmp_path, "f.csv", source={"csv": options})
    alone = read(spec, tmp_path / "scratch", 1, 1 << 62)
    for threads in (2, 3):
        assert read(spec, tmp_path / "scratch", threads, 2000) == alone
    if not broken:
        assert isinstance(alone, Read)
        found = {key.decode(): json.loads(value) for key, value, _, _ in alone.records}
        assert found == {n: {"a": a[1], "b": b[1]} for n, a, b in rows}


@pytest.mark.parametrize("null_values", [[], ["\\N"]], ids=["no nulls", "nulls"])
@pytest.mark.parametrize("last", [False, True])
def test_quotes_that_may_be_escaped_are_reported_whatever_slices_they_are_in(
    tmp_path: Path, last: bool, null_values: list[str]
) -> None:
    odd = ['a,"C:\\dir\\"\n', 'b,5" nail\n'][:: -1 if last else 1]
    plain = "".join(f"{n},{'x' * 30}\n" for n in range(400))
    (tmp_path / "f.csv").write_text(f"k,v\n{odd[0]}{plain}{odd[1]}")
    spec = dataset(tmp_path, "f.csv", source={"csv": {"nullValues": null_values}})
    alone = read(spec, tmp_path / "scratch", 1, 1 << 62)
    assert isinstance(alone, str)
    assert f"row {402 if last else 1} has a quote after a backslash" in alone
    assert f"row {1 if last else 402} has a quote in an unquoted field" in alone
    for threads in (2, 3):
        assert read(spec, tmp_path / "scratch", threads, 2000) == alone


@pytest.mark.parametrize(("quote", "delimiter"), [('"', ","), ("'", "\t"), ("é", "§"), ("", ";"), ("]", "-")])
def test_without_escapes_rows_and_errors_are_those_of_the_csv_module(quote: str, delimiter: str) -> None:
    chance = random.Random(5)
    options = Csv(quote=quote)
    refused = 0
    for _ in range(3000):
        pieces = [quote, quote * 2, delimiter, "\n", "\r\n", "\r", "a", "\\", f"{quote}{delimiter}{quote}"]
        lines = "".join(chance.choices(pieces, k=chance.randrange(12))).splitlines(keepends=True)
        found: list[Any] = []
        for reader in (open_csv_reader(lines, options, delimiter), DialectReader(lines, options, delimiter)):
            try:
                found.append((list(reader), reader.line_num))
            except csv.Error as error:
                found.append(str(error))
        assert found[0] == found[1], lines
        refused += isinstance(found[0], str)
    assert refused < 3000


def test_cuts_are_found_behind_texts_of_several_lines() -> None:
    text = "".join(f'{n},"first\nand, last\nof {n}",{n}\n' for n in range(50)).encode()
    shape = RowShape.from_first_bytes(Csv(), ",", b"k,a,b\n1,2,3\n")
    assert shape is not None
    for begin in range(0, 200, 7):
        window = text[begin:]
        found = shape.find_row_start(window)
        assert found is not None
        number = window[found:].split(b",")[0]
        assert window[found:].startswith(number + b',"first\nand, last\nof ' + number + b'"')


def test_what_looks_like_no_rows_is_not_cut() -> None:
    shape = RowShape.from_first_bytes(Csv(), ",", b"k,a,b\n1,2,3\n")
    assert shape is not None
    assert shape.find_row_start(b"words\n" * 1000) is None
    assert RowShape.from_first_bytes(Csv(), ",", b"a header that does not end") is None
