"""All shards of a generation, read by py-lmdb: the Python fallback of the native ``mapped``.

py-lmdb can open a file only once in a process, and must not use it after a fork. So all generations of a process share
one reader of each file, and a child opens its own at its first lookup. Each reader holds a file descriptor, unlike the
native files. If an iteration reaches a damaged page, LMDB ends the process; a lookup raises an error.
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
from lookupdb.records import Key
from lookupdb.shardfile import DamagedValue, ShardReader, expand, unframe

_LOCK: Final = threading.RLock()
"""Threads hold this lock while they use py-lmdb or a decompressor. A fork takes it too: the child does not have the
other threads, so a use that the fork interrupts would never end there. Garbage collection may take it a second time in
the same thread.
"""
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class _SharedReader:
    """The reader of one file, for all generations of this process that have the file. The last one closes it."""

    def __init__(self, path: Path, name: tuple[int, int]) -> None:
        self.path = path
        self.name = name
        """Device and inode of the file."""
        self.uses = 0
        self._reader = ShardReader(path)
        self._pid = os.getpid()

    def reader(self) -> ShardReader:
        """Return the reader, opened again in a child. Raises as ``ShardReader``; CorruptFile if the file is gone."""
        if self._pid != os.getpid():
            self._reader.close()
            hint = "open the mapping again, in this process"
            try:
                self._reader = ShardReader(self.path)
            except FileNotFoundError as error:
                raise CorruptFile(f"{self.path} is gone", hint=hint) from error
            if _identify(self.path) != self.name:  # another generation has that name
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
"""The readers of this process, by device and inode of their files. Their users hold the lock."""


class PythonGeneration:
    """All shards of a generation, mapped: the Python fallback of the native ``MappedGeneration``."""

    def __init__(
        self, paths: list[Path], normalize: tuple[str, ...], encode: Callable[[Key], bytes], decoders: Any, facts: Any
    ) -> None:
        self.facts = facts
        self.decode: Callable[[bytes], Any] | None = decoders and decoders.exactly
        self._encode = encode
        self._shared: list[_SharedReader] = []
        for path in paths:
            with _LOCK:
                name = _identify(path)
                shared = _READERS.get(name)
                if shared is None:
                    shared = _READERS[name] = _SharedReader(path, name)
                shared.uses += 1
                self._shared.append(shared)
        self.records = sum(map(self.count, range(len(paths))))

    def describe(self, shard: int, name: bytes) -> bytes | None:
        """Return the metadata ``name`` of the shard's file; None if the file lacks it."""
        with _LOCK:
            return self._shared[shard].reader().describe(name)

    def count(self, shard: int) -> int:
        """Return the number of records of ``shard``."""
        with _LOCK:
            return self._shared[shard].reader().pages()["entries"]

    def is_sequence(self) -> bool:
        """Return whether the keys are "0", "1" and so on, without a gap. Reads all keys. Raises CorruptFile."""
        return all(
            key.isascii() and key.isdecimal() and len(key) < 20 and str(int(key)) == key and int(key) < self.records
            for _, key, _ in self.iterate()
        )

    def find(self, key: object) -> tuple[int, bytes] | None:
        """Return the shard of ``key`` and its stored value; None if there is no such record. Raises CorruptFile."""
        if not isinstance(key, str | tuple):
            return None
        try:
            encoded = self._encode(key)
        except InvalidKey:
            return None
        shard = shard_number(encoded, len(self._shared))
        stored = self._read(shard, key, lambda reader: reader.txn.get(encoded))
        return None if stored is None else (shard, stored)

    def make_value(self, shard: int, stored: bytes, key: object, raw: bool) -> Any:
        """Return the value that is ``stored``, uncompressed, and decoded unless ``raw``. Raises CorruptFile."""
        try:
            with _LOCK:
                value = unframe(expand(stored, self._shared[shard].reader().inflate))
            return value if raw or self.decode is None else self.decode(value)
        except DamagedValue as problem:
            raise self.facts.describe_damage(shard, key, problem.message) from problem
        except ValueError as problem:
            raise self.facts.describe_damage(shard, key, f"it is not JSON: {problem}") from problem

    def iterate(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield shard, key and stored value of every record, ordered by shard and then by the keys' bytes. Raises
        CorruptFile."""
        for shard in range(len(self._shared)):
            last = b""
            while item := self._read(shard, None, partial(_read_next, last)):
                last, stored = item
                try:
                    key = last.decode()
                except UnicodeDecodeError as problem:
                    raise self.facts.describe_damage(shard, None, "a key is not UTF-8") from problem
                yield shard, key, stored

    def _read(self, shard: int, key: object, read: Callable[[ShardReader], Any]) -> Any:
        with _LOCK:
            reader = self._shared[shard].reader()
            try:
                return read(reader)
            except lmdb.Error as problem:
                reader.renew()
                raise self.facts.describe_damage(shard, key, str(problem)) from problem

    def __del__(self) -> None:
        with _LOCK:
            for shared in self._shared:
                shared.uses -= 1
                if not shared.uses:
                    del _READERS[shared.name]
                    shared.close()


def _read_next(last: bytes, reader: ShardReader) -> tuple[bytes, bytes] | None:
    """Return the record after the key ``last``; the first one for an empty key."""
    with reader.txn.cursor() as cursor:
        is_there = cursor.set_range(last) if last else cursor.first()
        if is_there and cursor.key() == last:
            is_there = cursor.next()
        return cursor.item() if is_there else None


class PythonView:
    """A generation that another one may replace: the Python fallback of the native ``MappedView``. ``follower`` checks
    for another before a lookup if ``refresh_seconds`` have passed since its last check."""

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
        """Switch to ``generation``; None closes the view for good."""
        if generation is None:
            self._is_closed = True
        self._generation = generation
        if self._is_closed:  # also if another thread closes meanwhile
            self._generation = None

    def current(self) -> PythonGeneration:
        """Return the current generation, after checking for a newer one. Raises ValueError if closed."""
        if self._looker and (now := time.monotonic()) >= self._due and self._generation is not None:
            self._due = now + self._interval
            self._looker.look(self)
        if self._generation is None:
            raise ValueError("the mapping is closed")
        return self._generation

    def newest(self) -> PythonGeneration | None:
        """Return the current generation, without checking for a newer one; None if closed."""
        return self._generation

    def __len__(self) -> int:
        return self.current().records

    def __getitem__(self, key: Any) -> Any:
        return self._look_up(key, raw=False)

    def raw(self, key: Any) -> bytes:
        """Return the bytes of the value of ``key``, not decoded. Raises KeyError."""
        value: bytes = self._look_up(key, raw=True)
        return value

    def _look_up(self, key: Any, *, raw: bool) -> Any:
        generation = self.current()
        found = generation.find(key)
        if found is None:
            raise KeyError(key)
        return generation.make_value(*found, key, raw)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default`` if there is no such record."""
        try:
            return self._look_up(key, raw=False)
        except KeyError:
            return default

    def __contains__(self, key: Any) -> bool:
        return self.current().find(key) is not None

    def get_many(self, keys: Iterable[Any], *, raw: bool = False) -> dict[str, Any]:
        """Return the values of those ``keys`` that exist, by key, all of one generation."""
        generation = self.current()
        if isinstance(keys, str | bytes):
            raise TypeError(f"get_many() takes several keys, found one text: {keys!r:.60}; get() takes one key")
        values = {}
        for key in keys:
            found = generation.find(key)
            if found is not None:
                values[key] = generation.make_value(*found, key, raw)
        return values

    def __iter__(self) -> Iterator[str]:
        return self.iterate("keys")

    def iterate(self, part: str, *, raw: bool = False) -> Iterator[Any]:
        """Return an iterator over the "keys", "values" or "items" of the current generation."""
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
