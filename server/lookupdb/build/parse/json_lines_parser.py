"""JSON lines: numbers keep their text, whatever their size; everything else is written anew, compactly.

orjson parses, but makes floats of fractions, exponents and integers beyond 64 bits. A row with such a number is parsed
again, with the text of its numbers kept (``EXACT_DECODER``). Common rows, of ids and words, are parsed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from typing import Any, Final, cast

import orjson

from lookupdb.build.parse.dict_rows import DictRows
from lookupdb.build.parse.json_text import decode_exactly, is_exact, too_deep_row
from lookupdb.build.parse.rows import UnusableRow, describe_json_error
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import DatasetSpec

_BOM: Final = b"\xef\xbb\xbf"
_WINDOW: Final = 1 << 18


class JsonLinesParser:
    """Parses JSON lines. Rows are dicts."""

    names = None
    end = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._file, self._piece, self._max_row = file, piece, max_row_bytes
        self._raw, self._text = raw, BufferedReader(raw, _WINDOW)
        self._objects = DictRows(spec, file.name)
        self.columns, self.lines = self._objects.columns, 0
        self.key, self.value = self._objects.key, self._objects.value

    def __iter__(self) -> Iterator[dict[str, Any]]:
        parse = self.parse_line
        row, number, lines_before = self._piece.rows_before, self._piece.lines_before, self._piece.lines_before
        cuts = 0
        for number, line in enumerate(iter(partial(self._text.readline, self._max_row), b""), lines_before + 1):
            record = parse(line, row + 1, number - cuts)
            if record is not None:
                row += 1
                yield record
            elif self.is_cut(line):
                cuts += 1
        self.lines = number - cuts - lines_before

    def is_cut(self, line: bytes) -> bool:
        """Whether the line goes on behind ``line``, which is as long as a row may be. Only a blank line may."""
        return len(line) == self._max_row and not line.endswith(b"\n")

    def parse_line(self, line: bytes, row: int, number: int) -> dict[str, Any] | None:
        """The file's row ``row``, which is in line ``number``; None if the line is blank. Raises BadSource,
        NotEnoughRoom."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            text = line.removeprefix(_BOM) if number == 1 and not self._piece.start else line
            if not text.strip():
                return None
            record = self._parse_again_or_explain(text, error, row, number)
        if type(record) is not dict:
            if type(record) is not UnusableRow:
                raise not_an_object_error(f"{self._file.name} row {row} (line {number})", record)
            return record
        try:
            if not is_exact(record, line):
                record = decode_exactly(line)
        except RecursionError:
            record = too_deep_row()
        if self.columns.missing and type(record) is dict:
            self.columns.observe(record)
        return cast("dict[str, Any]", record)

    def _parse_again_or_explain(self, text: bytes, error: orjson.JSONDecodeError, row: int, line: int) -> Any:
        """Parse the line without its byte order mark. Raises the error that says what is wrong with it."""
        where = f"{self._file.name} row {row} (line {line})"
        if len(text) >= self._max_row:
            raise NotEnoughRoom(
                f"{where} is longer than {self._max_row} bytes, more than the memory limit allows",
                hint="raise --memory-limit; or is the file one JSON array (source.format: json)?",
            )
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as second:
            if "depth limit" in str(second):
                return too_deep_row()
            if "infinity" in str(second):  # a number whose exponent is beyond a float's
                with suppress(ValueError):
                    return decode_exactly(text)
            raise self._malformed_row_error(where, text, error) from error

    def _malformed_row_error(self, where: str, text: bytes, error: Exception) -> BadSource:
        """The error for a row that is not JSON."""
        try:
            text.decode()
        except UnicodeDecodeError:
            return BadSource(f"{where} is not valid UTF-8", hint="write the file in UTF-8")
        hint = "source.format: json is for a file that is one array"
        if text[:1] != b"[":
            hint = f"jsonl is one whole object a line, as `jq -c` writes it; {hint}"
        return BadSource(f"{where} is not JSON: {describe_json_error(error)}", hint=hint)

    def position(self) -> int:
        """How many bytes were read: a little more than was parsed."""
        return self._raw.tell()


def not_an_object_error(where: str, value: Any) -> BadSource:
    """The error for a row that is JSON but not an object."""
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    hint = "source.format: json is for a file that is one array" if type(value) is list else None
    return BadSource(f"{where} is {kinds.get(type(value), 'a number')}, expected an object", hint=hint)
