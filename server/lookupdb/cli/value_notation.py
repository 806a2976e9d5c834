"""How ``inspect`` and ``diff`` write keys and values: text as it is, other bytes as Python has them."""

from __future__ import annotations

import codecs
from typing import Final

from lookupdb.store.difference import MAX_VALUE_BYTES, MAX_VALUE_CHARACTERS
from lookupdb.wording import needs_escape, shorten

_ELLIPSIS: Final = "…"


def render_line(data: bytes, characters: int = MAX_VALUE_CHARACTERS) -> str:
    """Return ``data`` in one line of so many characters, and an ellipsis if there is more.

    Text is as it is. If it has control characters, these are escaped, as \\n or \\x1b, and a backslash is \\\\. What is
    not UTF-8 is in quotes, as Python writes bytes: '\\x89PNG'.
    """
    text = _decode(data)
    if text is None:
        return _render_bytes(data, characters)
    if not any(map(needs_escape, text)):
        return shorten(text, characters)
    return _escape(text, characters)


def render_member(data: bytes) -> str:
    """Return ``data`` as a string of a JSON document: text as it is, what is not UTF-8 as ``render_line`` has it. A
    long one is cut."""
    text = _decode(data)
    return _render_bytes(data, MAX_VALUE_CHARACTERS) if text is None else shorten(text, MAX_VALUE_CHARACTERS)


def _decode(data: bytes) -> str | None:
    """The text; None if ``data`` is not UTF-8. A sample of a longer value may end within a character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < MAX_VALUE_BYTES)
    except UnicodeDecodeError:
        return None


def _escape(text: str, characters: int) -> str:
    line = ""
    for character in text:
        is_escaped = character == "\\" or needs_escape(character)
        shown = character.encode("unicode_escape").decode() if is_escaped else character
        if len(line) + len(shown) > characters:
            return line + _ELLIPSIS
        line += shown
    return line


def _render_bytes(data: bytes, characters: int) -> str:
    """As Python writes bytes, without the b; only whole bytes are shown."""
    kept, shown = data, repr(data)[1:]
    while (excess := len(shown) - characters) > 0:
        kept = kept[: -((excess + 3) // 4)]  # a byte has at most four characters
        shown = repr(kept)[1:]
    return shown if len(kept) == len(data) else shown + _ELLIPSIS
