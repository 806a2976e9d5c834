"""Values that were looked up, kept for as long as the generation that they are of is known to be the active one.

A lookup asks ``GenerationCache`` first, and every answer of the active generation that comes back goes into it.
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
"""What an entry takes beside its key and its value."""


class GenerationCache:
    """Values of the active generation, as JSON or raw, the least recently used of them dropped beyond ``max_bytes``.

    It is emptied when an answer comes from another generation. It says nothing ``max_seconds`` after the last answer
    of its generation was asked for. Safe for threads. A value is decoded again each time, so that no caller can change
    another one's.
    """

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, bytes | tuple[bytes] | None] = OrderedDict()
        """JSON; a raw value as a tuple; None for a missing key."""
        self._generation: str | None = None
        self._adopted_at = 0.0
        """When what first named the generation was asked for: an answer that was asked for before, and comes later, is
        older news."""
        self._confirmed_at = 0.0
        self.size = 0
        """Bytes that the entries take, about."""

    def find(self, key: str, now: float) -> tuple[Any, str] | None:
        """Value, or MISSING, and generation; None if nothing is known."""
        with self._lock:
            if self._generation is None or now - self._confirmed_at > self._max_seconds or key not in self._entries:
                return None
            self._entries.move_to_end(key)
            entry, generation = self._entries[key], self._generation
        return _decode(entry), generation

    def find_many(self, keys: Iterable[str], now: float) -> tuple[dict[str, Any], str] | None:
        """The values, or MISSING, of those of ``keys`` that are known, and their generation; None if none are."""
        with self._lock:
            if self._generation is None or now - self._confirmed_at > self._max_seconds:
                return None
            entries = {key: self._entries[key] for key in keys if key in self._entries}
            for key in entries:
                self._entries.move_to_end(key)
            generation = self._generation
        return ({key: _decode(entry) for key, entry in entries.items()}, generation) if entries else None

    def learn(self, generation: str | None, found: Mapping[str, Any], missing: Iterable[str], sent_at: float) -> None:
        """Take an answer of the active generation to a request that was sent at ``sent_at``. None: of several."""
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
    """None for what JSON of 64 bits cannot hold."""
    if isinstance(value, bytes):
        return (value,)
    import orjson

    try:
        text = orjson.dumps(value)
    except TypeError:  # a long integer, a lone surrogate, or too deep
        return None
    return None if b"null" in text and _has_infinity(value) else text  # which orjson writes as null


def _has_infinity(value: Any) -> bool:
    """Whether a value of JSON has a number that no float holds."""
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
