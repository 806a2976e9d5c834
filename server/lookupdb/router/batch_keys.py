"""The keys of a client's batch and the values that are found for them, as the lookup core hands them on.

Two kinds do the same. The native kernels (``PackedKeys`` and its like) keep texts, keys and values as the bytes that
they come and leave as; the lists here are their twins. A batch is of one kind from its body to its answer.
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
"""Stands in a batch for a key whose shard could not be asked: it may or may not exist."""

Values: TypeAlias = "list[bytes | Literal[_Mark.UNAVAILABLE] | None]"
"""One entry a key: its value, None when no record has the key, or UNAVAILABLE."""


class ReplyValues(Protocol):
    """The values of a shard's reply, each bytes or None: a list, or a native kernel's ``ShardReply``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def count(self, value: Any, /) -> int:
        """How many are ``value``."""


class ShardKeys(Protocol):
    """Keys of one shard."""

    @property
    def shard(self) -> int:
        """Its number."""

    @property
    def packed(self) -> bytes:
        """The keys as RESP bulk strings, one after the other."""

    @property
    def positions(self) -> list[int]:
        """Of each key, its position among those of the batch."""

    def __len__(self) -> int: ...

    def cut(self, start: int, count: int) -> ShardKeys:
        """Those from ``start`` on, at most ``count``."""

    def select(self, mask: list[bool]) -> ShardKeys:
        """Those of which ``mask``, which is as long, says so."""


class BatchValues(Protocol):
    """What has been found for the keys of a batch. A key of which nothing was told is missing."""

    @property
    def unavailable_count(self) -> int:
        """How many keys nothing can be said of."""

    def __len__(self) -> int: ...

    def place(self, keys: Any, values: ReplyValues, offset: int) -> int:
        """Put the values of ``keys``, ShardKeys, where they belong: those of ``values`` from ``offset`` on. How many
        bytes they have."""

    def mark_unavailable(self, keys: Any) -> None:
        """Note that nothing can be said of ``keys``, ShardKeys."""

    def to_list(self, unavailable: object) -> Any:
        """In the order of the keys: bytes, None, or ``unavailable``."""


class BatchKeys(Protocol):
    """The distinct keys of a client's batch, as text."""

    def __len__(self) -> int: ...

    def to_list(self) -> list[str]:
        """In their order."""

    def group(self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int) -> Sequence[ShardKeys]:
        """The keys that a record can have, by shard, in the order in which shards come first. ``encode`` is
        ``keys.make_key_encoder(normalize)``."""

    def make_values(self) -> BatchValues:
        """A place for the value of each key."""


class ListedShardKeys:
    """Keys of one shard, each as bytes. A ``ShardKeys``."""

    __slots__ = ("keys", "positions", "shard")

    def __init__(self, shard: int, keys: list[bytes], positions: list[int]) -> None:
        self.shard = shard
        self.keys = keys
        self.positions = positions

    @property
    def packed(self) -> bytes:
        """The keys as RESP bulk strings, one after the other."""
        command: bytes = hiredis.pack_command(tuple(self.keys))  # type: ignore[arg-type]
        return command[command.index(b"\n") + 1 :]

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, count: int) -> ListedShardKeys:
        """Those from ``start`` on, at most ``count``."""
        end = start + count
        return ListedShardKeys(self.shard, self.keys[start:end], self.positions[start:end])

    def select(self, mask: list[bool]) -> ListedShardKeys:
        """Those of which ``mask`` says so."""
        return ListedShardKeys(self.shard, list(compress(self.keys, mask)), list(compress(self.positions, mask)))


class ListedValues:
    """A list with one place a key. A ``BatchValues``."""

    __slots__ = ("unavailable_count", "values")

    def __init__(self, key_count: int) -> None:
        self.values: list[Any] = [None] * key_count
        self.unavailable_count = 0

    def __len__(self) -> int:
        return len(self.values)

    def place(self, keys: ListedShardKeys, values: ReplyValues, offset: int) -> int:
        """Put the values of ``keys`` where they belong."""
        own_values = values[offset : offset + len(keys.positions)]
        gathered = self.values
        for position, value in zip(keys.positions, own_values, strict=True):
            gathered[position] = value
        return sum(map(len, filter(None, own_values)))

    def mark_unavailable(self, keys: ListedShardKeys) -> None:
        """Note that nothing can be said of ``keys``."""
        self.unavailable_count += len(keys.positions)
        for position in keys.positions:
            self.values[position] = UNAVAILABLE

    def to_list(self, unavailable: object = UNAVAILABLE) -> Values:
        """In the order of the keys."""
        return self.values


class ListedKeys:
    """A list of texts. A ``BatchKeys``."""

    __slots__ = ("texts",)

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def to_list(self) -> list[str]:
        """In their order."""
        return self.texts

    def group(self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int) -> list[ListedShardKeys]:
        """The keys that a record can have, by shard."""
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
        """A place for the value of each key."""
        return ListedValues(len(self.texts))


def _encode(keys: list[str], encode: Callable[[str], bytes]) -> tuple[list[bytes], list[int] | None]:
    """The keys that a record can have, as bytes, and their positions among ``keys``, None when these are all."""
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
