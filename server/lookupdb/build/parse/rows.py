"""What all parsers share: a row's key as text, its value as bytes, and how these fail.

A row that cannot be a record (no key, a field of the wrong type) is *rejected*: it is counted and sampled, and the gate
``maxRejectedRows`` judges. A file that cannot be parsed further (a broken quote, malformed JSON) is a BadSource.

Why it fails goes to whoever may see the dataset's status. So a reason says where: file, row, line or column. It names
keys, columns, types, lengths, and the one character at which a file stops being JSON or CSV, but holds no value: not a
field, not a part of one, and of a library's message neither.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import orjson

from lookupdb.errors import BadSource
from lookupdb.spec import DatasetSpec, Value
from lookupdb.wording import format_some, shorten

_DELIMITERS: Final = ";\t|,"
"""Delimiters that files have when they do not have the manifest's."""
_MAX_NAMES: Final = 50
"""So many columns does an error name."""
_MAX_NAME_CHARACTERS: Final = 80
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

Row = Any
"""One record as its parser represents it: a list of fields (CSV) or a dict (JSON, Parquet)."""


class RowRejected(ValueError):
    """A row that cannot be a record."""


class UnusableRow(dict[str, Any]):
    """A row that cannot be a record, and why: asking for its key raises RowRejected."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def get(self, *_: object) -> Any:
        """Raises RowRejected."""
        raise RowRejected(self.reason)


class UnfinishedSlice(BadSource):
    """A slice ends within a quoted field: the cut is wrong, or the last quote is never closed."""


def format_names(names: Sequence[str], render: Callable[[str], str] = str) -> str:
    """The first of ``names``, which a file has for its columns, each cut: one may be as long as the file."""
    return format_some([render(shorten_name(name)) for name in names[: _MAX_NAMES + 1]], _MAX_NAMES)


def check_names_once(names: Sequence[str], where: str) -> None:
    """Raises BadSource if a column's name stands twice in ``names``, those of ``where``, "f.csv: its header"."""
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise BadSource(
            f"{where} names {format_names(twice, repr)} more than once", hint="give each column a name of its own"
        )


def shorten_name(name: str) -> str:
    """``name``, or what else a file has of any length, cut for a message."""
    return shorten(name, _MAX_NAME_CHARACTERS)


def join_key(columns: Sequence[str], parts: Iterable[str], separator: str) -> str:
    """Join the columns of a key. Only the last one's text may hold the separator, so that two keys never become one."""
    parts = list(parts)
    for column, part in zip(columns[:-1], parts, strict=False):
        if separator in part:
            raise RowRejected(f"the key column {column} holds the separator {separator!r}")
    for column, part in zip(columns, parts, strict=True):
        if not part:
            raise RowRejected(f"the key column {column} is empty")
    return separator.join(parts)


def describe_json_error(error: Exception) -> str:
    """A JSON parser's message, with the character of the text in place of a line number that is not the file's."""
    return f"{error.msg}, at its character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)


def check_json_text(text: bytes, what: str, alternative: str | None = None) -> bytes:
    """``text``, if it is JSON, with the line breaks and tabs between its tokens replaced by spaces. Raises RowRejected.

    ``alternative`` says what the spec could ask for instead.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RowRejected(
            f"{what} is not JSON: {describe_json_error(error)}" + (f" ({alternative})" if alternative else "")
        ) from error
    return text.translate(_SPACES)


def describe_encode_error(error: Exception) -> str:
    """Why orjson cannot write a parsed value as JSON."""
    text = str(error)
    if "NotFinite" in text:
        return "its value holds NaN or an infinity, for which JSON has no number"
    if "surrogate" in text or "UTF-8" in text:
        return "its value is not valid Unicode text (a lone surrogate)"
    return f"its value cannot be written as JSON: {text}"


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
    """The error for a missing column, with the most similar name and all there are. ``nested`` are names with dots.

    ``delimiter`` is the one that a CSV header was read with.
    """
    names, nested = list(names), list(nested)
    others = "" if delimiter is None else _DELIMITERS.replace(delimiter, "")
    if len(names) == 1 and (delimiter := next((character for character in others if character in names[0]), None)):
        return BadSource(
            f"{where}: {role} names the column {name!r}, and the header is one column, {shorten_name(names[0])!r}",
            hint=f"if its delimiter is {delimiter!r}, say so: source.csv.delimiter",
        )
    partitions = [other for other in read_partitions(where) if other not in names]
    similar = _find_similar_column(name, [*names, *nested, *partitions])
    listed = [*names, *nested] if "." in name else names
    return BadSource(
        f"{where}: {role} names the column {name!r}, {lack}"
        + (f"; did you mean {shorten_name(similar)!r}?" if similar else ""),
        hint=(f"its columns are {format_names(listed)}" if names else "it has no columns")
        + (f", and those of its path {format_names(partitions)}" if partitions else ""),
    )


def _find_similar_column(name: str, names: Sequence[str]) -> str | None:
    if close := difflib.get_close_matches(name, names, n=1):
        return close[0]
    ends = {other.rpartition(".")[2].lower(): other for other in reversed(names)}
    near = difflib.get_close_matches(name.lower(), ends, n=1)
    return ends[near[0]] if near else None


def read_partitions(url: str) -> dict[str, str | None]:
    """The columns that the folders in ``url`` name, as Hive and Spark write them: ``country=DE/``."""
    path = unquote(urlsplit(url).path) if url.startswith(("file://", "https://", "http://")) else url
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        if name and equals:
            found[_unescape(name)] = None if text == _NULL_PARTITION else _unescape(text)
    return found


def _unescape(text: str) -> str:
    """``text`` without its percent-escapes; as it stands, if they are not UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return text


def find_partitions(spec: DatasetSpec, url: str) -> dict[str, str | None]:
    """Those that ``spec`` names. A file that has such a column itself keeps its own."""
    named = {*spec.key.columns, *value_columns(spec.value)[1], *(column.name for column in spec.source.csv.columns)}
    return {name: text for name, text in read_partitions(url).items() if name in named}


def value_columns(value: Value) -> tuple[str, tuple[str, ...]]:
    """The field of spec.value that selects, and the columns that it names, each once; none means all but the key's."""
    if value.column is not None:
        return "value.column", (value.column,)
    if value.field is not None:
        return "value.field", (value.field,)
    return "value.columns", tuple(dict.fromkeys(value.columns or ()))
