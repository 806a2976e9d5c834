"""Fetches a whole generation into a folder: every shard verified and on the disk, then its manifest."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lookupdb import disk
from lookupdb.errors import NotEnoughRoom
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.store.dataset import StoredDataset, verify_shard_file
from lookupdb.store.directory import folder_errors
from lookupdb.store.file_fetch import FileFetch, Pace, Throttle
from lookupdb.store.shard_fetch import PATIENCE_SECONDS

_READ_ONLY: Final = 0o444


class FetchInterrupted(Exception):
    """The generation is asked for no more, or the process ends."""


@dataclass(slots=True)
class FetchProgress:
    """What has been done so far, and by which way."""

    total_bytes: int = 0
    fetched_bytes: int = 0
    linked_bytes: int = 0
    """Of files that are those of a directory store, under a second name."""
    present_bytes: int = 0
    """Of files that an interrupted fetch had completed."""

    @property
    def done_bytes(self) -> int:
        """Of all files that are there."""
        return self.fetched_bytes + self.linked_bytes + self.present_bytes


def interruptible_pace(throttle: Throttle, interruption: threading.Event) -> Pace:
    """The pace of ``throttle`` that raises FetchInterrupted once ``interruption`` is set."""

    def pace(byte_count: int) -> None:
        if interruption.is_set():
            raise FetchInterrupted
        throttle(byte_count)

    return pace


class GenerationFetch:
    """Fetches generations of ``dataset``. ``make_room`` is called with the bytes that are lacking, and may remove
    something."""

    def __init__(
        self,
        dataset: StoredDataset,
        pace: Pace,
        make_room: Callable[[int], None],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._dataset = dataset
        self._pace = pace
        self._make_room = make_room
        self._patience = patience

    def run(self, manifest: Manifest, folder: Path, progress: FetchProgress) -> None:
        """Put all files of ``manifest`` into ``folder``, manifest.json last. Files that are there are verified, and not
        fetched again. Raises StoreError, CorruptFile, NotEnoughRoom, FetchInterrupted."""
        progress.total_bytes = sum(shard.bytes for shard in manifest.shards)
        _remove_other_files(folder, manifest)
        source = self._dataset.local_path(manifest.generation)
        can_link = source is not None and _are_on_one_disk(source, folder)
        if not can_link:
            self._check_room(manifest, folder)
        files = FileFetch(self._dataset, folder, self._pace, self._patience)
        for shard in manifest.shards:
            self._pace(0)
            if source is not None and can_link and self._link(source / shard.file, folder / shard.file, shard):
                progress.linked_bytes += shard.bytes
            elif files.run(manifest.generation, shard):
                progress.fetched_bytes += shard.bytes
            else:
                progress.present_bytes += shard.bytes
        with folder_errors(f"cannot write {folder / FILE_NAME}"):
            disk.write_durably(folder / FILE_NAME, manifest.to_json())
            disk.sync_folder(folder)

    def _check_room(self, manifest: Manifest, folder: Path) -> None:
        """Raises NotEnoughRoom before anything is fetched, if not all has room."""
        needed = sum(shard.bytes for shard in manifest.shards if _find_size(folder / shard.file) != shard.bytes)
        with folder_errors(f"cannot look at {folder}"):
            free = shutil.disk_usage(folder).free
            if free < needed:
                self._make_room(needed - free)
                free = shutil.disk_usage(folder).free
        if free < needed:
            raise NotEnoughRoom(
                f"{folder.parent} has {free} bytes free, {manifest.generation} needs {needed}",
                hint="make room there, keep fewer generations (--keep), or give another folder",
            )

    def _link(self, source: Path, target: Path, entry: ShardFile) -> bool:
        """Make ``target`` another name of the store's own file, which never changes, so that both are in memory once;
        False where that cannot be. Raises CorruptFile, StoreError."""
        try:
            about = source.lstat()  # a link leads elsewhere, and may lead there another time
        except OSError:
            return False  # a fetch tells what is wrong with it
        if about.st_mode & 0o777 != _READ_ONLY:
            return False
        self._pace(entry.bytes)
        verify_shard_file(source, entry)
        try:
            with suppress(FileNotFoundError):
                if target.samefile(source):
                    return True
                target.unlink()
            target.hardlink_to(source)
        except OSError as error:
            if error.errno in disk.DISK_FULL_ERRNOS:
                raise
            return False  # a file of another user, or a file system without links
        with target.open("rb") as file:
            os.fsync(file.fileno())
        return True


def _remove_other_files(folder: Path, manifest: Manifest) -> None:
    """Remove all that is no shard's file of ``manifest``: its own manifest.json too, which comes last."""
    ours = {shard.file for shard in manifest.shards}
    with folder_errors(f"cannot write to {folder}"), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name not in ours or entry.is_symlink():
                os.unlink(entry.path)  # noqa: PTH108 - of an entry


def _are_on_one_disk(folder: Path, other: Path) -> bool:
    try:
        return folder.stat().st_dev == other.stat().st_dev
    except OSError:
        return False


def _find_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
