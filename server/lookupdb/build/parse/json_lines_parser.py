"""JSON lines: numbers keep their text, whatever their size; the rest is written anew, compactly.

orjson parses; it makes floats of fractions, exponents and integers beyond 64 bits. A row in which it made any is
parsed again with their text kept (``EXACT``). Rows of ids and words, the common ones, are parsed once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from typing import Any, Final

import orjson

from lookupdb.build.parse.dict_rows import Objects
from lookupdb.build.parse.json_nesting import MAX_NESTING, is_too_deep, too_deep
from lookupdb.build.parse.rows import UnusableRow, describe_json_error
from lookupdb.build.source.fetch import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import DatasetSpec

_BOM: Final = b"\xef\xbb\xbf"
_WINDOW: Final = 1 << 18
_TEXTUAL: Final = frozenset([str, bool, type(None)])
_NESTED: Final = frozenset([dict, list])


def _number_text(text: str) -> orjson.Fragment:
    return orjson.Fragment(text)


def _integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) < 19 and text != "-0" else orjson.Fragment(text)


def _constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


EXACT: Final = json.JSONDecoder(parse_float=_number_text, parse_int=_integer, parse_constant=_constant)
"""Gives numbers that Python would change as fragments that hold their text."""


def is_exact(value: Any, text: bytes, depth: int = MAX_NESTING) -> bool:
    """Whether what orjson made of ``text``, an object or array, holds no number whose own text is lost.

    Raises RecursionError when it is nested more than ``depth`` deep.
    """
    if not depth:
        raise RecursionError
    members = value.values() if type(value) is dict else value
    kinds = set(map(type, members))
    if kinds <= _TEXTUAL:
        return True
    # A float may be an integer beyond 64 bits; a 0 may have been -0.
    if float in kinds or (int in kinds and b"-0" in text and 0 in members):
        return False
    for member in members:  # noqa: SIM110 - a generator costs as much again
        if type(member) in _NESTED and not is_exact(member, text, depth - 1):
            return False
    return True


def _exactly(text: bytes) -> Any:
    return too_deep() if is_too_deep(text) else EXACT.decode(text.decode("utf-8-sig"))


class JsonLinesParser:
    """JSON lines. Rows are dicts."""

    end = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._file, self._piece, self._max_row = file, piece, max_row_bytes
        self._raw, self._text = raw, BufferedReader(raw, _WINDOW)
        self._objects = Objects(spec, file.name)
        self.columns, self.lines = self._objects.columns, 0
        self.key, self.value = self._objects.key, self._objects.value

    def __iter__(self) -> Iterator[dict[str, Any]]:
        loads, unseen, look = orjson.loads, self.columns.unseen, self.columns.look
        row, number, before = self._piece.rows_before, self._piece.lines_before, self._piece.lines_before
        for number, line in enumerate(iter(partial(self._text.readline, self._max_row), b""), before + 1):
            try:
                record = loads(line)
            except orjson.JSONDecodeError as error:
                text = line.removeprefix(_BOM) if number == 1 and not self._piece.start else line
                if not text.strip():
                    continue
                record = self._again(text, error, row + 1, number)
            row += 1
            if type(record) is not dict:
                if type(record) is not UnusableRow:
                    raise not_an_object(f"{self._file.name} row {row} (line {number})", record)
                yield record
                continue
            try:
                if not is_exact(record, line):
                    record = _exactly(line)
            except RecursionError:
                record = too_deep()
            if unseen and type(record) is dict:
                look(record)
            yield record
        self.lines = number - before

    def _again(self, text: bytes, error: orjson.JSONDecodeError, row: int, line: int) -> Any:
        """The line without its byte order mark, or the error that tells why it is none."""
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
                return too_deep()
            if "infinity" in str(second):  # a number whose exponent no float has
                with suppress(ValueError):
                    return _exactly(text)
            raise malformed(where, text, error) from error

    def position(self) -> int:
        """How many bytes were read, which is a little more than was parsed."""
        return self._raw.tell()


def malformed(where: str, text: bytes, error: Exception) -> BadSource:
    """The error for a row that is not JSON."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return BadSource(f"{where} is not valid UTF-8", hint="write the file in UTF-8")
    hint = "source.format: json is for a file that is one array"
    if text[:1] != b"[":
        hint = f"jsonl is one whole object a line, as `jq -c` writes it; {hint}"
    return BadSource(f"{where} is not JSON: {describe_json_error(error)}", hint=hint)


def not_an_object(where: str, found: Any) -> BadSource:
    """The error for a row that is JSON, and no object."""
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    hint = "source.format: json is for a file that is one array" if type(found) is list else None
    return BadSource(f"{where} is {kinds.get(type(found), 'a number')}, expected an object", hint=hint)
