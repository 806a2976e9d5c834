"""The keys of a client's batch, and the values found for them.

There are two implementations. The native kernels (``PackedKeys`` and related types) keep keys and values in the bytes
that they arrive and leave in. The lists here are the Python fallback. A batch uses one of them from its body to its
answer.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import compress
from typing import Any, Final, Literal, Protocol, TypeAlias

import hiredis

from lookupdb.keys import InvalidKey, shard_numbers


class _Mark(Enum):
    UNAVAILABLE = "unavailable"


UNAVAILABLE: Final = _Mark.UNAVAILABLE
"""The place of a key whose shard could not answer: the key may or may not exist."""

Values: TypeAlias = "list[bytes | Literal[_Mark.UNAVAILABLE] | None]"
"""One entry per key: its value, None if no record has the key, or UNAVAILABLE."""


class ReplyValues(Protocol):
    """The values of a shard's reply, each bytes or None: a list or a native ``ShardReply``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def count(self, value: Any, /) -> int:
        """Return the number of entries that are ``value``."""


class ShardKeys(Protocol):
    """Keys of one shard."""

    @property
    def shard(self) -> int:
        """The number of the shard."""

    @property
    def packed(self) -> bytes:
        """The keys as consecutive RESP bulk strings."""

    @property
    def positions(self) -> list[int]:
        """The position of each key in the batch."""

    def __len__(self) -> int: ...

    def cut(self, start: int, count: int) -> ShardKeys:
        """Return at most ``count`` keys from ``start`` on."""

    def select(self, mask: list[bool]) -> ShardKeys:
        """Return the keys that are true in ``mask``, which has an entry per key."""


class BatchValues(Protocol):
    """The values found for the keys of a batch. A key that nothing was recorded for is missing."""

    @property
    def unavailable_count(self) -> int:
        """The number of unavailable keys."""

    def __len__(self) -> int: ...

    def place(self, keys: Any, values: ReplyValues, offset: int) -> int:
        """Store the values of ``keys`` (ShardKeys), which begin at ``offset`` in ``values``. Return their bytes."""

    def mark_unavailable(self, keys: Any) -> None:
        """Record that ``keys`` (ShardKeys) are unavailable."""

    def to_list(self, unavailable: object) -> Any:
        """Return bytes, None or ``unavailable`` for each key, in the order of the keys."""


class BatchKeys(Protocol):
    """The distinct keys of a client's batch as text."""

    def __len__(self) -> int: ...

    def to_list(self) -> list[str]:
        """Return the keys in order."""

    def group(self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int) -> Sequence[ShardKeys]:
        """Group by shard the keys that a record can have, in the order in which shards first appear. ``encode`` is
        ``keys.make_key_encoder(normalize)``."""

    def make_values(self) -> BatchValues:
        """Make a place for the value of each key."""


class ListedShardKeys:
    """Keys of one shard as a list of bytes: a ``ShardKeys``."""

    __slots__ = ("keys", "positions", "shard")

    def __init__(self, shard: int, keys: list[bytes], positions: list[int]) -> None:
        self.shard = shard
        self.keys = keys
        self.positions = positions

    @property
    def packed(self) -> bytes:
        """The keys as consecutive RESP bulk strings."""
        command: bytes = hiredis.pack_command(tuple(self.keys))  # type: ignore[arg-type]
        return command[command.index(b"\n") + 1 :]

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, count: int) -> ListedShardKeys:
        """Return at most ``count`` keys from ``start`` on."""
        end = start + count
        return ListedShardKeys(self.shard, self.keys[start:end], self.positions[start:end])

    def select(self, mask: list[bool]) -> ListedShardKeys:
        """Return the keys that are true in ``mask``."""
        return ListedShardKeys(self.shard, list(compress(self.keys, mask)), list(compress(self.positions, mask)))


class ListedValues:
    """A list with one place per key: a ``BatchValues``."""

    __slots__ = ("unavailable_count", "values")

    def __init__(self, key_count: int) -> None:
        self.values: list[Any] = [None] * key_count
        self.unavailable_count = 0

    def __len__(self) -> int:
        return len(self.values)

    def place(self, keys: ListedShardKeys, values: ReplyValues, offset: int) -> int:
        """Store the values of ``keys``."""
        own_values = values[offset : offset + len(keys.positions)]
        gathered = self.values
        for position, value in zip(keys.positions, own_values, strict=True):
            gathered[position] = value
        return sum(map(len, filter(None, own_values)))

    def mark_unavailable(self, keys: ListedShardKeys) -> None:
        """Record that ``keys`` are unavailable."""
        self.unavailable_count += len(keys.positions)
        for position in keys.positions:
            self.values[position] = UNAVAILABLE

    def to_list(self, unavailable: object = UNAVAILABLE) -> Values:
        """Return the values in the order of the keys."""
        return self.values


class ListedKeys:
    """A list of texts: a ``BatchKeys``."""

    __slots__ = ("texts",)

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def to_list(self) -> list[str]:
        """Return the keys in order."""
        return self.texts

    def group(self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int) -> list[ListedShardKeys]:
        """Group by shard the keys that a record can have."""
        encoded, positions = _encode(self.texts, encode)
        indexes_of: defaultdict[int, list[int]] = defaultdict(list)
        for index, number in enumerate(shard_numbers(encoded, shards)):
            indexes_of[number].append(index)
        return [
            ListedShardKeys(
                number,
                list(map(encoded.__getitem__, indexes)),
                indexes if positions is None else list(map(positions.__getitem__, indexes)),
            )
            for number, indexes in indexes_of.items()
        ]

    def make_values(self) -> ListedValues:
        """Make a place for the value of each key."""
        return ListedValues(len(self.texts))


def _encode(keys: list[str], encode: Callable[[str], bytes]) -> tuple[list[bytes], list[int] | None]:
    """Return the keys that a record can have as bytes, and their positions among ``keys``, or None if these are all."""
    try:
        return [encode(key) for key in keys], None
    except InvalidKey:
        encoded: list[bytes] = []
        positions: list[int] = []
        for position, key in enumerate(keys):
            with contextlib.suppress(InvalidKey):
                encoded.append(encode(key))
                positions.append(position)
        return encoded, positions


NO_KEYS: Final[ShardKeys] = ListedShardKeys(0, [], [])
NO_VALUES: Final[BatchValues] = ListedValues(0)
