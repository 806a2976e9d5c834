"""The code that parsers share: keys, values, columns, and how rows and files fail."""

from __future__ import annotations

import csv
import difflib
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, Final, Literal, Self
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import orjson

from lookupdb.builder.files import LocalFile, SliceFile
from lookupdb.builder.write import SPOOL_BYTES, Sample, Sorter, encode_place
from lookupdb.dataset.spec import Csv, DatasetSpec, Value
from lookupdb.errors import BadSource
from lookupdb.keys import InvalidKey, make_key_encoder
from lookupdb.manifest import SAMPLES
from lookupdb.records import UnusableColumn, join_columns
from lookupdb.wording import format_some, shorten

# A row's key as text, its value as bytes, and how these fail.
#
# A row that cannot be a record (no key, a field of the wrong type) is *rejected*: it is counted and sampled, and
# checked by the gate ``maxRejectedRows``. A file that cannot be parsed further (a broken quote, malformed JSON) is a
# BadSource.
#
# Everybody who may see the dataset's status reads these messages. So a message names the place (file, row, line or
# column), keys, columns, types, lengths, and the one character at which a file stops being JSON or CSV. It holds no
# value, not even a part, and no text of a library that may quote one.


_DELIMITERS: Final = ";\t|,"
"""Delimiters to suggest if a file does not have the manifest's."""
_MAX_NAMES: Final = 50
"""The most columns that an error names."""

Row = Any
"""A record as its parser represents it: a list of fields (CSV) or a dict (other formats)."""


class RowRejected(ValueError):
    """A row that cannot be a record."""


class UnusableRow(dict[str, Any]):
    """A row that cannot be a record, and why: reading its key raises RowRejected."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def get(self, *_: object) -> Any:
        """Raises RowRejected."""
        raise RowRejected(self.reason)


class UnfinishedSlice(BadSource):
    """A slice ends within a quoted field: the cut is wrong, or the last quote is never closed."""


def format_names(names: Sequence[str], render: Callable[[str], str] = str) -> str:
    """Return the first of a file's column ``names`` for a message, each cut, because a name may be as long as the
    file."""
    return format_some([render(shorten_name(name)) for name in names[: _MAX_NAMES + 1]], _MAX_NAMES)


def check_names_once(names: Sequence[str], where: str) -> None:
    """Raise BadSource if a column's name occurs twice in ``names``. ``where`` is "f.csv: its header", for example."""
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise BadSource(
            f"{where} names {format_names(twice, repr)} more than once", hint="give each column a name of its own"
        )


def shorten_name(name: str) -> str:
    """Return ``name``, which may have any length, cut for a message."""
    return shorten(name, 80)


def join_key(columns: Sequence[str], parts: Iterable[str], separator: str) -> str:
    """Join the columns of a key. Raises RowRejected if one cannot be used."""
    try:
        return join_columns(columns, parts, separator)
    except UnusableColumn as error:
        raise RowRejected(str(error)) from None


def describe_json_error(error: Exception) -> str:
    """Return a JSON parser's message, with the character instead of the line number, which would not be the file's."""
    return f"{error.msg}, at its character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)


def check_json_text(text: bytes, what: str, alternative: str | None = None) -> bytes:
    """Return ``text``, if it is JSON, with line breaks and tabs between tokens replaced by spaces. Raises RowRejected.

    ``alternative`` is a hint about the spec.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RowRejected(
            f"{what} is not JSON: {describe_json_error(error)}" + (f" ({alternative})" if alternative else "")
        ) from error
    return text.translate(_SPACES)


_SPACES = bytes.maketrans(b"\r\n\t", b"   ")


def unknown_column_error(
    where: str,
    role: str,
    name: str,
    names: Iterable[str],
    *,
    nested: Iterable[str] = (),
    lack: str = "which is not there",
    delimiter: str | None = None,
) -> BadSource:
    """Return the error for a missing column, with the most similar name and all names. ``nested`` are names with dots.

    ``delimiter`` is the one with which a CSV header was read.
    """
    names, nested = list(names), list(nested)
    others = "" if delimiter is None else _DELIMITERS.replace(delimiter, "")
    if len(names) == 1 and (delimiter := next((character for character in others if character in names[0]), None)):
        return BadSource(
            f"{where}: {role} names the column {name!r}, but the header is one column, {shorten_name(names[0])!r}",
            hint=f"if its delimiter is {delimiter!r}, say so: source.csv.delimiter",
        )
    partitions = [other for other in read_partitions(where) if other not in names]
    known = [*names, *nested, *partitions]
    close = difflib.get_close_matches(name, known, n=1)
    if not close:  # perhaps the last part of a dotted name, in another case
        ends = {other.rpartition(".")[2].lower(): other for other in reversed(known)}
        close = [ends[end] for end in difflib.get_close_matches(name.lower(), ends, n=1)]
    listed = [*names, *nested] if "." in name else names
    return BadSource(
        f"{where}: {role} names the column {name!r}, {lack}"
        + (f"; did you mean {shorten_name(close[0])!r}?" if close else ""),
        hint=(f"its columns are {format_names(listed)}" if names else "it has no columns")
        + (f", and those of its path {format_names(partitions)}" if partitions else ""),
    )


def read_partitions(url: str) -> dict[str, str | None]:
    """Return the columns that the folders in ``url`` name, as Hive and Spark write them: ``country=DE/``."""
    path = unquote(urlsplit(url).path) if url.startswith(("file://", "https://", "http://")) else url
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        if name and equals:
            found[_unescape(name)] = None if text == "__HIVE_DEFAULT_PARTITION__" else _unescape(text)
    return found


def _unescape(text: str) -> str:
    """Return ``text`` without its percent-escapes, or unchanged if they are not UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return text


def find_partitions(spec: DatasetSpec, url: str) -> dict[str, str | None]:
    """Return the partitions in ``url`` that ``spec`` names. A file's own column of the same name wins."""
    named = {*spec.key.columns, *value_columns(spec.value)[1], *(column.name for column in spec.source.csv.columns)}
    return {name: text for name, text in read_partitions(url).items() if name in named}


def value_columns(value: Value) -> tuple[str, tuple[str, ...]]:
    """Return the field of spec.value that selects columns, and the columns, each once; () means all but the key's."""
    if value.column is not None:
        return "value.column", (value.column,)
    if value.field is not None:
        return "value.field", (value.field,)
    return "value.columns", tuple(dict.fromkeys(value.columns or ()))


# The columns of a file's rows, if rows are dicts, and dotted names, which reach into nested dicts.


_ABSENT: Any = object()
"""``_get_column`` returns it for a column that a row does not have: null would be a value."""
_MAX_TRACKED_NAMES: Final = 1000


class ColumnTracker:
    """Track which of the spec's columns occur in the rows of one file."""

    def __init__(self, spec: DatasetSpec) -> None:
        role, columns = value_columns(spec.value)
        self.roles = {**dict.fromkeys(columns, role), **dict.fromkeys(spec.key.columns, "key.columns")}
        """Column → the field of the spec that names it."""
        self.missing = set(self.roles)
        """The columns that no record had so far. While there are any, records are passed to ``observe``."""
        self._names: dict[str, None] = {}
        self.rows = 0

    def observe(self, record: dict[str, Any]) -> None:
        """Note which columns ``record`` has."""
        self.rows += 1
        self.missing.difference_update([name for name in self.missing if _has_column(record, name)])
        if len(self._names) < _MAX_TRACKED_NAMES:
            self._names.update(dict.fromkeys(record))

    @property
    def names(self) -> Collection[str] | None:
        """The names noted so far; None if there are too many."""
        return self._names if len(self._names) < _MAX_TRACKED_NAMES else None

    def to_members(self) -> dict[str, Any]:
        """Return the observations, to pass them to another process."""
        return {"missing": sorted(self.missing), "names": [*self._names], "rows": self.rows}

    @classmethod
    def from_members(cls, spec: DatasetSpec, members: dict[str, Any]) -> Self:
        """Return a tracker with the observations that ``to_members`` returned."""
        tracker = cls(spec)
        tracker.missing, tracker.rows = {*members["missing"]}, members["rows"]
        tracker._names = dict.fromkeys(members["names"])
        return tracker

    def merge(self, other: ColumnTracker) -> None:
        """Add what ``other`` has observed in other rows of the same file."""
        self.missing.intersection_update(other.missing)
        self._names.update(dict.fromkeys(islice(other._names, max(0, _MAX_TRACKED_NAMES - len(self._names)))))
        self.rows += other.rows

    def check(self, where: str) -> None:
        """Raise BadSource if a column of the spec occurs in no row of the file ``where``."""
        names = [name.encode(errors="backslashreplace").decode() for name in self._names]  # without lone surrogates
        for name, role in self.roles.items():
            if self.rows and name in self.missing:
                lack = "which its only row lacks" if self.rows == 1 else f"which none of its {self.rows:,} rows has"
                raise unknown_column_error(where, role, name, names, lack=lack)


def _get_column(record: dict[str, Any], name: str) -> Any:
    """Return the member ``name``, or the nested one that its dots lead to; ``_ABSENT`` if there is neither.

    As in SQL, everything within null is null.
    """
    if name in record:
        return record[name]
    owner: Any = record
    for part in name.split("."):
        if owner is None:
            return None
        owner = owner.get(part, _ABSENT) if isinstance(owner, dict) else _ABSENT
    return owner


def _has_column(record: dict[str, Any], name: str) -> bool:
    """Return whether ``record`` proves that the column exists. A null parent proves nothing about its members."""
    if name in record:
        return True
    owner, last = _find_owner(record, name)
    return owner is not None and last in owner


def _find_owner(record: dict[str, Any], name: str) -> tuple[dict[str, Any] | None, str]:
    """Return the nested dict that would hold the last part of ``name``, and that part."""
    *path, last = name.split(".")
    owner: Any = record
    for part in path:
        owner = owner.get(part) if isinstance(owner, dict) else None
    return (owner if path and isinstance(owner, dict) else None), last


QuotesSeen = tuple[bool, bool | None]
"""Whether a quoted field has a quote after a backslash, and whether an unquoted field has a quote. If the second is
None, it is unknown, and the first covers unquoted fields, too.
"""


class RowParser:
    """Reads a slice of a file of any format. ``key`` and ``value`` take a row from iteration; call ``key`` first,
    because ``value`` may consume the row."""

    key: Callable[[Row], str]
    """Returns a row's key, not yet normalised. Raises RowRejected."""
    value: Callable[[Row], bytes]
    """Returns a row's value; JSON contains no raw control characters. Raises RowRejected, orjson.JSONEncodeError."""
    end: int | None = None
    """Once all rows are read: where the last one ends in the file, if the slice extends to the end of its last row.
    None if the slice's own end is exact."""
    lines = 0
    """Once all rows are read: the number of lines of the file that were read; 0 for formats without lines."""
    quotes_seen: QuotesSeen = (False, False)
    """Once all rows are read: which quotes CSV fields had, escaped and plain, for ``check_quotes``."""
    names: Sequence[str] | None = None
    """The column names that the file declares, in a header or a footer; None if its rows name them."""
    columns: ColumnTracker | None = None
    """The columns that the rows had; None if the file declares its columns."""

    def __init__(self, file: LocalFile, raw: SliceFile) -> None:
        self._file, self._raw = file, raw

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows in the slice's order. Raises BadSource, which names file and row."""
        raise NotImplementedError

    def position(self) -> int:
        """Return the number of bytes of the slice that were read: a little more than was parsed."""
        return self._raw.tell()


# Files that declare their columns, all except JSON, must declare the same ones, in any order. Otherwise a column that
# has another name in one file would go live under both names. If the spec names the value's columns, files may differ
# in others.


_SHOWN_NAMES: Final = 10


class UniformColumns:
    """Compare the columns of each file with those of the first."""

    def __init__(self, spec: DatasetSpec) -> None:
        self._takes_all = not value_columns(spec.value)[1]
        self._first: tuple[str, frozenset[str]] | None = None

    def check(self, where: str, names: Sequence[str] | None) -> None:
        """Raise BadSource if the file ``where`` has other columns than the first; None means that it declares none."""
        if names is None or not self._takes_all:
            return
        if self._first is None:
            self._first = where, frozenset(names)
            return
        first, expected = self._first
        if expected.symmetric_difference(names):
            found = frozenset(names)
            changes = (("lacks", sorted(expected - found)), ("adds", sorted(found - expected)))
            difference = " and ".join(
                f"{word} {format_some([repr(shorten_name(name)) for name in columns], _SHOWN_NAMES)}"
                for word, columns in changes
                if columns
            )
            raise BadSource(
                f"{where} has other columns than {first}: it {difference}",
                hint="give all files of a source the same columns, or name those to store in value.columns",
            )


class NotFinite:
    """NaN or an infinity: orjson cannot write it, so a row with such a value is rejected."""

    def __repr__(self) -> str:
        return "NaN"


NOT_FINITE: Final = NotFinite()


class DictRows(RowParser):
    """Makes the keys and values of rows that are dicts, as the spec says. A dot in a column's name reaches into nested
    dicts, unless a member has the whole name.

    A value omits a column that its row does not have; a column that no row has is a BadSource.
    """

    def __init__(self, spec: DatasetSpec, file: LocalFile, raw: SliceFile) -> None:
        super().__init__(file, raw)
        self.columns = ColumnTracker(spec)
        self.partitions = find_partitions(spec, file.name)
        """The columns that a record has from its file's path, unless it has them itself."""
        self.key = _make_key_function(spec)
        self.value = _make_value_function(spec)
        """This consumes the record."""

    def add_partitions(self, record: dict[str, Any]) -> None:
        """Add the columns from the file's path."""
        for name, text in self.partitions.items():
            record.setdefault(name, text)

    def declare(self, names: Sequence[str], nested: Iterable[str]) -> None:
        """Take ``names`` as the columns that the file declares. Raises BadSource if a column of the spec is missing."""
        nested = list(nested)
        declared = {*names, *nested, *self.partitions}
        assert self.columns is not None, "columns are declared once"
        for name, role in self.columns.roles.items():
            if name not in declared:
                raise unknown_column_error(self._file.name, role, name, names, nested=nested)
        self.columns = None
        self.partitions = {name: text for name, text in self.partitions.items() if name not in names}
        self.names = [*names, *self.partitions]


def _make_key_function(spec: DatasetSpec) -> Callable[[dict[str, Any]], str]:
    columns, separator = spec.key.columns, spec.key.separator
    if len(columns) != 1:
        return lambda record: join_key(columns, [_key_column_text(record, name) for name in columns], separator)
    column = columns[0]

    def key(record: dict[str, Any]) -> str:
        member = record.get(column)
        return member if type(member) is str else _key_column_text(record, column)

    return key


def _make_value_function(spec: DatasetSpec) -> Callable[[dict[str, Any]], bytes]:
    value, dumps = spec.value, orjson.dumps
    if value.column is not None:
        column, raw = value.column, value.format == "raw"
        return lambda record: _column_bytes(record, column, raw)
    if value.field is not None:
        field = value.field
        return lambda record: dumps(_require_column(record, field))
    if value.columns is not None:
        columns = value.columns
        return lambda record: dumps(
            {name: member for name in columns if (member := _get_column(record, name)) is not _ABSENT}
        )
    keys = spec.key.columns

    def all_but_key(record: dict[str, Any]) -> bytes:
        for name in keys:
            owner, last = (record, name) if name in record else _find_owner(record, name)
            if owner is not None:
                owner.pop(last, None)
        return dumps(record)

    return all_but_key


def _require_column(record: dict[str, Any], name: str) -> Any:
    member = _get_column(record, name)
    if member is _ABSENT:
        raise RowRejected(f"it has no {name}")
    return member


def _key_column_text(record: dict[str, Any], column: str) -> str:
    """Return the text of a key column: text unchanged, an integer in decimal. Raises RowRejected for any other type."""
    member = record.get(column, _ABSENT)
    if member is _ABSENT:
        member = _get_column(record, column)
    if type(member) is str:
        return member
    if type(member) is int:
        return str(member)
    if isinstance(member, orjson.Fragment):
        text = orjson.dumps(member).decode()
        if text.removeprefix("-").isdecimal():
            return text
        raise RowRejected(f"the key column {column} is {shorten_name(text)}; a key is text or an integer")
    if member is _ABSENT:
        raise RowRejected(f"it has no key column {column}")
    if member is None:
        raise RowRejected(f"the key column {column} is null")
    kinds = {
        bool: "a boolean",
        float: "a fraction",
        list: "an array",
        dict: "an object",
        NotFinite: "NaN or an infinity",
        bytes: "binary that is not UTF-8",
    }
    kind = kinds.get(type(member), "of another type")
    raise RowRejected(f"the key column {column} is {kind}; a key is text or an integer")


def _column_bytes(record: dict[str, Any], column: str, raw: bool) -> bytes:
    member = _require_column(record, column)
    if isinstance(member, str):
        try:
            member = member.encode()
        except UnicodeEncodeError:
            raise RowRejected(f"the column {column} is not valid Unicode text (a lone surrogate)") from None
    if not isinstance(member, bytes):
        if raw:
            raise RowRejected(f"the column {column} is not text or binary")
        raise RowRejected(f"the column {column} is not text that holds JSON (value.field: {column} takes it as it is)")
    alternative = f"value.field: {column} makes JSON of it, value.format: raw takes its bytes unchanged"
    return member if raw else check_json_text(member, f"the column {column}", alternative)


def unwritable_column_error(where: str, column: str, why: str) -> BadSource:
    """Return the error for a column whose values have no exact JSON form; ``why`` follows its name."""
    return BadSource(
        f"{where}: the column {shorten_name(column)} {why}",
        hint="write the column in another way, or leave it out by naming the columns to store in value.columns",
    )


# The columns of files with types.


Convert = Callable[[Any], Any]
"""Converts a value, if not null, to one that orjson writes."""
MAX_DIGITS: Final = 38
"""The most digits of a decimal that is read exactly."""


def convert_members(converts: Sequence[tuple[str, Convert]], record: dict[str, Any]) -> dict[str, Any]:
    """Convert members of a nested record, in place."""
    for name, convert in converts:
        if record[name] is not None:
            record[name] = convert(record[name])
    return record


def choose_columns(spec: DatasetSpec, names: Sequence[str]) -> list[int]:
    """Return the numbers of the columns for keys and values. Dots reach into nested columns."""
    _, chosen = value_columns(spec.value)
    wanted, known = (*spec.key.columns, *chosen), set(names)
    needed = {name if name in known else name.partition(".")[0] for name in wanted}
    return [number for number, name in enumerate(names) if not chosen or name in needed]


# The forms of binaries in the columns of files with types. They are never guessed from their content.


Form = Literal["base64", "text", "key", "raw"]
"""How to show a binary: as base64; as UTF-8 text; as UTF-8 text, or bytes if it is not UTF-8; as bytes."""


def make_forms(spec: DatasetSpec) -> dict[str, Form]:
    """Return the forms of binaries that ``spec`` gives, by column. They apply to nested binaries, too."""
    forms: dict[str, Form] = {column.name: column.type for column in spec.source.parquet.columns}
    if spec.value.column is not None:
        forms[spec.value.column] = "raw"
    return {**forms, **dict.fromkeys(spec.key.columns, "key")}


def find_form(path: str, forms: Mapping[str, Form]) -> Form:
    """Return the form of the binary at ``path``, by its own name or that of the nearest column around it."""
    while path not in forms and "." in path:
        path = path.rpartition(".")[0]
    return forms.get(path, "base64")


def check_binaries(
    spec: DatasetSpec, where: str, binaries: Set[str], names: Sequence[str], nested: Sequence[str]
) -> None:
    """Raise BadSource if ``source.parquet.columns`` names a column of ``where`` that is missing or not binary."""
    role = "source.parquet.columns"
    for name in (column.name for column in spec.source.parquet.columns):
        if any(path == name or path.startswith(f"{name}.") for path in binaries):
            continue
        if name not in names and name not in nested:
            raise unknown_column_error(where, role, name, names, nested=nested)
        raise BadSource(
            f"{where}: {role} names the column {name!r}, which is not binary",
            hint="leave it out there: columns of other types keep their types",
        )


def decode_text(content: bytes) -> str:
    """Return the text of a binary that the spec calls text. Raises RowRejected."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise RowRejected("holds binary that is not UTF-8, but source.parquet.columns says that it is text") from None


def _decode_key(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content  # ``_key_column_text`` rejects the row for it


BINARY_CONVERTS: Final[dict[Form, Convert | None]] = {
    "base64": lambda content: b64encode(content).decode(),
    "text": decode_text,
    "key": _decode_key,
    "raw": None,
}


# The records of a slice.


ReportProgress = Callable[[int, int], None]
"""Called from time to time with the bytes and rows read since the last call."""


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
        except (RowRejected, InvalidKey, orjson.JSONEncodeError) as error:
            reason = str(error)
            if isinstance(error, orjson.JSONEncodeError):
                if "NotFinite" in reason:
                    reason = "its value holds NaN or an infinity, for which JSON has no number"
                elif "surrogate" in reason or "UTF-8" in reason:
                    reason = "its value is not valid Unicode text (a lone surrogate)"
                else:
                    reason = f"its value cannot be written as JSON: {reason}"
            self.rejected += 1
            if len(self.samples) < SAMPLES:
                self.samples.append((self.row, reason))
        else:
            value = bytes(memoryview(value))  # copy: orjson's result sits in a far larger block
            place = self._start + self.row
            self.sorter.put(key, place, value)
            self.sample.offer(key, place, value)

    @property
    def place(self) -> int:
        """The place of the last row."""
        return self._start + self.row


def max_native_value(spec: DatasetSpec) -> int:
    """Return the size of the largest value that native code takes; Python rejects or spools larger ones."""
    return min(spec.value.max_bytes, SPOOL_BYTES)


# Read a dialect of CSV: Python's csv module, or ``DialectReader`` for escapes and null markers.


UNFINISHED: Final = "unexpected end of data"
"""The csv module's error for a file that ends within quotes."""


def open_csv_reader(lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> Any:
    """Return the rows of ``lines`` as lists of fields, None for null. Only this function parses the spec's dialect."""
    if options.escape or options.null_values:
        return DialectReader(lines, options, delimiter, has_header=has_header)
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)


class DialectReader:
    """Read CSV with escapes and null markers; without them it equals Python's csv module in strict mode.

    That module does not report which fields were quoted, and it applies escapes to unquoted fields, too.
    """

    def __init__(self, lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> None:
        self._lines, self._delimiter, self._quote = iter(lines), delimiter, options.quote
        self._escape = options.escape or ""
        self._nulls = frozenset(options.null_values)
        self._is_header = has_header
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        escaped = rf"|{escape}(?:\r\n|.)" if escape else ""
        outside = "" if quote else escaped
        # A field's content within one line.
        plain_stop = rf"\r\n{re.escape(delimiter)}{escape if outside else ''}"
        self._plain = re.compile(rf"(?:[^{plain_stop}]++{outside})*+", re.DOTALL)
        self._quoted = self._plain
        if quote:
            self._quoted = re.compile(rf"(?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+", re.DOTALL)
        self._pairs = re.compile((rf"{quote}{quote}" if quote else "(?!)") + escaped, re.DOTALL)
        self._line, self._at = "", 0
        self.line_num = 0
        self.escaped_quote = self.plain_quote = False
        """True if a quoted field had a quote after a backslash, and an unquoted field a quote."""

    def __iter__(self) -> Iterator[list[str | None]]:
        return self

    def __next__(self) -> list[str | None]:
        self._line, self._at = next(self._lines), 0
        self.line_num += 1
        fields: list[str | None] = []
        if self._line[0] not in "\r\n":
            fields.append(self._read_field())
            while self._line.startswith(self._delimiter, self._at):
                self._at += 1
                fields.append(self._read_field())
            if self._line[self._at :] not in ("", "\n", "\r\n", "\r"):
                raise csv.Error(f"'{self._delimiter}' expected after '{self._quote}'")
        self._is_header = False
        return fields

    def _read_field(self) -> str | None:
        is_quoted = bool(self._quote) and self._line.startswith(self._quote, self._at)
        raw = self._read_raw(is_quoted)
        if is_quoted:
            self.escaped_quote |= f"\\{self._quote}" in raw or raw.endswith("\\")
        elif raw in self._nulls and not self._is_header:
            return None
        elif self._quote:
            self.plain_quote |= self._quote in raw
            if self._escape and self._escape + self._quote in raw:
                raise csv.Error(f"an unquoted field has {self._escape}{self._quote}")
            return raw
        return self._pairs.sub(self._to_text, raw)

    def _read_raw(self, is_quoted: bool) -> str:
        """Return the raw field, without the quotes around it."""
        pattern, parts = (self._quoted if is_quoted else self._plain), []
        self._at += is_quoted
        while True:
            part = pattern.match(self._line, self._at)[0]  # type: ignore[index]  # it matches empty text, too
            parts.append(part)
            self._at += len(part)
            if self._escape and self._line.startswith(self._escape, self._at):
                raise csv.Error(UNFINISHED)
            if self._at < len(self._line) or not (is_quoted or part.endswith(("\n", "\r"))):
                break
            self._line, self._at = next(self._lines, ""), 0
            if not self._line:
                raise csv.Error(UNFINISHED)
            self.line_num += 1
        self._at += is_quoted
        return "".join(parts)

    def _to_text(self, pair: re.Match[str]) -> str:
        """Return the text that a doubled quote, or an escape, means."""
        meant = pair[0][1:]
        if meant not in (self._quote, self._escape, self._delimiter, "\n", "\r", "\r\n"):
            raise csv.Error(
                f"{self._escape} precedes {meant!r}, expected a quote, delimiter, line break or {self._escape}"
            )
        return meant
