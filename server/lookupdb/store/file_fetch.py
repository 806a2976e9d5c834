"""Fetches the file of one shard from a store into a folder of this machine, verified and synced to the disk.

It runs beside what serves: it leaves disk bandwidth to others, and does not evict their pages from the page cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from lookupdb import disk
from lookupdb.errors import CorruptFile, NotEnoughRoom, StoreError
from lookupdb.manifest import ShardFile
from lookupdb.store.dataset import StoredDataset
from lookupdb.store.directory import folder_errors
from lookupdb.store.retry import call_with_retries

_DROP_EVERY_BYTES: Final = 32 << 20
"""After this many bytes, the written pages are synced and dropped from the page cache."""
_CHUNK: Final = 1 << 20

Pace = Callable[[int], None]
"""Called with the bytes that were read or written; returns when more may be."""


class Throttle:
    """A pace of ``rate`` bytes a second, all threads that keep it together."""

    def __init__(self, rate: int, sleep: Callable[[float], object] = time.sleep) -> None:
        self._rate = rate
        self._sleep = sleep
        self._lock = threading.Lock()
        self._due = 0.0

    def __call__(self, byte_count: int) -> None:
        """Return when ``byte_count`` more bytes may follow."""
        now = time.monotonic()
        with self._lock:
            due = self._due = max(self._due, now) + byte_count / self._rate
        if due > now:
            self._sleep(due - now)


class FileFetch:
    """Fetches files of ``dataset`` into ``folder``, which exists; a store that fails is asked again for ``patience``
    seconds in which nothing comes."""

    def __init__(self, dataset: StoredDataset, folder: Path, pace: Pace, patience: float) -> None:
        self._dataset = dataset
        self._folder = folder
        self._pace = pace
        self._patience = patience

    def run(self, generation: str, entry: ShardFile) -> bool:
        """Fetch the file unless it is there whole; whether it was fetched. It gets its name when it is verified and on
        the disk. Raises StoreError, CorruptFile, FolderDenied, NotEnoughRoom."""
        path = self._folder / entry.file
        if self._is_whole(path, entry):
            return False
        self._check_room(entry)
        self._fetch(generation, entry, path)
        return True

    def _check_room(self, entry: ShardFile) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < entry.bytes:
            raise NotEnoughRoom(
                f"{self._folder} has {free} bytes free, {entry.file} needs {entry.bytes}",
                hint="make room there, or give another folder",
            )

    def _is_whole(self, path: Path, entry: ShardFile) -> bool:
        """Whether an earlier fetch completed ``path``."""
        if not path.is_file() or path.stat().st_size != entry.bytes:
            return False
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                self._pace(len(chunk))
                os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
        return digest.hexdigest() == entry.sha256

    def _fetch(self, generation: str, entry: ShardFile, path: Path) -> None:
        partial = path.with_name(f".{path.name}.partial")
        digest = hashlib.sha256()
        try:
            with folder_errors(f"cannot write {partial}"), partial.open("xb", buffering=0) as file:
                written_bytes = dropped_bytes = 0
                for chunk in self._chunks(generation, entry):
                    write_all(file.fileno(), chunk)
                    digest.update(chunk)
                    written_bytes += len(chunk)
                    self._pace(len(chunk))
                    if written_bytes - dropped_bytes >= _DROP_EVERY_BYTES:
                        dropped_bytes = written_bytes
                        _sync_and_drop_pages(file.fileno())
                os.fchmod(file.fileno(), 0o444)
                _sync_and_drop_pages(file.fileno())
            _check_content(entry, generation, written_bytes, digest.hexdigest())
            with folder_errors(f"cannot write {path}"):
                partial.rename(path)
                disk.sync_folder(self._folder)
        finally:
            partial.unlink(missing_ok=True)

    def _chunks(self, generation: str, entry: ShardFile) -> Iterator[bytes]:
        """The bytes of the file; after an error of the store, resumes where it broke off."""
        received = 0
        source = self._dataset.read(generation, entry)

        def chunk() -> bytes | None:
            nonlocal source
            try:
                return next(source, None)
            except StoreError:
                source = self._dataset.read(generation, entry, received)
                raise

        while received < entry.bytes and (data := call_with_retries(chunk, self._patience)) is not None:
            received += len(data)
            yield data


def _check_content(entry: ShardFile, generation: str, size: int, sha256: str) -> None:
    """Raises CorruptFile if the content differs from what the manifest says."""
    for what, expected, actual in (("bytes", entry.bytes, size), ("sha256", entry.sha256, sha256)):
        if expected != actual:
            raise CorruptFile(
                f"{entry.file} of {generation} has {what} {actual} in the store, its manifest says {expected}",
                hint="the generation is damaged: build another",
            )


def write_all(descriptor: int, data: Any) -> None:
    """Write all of ``data``. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_and_drop_pages(descriptor: int) -> None:
    """Drop the file's pages from the page cache, which takes synced pages only."""
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
