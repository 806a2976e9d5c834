"""The twin of the native ``MappedGeneration``: all shards of a generation, read by py-lmdb.

py-lmdb opens a file once in a process, and what it has opened must not be used behind a fork. So all generations of a
process share one reader of each file, and a child opens its own when it first looks something up. Each takes a file
descriptor as long as it is open, which the native files do not. And where an iteration comes to a damaged page, LMDB
ends the process; a lookup that does is an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from lookupdb.errors import CorruptFile
from lookupdb.keys import InvalidKey, shard_number
from lookupdb.mapped.decoders import Decoders
from lookupdb.shardfile import DamagedValue, ShardReader, expand, unframe

_PIECE_BYTES: Final = 1 << 20
_PIECE_RECORDS: Final = 256
"""Of an iteration, so much is read at a time."""


_LOCK: Final = threading.RLock()
"""Held during all use of py-lmdb and of decompressors, by one thread of this process at a time, and while it forks: a
child never finds one in use by a thread that it does not have. Collecting garbage may come here again."""
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class _SharedReader:
    """The reader of one file, for all generations of this process that have it. Closed with the last of them."""

    def __init__(self, path: Path, name: tuple[int, int]) -> None:
        self.path = path
        self.name = name
        """Device and inode of the file."""
        self.uses = 0
        self._reader = ShardReader(path)
        self._pid = os.getpid()

    def reader(self) -> ShardReader:
        """The reader, opened again in a child. Raises as ``ShardReader`` does, and CorruptFile if the file is gone."""
        if self._pid != os.getpid():
            self._reader.close()
            hint = "open the mapping anew, in this process"
            try:
                self._reader = ShardReader(self.path)
            except FileNotFoundError as error:
                raise CorruptFile(f"{self.path} is gone", hint=hint) from error
            if _identify(self.path) != self.name:  # another generation has come to that name
                self._reader.close()
                raise CorruptFile(f"{self.path} is another file than when it was opened", hint=hint)
            self._pid = os.getpid()
        return self._reader

    def close(self) -> None:
        """Unmap the file."""
        self._reader.close()


def _identify(path: Path) -> tuple[int, int]:
    status = path.stat()
    return (status.st_dev, status.st_ino)


class _Readers:
    """The shared readers of this process, by device and inode of their files. Whoever uses them holds the lock."""

    def __init__(self) -> None:
        self._readers: dict[tuple[int, int], _SharedReader] = {}

    def take(self, path: Path) -> tuple[tuple[int, int], _SharedReader]:
        """The reader of ``path``, and its name for ``give_back``. Raises as ``ShardReader``."""
        name = _identify(path)
        shared = self._readers.get(name)
        if shared is None:
            shared = self._readers[name] = _SharedReader(path, name)
        shared.uses += 1
        return name, shared

    def give_back(self, name: tuple[int, int]) -> None:
        """What was taken is not used any more."""
        shared = self._readers[name]
        shared.uses -= 1
        if not shared.uses:
            del self._readers[name]
            shared.close()


_READERS: Final = _Readers()


class PythonGeneration:
    """See ``MappedFiles``."""

    def __init__(
        self,
        paths: list[Path],
        normalize: tuple[str, ...],
        encode: Callable[[str], bytes],
        decoders: Decoders | None,
        facts: Any,
    ) -> None:
        self.facts = facts
        self.decode = decoders.exactly if decoders is not None else None
        self._encode = encode
        self._names: list[tuple[int, int]] = []
        self._shared: list[_SharedReader] = []
        for path in paths:
            with _LOCK:
                name, shared = _READERS.take(path)
                self._names.append(name)
            self._shared.append(shared)
        self.records = sum(map(self.count, range(len(paths))))

    def describe(self, shard: int, name: bytes) -> bytes | None:
        """See ``MappedFiles``."""
        with _LOCK:
            return self._shared[shard].reader().describe(name)

    def count(self, shard: int) -> int:
        """See ``MappedFiles``."""
        with _LOCK:
            return self._shared[shard].reader().pages()["entries"]

    def is_sequence(self) -> bool:
        """See ``MappedFiles``."""
        places = map(_parse_place, (key for _, key, _ in self.iterate()))
        return all(place is not None and place < self.records for place in places)

    def find(self, key: object) -> tuple[int, bytes] | None:
        """The shard of ``key``, and what is stored under it; None if no record has it. Raises CorruptFile."""
        if not isinstance(key, str):
            return None
        try:
            encoded = self._encode(key)
        except InvalidKey:
            return None
        shard = shard_number(encoded, len(self._shared))
        stored = self._read(shard, key, lambda reader: reader.txn.get(encoded))
        return None if stored is None else (shard, stored)

    def make_value(self, shard: int, key: object, stored: bytes, raw: bool) -> Any:
        """The value that ``stored`` is, or is compressed from; decoded unless ``raw``. Raises CorruptFile."""
        try:
            with _LOCK:
                value = unframe(expand(stored, self._shared[shard].reader().inflate))
            return value if raw or self.decode is None else self.decode(value)
        except DamagedValue as problem:
            raise self.facts.describe_damage(shard, key, problem.message) from problem
        except ValueError as problem:
            raise self.facts.describe_damage(shard, key, f"it is no JSON: {problem}") from problem

    def iterate(self) -> Iterator[tuple[int, str, bytes]]:
        """Shard, key and stored value of every record, shards in their order and keys in that of their bytes. Raises
        CorruptFile."""
        for shard in range(len(self._shared)):
            last = b""
            while piece := self._read_piece(shard, last):
                last = piece[-1][0]
                for key, stored in piece:
                    yield shard, self._decode_key(shard, key), stored

    def _read_piece(self, shard: int, last: bytes) -> list[tuple[bytes, bytes]]:
        """Some of the records behind the key ``last``."""
        piece: list[tuple[bytes, bytes]] = self._read(shard, None, lambda reader: _read_items(reader, last))
        return piece

    def _read(self, shard: int, key: object, read: Callable[[ShardReader], Any]) -> Any:
        with _LOCK:
            reader = self._shared[shard].reader()
            try:
                return read(reader)
            except lmdb.Error as problem:
                reader.renew()
                raise self.facts.describe_damage(shard, key, str(problem)) from problem

    def _decode_key(self, shard: int, key: bytes) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError as problem:
            raise self.facts.describe_damage(shard, None, "a key is not UTF-8") from problem

    def __del__(self) -> None:
        with _LOCK:
            for name in self._names:
                _READERS.give_back(name)


def _read_items(reader: ShardReader, last: bytes) -> list[tuple[bytes, bytes]]:
    items: list[tuple[bytes, bytes]] = []
    size = 0
    with reader.txn.cursor() as cursor:
        is_there = cursor.set_range(last) if last else cursor.first()
        while is_there and size < _PIECE_BYTES and len(items) < _PIECE_RECORDS:
            key, stored = cursor.item()
            if key != last:
                items.append((key, stored))
                size += len(stored)
            is_there = cursor.next()
    return items


def _parse_place(key: str) -> int | None:
    """The number that ``key`` is, as Python writes it; None if it is none."""
    is_number = key.isascii() and key.isdecimal() and (key[0] != "0" or key == "0")
    return int(key) if is_number and len(key) < 20 else None


# The twin of the native ``MappedView``: what a caller looks keys up in.


class PythonView:
    """A generation that another one may take the place of. ``follower`` looks whether one should, before a lookup that
    comes ``refresh_seconds`` or more after the last look."""

    def __init__(
        self, generation: PythonGeneration, follower: Any | None = None, refresh_seconds: float | None = None
    ) -> None:
        self._generation: PythonGeneration | None = generation
        self._is_closed = False
        self.follower = follower
        self._looker = None if refresh_seconds is None else follower
        self._interval = refresh_seconds or 0.0
        self._due = time.monotonic() + self._interval

    def put(self, generation: PythonGeneration | None) -> None:
        """Answer from ``generation`` from now on; None: not any more, whatever comes later."""
        if generation is None:
            self._is_closed = True
        self._generation = generation
        if self._is_closed:  # also if another thread closes meanwhile
            self._generation = None

    def current(self) -> PythonGeneration:
        """The generation that answers now, after a look whether there is another one. Raises ValueError if it is
        closed."""
        if self._looker and (now := time.monotonic()) >= self._due and self._generation is not None:
            self._due = now + self._interval
            self._looker.look(self)
        if self._generation is None:
            raise ValueError("the mapping is closed")
        return self._generation

    def newest(self) -> PythonGeneration | None:
        """The generation that answered last, None if it is closed."""
        return self._generation

    def __len__(self) -> int:
        return self.current().records

    def __getitem__(self, key: Any) -> Any:
        return self._look_up(key, False)

    def raw(self, key: Any) -> bytes:
        """The bytes of the value of ``key``, not decoded. Raises KeyError."""
        value: bytes = self._look_up(key, True)
        return value

    def _look_up(self, key: Any, raw: bool) -> Any:
        generation = self.current()
        found = generation.find(key)
        if found is None:
            raise KeyError(key)
        shard, stored = found
        return generation.make_value(shard, key, stored, raw)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if no record has it."""
        generation = self.current()
        found = generation.find(key)
        return default if found is None else generation.make_value(found[0], key, found[1], False)

    def __contains__(self, key: Any) -> bool:
        return self.current().find(key) is not None

    def get_many(self, keys: Iterable[Any], *, raw: bool = False) -> dict[str, Any]:
        """The values of those of ``keys`` that records have, by key, of one generation."""
        generation = self.current()
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys are several texts, found one: {keys!r:.60}; get() takes one")
        values = {}
        for key in keys:
            found = generation.find(key)
            if found is not None:
                values[key] = generation.make_value(found[0], key, found[1], raw)
        return values

    def __iter__(self) -> Iterator[str]:
        return self.iterate("keys")

    def iterate(self, part: str, *, raw: bool = False) -> Iterator[Any]:
        """An iterator over the "keys", "values" or "items" of the generation that answers now."""
        if part not in ("keys", "values", "items"):
            raise ValueError(f"expected keys, values or items, found {part!r}")
        return _iterate(self.current(), part, raw)


def _iterate(generation: PythonGeneration, part: str, raw: bool) -> Iterator[Any]:
    for shard, key, stored in generation.iterate():
        if part == "keys":
            yield key
        else:
            value = generation.make_value(shard, key, stored, raw)
            yield value if part == "values" else (key, value)
