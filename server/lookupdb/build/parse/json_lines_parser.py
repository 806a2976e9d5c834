"""JSON lines: numbers keep their text, whatever their size; everything else is written anew, compactly. Several objects
may stand in one line.

orjson parses, but makes floats of fractions, exponents and integers beyond 64 bits. A row with such a number is parsed
again, with the text of its numbers kept (``EXACT_DECODER``). Common rows, of ids and words, are parsed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Any, Final, cast

import orjson

from lookupdb.build.parse.dict_rows import DictRows
from lookupdb.build.parse.json_text import decode_exactly, is_exact, split_objects, too_deep_row
from lookupdb.build.parse.rows import UnusableRow, describe_json_error
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import DatasetSpec

_BOM: Final = b"\xef\xbb\xbf"
_WINDOW: Final = 1 << 18
_LINES_HINT: Final = "source.format: json is for a file that is one array"


class JsonLinesParser:
    """Parses JSON lines. Rows are dicts."""

    names = None
    end = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._file, self._piece, self._max_row = file, piece, max_row_bytes
        self._raw, self._text = raw, BufferedReader(raw, _WINDOW)
        self._objects = DictRows(spec, file.name)
        self.columns, self.lines, self.partitions = self._objects.columns, 0, self._objects.partitions
        self.key, self.value = self._objects.key, self._objects.value

    def __iter__(self) -> Iterator[dict[str, Any]]:
        row, lines_before = self._piece.rows_before, self._piece.lines_before
        number, rest, is_cut = lines_before, b"", False
        while line := self._text.readline(self._max_row - len(rest)):
            number += not is_cut
            is_cut = len(rest) + len(line) == self._max_row and not line.endswith(b"\n")
            records, rest = self.parse_line(rest + line, row + 1, number, is_cut=is_cut)
            row += len(records)
            yield from records
        if rest:  # the file ends where the line seemed to be cut
            raise self._malformed_row_error(
                rest, orjson.JSONDecodeError("unexpected end of data", "", 0), row + 1, number
            )
        self.lines = number - lines_before

    def is_cut(self, line: bytes) -> bool:
        """Whether the line goes on behind ``line``, which is as long as a row may be."""
        return len(line) == self._max_row and not line.endswith(b"\n")

    def parse_line(
        self, line: bytes, row: int, number: int, *, is_cut: bool = False
    ) -> tuple[list[dict[str, Any]], bytes]:
        """The rows in line ``number``, the first of which is the file's row ``row``: one, or none if it is blank, or
        several if objects stand one behind the other. And the beginning of one more, if the line ``is_cut``.

        Raises BadSource, NotEnoughRoom.
        """
        text = line.removeprefix(_BOM) if number == 1 and not self._piece.start else line
        if not text.strip():
            return [], b""
        try:
            if is_cut:
                raise orjson.JSONDecodeError("cut", "", 0)
            return [self._parse_row(text, row, number)], b""
        except orjson.JSONDecodeError as error:
            objects, rest = split_objects(text)
            if not objects or (rest.strip() and not (is_cut and rest.lstrip().startswith(b"{"))):
                raise self._malformed_row_error(text, error, row, number, is_cut=is_cut) from error
        records: list[dict[str, Any]] = []
        for text in objects:
            try:
                records.append(self._parse_row(text, row + len(records), number))
            except orjson.JSONDecodeError as error:
                raise self._malformed_row_error(text, error, row + len(records), number) from error
        return records, rest.strip()

    def _parse_row(self, text: bytes, row: int, number: int) -> dict[str, Any]:
        """Raises orjson.JSONDecodeError, BadSource."""
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            record = self._parse_leniently(text, error)
        else:
            try:
                if type(record) is dict and not is_exact(record, text):
                    record = decode_exactly(text)
            except RecursionError:
                record = too_deep_row()
        if type(record) is not dict:
            if type(record) is not UnusableRow:
                raise not_an_object_error(f"{self._file.name} row {row} (line {number})", record, _LINES_HINT)
            return cast("dict[str, Any]", record)
        if self.partitions:
            self._objects.add_partitions(record)
        if self.columns.missing:
            self.columns.observe(record)
        return record

    def _parse_leniently(self, text: bytes, error: orjson.JSONDecodeError) -> Any:
        """Parse a row whose only faults may be in its values: it is rejected if its key or value holds one.

        Raises ``error`` for any other fault.
        """
        if "depth limit" in str(error):
            return too_deep_row()
        try:
            return decode_exactly(text)
        except (ValueError, RecursionError):
            raise error from None

    def _malformed_row_error(
        self, text: bytes, error: Exception, row: int, line: int, *, is_cut: bool = False
    ) -> BadSource | NotEnoughRoom:
        """The error for a row that is not JSON."""
        where = f"{self._file.name} row {row} (line {line})"
        if is_cut:
            return NotEnoughRoom(
                f"{where} is longer than {self._max_row} bytes, more than the memory limit allows",
                hint="raise --memory-limit; or is the file one JSON array (source.format: json)?",
            )
        try:
            text.decode()
        except UnicodeDecodeError:
            return BadSource(f"{where} is not valid UTF-8", hint="write the file in UTF-8")
        hint = "source.format: json is for a file that is one array"
        if text[:1] != b"[":
            hint = f"jsonl is whole objects in lines, as `jq -c` writes them, without commas; {hint}"
        return BadSource(f"{where} is not JSON: {describe_json_error(error)}", hint=hint)

    def position(self) -> int:
        """How many bytes were read: a little more than was parsed."""
        return self._raw.tell()


def not_an_object_error(where: str, value: Any, array_hint: str) -> BadSource:
    """The error for a row that is JSON but not an object."""
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    hint = array_hint if type(value) is list else None
    return BadSource(f"{where} is {kinds.get(type(value), 'a number')}, expected an object", hint=hint)
