"""A store in a directory. One rename publishes a generation, so it is there whole or not at all.

A running build is ``.g13.partial`` beside the generations, and holds a lock on ``.g13.lock``. The kernel releases the
lock however the process ends, so the lock tells a live builder's files from a dead one's.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from lookupdb import disk, keys
from lookupdb.errors import (
    DISK_FULL_ERRNOS,
    CorruptFile,
    FolderDenied,
    LookupdbError,
    NotEnoughRoom,
    StoreDenied,
    StoreError,
)
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, generation_number
from lookupdb.store.dataset import (
    BuildClaim,
    OnCopied,
    ShardTarget,
    Store,
    StoreAddress,
    StoredDataset,
    check_generation,
    describe_missing_files,
    is_generation,
    parse_manifest,
    sort_generations,
)

_HIDDEN: Final = re.compile(r"\.(g[1-9][0-9]{0,8})\.(partial|lock)")
_CHUNK: Final = 1 << 20
_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def store_errors(action: str, denied: type[LookupdbError] = StoreDenied) -> Iterator[None]:
    """Turn errors of the file system into errors that a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in _DENIED:
            raise denied(f"{action}: {error}", hint="grant this user access, or use another folder") from error
        if error.errno in DISK_FULL_ERRNOS:
            raise NotEnoughRoom(
                f"{action}: {error.strerror}: {error.filename or ''}".rstrip(": "),
                hint="make room there, or use another folder",
            ) from error
        raise StoreError(f"{action}: {error}") from error


folder_errors: Final = partial(store_errors, denied=FolderDenied)
"""Like ``store_errors``, for a local folder that is not the store."""


# Lock files. The kernel releases a lock however its holder ends, so a lock tells a live process from a dead one.


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock file at ``path``, which is created if necessary; None if another process
    holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between our open and our lock.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def unlock(path: Path, descriptor: int) -> None:
    """Remove the lock file, then release the lock."""
    with suppress(FileNotFoundError):
        path.unlink()
    os.close(descriptor)


class DirectoryStore(Store):
    """The part of ``folder`` that belongs to ``cluster``."""

    folder: Path

    def __init__(self, url: str, cluster: str, folder: Path) -> None:
        self.url = url
        self.cluster = cluster
        self.folder = folder
        self.identity = str(folder)

    def dataset_at(self, address: StoreAddress) -> StoredDataset:
        """Return the folder of ``address``."""
        return DirectoryDataset(self.folder, address)

    def namespaces(self) -> tuple[str, ...]:
        """List the folder of the cluster."""
        with store_errors(f"cannot list {self.folder}"):
            return tuple(sorted(path.name for path in (self.folder / self.cluster).glob("*") if path.is_dir()))

    def addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """List the folder of the namespace, except empty folders, which a failed first build leaves."""
        with store_errors(f"cannot list {self.folder}"):
            found = (self.folder / self.cluster / namespace).glob("*")
            folders = [path.name for path in found if path.is_dir() and any(path.iterdir())]
        return self._parse_addresses(namespace, folders)


class DirectoryDataset(StoredDataset):
    """One dataset's folder."""

    def __init__(self, root: Path, address: StoreAddress) -> None:
        self.address = address
        self.folder = root / address.path
        self.url = str(self.folder)

    def _published_manifests(self, *, keep: bool = False) -> Iterator[tuple[str, Manifest | None]]:
        """Yield a manifest if the files of its folder match it."""
        for generation in self.published_generations():
            manifest: Manifest | None = None
            with suppress(CorruptFile):
                manifest = self.find_manifest(generation)
            # None if it was removed after the listing.
            yield generation, manifest if manifest is not None and not self._missing_files(manifest) else None

    def published_generations(self) -> tuple[str, ...]:
        """Return folders with a manifest.json."""
        return sort_generations({name for name in self._names() if is_generation(name) and self._has_manifest(name)})

    def _missing_files(self, manifest: Manifest) -> tuple[str, ...]:
        folder, sizes = self.folder / manifest.generation, {}
        with store_errors(f"cannot list {folder}"):
            for shard in manifest.shards:
                with suppress(FileNotFoundError):
                    sizes[shard.file] = (folder / shard.file).stat().st_size
        return describe_missing_files(manifest, sizes)

    def find_manifest(self, generation: str) -> Manifest | None:
        """Read manifest.json."""
        path = self.folder / check_generation(generation) / FILE_NAME
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        return parse_manifest(text, str(path), generation)

    def _replace_manifest(self, before: Manifest, after: Manifest) -> None:
        """Write the new manifest beside the generations, and rename it."""
        path = self.folder / before.generation / FILE_NAME
        if self.manifest(before.generation) != before:
            raise StoreError(f"{path} was changed by another process", hint="find out what else writes there")
        unfinished = self.folder / f".{before.generation}.manifest"
        with store_errors(f"cannot write {path}"):
            try:
                unfinished.unlink(missing_ok=True)  # from a process that died
                disk.write_durably(unfinished, after.to_json())
                unfinished.rename(path)
            except FileNotFoundError:
                raise self._missing_generation_error(before.generation) from None
            finally:
                unfinished.unlink(missing_ok=True)
            disk.sync_folder(path.parent)

    def known_generations(self) -> tuple[str, ...]:
        """Return the folders with names of generations."""
        return sort_generations({name for name in self._names() if is_generation(name)})

    def next_generation(self) -> str:
        """Return one more than the highest number of a folder, partial folder or lock."""
        hidden = (_HIDDEN.fullmatch(name) for name in self._names())
        used_names = [name for name in self._names() if is_generation(name)] + [match[1] for match in hidden if match]
        return f"g{max(map(generation_number, used_names), default=0) + 1}"

    def local_path(self, generation: str) -> Path | None:
        """Return the generation's own folder."""
        return self.folder / check_generation(generation)

    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        """Return the file itself."""
        return nullcontext(self._shard_path(generation, shard))

    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        """Read the file itself."""
        path = self._shard_path(generation, shard)
        with store_errors(f"cannot read {path}"), path.open("rb", buffering=0) as file:
            file.seek(start)
            while chunk := file.read(_CHUNK):
                yield chunk

    def claim(self, generation: str, scratch: Path, *, dead_seconds: float = math.inf) -> BuildClaim:
        """Take the lock, then remove what dead builders left. No claim has to be watched."""
        check_generation(generation)
        with store_errors(f"cannot write to the store at {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = try_lock(self.folder / f".{generation}.lock")
            if lock is None:
                raise StoreError(
                    f"generation {generation} of {self.address} is being built by another process",
                    hint="wait for it to end, or choose another --generation",
                )
            try:
                self._remove_remains(generation)
                partial = self.folder / f".{generation}.partial"
                partial.mkdir()
            except BaseException:
                unlock(self.folder / f".{generation}.lock", lock)
                raise
        return DirectoryClaim(self.folder, generation, lock)

    def remove(self, generation: str) -> None:
        """Remove the manifest first: from then on the generation is not whole, and nobody opens it."""
        folder = self.folder / check_generation(generation)
        with store_errors(f"cannot remove {folder}"):
            with suppress(FileNotFoundError):
                (folder / FILE_NAME).unlink()
                disk.sync_folder(folder)
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)

    def unfinished_generations(self) -> dict[str, float]:
        """Return partial folders, locks, and folders without manifest.json."""
        found: dict[str, float] = {}
        for name in self._names():
            hidden = _HIDDEN.fullmatch(name)
            generation = hidden[1] if hidden else name
            if not is_generation(generation) or self._has_manifest(generation):
                continue
            with store_errors(f"cannot look at {self.folder / name}"), suppress(FileNotFoundError):
                changed = (self.folder / name).stat().st_mtime
                found[generation] = max(changed, found.get(generation, 0.0))
        return found

    def read_note(self, name: str) -> bytes | None:
        """Read a file beside the generations."""
        with store_errors(f"cannot read {self.folder / name}"), suppress(FileNotFoundError, NotADirectoryError):
            return (self.folder / name).read_bytes()
        return None

    def write_note(self, name: str, content: bytes | None) -> None:
        """Rename the note into place, so that nobody reads half a file."""
        path = self.folder / name
        with store_errors(f"cannot write {path}"):
            if content is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                unfinished = self.folder / f".{name}.new"
                unfinished.write_bytes(content)
                unfinished.rename(path)
                return
            path.unlink(missing_ok=True)
            for folder in (self.folder, self.folder.parent):
                with suppress(OSError):  # not empty, or not ours to remove
                    folder.rmdir()

    def find_write_obstacle(self) -> str | None:
        """Check that the nearest existing path is a writable folder."""
        existing = _nearest_existing(self.folder)
        if not existing.is_dir():
            return f"{existing} is not a folder"
        return None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written to"

    def free_bytes(self) -> int | None:
        """Return the free bytes of the file system of the folder, which may not exist yet."""
        return free_bytes(self.folder)

    def _names(self) -> list[str]:
        with store_errors(f"cannot list {self.folder}"):
            return os.listdir(self.folder) if self.folder.exists() else []  # noqa: PTH208 - names, not paths

    def _shard_path(self, generation: str, shard: ShardFile) -> Path:
        """Return a shard's path. Raises CorruptFile or GenerationMissing if the file is missing, else StoreError."""
        path = self.folder / check_generation(generation) / shard.file
        with store_errors(f"cannot read {path}"):
            if not path.exists():
                raise self._lost_shard_error(generation, shard)
        return path

    def _has_manifest(self, generation: str) -> bool:
        """Raises StoreError if this cannot be checked: access denied does not mean that the manifest is gone."""
        path = self.folder / generation / FILE_NAME
        with store_errors(f"cannot look at {path}"):
            return path.is_file()

    def _remove_remains(self, generation: str) -> None:
        """Remove the remains of interrupted builds and removals. The caller holds the lock of ``generation``."""
        if self._has_manifest(generation):
            raise self._claim_error(generation)
        if (self.folder / generation).exists():
            shutil.rmtree(self.folder / generation)
        for name in {match[1] for match in map(_HIDDEN.fullmatch, self._names()) if match}:
            path = self.folder / f".{name}.lock"
            lock = None if name == generation else try_lock(path)
            if name == generation or lock is not None:
                shutil.rmtree(self.folder / f".{name}.partial", ignore_errors=True)
            if lock is not None:
                unlock(path, lock)


@dataclass(frozen=True, slots=True)
class FolderTarget:
    """The folder of a claim, which tasks share."""

    claimed: Path

    def new_attempt(self) -> str:
        """Return a random name."""
        return uuid.uuid4().hex[:12]

    def folder(self, scratch: Path) -> Path:
        """Return the claim's own folder."""
        return self.claimed

    def put(self, path: Path) -> None:
        """Do nothing: the file is there."""


class DirectoryClaim(BuildClaim):
    """A locked ``.gN.partial`` that becomes ``gN``."""

    def __init__(self, dataset: Path, generation: str, lock: int) -> None:
        self.generation = generation
        self.folder = dataset / f".{generation}.partial"
        self._target = dataset / generation
        self._lock: int | None = lock
        self._has_tasks = False

    def publish(self, manifest: Manifest) -> Manifest:
        """Sync everything to the disk before the rename that makes it visible."""
        with store_errors(f"cannot publish {self._target}"):
            disk.write_durably(self.folder / FILE_NAME, manifest.to_json())
            disk.sync_folder(self.folder)
            self.folder.rename(self._target)
            for path in set(self._target.iterdir()) if self._has_tasks else ():
                if keys.is_file_name(path.name) and path.name not in {shard.file for shard in manifest.shards}:
                    path.unlink()  # left by an attempt that ended late; no new one can begin here
            disk.sync_folder(self._target.parent)
        return manifest

    def publish_copy(self, source: StoredDataset, original: str, manifest: Manifest, on_copied: OnCopied) -> Manifest:
        """Link files on the same file system: a generation never changes, and either link can be removed alone. Copy
        others."""
        names = [keys.file_name(number, len(manifest.shards)) for number in range(len(manifest.shards))]
        for shard, name in zip(manifest.shards, names, strict=True):
            with (
                source.verified_shard(original, shard, self.folder) as path,
                store_errors(f"cannot copy {path} into {self.folder}"),
            ):
                _link_or_copy(path, self.folder / name)
            on_copied(shard.bytes)
        shards = tuple(replace(shard, file=name) for shard, name in zip(manifest.shards, names, strict=True))
        return self.publish(replace(manifest, shards=shards))

    def make_target(self) -> ShardTarget:
        """Return the folder."""
        self._has_tasks = True
        return FolderTarget(self.folder)

    def take_shards(self, shards: Sequence[ShardFile]) -> tuple[ShardFile, ...]:
        """Rename the files, and remove all others."""
        taken = []
        with store_errors(f"cannot rename files in {self.folder}"):
            for number, shard in enumerate(shards):
                name = keys.file_name(number, len(shards))
                (self.folder / shard.file).rename(self.folder / name)
                taken.append(replace(shard, file=name))
            for path in set(self.folder.iterdir()) - {self.folder / shard.file for shard in taken}:
                path.unlink()
        return tuple(taken)

    def release(self) -> None:
        """Remove the partial folder and the lock; after ``publish`` only the lock is left."""
        if self._lock is None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        unlock(self._target.with_name(f".{self._target.name}.lock"), self._lock)
        self._lock = None


def _link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` the file at ``source``, synced and read-only. Links fail between file systems, on some file
    systems always, and for other users' files."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    with suppress(PermissionError):  # a link to another user's file
        target.chmod(0o444)


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system that holds ``path``, or its nearest existing parent folder."""
    return shutil.disk_usage(_nearest_existing(path)).free


def _nearest_existing(path: Path) -> Path:
    with store_errors(f"cannot look at {path}"):
        return next(folder for folder in (path, *path.parents) if folder.exists())
