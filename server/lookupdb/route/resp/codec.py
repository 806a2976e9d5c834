"""The bytes of lookups: from what a client sends to keys, from values to replies.

``PackedCodec`` does it with the native kernels, ``ListedCodec`` is their twin. What is no lookup, or not written as
clients write it, is read by the same code for both.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, Final, Protocol

from lookupdb import native
from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.resp.replies import CRLF
from lookupdb.resp.requests import keys_of_mget
from lookupdb.route.lookups.batch_keys import UNAVAILABLE, BatchKeys, ListedKeys, ListedValues

OTHER: Final = 0
"""Anything else, or nothing."""
PART: Final = 1
"""The beginning of a lookup, or of any other command, whose end has not arrived."""
GETS: Final = 2
"""One GET or more."""
MGET: Final = 3
"""One MGET."""

MAX_WORDS: Final = 16_384
"""Of an MGET that is read here."""
_GET: Final = re.compile(rb"\*2\r\n\$3\r\n[Gg][Ee][Tt]\r\n\$([1-9][0-9]{0,2})\r\n")
_LINE: Final = re.compile(rb".?(0|[1-9][0-9]{0,5})?(?:(?<=[0-9])(\r\n)|(?<=[0-9])\r\Z|\Z)", re.DOTALL)
"""A line of a number behind its first byte, or its beginning."""
_MAX_LINE_BYTES: Final = 9
"""More than any such line has."""


class LookupCodec(Protocol):
    """Reads and answers lookups of one kind."""

    def cut(self, data: bytes, start: int, most: int) -> tuple[int, int, BatchKeys | None]:
        """What stands at ``start``, where it ends, and its keys: of GETs, at most ``most``, or of an MGET. The end of
        anything else is ``start``."""

    def make_keys(self, keys: list[bytes]) -> BatchKeys:
        """Keys of a command that was read otherwise. What is no UTF-8 is a key that no record has."""

    def count_found(self, values: Any) -> int:
        """How many of ``values``, BatchValues, there are."""

    def encode(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> bytes:
        """The replies to lookups: each value as a bulk string, or ``nil`` if it is missing, or ``error`` if it is
        unavailable; ``is_list``: as one list."""

    def encode_in_pieces(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> list[bytes]:
        """The same in pieces that follow each other, without a copy of any large value. Empties ``values``."""


def choose_codec() -> LookupCodec:
    """The native kernels' if they are to be used, or their twin."""
    kernels = native.kernels()
    return ListedCodec() if kernels is None else PackedCodec(kernels)


class PackedCodec:
    """Lookups by the native kernels. A ``LookupCodec``."""

    def __init__(self, kernels: ModuleType) -> None:
        self.cut = kernels.PackedKeys.cut
        self.make_keys = kernels.PackedKeys.from_bytes

    def count_found(self, values: Any) -> int:
        """How many there are."""
        count: int = values.found_count
        return count

    def encode(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> bytes:
        """The replies."""
        replies: bytes = values.encode_replies(is_list, nil, error)
        return replies

    def encode_in_pieces(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> list[bytes]:
        """The replies in pieces."""
        pieces: list[bytes] = values.encode_replies_in_pieces(is_list, nil, error)
        return pieces


class ListedCodec:
    """Lookups by Python. A ``LookupCodec``."""

    def cut(self, data: bytes, start: int, most: int) -> tuple[int, int, BatchKeys | None]:
        """What stands at ``start``, where it ends, and its keys."""
        keys, end = _read_gets(data, start, most)
        if keys:
            return GETS, end, self.make_keys(keys)
        if start == len(data):
            return OTHER, start, None
        whole = keys_of_mget(data) if not start else None
        if whole is not None and len(whole) < MAX_WORDS:
            return MGET, len(data), self.make_keys(whole)
        try:
            keys, end = _read_mget(data, start)
        except _Stop as stop:
            return stop.kind, start, None
        return MGET, end, self.make_keys(keys)

    def make_keys(self, keys: list[bytes]) -> BatchKeys:
        """Keys of a command."""
        return ListedKeys([key.decode("utf-8", "surrogateescape") for key in keys])

    def count_found(self, values: ListedValues) -> int:
        """How many there are."""
        return len(values.values) - values.values.count(None) - values.unavailable_count

    def encode(self, values: ListedValues, nil: bytes, error: bytes, *, is_list: bool) -> bytes:
        """The replies."""
        return b"".join(self.encode_in_pieces(values, nil, error, is_list=is_list))

    def encode_in_pieces(self, values: ListedValues, nil: bytes, error: bytes, *, is_list: bool) -> list[bytes]:
        """The replies in pieces."""
        gathered = values.values
        pieces = [b"*%d\r\n" % len(gathered)] if is_list else []
        for place, value in enumerate(gathered):
            gathered[place] = None
            if value is None:
                pieces.append(nil)
            elif value is UNAVAILABLE:
                pieces.append(error)
            else:
                pieces += (b"$%d\r\n" % len(value), value, CRLF)
        return pieces


class _Stop(Exception):
    """There is no whole MGET."""

    def __init__(self, kind: int) -> None:
        self.kind = kind


def _read_gets(data: bytes, start: int, most: int) -> tuple[list[bytes], int]:
    """The keys of the GETs at ``start``, and where they end."""
    keys: list[bytes] = []
    while len(keys) < most and (head := _GET.match(data, start)) is not None:
        end = head.end() + int(head[1])
        if end - head.end() > MAX_KEY_BYTES or data[end : end + 2] != CRLF:
            break
        keys.append(data[head.end() : end])
        start = end + 2
    return keys, start


def _read_mget(data: bytes, start: int) -> tuple[list[bytes], int]:
    """The keys of the MGET at ``start``, and where it ends. Raises _Stop."""
    count, start = _read_number(data, start, b"*", MAX_WORDS)
    if count < 2:
        raise _Stop(OTHER)  # at once: behind a command without a word no word of it follows
    name, start = _read_word(data, start)
    if name.upper() != b"MGET" and (count, name.upper()) != (2, b"GET"):
        raise _Stop(OTHER)
    keys = []  # of a GET none: it is not whole, or a word of it is none that is read here
    for _ in range(1, count):
        key, start = _read_word(data, start)
        keys.append(key)
    return keys, start


def _read_word(data: bytes, start: int) -> tuple[bytes, int]:
    """The bulk string at ``start``, which may be a key, and where it ends. Raises _Stop."""
    length, start = _read_number(data, start, b"$", MAX_KEY_BYTES)
    end = start + length
    line_end = data[end : end + 2]
    if not length or not CRLF.startswith(line_end):
        raise _Stop(OTHER)
    if line_end != CRLF:
        raise _Stop(PART)
    return data[start:end], end + 2


def _read_number(data: bytes, start: int, prefix: bytes, most: int) -> tuple[int, int]:
    """The line of ``prefix`` and a number up to ``most`` at ``start``, and where it ends. Raises _Stop."""
    line = data[start : start + _MAX_LINE_BYTES]
    found = _LINE.match(line)
    if found is None or line[:1] not in (prefix, b"") or int(found[1] or b"0") > most:
        raise _Stop(OTHER)
    if not found[2]:
        raise _Stop(PART if found.end() == len(line) else OTHER)
    return int(found[1]), start + found.end()
