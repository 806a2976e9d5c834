"""All shards of a generation, read by py-lmdb: the Python fallback of the native ``mapped``.

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
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb

from lookupdb.errors import CorruptFile
from lookupdb.keys import InvalidKey, shard_number
from lookupdb.mapped.decoders import Decoders
from lookupdb.shardfile import DamagedValue, ShardReader, expand, unframe

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
            hint = "open the mapping again, in this process"
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


_READERS: Final[dict[tuple[int, int], _SharedReader]] = {}
"""The readers of this process, by device and inode of their files. Whoever uses them holds the lock."""


def _take_reader(path: Path) -> _SharedReader:
    name = _identify(path)
    shared = _READERS.get(name)
    if shared is None:
        shared = _READERS[name] = _SharedReader(path, name)
    shared.uses += 1
    return shared


def _give_back(shared: _SharedReader) -> None:
    shared.uses -= 1
    if not shared.uses:
        del _READERS[shared.name]
        shared.close()


class PythonGeneration:
    """All shards of a generation, mapped: the Python fallback of the native ``MappedGeneration``."""

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
        self._shared: list[_SharedReader] = []
        for path in paths:
            with _LOCK:
                self._shared.append(_take_reader(path))
        self.records = sum(map(self.count, range(len(paths))))

    def describe(self, shard: int, name: bytes) -> bytes | None:
        """Return the metadata ``name`` of that shard's file; None if it has none."""
        with _LOCK:
            return self._shared[shard].reader().describe(name)

    def count(self, shard: int) -> int:
        """Return the number of records of that shard."""
        with _LOCK:
            return self._shared[shard].reader().pages()["entries"]

    def is_sequence(self) -> bool:
        """Return whether the keys are "0", "1" and so on, without a gap. Reads all keys. Raises CorruptFile."""
        return all(_is_place(key, self.records) for _, key, _ in self.iterate())

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

    def make_value(self, shard: int, stored: bytes, key: object, raw: bool) -> Any:
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
            while item := self._read(shard, None, partial(_read_next, last)):
                last, stored = item
                yield shard, self._decode_key(shard, last), stored

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
            for shared in self._shared:
                _give_back(shared)


def _read_next(last: bytes, reader: ShardReader) -> tuple[bytes, bytes] | None:
    """The record behind the key ``last``; the first one behind an empty key."""
    with reader.txn.cursor() as cursor:
        is_there = cursor.set_range(last) if last else cursor.first()
        if is_there and cursor.key() == last:
            is_there = cursor.next()
        return cursor.item() if is_there else None


def _is_place(key: str, records: int) -> bool:
    """Return whether ``key`` is a number below ``records``, as Python writes it."""
    return key.isascii() and key.isdecimal() and len(key) < 20 and str(int(key)) == key and int(key) < records


# The Python fallback of the native ``MappedView``: what a caller looks keys up in.


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
        return self._look_up(key, raw=False)

    def raw(self, key: Any) -> bytes:
        """The bytes of the value of ``key``, not decoded. Raises KeyError."""
        value: bytes = self._look_up(key, raw=True)
        return value

    def _look_up(self, key: Any, *, raw: bool) -> Any:
        generation = self.current()
        found = generation.find(key)
        if found is None:
            raise KeyError(key)
        return generation.make_value(*found, key, raw)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if no record has it."""
        try:
            return self._look_up(key, raw=False)
        except KeyError:
            return default

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
                values[key] = generation.make_value(*found, key, raw)
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
            value = generation.make_value(shard, stored, key, raw)
            yield value if part == "values" else (key, value)
