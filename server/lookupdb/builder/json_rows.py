"""JSON: lines of objects, one array of objects, or one object of records, without loss.

Whole documents are read through a window, in bounded memory.
"""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from operator import itemgetter
from typing import Any, Final, cast

import orjson

from lookupdb.builder.files import LocalFile, Slice, SliceFile
from lookupdb.builder.rows import (
    NOT_FINITE,
    ColumnTracker,
    DictRows,
    ReportProgress,
    RowRejected,
    SliceRecords,
    UnusableRow,
    describe_json_error,
    max_native_value,
    value_columns,
)
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, NotEnoughRoom

# JSON values without loss: numbers keep their text, and nesting has a limit of our own.
#
# orjson turns fractions, exponents and integers beyond 64 bits into floats: ``is_exact`` detects it, and
# ``decode_exactly`` parses again. The limit of nesting is independent of the parser, so that all parsers reject the
# same rows.


_TEXTUAL: Final = frozenset([str, bool, type(None)])
_NESTED: Final = frozenset([dict, list])
MAX_NESTING: Final = 250
"""The most levels of nested arrays and objects. Writers of values allow a few more."""
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|[\]}]', re.DOTALL)


def too_deep_row() -> UnusableRow:
    """Return a row that replaces one that is nested too deeply."""
    return UnusableRow(f"it is nested more than {MAX_NESTING} deep")


def is_nested_too_deeply(text: bytes) -> bool:
    """Return whether the JSON ``text`` is nested more than ``MAX_NESTING`` deep."""
    if text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[1]:
            depth += 1
            if depth > MAX_NESTING:
                return True
        elif token[0] in b"]}":
            depth -= 1
    return False


def _parse_integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) < 19 and text != "-0" else orjson.Fragment(text)


EXACT_DECODER: Final = json.JSONDecoder(
    parse_float=orjson.Fragment, parse_int=_parse_integer, parse_constant=lambda _: NOT_FINITE
)
"""Returns a number as a fragment of its text if Python would change it. Accepts NaN, infinities and lone surrogates,
which other programs write: a row is rejected only if its key or value holds one."""


def split_objects(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the consecutive objects in ``text``, with only blanks between them, and the rest.

    The rest is the beginning of an object, or something else.
    """
    objects, depth, start = [], 0, 0
    for token in _TOKENS.finditer(text):
        if not depth and (token[0] != b"{" or text[start : token.start()].strip()):
            break
        if token[1]:
            depth += 1
        elif token[0] in b"]}":
            depth -= 1
            if not depth:
                objects.append(text[start : token.end()])
                start = token.end()
    return objects, text[start:]


def is_exact(value: Any, text: bytes, depth: int = MAX_NESTING) -> bool:
    """Return whether every number in ``value``, which orjson parsed from ``text``, can be written back unchanged.

    Raises RecursionError if it is nested more than ``depth`` deep.
    """
    if not depth:
        raise RecursionError
    members = value.values() if type(value) is dict else value
    kinds = set(map(type, members))
    if kinds <= _TEXTUAL:
        return True
    # A float may have been an integer beyond 64 bits; a 0 may have been -0.
    text = b"-0" if b"-0" in text else b""  # calls for nested values search only this
    if float in kinds or (text and int in kinds and 0 in members):
        return False
    for member in members:  # noqa: SIM110 - a generator costs as much again
        if type(member) in _NESTED and not is_exact(member, text, depth - 1):
            return False
    return True


def decode_exactly(text: bytes) -> Any:
    """Return the JSON ``text`` with its numbers as fragments of their text, or a row that says why it is rejected."""
    return too_deep_row() if is_nested_too_deeply(text) else EXACT_DECODER.decode(text.decode("utf-8-sig"))


# JSON lines: numbers keep their text; everything else is written again, compactly. A line may hold several objects.
#
# orjson parses common rows, of ids and words, once. A row that is not exact is parsed again with ``EXACT_DECODER``.


_BOM: Final = b"\xef\xbb\xbf"
_WINDOW: Final = 1 << 18
_LINES_HINT: Final = "source.format: json is for a file that is one array"


class JsonLinesParser(DictRows):
    """Parse JSON lines. Rows are dicts."""

    columns: ColumnTracker

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        super().__init__(spec, file, raw)
        self._piece, self._max_row, self._text = piece, max_row_bytes, BufferedReader(raw, _WINDOW)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        row, number = self._piece.rows_before, self._piece.lines_before
        while line := self._text.readline(self._max_row):
            number += 1
            if len(line) == self._max_row and not line.endswith(b"\n"):
                raise self.too_long_error(row + 1, number)
            records = self.parse_line(line, row + 1, number)
            row += len(records)
            yield from records
        self.lines = number - self._piece.lines_before

    def too_long_error(self, row: int, number: int) -> NotEnoughRoom:
        """Return the error for line ``number``, in which the file's row ``row`` begins."""
        return NotEnoughRoom(
            f"{self._file.name} line {number}, with row {row}, is longer than {self._max_row} bytes, more than the "
            "memory limit allows",
            hint="write each object in a line of its own, as `jq -c .` does, or raise --memory-limit; set "
            "source.format: json if the file is one JSON array",
        )

    def parse_line(self, line: bytes, row: int, number: int) -> list[dict[str, Any]]:
        """Return the rows in line ``number``: none if it is blank, several for consecutive objects. The first is the
        file's row ``row``. Raises BadSource."""
        text = line.removeprefix(_BOM) if number == 1 and not self._piece.start else line
        if not text.strip():
            return []
        try:
            return [self._parse_row(text, row, number)]
        except orjson.JSONDecodeError as error:
            objects, rest = split_objects(text)
            if not objects or rest.strip():
                raise self._malformed_row_error(text, error, row, number) from error
        records: list[dict[str, Any]] = []
        for text in objects:
            try:
                records.append(self._parse_row(text, row + len(records), number))
            except orjson.JSONDecodeError as error:
                raise self._malformed_row_error(text, error, row + len(records), number) from error
        return records

    def _parse_row(self, text: bytes, row: int, number: int) -> dict[str, Any]:
        """Raises orjson.JSONDecodeError, BadSource."""
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            # If its only faults are values such as NaN, parse it: it is rejected only if its key or value holds one.
            try:
                record = too_deep_row() if "depth limit" in str(error) else decode_exactly(text)
            except (ValueError, RecursionError):
                raise error from None
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
            self.add_partitions(record)
        if self.columns.missing:
            self.columns.observe(record)
        return record

    def _malformed_row_error(self, text: bytes, error: Exception, row: int, line: int) -> BadSource:
        """Return the error for a row that is not JSON."""
        where = f"{self._file.name} row {row} (line {line})"
        try:
            text.decode()
        except UnicodeDecodeError:
            return BadSource(f"{where} is not valid UTF-8", hint="write the file in UTF-8")
        hint = _LINES_HINT
        if text[:1] != b"[":
            hint = f"jsonl is whole objects in lines, as `jq -c` writes them, without commas; {hint}"
        return BadSource(f"{where} is not JSON: {describe_json_error(error)}", hint=hint)


def not_an_object_error(where: str, value: Any, array_hint: str) -> BadSource:
    """Return the error for a row that is JSON but not an object."""
    hint = array_hint if type(value) is list else None
    return BadSource(f"{where} is {_describe_kind(value)}, expected an object", hint=hint)


def _describe_kind(value: Any) -> str:
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


_NUMBER_TAIL: Final = len("e+")
"""If the window cuts off a number, the decoder leaves at most this many of its characters unparsed: ``e+`` of ``1e+5``,
or ``.`` of ``1.5``."""
_TOKEN_TAIL: Final = len(r"\ud83d\ude00")
"""Longest word or escape that the window may cut off. An error further before the window's end is final."""
_MEMBER: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*(\S)', re.DOTALL)
_OBJECTS: Final = re.compile(r"\[\s*\{")
_COMMA: Final = re.compile(r"\s*,")
_ROWS_HINT: Final = "a row's columns have names: write objects, as pandas does with orient='records'"
_CORRECT: Final = "correct it there, or write the file again"


class _Document(DictRows):
    """Read the content of a pair of brackets, element by element."""

    columns: ColumnTracker

    def __init__(self, spec: DatasetSpec, file: LocalFile, _piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        super().__init__(spec, file, raw)
        self._max_row, self._text = max_row_bytes, _decode_chunks(raw, file.name)
        self._window, self._offset, self._ended = "", 0, False
        self._dropped_lines = self._dropped_column = 0
        """Line breaks before the window, and characters between the last of them and the window."""

    def _read_elements(
        self, kind: str, brackets: tuple[str, str], hint: str, read: Callable[[str], Any]
    ) -> Iterator[Any]:
        """Yield the elements as ``read`` returns them; its argument says where an element is."""
        name, (opening, closing) = self._file.name, brackets
        found = self._peek()
        if not found:
            raise BadSource(f"{name} is empty, expected a JSON {kind}", hint=f"for no records write {opening}{closing}")
        if found != opening:
            wrapped = find_wrapped_array(self._window, self._offset) if found == "{" else None
            if wrapped:
                member = wrapped[:80]
                hint = (
                    f"it is an object, whose member {member!r} holds an array: unwrap that first, "
                    f"as `jq {shlex.quote('.' + json.dumps(member))}` does"
                )
            raise BadSource(f"{name} is not a JSON {kind}: it begins with {found!r}, expected {opening!r}", hint=hint)
        self._offset += 1
        row = 0
        while self._peek() != closing or row:
            row += 1
            yield read(f"{name} row {row}")
            match self._peek():
                case ",":
                    self._offset += 1
                case found if found == closing:
                    break
                case other:
                    found = repr(other) if other else "the end of the file"
                    raise BadSource(
                        f"{name} after row {row}: expected ',' or {closing!r}, found {found}, at {self._locate()}",
                        hint=hint,
                    )
        self._offset += 1
        if self._peek():
            raise BadSource(
                f"{name} after row {row}: expected nothing after the {kind}, found {self._peek()!r}, "
                f"at {self._locate()}",
                hint=hint,
            )

    def _peek(self) -> str:
        """Return the next character that is not white space, "" at the end. Moves to it, but not past it."""
        while True:
            while self._offset < len(self._window):
                character = self._window[self._offset]
                if character not in " \t\r\n":
                    return character
                self._offset += 1
            if not self._read_more(_WINDOW):
                return ""

    def _read_element(self, where: str) -> Any:
        """Return the next element. Doubles the window until the element fits."""
        self._peek()
        while True:
            try:
                element, end = EXACT_DECODER.raw_decode(self._window, self._offset)
            except RecursionError as error:
                raise _too_deep_error(where) from error
            except json.JSONDecodeError as error:
                self._widen_window(where, error)
                continue
            if len(self._window) - end <= _NUMBER_TAIL:
                end -= self._offset  # reading more drops what is parsed
                if self._read_more(_WINDOW):
                    continue
            begin, self._offset = self._offset, end
            # Most elements have few brackets. Counting them is quick.
            brackets = self._window.count("[", begin, end) + self._window.count("{", begin, end)
            if brackets > MAX_NESTING and is_nested_too_deeply(self._window[begin:end].encode(errors="replace")):
                raise _too_deep_error(where)
            return element

    def _widen_window(self, where: str, error: json.JSONDecodeError) -> None:
        """Read more, because the element may not end within the window. Raises BadSource, NotEnoughRoom."""
        why, distance = error.msg.removesuffix(" at"), max(0, error.pos - self._offset)
        may_go_on = error.msg.startswith("Unterminated string") or len(self._window) - error.pos <= _TOKEN_TAIL
        if not may_go_on or not self._read_more(max(_WINDOW, len(self._window) - self._offset)):
            raise BadSource(f"{where} is not JSON: {why}, at {self._locate(distance)}", hint=_CORRECT) from error
        if len(self._window) - self._offset > self._max_row:
            raise NotEnoughRoom(
                f"{where} is longer than {self._max_row} characters, more than the memory limit allows, "
                f"or is not JSON: {why}",
                hint="raise --memory-limit, or correct the row",
            ) from error

    def _read_more(self, characters: int) -> bool:
        """Drop what is parsed and read more; False at the end of the file."""
        pieces = [self._window[self._offset :]]
        # Count the lines of the parsed text before it is dropped.
        last_break = self._window.rfind("\n", 0, self._offset)
        self._dropped_lines += self._window.count("\n", 0, self._offset)
        self._dropped_column = self._offset - last_break - 1 + (0 if last_break >= 0 else self._dropped_column)
        self._offset = 0
        for piece in self._text:
            pieces.append(piece)
            characters -= len(piece)
            if characters <= 0:
                break
        self._window = "".join(pieces)
        return len(pieces) > 1

    def _locate(self, distance: int = 0) -> str:
        """Return the position in the file of the character that is ``distance`` after the next one."""
        offset = self._offset + distance
        last_break = self._window.rfind("\n", 0, offset)
        line = self._dropped_lines + self._window.count("\n", 0, offset) + 1
        return f"line {line}, column {offset - last_break + (0 if last_break >= 0 else self._dropped_column)}"


def _too_deep_error(where: str) -> BadSource:
    return BadSource(f"{where} is nested more than {MAX_NESTING} deep", hint="write it as text, or leave it out")


def find_wrapped_array(text: str, start: int) -> str | None:
    """Return the name of the first member that holds an array of objects, in an object at ``start`` that may be cut
    off."""
    with suppress(ValueError, RecursionError):
        while member := _MEMBER.match(text, start + 1):
            if _OBJECTS.match(text, member.start(2)):
                return str(json.loads(member[1]))
            _, end = EXACT_DECODER.raw_decode(text, member.start(2))
            if (comma := _COMMA.match(text, end)) is None:
                break
            start = comma.end() - 1
    return None


def _decode_chunks(raw: Any, name: str) -> Iterator[str]:
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


class JsonArrayParser(_Document):
    """Parse one array of objects. Rows are dicts."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        hint = (
            "source.format: jsonl is for objects one after the other; key.memberNames: true is for one object of "
            "key: value"
        )
        return self._read_elements("array", ("[", "]"), hint, self._read_row)

    def _read_row(self, where: str) -> dict[str, Any]:
        record = self._read_element(where)
        if type(record) is not dict:
            raise not_an_object_error(where, record, _ROWS_HINT)
        self.add_partitions(record)
        if self.columns.missing:
            self.columns.observe(record)
        return record


class JsonMembersParser(_Document):
    """Parse one object whose members are the records. Rows are pairs of name and content."""

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        super().__init__(spec, file, piece, raw, max_row_bytes)
        self._pick_value = self.value
        self.key, self.value = itemgetter(0), self._write_value
        self._role = value_columns(spec.value)[0] if self.columns.roles else None
        """The field of the spec that selects a part of the member's content."""

    def _write_value(self, row: tuple[str, Any]) -> bytes:
        """Return the member's content, or the part that the spec names. Raises RowRejected."""
        member = row[1]
        if self._role is None:
            return orjson.dumps(member)
        if type(member) is not dict:
            raise RowRejected(f"its value is {_describe_kind(member)}, but {self._role} selects from objects")
        return self._pick_value(member)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        hint = "key.memberNames is for one object of key: value; name the key's columns in key.columns for an array"
        return self._read_elements("object", ("{", "}"), hint, self._read_row)

    def _read_row(self, where: str) -> tuple[str, Any]:
        found = self._peek()
        if found != '"':
            raise self._member_error(where, "a member's name in quotes", found)
        name = self._read_element(where)
        found = self._peek()
        if found != ":":
            raise self._member_error(where, "':' after the member's name", found)  # perhaps a value: it is not quoted
        self._offset += 1
        value = self._read_element(where)
        if type(value) is dict and self.columns.missing:
            self.columns.observe(value)
        return name, value

    def _member_error(self, where: str, expected: str, found: str) -> BadSource:
        what = repr(found) if found else "the end of the file"
        return BadSource(f"{where} is not JSON: expected {expected}, found {what}, at {self._locate()}", hint=_CORRECT)


# Read slices with the native row kernel.
#
# The kernel turns usual rows into records and stops at any other. Python's parser takes such a line. So only Python
# rejects rows and reports errors.


_NATIVE_WINDOW: Final = 1 << 20


def find_json_obstacle(spec: DatasetSpec) -> str | None:
    """Return why the native kernel cannot read JSON lines for ``spec``; None if it can."""
    nested = [name for name in (*spec.key.columns, *value_columns(spec.value)[1]) if "." in name]
    if nested:
        return f"the column {nested[0]} may be a nested one"
    return None if spec.key.columns else "keys are names of members"


class NativeJsonLines:
    """Read a slice of JSON lines into its records. Afterwards, ``lines`` is the number of lines, and ``position`` the
    number of the slice's bytes that were read. For ``end`` and ``quotes_seen``, see ``RowParser``."""

    end = None
    quotes_seen = (False, False)

    def __init__(
        self,
        kernels: Any,
        spec: DatasetSpec,
        file: LocalFile,
        piece: Slice,
        max_row: int,
        parser: JsonLinesParser,
        records: SliceRecords,
    ) -> None:
        self._file, self._piece, self._max_row = file, piece, max_row
        self._parser, self._records = parser, records
        self._watched: tuple[int, int | None] | None = None
        self.lines = self.position = 0
        value, rule = spec.value, "columns"
        if value.column is not None:
            rule = value.format
        elif value.field is not None:
            rule = "field"
        elif value.columns is None:
            rule = "all"
        self._rules = kernels.JsonRows(
            list(spec.key.normalize),
            records.encode,
            [orjson.dumps(name) for name in spec.key.columns],
            spec.key.separator.encode(),
            rule,
            [orjson.dumps(name) for name in value_columns(value)[1]],
            max_native_value(spec),
            max_row,
        )

    def read(self, report: ReportProgress) -> bool:
        """Read the slice to its end, and return True. Raises BadSource, NotEnoughRoom."""
        parser, records, sorter = self._parser, self._records, self._records.sorter
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
                if parser.columns.missing:
                    parser.columns.rows += rows
                if at < len(block) and not sorter.spill_if_full():
                    end = block.find(b"\n", at) + 1 or len(block)
                    self._read_unusual_line(block[at:end])
                    at = end
            report(self.position - reported[0], records.row - reported[1])
            reported = (self.position, records.row)
        sorter.spill_if_full()
        return True

    def _read_unusual_line(self, line: bytes) -> None:
        """Read a line that the kernel leaves to Python. A method of its own, so that the line and its record, which may
        be large, are not held while the next ones are read."""
        piece, parser, records = self._piece, self._parser, self._records
        self.lines += 1
        row, number = piece.rows_before + records.row + 1, piece.lines_before + self.lines
        for record in parser.parse_line(line, row, number):
            records.take(parser.key, parser.value, record)
            self._watch()

    def _blocks(self) -> Iterator[bytes]:
        """Yield the slice in blocks of whole lines. Raises NotEnoughRoom for a line that is too long."""
        rest: list[bytes] = []
        rest_bytes = 0
        with SliceFile(self._file.path, self._piece) as raw:
            while chunk := raw.read(_NATIVE_WINDOW):
                self.position += len(chunk)
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield b"".join([*rest, chunk[:end]])
                    rest, rest_bytes = [], 0
                rest.append(chunk[end:])
                rest_bytes += len(chunk) - end
                if rest_bytes > self._max_row:
                    row, number = self._records.row + 1, self.lines + 1
                    raise self._parser.too_long_error(self._piece.rows_before + row, self._piece.lines_before + number)
            yield b"".join(rest)

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
