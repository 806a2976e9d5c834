"""The folder of one dataset: its generations, and ``current``, the link to the one that serves.

Each step is one rename and can be repeated after a crash: a generation is there whole or not at all, ``current`` names
a whole one, and hidden names belong to this process alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lookupdb import disk
from lookupdb.errors import DISK_FULL_ERRNOS, CorruptFile, GenerationMissing, NotEnoughRoom, StoreError, UsageError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, check_shard_size, verify_shard_file
from lookupdb.store.dataset import StoredDataset, is_generation, parse_manifest, sort_generations
from lookupdb.store.directory import folder_errors, try_lock
from lookupdb.store.generations import PATIENCE_SECONDS, Pace, Throttle, fetch_file

# Fetch a generation into a folder: every shard, verified and synced to the disk, then its manifest.


_READ_ONLY: Final = 0o444


class FetchInterrupted(Exception):
    """The generation is no longer wanted, or the process ends."""


@dataclass(slots=True)
class FetchProgress:
    """The bytes of a fetch so far, by how they were obtained."""

    total_bytes: int = 0
    fetched_bytes: int = 0
    linked_bytes: int = 0
    """Bytes of files that are hard links to those of a directory store."""
    present_bytes: int = 0
    """Bytes of files that an interrupted fetch had completed."""

    @property
    def done_bytes(self) -> int:
        """The bytes of all complete files."""
        return self.fetched_bytes + self.linked_bytes + self.present_bytes


def interruptible_pace(throttle: Throttle, interruption: threading.Event) -> Pace:
    """Return the pace of ``throttle``, which raises FetchInterrupted once ``interruption`` is set."""

    def pace(byte_count: int) -> None:
        if interruption.is_set():
            raise FetchInterrupted
        throttle(byte_count)

    return pace


def fetch_generation(
    dataset: StoredDataset,
    manifest: Manifest,
    folder: Path,
    progress: FetchProgress,
    pace: Pace,
    make_room: Callable[[int], None],
) -> None:
    """Put all files of ``manifest`` into ``folder``, manifest.json last. Existing files are verified, and not fetched
    again. ``make_room`` gets the number of missing bytes, and may remove old generations.

    Raises StoreError, CorruptFile, NotEnoughRoom, FetchInterrupted.
    """
    progress.total_bytes = sum(shard.bytes for shard in manifest.shards)
    _remove_other_files(folder, manifest)
    source = dataset.local_path(manifest.generation)
    unlinked = []
    for shard in manifest.shards:
        if source is not None and _link(source / shard.file, folder / shard.file, shard, pace):
            progress.linked_bytes += shard.bytes
        else:
            unlinked.append(shard)
    _check_room(manifest, unlinked, folder, make_room)
    for shard in unlinked:
        pace(0)
        if fetch_file(dataset, folder, manifest.generation, shard, pace, PATIENCE_SECONDS):
            progress.fetched_bytes += shard.bytes
        else:
            progress.present_bytes += shard.bytes
    with folder_errors(f"cannot write {folder / FILE_NAME}"):
        disk.write_durably(folder / FILE_NAME, manifest.to_json())
        disk.sync_folder(folder)


def _check_room(
    manifest: Manifest, shards: Sequence[ShardFile], folder: Path, make_room: Callable[[int], None]
) -> None:
    """Raise NotEnoughRoom, before anything is fetched, unless the files of ``shards`` fit."""
    needed = 0
    for shard in shards:
        with suppress(OSError):
            if (folder / shard.file).stat().st_size == shard.bytes:
                continue
        needed += shard.bytes
    with folder_errors(f"cannot look at {folder}"):
        free = shutil.disk_usage(folder).free
        if free < needed:
            make_room(needed - free)
            free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotEnoughRoom(
            f"{folder.parent} has {free} bytes free, {manifest.generation} needs {needed}",
            hint="free space there, keep fewer generations (--keep), or use another folder",
        )


def _link(source: Path, target: Path, entry: ShardFile, pace: Pace) -> bool:
    """Hard-link the store's own file, which never changes, as ``target``, so that it is in memory once. Return False if
    that is impossible. Raises CorruptFile, StoreError."""
    try:
        about = source.lstat()  # a symbolic link could point elsewhere later
    except OSError:
        return False  # the fetch reports why
    if about.st_mode & 0o777 != _READ_ONLY:
        return False
    try:
        if not target.exists():
            target.hardlink_to(source)
        elif not target.samefile(source):
            return False  # an earlier fetch has copied it
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        return False  # another disk, a file of another user, or a file system without links
    pace(entry.bytes)
    verify_shard_file(source, entry)
    with folder_errors(f"cannot write to {target}"), target.open("rb") as file:
        os.fsync(file.fileno())
    return True


def _remove_other_files(folder: Path, manifest: Manifest) -> None:
    """Remove everything but the shard files of ``manifest``; manifest.json too, which is written last."""
    ours = {shard.file for shard in manifest.shards}
    with folder_errors(f"cannot write to {folder}"), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name not in ours or entry.is_symlink():
                os.unlink(entry.path)  # noqa: PTH108 - of an entry


CURRENT: Final = "current"
_LOCK_FILE: Final = ".sync.lock"
_NEW_LINK: Final = ".current.new"
_PARTIAL: Final = re.compile(r"\.(g[1-9][0-9]{0,8})\.partial")
_REMOVED: Final = re.compile(r"\.(g[1-9][0-9]{0,8})\.removed")
_FOLDER_MODE: Final = 0o755


class DatasetFolder:
    """``<root>/<namespace>/<name>``. Only the process that holds its lock writes here."""

    def __init__(self, root: Path, namespace: str, name: str) -> None:
        self.path = root / namespace / name
        self._lock: int | None = None

    def lock(self) -> None:
        """Create the folder, and hold its lock until ``unlock``. Raises UsageError if another process has it,
        FolderDenied if this user may not create it or write to it, StoreError.

        Each dataset's folder has its own lock, so that several processes can share a root.
        """
        if self.is_intact(has_current=False):
            return
        self.unlock()
        with folder_errors(f"cannot write to {self.path}"):
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            for folder in reversed(missing):
                _make_folder(folder)
            self._lock = try_lock(self.path / _LOCK_FILE)
        if self._lock is None:
            raise UsageError(
                f"another `lookupdb sync` keeps {self.path}: it holds the lock {self.path / _LOCK_FILE}",
                hint="stop it, or use another folder",
            )

    def is_intact(self, *, has_current: bool) -> bool:
        """Return whether the folder is locked, and it, or its current generation if it has one, was not removed."""
        path = self.path / (f"{CURRENT}/{FILE_NAME}" if has_current else _LOCK_FILE)
        return self._lock is not None and os.path.exists(path)  # noqa: PTH110 - False also if that is unknown

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def recover(self) -> None:
        """Remove what an interrupted removal or swap left behind. Raises StoreError."""
        with folder_errors(f"cannot write to {self.path}"):
            self._delete(self.path / _NEW_LINK)
        for name in self._names():
            if _REMOVED.fullmatch(name):
                self._delete(self.path / name)

    def current(self) -> Manifest | None:
        """Return the manifest of the generation that ``current`` names, if it is whole. Raises StoreError."""
        link = self.path / CURRENT
        try:
            name = os.readlink(link)  # noqa: PTH115 - the name as it stands, no path
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"{link} is not a link: {error.strerror}", hint="remove it: this command creates it"
            ) from error
        return self.find_whole(name) if is_generation(name) else None

    def generations(self) -> tuple[str, ...]:
        """Return the generations in the folder, oldest first. Raises StoreError."""
        return sort_generations({name for name in self._names() if is_generation(name)})

    def read_manifest(self, generation: str) -> Manifest | None:
        """Return the manifest; None if it is missing or damaged. Raises StoreError if it cannot be read now."""
        path = self.path / generation / FILE_NAME
        try:
            return parse_manifest(path.read_bytes(), str(path), generation)
        except (FileNotFoundError, NotADirectoryError, CorruptFile):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error

    def find_superseded(self, keep: int) -> tuple[str, ...]:
        """Return the generations that are neither ``current`` nor among the last ``keep`` arrivals of its dataset.
        Unusable generations and other datasets' come first, then the oldest. Raises StoreError, even if only one
        manifest cannot be read now."""
        current = self.current()
        if current is None:
            return ()
        uids = {}
        for name in sorted(self.generations(), key=lambda name: _find_arrival(self.path / name)):
            manifest = self.read_manifest(name)
            uids[name] = None if manifest is None else manifest.uid
        own = [name for name, uid in uids.items() if uid == current.uid]
        kept = {current.generation, *own[max(0, len(own) - keep) :]}
        others = [name for name in uids if name not in own]
        return tuple(name for name in (*others, *own) if name not in kept)

    def find_whole(self, generation: str) -> Manifest | None:
        """Return the manifest of a generation whose files all have the right size; None if there is none."""
        try:
            manifest = self.read_manifest(generation)
            for shard in () if manifest is None else manifest.shards:
                check_shard_size(self.path / generation / shard.file, shard)
        except StoreError:
            return None
        return manifest

    def open_partial(self, generation: str) -> Path:
        """Return the hidden folder in which ``generation`` is assembled, with the files of an interrupted fetch.
        Folders of other generations are removed. Raises StoreError."""
        with folder_errors(f"cannot write to {self.path}"):
            self.remove_partials(generation)
            partial = self.path / f".{generation}.partial"
            if partial.is_symlink() or not partial.is_dir():
                self._delete(partial)
            _make_folder(partial)
        return partial

    def remove_partials(self, generation: str | None = None) -> None:
        """Remove what interrupted fetches of generations other than ``generation`` left."""
        for name in self._names():
            if _PARTIAL.fullmatch(name) and name != f".{generation}.partial":
                self._delete(self.path / name)

    def publish(self, generation: str) -> None:
        """Rename the assembled generation to its name. Another generation of that name, for example of another dataset,
        is exchanged in one step if the file system supports it. Raises StoreError, NotEnoughRoom."""
        partial, target = self.path / f".{generation}.partial", self.path / generation
        removed = self.path / f".{generation}.removed"
        with folder_errors(f"cannot write to {self.path}"):
            # Let it arrive after all others, even if the clock was set back.
            latest = max((_find_arrival(self.path / name) for name in self.generations()), default=0)
            if _find_arrival(partial) <= latest:
                with suppress(FileNotFoundError):
                    os.utime(partial / FILE_NAME, ns=(latest + 1, latest + 1))
            disk.sync_folder(partial)
            if not os.path.lexists(target):
                partial.rename(target)
            else:
                self._delete(removed)
                try:
                    disk.exchange(partial, target)
                except OSError:
                    target.rename(removed)
                    partial.rename(target)
                else:
                    partial.rename(removed)
            disk.sync_folder(self.path)
        self._delete(removed)

    def point(self, generation: str) -> None:
        """Point ``current`` to ``generation`` by one rename. Raises StoreError, NotEnoughRoom, GenerationMissing if the
        generation is gone."""
        new = self.path / _NEW_LINK
        with folder_errors(f"cannot write to {self.path}"):
            if not (self.path / generation / FILE_NAME).exists():
                raise GenerationMissing(f"{self.path / generation} is gone", hint="it is fetched again")
            if self._pointed() != generation:
                self._delete(new)
                new.symlink_to(generation)
                new.rename(self.path / CURRENT)
            disk.sync_folder(self.path)

    def _pointed(self) -> str | None:
        """Return what ``current`` names, whatever that is; None if it is not a link."""
        try:
            return os.readlink(self.path / CURRENT)  # noqa: PTH115 - the name as it stands, no path
        except OSError:
            return None

    def remove(self, generation: str) -> bool:
        """Remove ``generation`` unless it is current or a program has mapped it. Return whether it is gone. Raises
        StoreError."""
        folder, removed = self.path / generation, self.path / f".{generation}.removed"
        with _exclusive_lock(folder / FILE_NAME) as is_locked:
            if not is_locked:
                return False
            self._delete(removed)
            with folder_errors(f"cannot remove {folder}"):
                if self._pointed() == generation:
                    return False
                folder.rename(removed)
                disk.sync_folder(self.path)
            self._delete(removed)
        return True

    def _delete(self, path: Path) -> None:
        """Remove whatever is at ``path``: a folder, a file, or a link but not its target."""
        with folder_errors(f"cannot remove {path}"), suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _names(self) -> list[str]:
        with folder_errors(f"cannot list {self.path}"):
            return os.listdir(self.path) if self.path.exists() else []  # noqa: PTH208 - names, not paths


def _find_arrival(folder: Path) -> int:
    """Return when the generation in ``folder`` was completed by its manifest.json, in nanoseconds since 1970; 0 without
    that file."""
    try:
        return (folder / FILE_NAME).lstat().st_mtime_ns
    except OSError:
        return 0


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[bool]:
    """Hold the lock on ``path`` while the block runs. Yields False if another process holds a lock on it; True also if
    the file is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        yield True
        return
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    """Create a folder that others may read, whatever the umask; repair one whose creation was interrupted."""
    with suppress(FileExistsError):
        folder.mkdir()
    if folder.stat().st_mode & 0o777 != _FOLDER_MODE:
        folder.chmod(_FOLDER_MODE)
