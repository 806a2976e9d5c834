"""Fetches one shard of a generation from a store into the folder that a shard server serves from.

It runs beside what serves: it leaves disk bandwidth to others, and does not evict their pages from the page cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lookupdb import disk
from lookupdb.errors import CorruptFile, NotEnoughRoom, StoreError, UsageError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.shard_name import is_file_name
from lookupdb.store.dataset import StoredDataset
from lookupdb.store.directory import store_errors
from lookupdb.store.retry import call_with_retries

PATIENCE_SECONDS: Final = 20.0
"""How long a store may fail without sending a byte before a fetch gives up."""
_DROP_EVERY_BYTES: Final = 32 << 20
"""After this many bytes, the written pages are synced and dropped from the page cache."""
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The outcome of a fetch. Present: the whole file was there already."""

    outcome: Literal["fetched", "present"]
    file: str
    bytes: int
    seconds: float


class ShardFetch:
    """Fetches one shard into ``folder``, with at most ``rate`` bytes per second."""

    def __init__(self, dataset: StoredDataset, folder: Path, *, rate: int, patience: float = PATIENCE_SECONDS) -> None:
        self._dataset = dataset
        self._folder = folder
        self._rate = rate
        self._patience = patience
        self._began = time.monotonic()
        self._byte_count = 0

    def run(self, generation: str, number: int) -> FetchResult:
        """Fetch the shard's file, verify it, then write manifest.json: both are needed to serve.

        A whole file that is there already is not fetched again. Raises StoreError, CorruptFile, NotEnoughRoom, and
        UsageError if the generation has no such shard.
        """
        manifest = call_with_retries(lambda: self._dataset.manifest(generation), self._patience)
        shards = manifest.shards
        if number >= len(shards):
            raise UsageError(f"there is no shard {number} in {generation}: it has 0 to {len(shards) - 1}")
        entry = shards[number]
        path = self._folder / entry.file
        with store_errors(f"cannot write to {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_other_files(manifest)
        present = self._is_whole(path, entry)
        if not present:
            self._check_room(entry)
            self._fetch(generation, entry, path)
        self._write(manifest)
        seconds = round(time.monotonic() - self._began, 3)
        return FetchResult("present" if present else "fetched", entry.file, entry.bytes, seconds)

    def _remove_other_files(self, manifest: Manifest) -> None:
        """Remove the manifest and the shards of another generation, and the remains of other fetches."""
        path = self._folder / FILE_NAME
        if path.exists() and path.read_bytes() != manifest.to_json():
            path.unlink()
        ours = {shard.file for shard in manifest.shards}
        for file in self._folder.iterdir():
            is_partial = file.name.startswith(".") and file.suffix == ".partial"
            if is_partial or (is_file_name(file.name) and file.name not in ours):
                file.unlink(missing_ok=True)

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
                self._throttle(len(chunk))
                os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
        return digest.hexdigest() == entry.sha256

    def _fetch(self, generation: str, entry: ShardFile, path: Path) -> None:
        partial = path.with_name(f".{path.name}.partial")
        digest = hashlib.sha256()
        try:
            with store_errors(f"cannot write {partial}"), partial.open("xb", buffering=0) as file:
                written_bytes = dropped_bytes = 0
                for chunk in self._chunks(generation, entry):
                    _write_all(file.fileno(), chunk)
                    digest.update(chunk)
                    written_bytes += len(chunk)
                    self._throttle(len(chunk))
                    if written_bytes - dropped_bytes >= _DROP_EVERY_BYTES:
                        dropped_bytes = written_bytes
                        _sync_and_drop_pages(file.fileno())
                os.fchmod(file.fileno(), 0o444)
                _sync_and_drop_pages(file.fileno())
            _check_content(entry, generation, written_bytes, digest.hexdigest())
            with store_errors(f"cannot write {path}"):
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

    def _write(self, manifest: Manifest) -> None:
        """Write the manifest, last: its presence says that the shard can be served."""
        unfinished = self._folder / f".{FILE_NAME}.partial"
        with store_errors(f"cannot write {self._folder / FILE_NAME}"):
            with unfinished.open("wb", buffering=0) as file:
                _write_all(file.fileno(), manifest.to_json())
                os.fsync(file.fileno())
            unfinished.rename(self._folder / FILE_NAME)
            disk.sync_folder(self._folder)

    def _throttle(self, byte_count: int) -> None:
        self._byte_count += byte_count
        seconds_ahead = self._byte_count / self._rate - (time.monotonic() - self._began)
        if seconds_ahead > 0:
            time.sleep(seconds_ahead)


def _check_content(entry: ShardFile, generation: str, size: int, sha256: str) -> None:
    """Raises CorruptFile if the content differs from what the manifest says."""
    for what, expected, actual in (("bytes", entry.bytes, size), ("sha256", entry.sha256, sha256)):
        if expected != actual:
            raise CorruptFile(
                f"{entry.file} of {generation} has {what} {actual} in the store, its manifest says {expected}",
                hint="the generation is damaged: build another",
            )


def _write_all(descriptor: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_and_drop_pages(descriptor: int) -> None:
    """Drop the file's pages from the page cache, which takes synced pages only."""
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
