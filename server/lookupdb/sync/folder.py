"""The folder of one dataset: its generations, and ``current``, the link to the one that serves.

In order: fetch a generation into a hidden folder, decide which generations are superseded, and ``DatasetFolder``, which
publishes, points and removes. Each step is one rename and can be repeated after a crash: a generation is there whole or
not at all, ``current`` names a whole one, and hidden names belong to this process alone.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lookupdb import disk
from lookupdb.errors import (
    DISK_FULL_ERRNOS,
    CorruptFile,
    FolderDenied,
    GenerationMissing,
    NotEnoughRoom,
    StoreError,
    UsageError,
)
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, generation_number
from lookupdb.store.dataset import (
    StoredDataset,
    check_shard_size,
    is_generation,
    parse_manifest,
    sort_generations,
    verify_shard_file,
)
from lookupdb.store.directory import folder_errors, try_lock
from lookupdb.store.generations import PATIENCE_SECONDS, FileFetch, Pace, Throttle

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
    can_link = source is not None and _are_on_one_disk(source, folder)
    if not can_link:
        _check_room(manifest, folder, make_room)
    files = FileFetch(dataset, folder, pace, PATIENCE_SECONDS)
    for shard in manifest.shards:
        pace(0)
        if source is not None and can_link and _link(source / shard.file, folder / shard.file, shard, pace):
            progress.linked_bytes += shard.bytes
        elif files.run(manifest.generation, shard):
            progress.fetched_bytes += shard.bytes
        else:
            progress.present_bytes += shard.bytes
    with folder_errors(f"cannot write {folder / FILE_NAME}"):
        disk.write_durably(folder / FILE_NAME, manifest.to_json())
        disk.sync_folder(folder)


def _check_room(manifest: Manifest, folder: Path, make_room: Callable[[int], None]) -> None:
    """Raise NotEnoughRoom, before anything is fetched, unless all files fit."""
    needed = 0
    for shard in manifest.shards:
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
    pace(entry.bytes)
    verify_shard_file(source, entry)
    try:
        with suppress(FileNotFoundError):
            if target.samefile(source):
                return True
            target.unlink()
        target.hardlink_to(source)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        return False  # a file of another user, or a file system without links
    with target.open("rb") as file:
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


def _are_on_one_disk(folder: Path, other: Path) -> bool:
    try:
        return folder.stat().st_dev == other.stat().st_dev
    except OSError:
        return False


# Decide which generations of a folder are superseded. No I/O.
#
# The higher number is the newer generation, unless a store was lost and numbers began again: then g1 is newer than g50.
# Numbers have begun again if the arriving generation was built after all those with higher numbers. (A rollback also
# brings a lower number, but one that was built before them.) All generations present at that moment are older.
#
# A generation cannot be built after its arrival. If a builder's clock says so, it was fast, and the time of arrival, by
# this machine's clock, is the latest possible time.


_SKEW_NS: Final = 60 * 10**9
"""Tolerated difference between the clocks of two machines."""


@dataclass(frozen=True, slots=True)
class FoundGeneration:
    """A generation in the folder."""

    manifest: Manifest | None
    """None if it is missing or damaged."""
    arrived: int
    """Time of arrival, in nanoseconds since 1970, by this machine's clock; strictly increasing."""


def find_superseded(found: Mapping[str, FoundGeneration], current: str, keep: int) -> tuple[str, ...]:
    """Return the generations that are neither ``current`` nor among the newest ``keep`` of its dataset: unusable ones
    first, then the oldest. Empty if the manifest of ``current`` is unknown."""
    manifests = {name: generation.manifest for name, generation in found.items()}
    serving = manifests.get(current)
    if serving is None:
        return ()
    own = [name for name, manifest in manifests.items() if manifest is not None and manifest.uid == serving.uid]
    ordered = _order_by_age({name: found[name] for name in own})
    kept = {current, *ordered[max(0, len(ordered) - keep) :]}
    useless = sorted(found.keys() - set(own), key=generation_number)
    return tuple(name for name in (*useless, *ordered) if name not in kept)


def _order_by_age(found: Mapping[str, FoundGeneration]) -> list[str]:
    """Return the generations of one dataset, oldest first."""
    older: list[str] = []
    present: list[str] = []
    for name in sorted(found, key=lambda name: (found[name].arrived, generation_number(name))):
        higher = [found[other] for other in present if generation_number(other) > generation_number(name)]
        if _restarts_numbers(found[name], higher):
            older += sorted(present, key=generation_number)
            present = []
        present.append(name)
    return older + sorted(present, key=generation_number)


def _restarts_numbers(arriving: FoundGeneration, higher: Iterable[FoundGeneration]) -> bool:
    """Return whether numbers began again with ``arriving``; if not, it is a rollback below the ``higher`` numbers."""
    built = _built_ns(arriving)
    if built is None or built > arriving.arrived + _SKEW_NS:
        return False  # its time is wrong or missing
    latest = [min(_built_ns(other) or other.arrived, other.arrived) for other in higher]
    return bool(latest) and max(latest) < built


def _built_ns(found: FoundGeneration) -> int | None:
    """Return when it was built, in nanoseconds since 1970, by its builder's clock; None if unreadable."""
    try:
        moment = datetime.datetime.fromisoformat(found.manifest.built_at if found.manifest else "")
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp()) * 10**9


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
        self._changing = threading.Lock()
        """Held while ``current`` changes or a generation is renamed away: an abandoned fetch may still make room, and
        must not remove the generation that became current."""

    def lock(self) -> None:
        """Create the folder, and hold its lock until ``unlock``. Raises UsageError if another process has it,
        FolderDenied if this user may not create it or write to it, StoreError.

        Each dataset's folder has its own lock, so that several processes can share a root.
        """
        if self._lock is not None:
            return
        with folder_errors(f"cannot write to {self.path}"):
            try:
                missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
                for folder in reversed(missing):
                    _make_folder(folder)
                self._lock = try_lock(self.path / _LOCK_FILE)
            except PermissionError as error:
                raise _denied_error(self.path) or error from error
        if self._lock is None:
            raise UsageError(
                f"another `lookupdb sync` keeps {self.path}: it holds the lock {self.path / _LOCK_FILE}",
                hint="stop it, or use another folder",
            )

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

    def find_manifest(self, generation: str) -> Manifest | None:
        """Return the manifest of a generation in the folder; None if it cannot be read."""
        try:
            return self.read_manifest(generation)
        except StoreError:
            return None

    def read_manifest(self, generation: str) -> Manifest | None:
        """Return the manifest; None if it is missing or damaged. Raises StoreError if it cannot be read now."""
        path = self.path / generation / FILE_NAME
        try:
            return parse_manifest(path.read_bytes(), str(path), generation)
        except (FileNotFoundError, NotADirectoryError, CorruptFile):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error

    def look_around(self) -> dict[str, FoundGeneration]:
        """Return all generations in the folder. Raises StoreError, even if only one manifest cannot be read now."""
        return {
            name: FoundGeneration(self.read_manifest(name), _find_arrival(self.path / name))
            for name in self.generations()
        }

    def find_whole(self, generation: str) -> Manifest | None:
        """Return the manifest of a generation whose files all have the right size; None if there is none."""
        manifest = self.find_manifest(generation)
        try:
            for shard in () if manifest is None else manifest.shards:
                check_shard_size(self.path / generation / shard.file, shard)
        except StoreError:
            return None
        return manifest

    def open_partial(self, generation: str) -> Path:
        """Return the hidden folder in which ``generation`` is assembled, with the files of an interrupted fetch. Those
        of other generations are removed. Raises StoreError."""
        with folder_errors(f"cannot write to {self.path}"):
            for name in self._names():
                match = _PARTIAL.fullmatch(name)
                if match and match[1] != generation:
                    self._delete(self.path / name)
            partial = self.path / f".{generation}.partial"
            if partial.is_symlink() or not partial.is_dir():
                self._delete(partial)
            _make_folder(partial)
        return partial

    def remove_partials(self) -> None:
        """Remove what interrupted fetches left: their generations are complete or no longer wanted."""
        for name in self._names():
            if _PARTIAL.fullmatch(name):
                self._delete(self.path / name)

    def publish(self, generation: str) -> None:
        """Rename the assembled generation to its name. Another generation of that name, for example of another dataset,
        is exchanged in one step if the file system supports it. Raises StoreError, NotEnoughRoom."""
        partial, target = self.path / f".{generation}.partial", self.path / generation
        removed = self.path / f".{generation}.removed"
        with folder_errors(f"cannot write to {self.path}"):
            # It arrives after all others, even if the clock was set back.
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
        with self._changing, folder_errors(f"cannot write to {self.path}"):
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
            with self._changing, folder_errors(f"cannot remove {folder}"):
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
    """Return when the generation in ``folder`` was completed by its manifest.json, in nanoseconds since 1970; 0 if it
    has none."""
    try:
        return (folder / FILE_NAME).lstat().st_mtime_ns
    except OSError:
        return 0


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[bool]:
    """Hold the lock on ``path`` while the block runs. Yields False if another process holds one; True also for a
    missing file."""
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


def _denied_error(path: Path) -> FolderDenied | None:
    """Return the error for a folder that this user may not create or write to, naming its owner; None if unknown."""
    with suppress(OSError):
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        found = there.stat()
        return FolderDenied(
            f"cannot write to {path}: {there} is of uid {found.st_uid} and gid {found.st_gid}, with mode "
            f"{found.st_mode & 0o7777:04o}, and this process runs as uid {os.geteuid()} and gid {os.getegid()}",
            hint="run it as the folder's owner, give the folder to this user (chown -R), or choose another one",
        )
    return None


def _make_folder(folder: Path) -> None:
    """Create a folder that others may read, whatever the umask; also one whose creation was interrupted."""
    with suppress(FileExistsError):
        folder.mkdir()
    if folder.stat().st_mode & 0o777 != _FOLDER_MODE:
        folder.chmod(_FOLDER_MODE)
