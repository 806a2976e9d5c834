"""Fetches one shard of a generation from a store into the folder that a shard server serves from."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lookupdb import disk
from lookupdb.errors import UsageError
from lookupdb.manifest import FILE_NAME, Manifest
from lookupdb.shard_name import is_file_name
from lookupdb.store.dataset import StoredDataset
from lookupdb.store.directory import folder_errors
from lookupdb.store.file_fetch import FileFetch, Throttle, write_all
from lookupdb.store.retry import call_with_retries

PATIENCE_SECONDS: Final = 20.0
"""How long a store may fail without sending a byte before a fetch gives up."""


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
        self._patience = patience
        self._files = FileFetch(dataset, folder, Throttle(rate), patience)
        self._began = time.monotonic()

    def run(self, generation: str, number: int) -> FetchResult:
        """Fetch the shard's file, verify it, then write manifest.json: both are needed to serve.

        A whole file that is there already is not fetched again. Raises StoreError, CorruptFile, FolderDenied,
        NotEnoughRoom, and UsageError if the generation has no such shard.
        """
        manifest = call_with_retries(lambda: self._dataset.manifest(generation), self._patience)
        shards = manifest.shards
        if number >= len(shards):
            raise UsageError(f"there is no shard {number} in {generation}: it has 0 to {len(shards) - 1}")
        entry = shards[number]
        with folder_errors(f"cannot write to {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_other_files(manifest)
        is_fetched = self._files.run(generation, entry)
        self._write(manifest)
        seconds = round(time.monotonic() - self._began, 3)
        return FetchResult("fetched" if is_fetched else "present", entry.file, entry.bytes, seconds)

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

    def _write(self, manifest: Manifest) -> None:
        """Write the manifest, last: its presence says that the shard can be served."""
        unfinished = self._folder / f".{FILE_NAME}.partial"
        with folder_errors(f"cannot write {self._folder / FILE_NAME}"):
            with unfinished.open("wb", buffering=0) as file:
                write_all(file.fileno(), manifest.to_json())
                os.fsync(file.fileno())
            unfinished.rename(self._folder / FILE_NAME)
            disk.sync_folder(self._folder)
