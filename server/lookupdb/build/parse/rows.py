"""What the parsers of all formats share: a row's key as text, its value as bytes, and the ways these fail.

A row that cannot be a record (no key, a field of the wrong type) is *rejected*: counted, sampled, left to the gate
``maxRejectedRows``. A file that cannot be parsed on (a broken quote, malformed JSON) is a BadSource.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from lookupdb.errors import BadSource
from lookupdb.spec import Value

if TYPE_CHECKING:
    from lookupdb.build.parse.dict_rows import Columns

_DELIMITERS: Final = ";\t|,"
"""What stands between fields where it is not what the manifest says."""

Row = Any
"""One record as its parser has it: a list of fields (CSV) or a dict (JSON, Parquet)."""


class RowRejected(ValueError):
    """A row that cannot be a record."""


class UnusableRow(dict[str, Any]):
    """A row that is there and can be no record: whoever asks for its key hears why."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def get(self, *_: object) -> Any:
        """Raises RowRejected."""
        raise RowRejected(self.reason)


class Unfinished(BadSource):
    """A slice ends within a row, in quotes: it was cut there, or its last quote is never closed."""


class Parser(Protocol):
    """Reads a slice. ``key`` and ``value`` take a row that iteration gave, ``key`` first: ``value`` may consume it."""

    @property
    def key(self) -> Callable[[Row], str]:
        """A row's key, not yet normalised. Raises RowRejected."""

    @property
    def value(self) -> Callable[[Row], bytes]:
        """A row's value; JSON is free of raw control characters. Raises RowRejected, orjson.JSONEncodeError."""

    def __iter__(self) -> Iterator[Row]:
        """The rows in the slice's order. Raises BadSource naming file and row."""

    def position(self) -> int:
        """How many bytes of the slice are behind us."""

    @property
    def end(self) -> int | None:
        """Where in the file the last row of a slice that runs on ends; None when the slice's own end says it."""

    @property
    def lines(self) -> int:
        """How many lines of the file were read; 0 where lines mean nothing."""

    @property
    def columns(self) -> Columns | None:
        """Which columns its rows had; None when that was known beforehand, and checked."""


def joined_key(columns: Sequence[str], parts: Iterable[str], separator: str) -> str:
    """The key of several columns: only the last one's text may hold the separator, so that no two keys meet."""
    parts = list(parts)
    for column, part in zip(columns[:-1], parts, strict=False):
        if separator in part:
            raise RowRejected(f"the key column {column} holds the separator {separator!r}")
    for column, part in zip(columns, parts, strict=True):
        if not part:
            raise RowRejected(f"the key column {column} is empty")
    return separator.join(parts)


def describe_json_error(error: Exception) -> str:
    """What a JSON parser says, with the character of the text instead of a line that is none of the file's."""
    return f"{error.msg}, at its character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)


def json_text(text: bytes, what: str, otherwise: str | None = None) -> bytes:
    """``text`` as it stands, if it is JSON; only line breaks and tabs between its tokens become spaces.

    ``otherwise`` says what the spec could ask for instead.
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RowRejected(
            f"{what} is not JSON: {describe_json_error(error)}" + (f" ({otherwise})" if otherwise else "")
        ) from error
    return text.translate(_SPACES)


def not_json(error: Exception) -> str:
    """Why a value that was parsed cannot be written as JSON, from what orjson says."""
    text = str(error)
    if "NotFinite" in text:
        return "its value holds NaN or an infinity, for which JSON has no number"
    if "surrogate" in text or "UTF-8" in text:
        return "its value is not valid Unicode text (a lone surrogate)"
    return f"its value cannot be written as JSON: {text}"


_SPACES = bytes.maketrans(b"\r\n\t", b"   ")


def unknown_column(where: str, role: str, name: str, names: Iterable[str]) -> BadSource:
    """The error for a column that is not there, with the near one and all there are."""
    names = list(names)
    if len(names) == 1 and (delimiter := next((one for one in _DELIMITERS if one in names[0]), None)):
        return BadSource(
            f"{where}: {role} names the column {name!r}, and the header is one column, {names[0][:80]!r}",
            hint=f"if its delimiter is {delimiter!r}, say so: source.csv.delimiter",
        )
    near = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
    shown = ", ".join(names[:50]) + (", …" if len(names) > 50 else "")
    return BadSource(
        f"{where}: {role} names the column {name!r}, which is not there"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"its columns are {shown}" if names else "it has no columns",
    )


def value_names(value: Value) -> tuple[str, tuple[str, ...]]:
    """The field of spec.value that chooses, and the columns it names: none for all but the key's."""
    if value.column is not None:
        return "value.column", (value.column,)
    if value.field is not None:
        return "value.field", (value.field,)
    return "value.columns", value.columns or ()
