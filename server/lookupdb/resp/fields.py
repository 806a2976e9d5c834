"""The fields of a value: the members of its JSON object, as HGET and its like answer them.

A member that is text answers its text. Any other value answers its JSON as stored, digit for digit; ``null`` is no
field. Of members with the same name the last one counts. What lies within a member's value is skipped, not parsed.
"""

from __future__ import annotations

import json
import re
from typing import Final, Protocol

from lookupdb import native
from lookupdb.resp.replies import bulk


class FieldReader(Protocol):
    """The module ``lookupdb._native``, or ``PythonFields``."""

    def select_fields(self, value: bytes, names: list[bytes], /) -> list[bytes | None] | None:
        """Return what the fields ``names`` answer, None for a missing one; None if ``value`` is no JSON object."""

    def encode_fields(self, value: bytes, names: bool, values: bool, /) -> tuple[int, bytes] | None:
        """Return how many fields ``value`` has, and their ``names``, their ``values``, or both in turn as bulk strings;
        None if it is no JSON object."""


def choose_fields() -> FieldReader:
    """Return the native kernels if they are to be used, or the Python fallback."""
    return native.kernels() or PythonFields()


class PythonFields:
    """Fields by Python. A ``FieldReader``."""

    def select_fields(self, value: bytes, names: list[bytes], /) -> list[bytes | None] | None:
        """See ``FieldReader``."""
        members = _read_members(value)
        if members is None:
            return None
        return [None if (text := members.get(name, _NULL)) == _NULL else _field_text(text) for name in names]

    def encode_fields(self, value: bytes, names: bool, values: bool, /) -> tuple[int, bytes] | None:
        """See ``FieldReader``."""
        members = _read_members(value)
        if members is None:
            return None
        fields = [(name, text) for name, text in members.items() if text != _NULL]
        replies = (
            (bulk(name) if names else b"") + (bulk(_field_text(text)) if values else b"") for name, text in fields
        )
        return len(fields), b"".join(replies)


_NULL: Final = b"null"
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NAME: Final = re.compile(rb"(%b)[ \t\n\r]*+:[ \t\n\r]*+" % _STRING, re.DOTALL)
_BEGIN: Final = re.compile(rb"[ \t\n\r]*+\{[ \t\n\r]*+")
_PLAIN: Final = re.compile(rb"%b|[-+.0-9A-Za-z]++" % _STRING, re.DOTALL)
_BRACKET: Final = re.compile(rb'%b|["\[\]{}]' % _STRING, re.DOTALL)
_BEHIND: Final = re.compile(rb"[ \t\n\r]*+([,}])[ \t\n\r]*+")
_ESCAPES: Final = re.compile(rb"(?:\\u[0-9A-Fa-f]{4})+|\\.", re.DOTALL)


def _read_members(text: bytes) -> dict[bytes, bytes] | None:
    """The members of the object ``text``, their values as written; None if it is none."""
    begin = _BEGIN.match(text)
    if begin is None:
        return None
    members: dict[bytes, bytes] = {}
    at = begin.end()
    if text[at : at + 1] == b"}":
        return members if not text[at + 1 :].strip(b" \t\n\r") else None
    while (name := _NAME.match(text, at)) is not None:
        end = _find_end(text, name.end())
        behind = _BEHIND.match(text, end)
        if end < 0 or behind is None:
            return None
        members[_field_text(name[1])] = text[name.end() : end]
        at = behind.end()
        if behind[1] == b"}":
            return members if at == len(text) else None
    return None


def _find_end(text: bytes, start: int) -> int:
    """Where the value at ``start`` ends; -1 if there is none."""
    if text[start : start + 1] not in (b"{", b"["):
        plain = _PLAIN.match(text, start)
        return -1 if plain is None else plain.end()
    depth = 0
    for found in _BRACKET.finditer(text, start):
        if found[0] in (b"{", b"["):
            depth += 1
        elif found[0] in (b"}", b"]"):
            depth -= 1
            if not depth:
                return found.end()
        elif len(found[0]) == 1:  # a string that does not end
            return -1
    return -1


def _field_text(value: bytes) -> bytes:
    """The text that a string stands for; the bytes of any other value as they are, and of a string that stands for
    none."""
    if not value.startswith(b'"'):
        return value
    if b"\\" not in value:
        return value[1:-1]
    try:
        return _ESCAPES.sub(lambda found: json.loads(b'"%b"' % found[0]).encode(), value[1:-1])
    except ValueError:
        return value
