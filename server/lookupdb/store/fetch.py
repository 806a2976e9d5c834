"""Fetch shard files and copy whole generations.

``FileFetch`` fetches a file into a folder of this machine, ``fetch_shard`` the files that a shard server needs, and
``copy_generation`` copies a generation into another store, or another cluster's part of one. The copy has the same
number and manifest, and what exists in the target is not copied again, so a copy can be repeated.

A copy keeps the dataset's namespace and name, which its shard files contain, and its uid, by which a new dataset of
that name adopts it (``builder.existing``). Until then it belongs to no live dataset there, so it is first noted as
retained: otherwise a sweep would remove it. If a copy fails and leaves nothing, the note is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from lookupdb import disk
from lookupdb.errors import (
    CorruptFile,
    GenerationExists,
    GenerationMissing,
    LookupdbError,
    NotEnoughRoom,
    StoreError,
    UsageError,
)
from lookupdb.keys import is_file_name
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.store.dataset import OnCopied, StoreAddress, StoredDataset, call_with_retries, is_older
from lookupdb.store.directory import folder_errors
from lookupdb.store.sweep import MARK_NOTE, RETAIN_NOTE, retain

# Fetch the file of a shard into a local folder, verified and synced to the disk.
#
# It runs beside servers: it leaves disk bandwidth to them, and does not evict their pages from the page cache.


_DROP_EVERY_BYTES: Final = 32 << 20
"""After this many bytes, written pages are synced and dropped from the page cache."""
_CHUNK: Final = 1 << 20

Pace = Callable[[int], None]
"""Called with the number of bytes read or written; returns when more are allowed."""


class Throttle:
    """A pace of ``rate`` bytes a second for all threads that share it."""

    def __init__(self, rate: int, sleep: Callable[[float], object] = time.sleep) -> None:
        self._rate = rate
        self._sleep = sleep
        self._lock = threading.Lock()
        self._due = 0.0

    def __call__(self, byte_count: int) -> None:
        """Return when ``byte_count`` more bytes are allowed."""
        now = time.monotonic()
        with self._lock:
            due = self._due = max(self._due, now) + byte_count / self._rate
        if due > now:
            self._sleep(due - now)


class FileFetch:
    """Fetch files of ``dataset`` into the existing ``folder``; retry a failing store until nothing arrives for
    ``patience`` seconds."""

    def __init__(self, dataset: StoredDataset, folder: Path, pace: Pace, patience: float) -> None:
        self._dataset = dataset
        self._folder = folder
        self._pace = pace
        self._patience = patience

    def run(self, generation: str, entry: ShardFile) -> bool:
        """Fetch the file unless it is there whole; return whether it was fetched. It gets its name once it is verified
        and on the disk. Raises StoreError, CorruptFile, FolderDenied, NotEnoughRoom."""
        path = self._folder / entry.file
        if self._is_whole(path, entry):
            return False
        free = shutil.disk_usage(self._folder).free
        if free < entry.bytes:
            raise NotEnoughRoom(
                f"{self._folder} has {free} bytes free, {entry.file} needs {entry.bytes}",
                hint="make room there, or use another folder",
            )
        self._fetch(generation, entry, path)
        return True

    def _is_whole(self, path: Path, entry: ShardFile) -> bool:
        """Return whether an earlier fetch completed ``path``."""
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
                for chunk in read_resumed(self._dataset, generation, entry, self._patience):
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


def read_resumed(dataset: StoredDataset, generation: str, entry: ShardFile, patience: float) -> Iterator[bytes]:
    """Yield the bytes of a shard's file; after an error of the store, resume where it broke off, until nothing arrives
    for ``patience`` seconds. Raises StoreError."""
    received = 0
    source = dataset.read(generation, entry)

    def chunk() -> bytes | None:
        nonlocal source
        try:
            return next(source, None)
        except StoreError:
            source = dataset.read(generation, entry, received)
            raise

    while received < entry.bytes and (data := call_with_retries(chunk, patience)) is not None:
        received += len(data)
        yield data


def _check_content(entry: ShardFile, generation: str, size: int, sha256: str) -> None:
    """Raise CorruptFile if the content does not match the manifest."""
    for what, expected, actual in (("bytes", entry.bytes, size), ("sha256", entry.sha256, sha256)):
        if expected != actual:
            raise CorruptFile(
                f"{entry.file} of {generation} has {what} {actual} in the store, its index says {expected}",
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


# Fetch a shard of a generation into the folder that a shard server serves from.


PATIENCE_SECONDS: Final = 20.0
"""Seconds that a store may send nothing before a fetch gives up."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The outcome of a fetch. Present: the whole file was there already."""

    outcome: Literal["fetched", "present"]
    file: str
    bytes: int
    seconds: float


def fetch_shard(
    dataset: StoredDataset,
    folder: Path,
    generation: str,
    number: int,
    *,
    rate: int,
    patience: float = PATIENCE_SECONDS,
) -> FetchResult:
    """Fetch a shard's file into ``folder`` with at most ``rate`` bytes per second, verify it, then write manifest.json:
    both are needed to serve.

    A whole file is not fetched again. Raises StoreError, CorruptFile, FolderDenied, NotEnoughRoom, and UsageError if
    the generation has no such shard.
    """
    began = time.monotonic()
    manifest = call_with_retries(lambda: dataset.manifest(generation), patience)
    shards = manifest.shards
    if number >= len(shards):
        raise UsageError(f"there is no shard {number} in {generation}: it has 0 to {len(shards) - 1}")
    entry, text = shards[number], manifest.to_json()
    path, unfinished = folder / FILE_NAME, folder / f".{FILE_NAME}.partial"
    with folder_errors(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        # Remove the manifest and the shards of another generation, and the remains of other fetches.
        if path.exists() and path.read_bytes() != text:
            path.unlink()
        ours = {shard.file for shard in shards}
        for file in folder.iterdir():
            is_partial = file.name.startswith(".") and file.suffix == ".partial"
            if is_partial or (is_file_name(file.name) and file.name not in ours):
                file.unlink(missing_ok=True)
    is_fetched = FileFetch(dataset, folder, Throttle(rate), patience).run(generation, entry)
    with folder_errors(f"cannot write {path}"):  # last: its presence says that the shard can be served
        with unfinished.open("wb", buffering=0) as written:
            write_all(written.fileno(), text)
            os.fsync(written.fileno())
        unfinished.rename(path)
        disk.sync_folder(folder)
    seconds = round(time.monotonic() - began, 3)
    return FetchResult("fetched" if is_fetched else "present", entry.file, entry.bytes, seconds)


_MAX_SHOWN: Final = 10
"""The most datasets in one message."""


@dataclass(frozen=True, slots=True)
class CopiedGeneration:
    """The outcome for one generation."""

    outcome: Literal["copied", "present"]
    manifest: Manifest
    """The manifest in the target."""
    damaged: tuple[str, ...]
    """Newer generations of the source that are damaged, so that this one was copied."""


def find_addresses(
    addresses: Sequence[StoreAddress], names: Sequence[str], uid: str | None = None
) -> Iterator[StoreAddress]:
    """Return those of ``addresses`` that ``names`` name ([namespace/]name; without any, all) and that have ``uid``.
    Raises UsageError if a name matches none."""
    fitting = [address for address in addresses if uid is None or address.uid == uid[:8]]
    for name in names:
        if not any(_is_named(address, name) for address in fitting):
            raise UsageError(
                f"the store has no dataset {name}{'' if uid is None else f' with the uid {uid}'}",
                hint=f"it has: {_list_names(addresses)}; --cluster-id names another part of it",
            )
    return (address for address in fitting if not names or any(_is_named(address, name) for name in names))


def _list_names(addresses: Sequence[StoreAddress]) -> str:
    shown = ", ".join(f"{address} ({address.uid})" for address in addresses[:_MAX_SHOWN]) or "none"
    return f"{shown} and {len(addresses) - _MAX_SHOWN} more" if len(addresses) > _MAX_SHOWN else shown


def _is_named(address: StoreAddress, name: str) -> bool:
    namespace, _, own = name.rpartition("/")
    return address.name == own and namespace in ("", address.namespace)


def copy_generation(
    source: StoredDataset, target: StoredDataset, generation: str | None, scratch: Path, on_copied: OnCopied
) -> CopiedGeneration:
    """Copy ``generation``, or the newest whole one that passed its gates, from ``source`` to ``target``.

    Raises GenerationMissing if there is none, GenerationExists if ``target`` has another one of that number,
    CorruptFile if it has a damaged one or a file does not match its manifest, StoreError, NotEnoughRoom.
    """
    original, damaged = _choose(source, generation)
    _find_copy(target, original)  # another generation of that number is not retained
    try:
        _retain(target)
        outcome, standing = _publish(source, target, original, scratch, on_copied)
    except BaseException:
        with suppress(LookupdbError):  # the sweep looks for it, too
            # A publication whose answer was lost may have succeeded, and another copy may run or begin.
            if not _has_anything(target):
                target.write_note(RETAIN_NOTE, None)
                if _has_anything(target):
                    retain(target)
        raise
    _retain(target)  # a failed copy or a sweep may have removed the note
    return CopiedGeneration(outcome, standing, damaged)


def _publish(
    source: StoredDataset, target: StoredDataset, original: Manifest, scratch: Path, on_copied: OnCopied
) -> tuple[Literal["copied", "present"], Manifest]:
    standing = _find_copy(target, original)  # a sweep that did not see the note may have removed it
    if standing is None:
        try:
            with target.claim(original.generation, scratch) as claim:
                return "copied", claim.publish_copy(source, original.generation, original, on_copied)
        except GenerationExists:  # by another copy, or a killed one that was decided and is now complete
            standing = _find_copy(target, original)
            if standing is None:
                raise
    return "present", standing


def _choose(source: StoredDataset, generation: str | None) -> tuple[Manifest, tuple[str, ...]]:
    """Return the manifest, and newer damaged generations unless ``generation`` is given."""
    published = source.published_generations()  # first: one may be published in between
    manifests = source.whole_manifests()
    usable = [name for name, manifest in manifests.items() if manifest.refused is None]
    name = generation or (usable[-1] if usable else None)
    if name is None or name not in manifests:
        raise GenerationMissing(
            f"{source.url} has no {'' if generation is None else f'{generation}, '}whole generation to copy",
            hint=f"it has: {', '.join(manifests) or 'none'}",
        )
    damaged = [other for other in published if other not in manifests and is_older(name, other)]
    return manifests[name], () if generation else tuple(damaged)


def _find_copy(target: StoredDataset, original: Manifest) -> Manifest | None:
    """Return the whole copy of ``original`` in ``target``. Raises GenerationExists if another generation has its
    number, CorruptFile if it is damaged there."""
    published = target.published_generations()
    standing = target.whole_manifests().get(original.generation)
    if standing is None and original.generation in published:
        generation = original.generation
        try:  # a copy removes nothing, so a damaged generation blocks it
            target.check_files(target.manifest(generation))
        except CorruptFile as error:
            hint = f"remove {target.url}/{generation} and run it again, or choose another one with --generation"
            raise CorruptFile(f"the target's {generation} is damaged: {error.message}", hint=hint) from error
    if standing is None or _without_names(standing) == _without_names(original):
        return standing
    raise GenerationExists(
        f"{target.url} has another {original.generation}, of {standing.uid}, built at {standing.built_at}",
        hint="choose another one with --generation, or remove that one",
    )


def _retain(target: StoredDataset) -> None:
    """Note that it is retained. A sweep lists generations before it looks for the note, so it removes nothing that
    comes after the note."""
    retain(target)
    if target.read_note(MARK_NOTE) is not None:
        target.write_note(MARK_NOTE, None)


def _has_anything(target: StoredDataset) -> bool:
    return bool(target.published_generations() or target.unfinished_generations())


def _without_names(manifest: Manifest) -> Manifest:
    """Return the part that two copies have in common: all but the names of files in their stores."""
    return replace(manifest, shards=tuple(replace(shard, file="") for shard in manifest.shards))
