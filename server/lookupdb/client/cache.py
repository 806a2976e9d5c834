"""A cache of values of the active generation.

A lookup asks ``GenerationCache`` first, and every answer of the active generation goes into it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lookupdb.client.answers import MISSING, decode_json

_ENTRY_BYTES: Final = 200
"""Memory of an entry in addition to its key and its value."""


class GenerationCache:
    """Values of the active generation, as JSON or raw; the least recently used are dropped beyond ``max_bytes``.

    An answer of another generation empties it. It expires ``max_seconds`` after the request whose answer last came from
    its generation. Safe for threads. A value is decoded on each access, so that no caller can change another one's.
    """

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, bytes | tuple[bytes] | None] = OrderedDict()
        """Key → JSON; a raw value as a tuple; None for a missing key."""
        self._generation: str | None = None
        self._adopted_at = 0.0
        """Time of the request whose answer first named the generation. An answer to an earlier request is outdated."""
        self._confirmed_at = 0.0
        self.size = 0
        """Approximate bytes of the entries."""

    def find(self, key: str, now: float) -> tuple[Any, str] | None:
        """Return the value, or MISSING, and its generation; None if unknown."""
        with self._lock:
            if self._generation is None or now - self._confirmed_at > self._max_seconds or key not in self._entries:
                return None
            self._entries.move_to_end(key)
            entry, generation = self._entries[key], self._generation
        return _decode(entry), generation

    def find_many(self, keys: Iterable[str], now: float) -> tuple[dict[str, Any], str] | None:
        """Return the values, or MISSING, of the known ``keys``, and their generation; None if none is known."""
        with self._lock:
            if self._generation is None or now - self._confirmed_at > self._max_seconds:
                return None
            entries = {key: self._entries[key] for key in keys if key in self._entries}
            for key in entries:
                self._entries.move_to_end(key)
            generation = self._generation
        return ({key: _decode(entry) for key, entry in entries.items()}, generation) if entries else None

    def learn(self, generation: str | None, found: Mapping[str, Any], missing: Iterable[str], sent_at: float) -> None:
        """Keep an answer of the active ``generation`` to a request sent at ``sent_at``. None: several generations."""
        encoded = {key: _encode(value) for key, value in found.items()} if generation else {}
        with self._lock:
            if generation != self._generation:
                if sent_at < self._adopted_at:
                    return
                self._entries.clear()
                self.size = 0
                self._generation = generation
                self._adopted_at = self._confirmed_at = sent_at
            self._confirmed_at = max(self._confirmed_at, sent_at)
            if generation is None:
                return
            for key, entry in encoded.items():
                if entry is not None:
                    self._put(key, entry)
            for key in missing:
                self._put(key, None)
            while self.size > self._max_bytes:
                key, dropped = self._entries.popitem(last=False)
                self.size -= _measure(key, dropped)

    def _put(self, key: str, entry: bytes | tuple[bytes] | None) -> None:
        if key in self._entries:
            self.size -= _measure(key, self._entries.pop(key))
        self._entries[key] = entry
        self.size += _measure(key, entry)


def _measure(key: str, entry: bytes | tuple[bytes] | None) -> int:
    value = entry[0] if isinstance(entry, tuple) else entry
    return _ENTRY_BYTES + sys.getsizeof(key) + (len(value) if value is not None else 0)


def _encode(value: Any) -> bytes | tuple[bytes] | None:
    """Return the entry for ``value``; None if JSON with 64-bit numbers cannot hold it."""
    if isinstance(value, bytes):
        return (value,)
    import orjson

    try:
        text = orjson.dumps(value)
    except TypeError:  # a long integer, a lone surrogate, or too deep
        return None
    return None if b"null" in text and _has_infinity(value) else text  # which orjson writes as null


def _has_infinity(value: Any) -> bool:
    """Return whether a JSON value holds an infinite number."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, float) and math.isinf(item):
            return True
        if isinstance(item, dict | list):
            remaining += item.values() if isinstance(item, dict) else item
    return False


def _decode(entry: bytes | tuple[bytes] | None) -> Any:
    if entry is None:
        return MISSING
    return entry[0] if isinstance(entry, tuple) else decode_json(entry)
