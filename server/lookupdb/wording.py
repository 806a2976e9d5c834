"""Formatting that many messages share."""

from __future__ import annotations

import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import LookupdbError, UsageError

_SCHEME: Final = r"^([\w+.-]+:/*|[\w+.-]*//+"
_ODD_PASSWORD: Final = re.compile(_SCHEME + r"|)[^/:@?#\[]+:(?!\d*(?:[/?#]|$))[^@]*@")
"""User and password, even with unescaped characters. Digits alone are a port."""
_USER: Final = re.compile(r"(?!volume:)" + _SCHEME + r")[^/?#]*@")
_HTTP: Final = re.compile(r"https?(?::|//)", re.IGNORECASE)
_QUERY_OF_HTTP: Final = re.compile(r"[?#].*", re.DOTALL)
_QUERY: Final = re.compile(r"\?[^/?]*=.*", re.DOTALL)
"""A question mark may be a wildcard: without "=" after it, it begins no query."""


def format_count(number: int, noun: str) -> str:
    """Return "1 record", or "1,234 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_clauses(*clauses: str) -> str:
    """Return "FIRST; SECOND". A clause that is a question ends with its question mark alone."""
    return "; ".join(clauses).replace("?; ", "? ")


def format_some(names: Sequence[str], most: int) -> str:
    """Return "a, b, …": at most ``most`` of ``names``."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def shorten(text: str, characters: int) -> str:
    """Return ``text``, cut after this many characters, with an ellipsis if it was longer."""
    return text if len(text) <= characters else text[:characters] + "…"


def needs_escape(character: str) -> bool:
    """Return whether a character controls a terminal, or is invisible. A space of another width is text."""
    return not character.isprintable() and unicodedata.category(character) != "Zs"


def escape_controls(text: str) -> str:
    """Return ``text`` for a terminal or a log, with all control characters escaped except line breaks and tabs."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in "\n\t" and needs_escape(character)
        else character
        for character in text
    )


def format_command(*words: str) -> str:
    """Return "…/lookupdb WORDS": this program as a person can type it here, the words quoted for a shell."""
    return shlex.join([*_program(), *words])


def to_utf8(text: str) -> str:
    """Return ``text`` as JSON can hold it: bytes of a path that are not UTF-8 become escapes, as messages show them."""
    return text.encode("utf-8", "backslashreplace").decode()


def strip_secrets(url: str) -> str:
    """Return ``url`` without user, password and query, even if it is mistyped (https:/user:password@host). "?…"
    replaces a query in a path or a bucket's URL."""
    url = _USER.sub(r"\1", _ODD_PASSWORD.sub(r"\1", url))
    return _QUERY_OF_HTTP.sub("", url) if _HTTP.match(url) else _QUERY.sub("?…", url)


def check_path(path: str | os.PathLike[str], error: type[LookupdbError] = UsageError) -> None:
    """Raise ``error`` if ``path`` is not UTF-8: LMDB and DuckDB cannot open such a file, and JSON cannot hold its
    name."""
    shown = to_utf8(os.fspath(path))
    if shown != os.fspath(path):
        raise error(f"the path {shown} is not UTF-8", hint="rename it, or use another path")


def render_json(document: Any, *, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """Return ``document`` as orjson writes it, with its texts as ``to_utf8`` makes them."""
    try:
        return orjson.dumps(document, default, option)
    except TypeError:
        again = None if default is None else lambda value: _escape_texts(default(value))
        return orjson.dumps(_escape_texts(document), again, option)


def _escape_texts(value: Any) -> Any:
    if isinstance(value, str):
        return to_utf8(value)
    if isinstance(value, Mapping):
        return {_escape_texts(key): _escape_texts(member) for key, member in value.items()}
    return [_escape_texts(item) for item in value] if isinstance(value, list | tuple) else value


def _program() -> list[str]:
    """Return the command as it was called; for ``python -m``, the script that was installed beside Python."""
    if sys.argv[0] != "-c" and not sys.argv[0].endswith(".py"):
        return [sys.argv[0]]
    script = Path(sys.executable).with_name("lookupdb")
    if not script.is_file():
        return [sys.executable, "-m", "lookupdb"]
    return [os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)]


_SUFFIXES: Final = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{letter: 1e3**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}


def parse_quantity(text: str) -> float:
    """Return the number that a Kubernetes quantity denotes: 0.5 for ``500m``. Raises ValueError."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([KMGTPE]i|[numkMGTPE]|)", text)
    if not match:
        raise ValueError(f"expected a quantity like 2, 500m or 4Gi, found {text!r}")
    return float(match[1]) * _SUFFIXES[match[2]]
