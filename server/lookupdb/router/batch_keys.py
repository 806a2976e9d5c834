"""The keys of a client's batch, and the values found for them.

The classes here are the Python fallback. The native ``PackedKeys`` and related types have the same methods, and keep
keys and values in the bytes that they arrive and leave in. A batch uses one kind from its body to its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import compress
from typing import Any, Final, Literal, TypeAlias

from lookupdb.keys import InvalidKey, shard_number
from lookupdb.resp.requests import bulk


class _Mark(Enum):
    UNAVAILABLE = "unavailable"


UNAVAILABLE: Final = _Mark.UNAVAILABLE
"""The place of a key whose shard could not answer: the key may or may not exist."""

Values: TypeAlias = "list[bytes | Literal[_Mark.UNAVAILABLE] | None]"
"""One entry per key: its value, None if no record has the key, or UNAVAILABLE."""


ReplyValues: TypeAlias = "list[Any]"
"""The values of a shard's reply, each bytes or None. A native ``ShardReply`` has what is used of a list."""


class ShardKeys:
    """Keys of one shard."""

    __slots__ = ("keys", "positions", "shard")

    def __init__(self, shard: int, keys: list[bytes], positions: list[int]) -> None:
        self.shard = shard
        self.keys = keys
        self.positions = positions
        """The position of each key in the batch."""

    @property
    def packed(self) -> bytes:
        """The keys as consecutive RESP bulk strings."""
        return b"".join(map(bulk, self.keys))

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, count: int) -> ShardKeys:
        """Return at most ``count`` keys from ``start`` on."""
        end = start + count
        return ShardKeys(self.shard, self.keys[start:end], self.positions[start:end])

    def select(self, mask: list[bool]) -> ShardKeys:
        """Return the keys that are true in ``mask``, which has an entry per key."""
        return ShardKeys(self.shard, list(compress(self.keys, mask)), list(compress(self.positions, mask)))


class BatchValues:
    """The values found for the keys of a batch. A key that nothing was recorded for is missing."""

    __slots__ = ("unavailable_count", "values")

    def __init__(self, key_count: int) -> None:
        self.values: list[Any] = [None] * key_count
        self.unavailable_count = 0

    def __len__(self) -> int:
        return len(self.values)

    def place(self, keys: ShardKeys, values: ReplyValues, offset: int) -> int:
        """Store the values of ``keys``, which begin at ``offset`` in ``values``. Return their bytes."""
        own_values = values[offset : offset + len(keys)]
        for position, value in zip(keys.positions, own_values, strict=True):
            self.values[position] = value
        return sum(len(value) for value in own_values if value is not None)

    def mark_unavailable(self, keys: ShardKeys) -> None:
        """Record that ``keys`` are unavailable."""
        self.unavailable_count += len(keys)
        for position in keys.positions:
            self.values[position] = UNAVAILABLE

    def to_list(self, unavailable: object = UNAVAILABLE) -> Values:
        """Return bytes, None or ``unavailable`` for each key, in the order of the keys."""
        return self.values


class BatchKeys:
    """The distinct keys of a client's batch as text."""

    __slots__ = ("texts",)

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def to_list(self) -> list[str]:
        """Return the keys in order."""
        return self.texts

    def group(self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int) -> list[ShardKeys]:
        """Group by shard the keys that a record can have, in the order in which shards first appear. ``encode`` is
        ``keys.make_key_encoder(normalize)``."""
        groups: dict[int, ShardKeys] = {}
        for position, text in enumerate(self.texts):
            try:
                key = encode(text)
            except InvalidKey:
                continue
            number = shard_number(key, shards)
            group = groups.setdefault(number, ShardKeys(number, [], []))
            group.keys.append(key)
            group.positions.append(position)
        return list(groups.values())

    def make_values(self) -> BatchValues:
        """Make a place for the value of each key."""
        return BatchValues(len(self.texts))


NO_KEYS: Final = ShardKeys(0, [], [])
NO_VALUES: Final = BatchValues(0)
