"""What is said of DuckDB's errors: pure.

DuckDB quotes the value that it cannot read, in wordings that differ from error to error and from version to version
(``rows`` says why no message may). So nothing of its message is passed on: what it is known to begin with is told in
our words, and of all else the kind of the error.
"""

from __future__ import annotations

from typing import Final

import duckdb

from lookupdb.wording import shorten

_MAX_CHARACTERS: Final = 200
_UNKNOWN: Final = "DuckDB cannot read it"
_NO_JSON: Final = "a value that is no JSON"
_NO_UTF8: Final = "a text that is not UTF-8"
_DAMAGED: Final = "its metadata are damaged"
_NOT_UNPACKED: Final = "a page of it is damaged, and cannot be unpacked"

_BEGINNINGS: Final = {
    "Invalid Input Error: Invalid JSON found in Parquet file": _NO_JSON,
    "Invalid Input Error: Invalid string encoding found in Parquet file": _NO_UTF8,
    "Invalid Input Error: Invalid unicode": _NO_UTF8,
    "Invalid Input Error: Footer length error": _DAMAGED,
    "TProtocolException: Invalid data": _DAMAGED,
    "Failed to decompress ": _NOT_UNPACKED,
    "IO Error: Could not read enough bytes from file": "it ends before a page of it does, or its metadata are damaged",
}
_ENDINGS: Final = {
    "Snappy decompression failure": _NOT_UNPACKED,
    "ZSTD Decompression failure": _NOT_UNPACKED,
}
_KINDS: Final[dict[type[Exception], str]] = {
    duckdb.ConversionException: "a value that cannot be converted to its column's type",
    duckdb.OutOfRangeException: "a value that is out of range of its column's type",
}


def describe_schema_error(error: Exception) -> str:
    """Why DuckDB cannot read a file's footer: no value was read, so its message may be passed on where it has one."""
    known = describe_value_error(error)
    message = shorten(str(error).partition("\n")[0], _MAX_CHARACTERS)
    return f"{known}: {message}" if known.startswith(_UNKNOWN) and message else known


def describe_value_error(error: Exception) -> str:
    """Why DuckDB cannot read a file, without a value of it."""
    message = str(error).partition("\n")[0]
    found = [words for beginning, words in _BEGINNINGS.items() if message.startswith(beginning)]
    found += [words for ending, words in _ENDINGS.items() if message.endswith(ending)]
    found += [words for kind, words in _KINDS.items() if isinstance(error, kind)]
    if isinstance(error, UnicodeDecodeError):  # of a message that quotes what is not UTF-8
        found.append(_NO_UTF8)
    if not found:
        return f"{_UNKNOWN} ({type(error).__name__})"
    return found[0]


def describe_memory_error(error: duckdb.OutOfMemoryException) -> str:
    """The first line of the message, which tells of sizes of memory alone."""
    return str(error).partition("\n")[0]
