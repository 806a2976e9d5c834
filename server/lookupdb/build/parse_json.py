"""JSON lines and JSON arrays: numbers keep their text, whatever their size; the rest is written anew, compactly.

orjson parses; it makes floats of fractions, exponents and integers beyond 64 bits. A row in which it made any is
parsed again with their text kept (``EXACT``). Rows of ids and words, the common ones, are parsed once.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from typing import Any, Final

import orjson

from lookupdb.build.fetch import LocalFile
from lookupdb.build.objects import Objects
from lookupdb.build.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import DatasetSpec

_BOM: Final = b"\xef\xbb\xbf"
_WINDOW: Final = 1 << 18
_SPACE: Final = " \t\r\n"
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


def is_exact(value: Any, text: bytes) -> bool:
    """Whether what orjson made of ``text``, an object or array, holds no number whose own text is lost."""
    members = value.values() if type(value) is dict else value
    kinds = set(map(type, members))
    if kinds <= _TEXTUAL:
        return True
    # A float may be an integer beyond 64 bits; a 0 may have been -0.
    if float in kinds or (int in kinds and b"-0" in text and 0 in members):
        return False
    for member in members:  # noqa: SIM110 - a generator costs as much again
        if type(member) in _NESTED and not is_exact(member, text):
            return False
    return True


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
                raise not_an_object(f"{self._file.name} row {row} (line {number})", record)
            if not is_exact(record, line):
                record = EXACT.decode(line.decode("utf-8-sig"))
            if unseen:
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
        except orjson.JSONDecodeError:
            raise malformed(where, text, error) from error

    def position(self) -> int:
        """How many bytes were read, which is a little more than was parsed."""
        return self._raw.tell()


class JsonArrayParser:
    """One file that is a JSON array of objects, read through a window. Rows are dicts."""

    lines = 0
    end = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, _piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._file, self._max_row = file, max_row_bytes
        self._raw, self._text = raw, _decoded(raw, file.name)
        self._objects = Objects(spec, file.name)
        self.columns = self._objects.columns
        self.key, self.value = self._objects.key, self._objects.value
        self._window, self._at, self._ended = "", 0, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        name = self._file.name
        if self._next() != "[":
            raise BadSource(
                f"{name} is not a JSON array: it begins with {self._next() or 'nothing'!r}, expected '['",
                hint="source.format: jsonl is for one object a line",
            )
        self._at += 1
        row = 0
        while self._next() != "]" or row:
            row += 1
            where = f"{name} row {row}"
            record = self._element(where)
            if type(record) is not dict:
                raise not_an_object(where, record)
            if self.columns.unseen:
                self.columns.look(record)
            yield record
            match self._next():
                case ",":
                    self._at += 1
                case "]":
                    break
                case other:
                    found = repr(other) if other else "the end of the file"
                    raise BadSource(f"{name} after row {row}: expected ',' or ']', found {found}")
        self._at += 1
        if self._next():
            raise BadSource(f"{name} after row {row}: expected nothing after the array, found {self._next()!r}")

    def _next(self) -> str:
        """The next character that is no white space, "" at the end; ``_at`` stands on it."""
        while True:
            while self._at < len(self._window):
                character = self._window[self._at]
                if character not in _SPACE:
                    return character
                self._at += 1
            if not self._more(_WINDOW):
                return ""

    def _element(self, where: str) -> Any:
        """The next element. The window grows, by doubling, until the element fits."""
        self._next()
        while True:
            try:
                record, end = EXACT.raw_decode(self._window, self._at)
            except RecursionError as error:
                raise BadSource(f"{where}: its objects are nested too deeply") from error
            except ValueError as error:
                if not self._more(max(_WINDOW, len(self._window) - self._at)):
                    raise BadSource(f"{where} is not JSON: {getattr(error, 'msg', error)}") from error
                if len(self._window) - self._at > self._max_row:
                    raise NotEnoughRoom(
                        f"{where} is longer than {self._max_row} characters, more than the memory limit allows, "
                        f"or is not JSON: {getattr(error, 'msg', error)}",
                        hint="raise --memory-limit, or correct the row",
                    ) from error
                continue
            if end == len(self._window) and self._more(_WINDOW):
                continue  # a number at the window's end may go on
            self._at = end
            return record

    def _more(self, characters: int) -> bool:
        """Drop what is behind us and read on; False at the end of the file."""
        pieces = [self._window[self._at :]]
        self._at = 0
        for piece in self._text:
            pieces.append(piece)
            characters -= len(piece)
            if characters <= 0:
                break
        self._window = "".join(pieces)
        return len(pieces) > 1

    def position(self) -> int:
        """How many bytes were read, which is a little more than was parsed."""
        return self._raw.tell()


def _decoded(raw: Any, name: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    position = 0
    while True:
        chunk = raw.read(_WINDOW)
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise BadSource(
                f"{name} is not valid UTF-8 near its byte {position + error.start}", hint="write the file in UTF-8"
            ) from error
        position += len(chunk)
        if text:
            yield text
        if not chunk:
            return


def malformed(where: str, text: bytes, error: Exception) -> BadSource:
    """The error for a row that is not JSON."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return BadSource(f"{where} is not valid UTF-8", hint="write the file in UTF-8")
    hint = "source.format: json is for a file that is one array" if text[:1] == b"[" else None
    return BadSource(f"{where} is not JSON: {error}", hint=hint)


def not_an_object(where: str, found: Any) -> BadSource:
    """The error for a row that is JSON, and no object."""
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    hint = "source.format: json is for a file that is one array" if type(found) is list else None
    return BadSource(f"{where} is {kinds.get(type(found), 'a number')}, expected an object", hint=hint)
