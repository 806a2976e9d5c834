"""Whole generations: open one for reading, compare two, fetch shard files, and copy one.

``StoredGeneration`` is a generation in a store, or in a folder that holds its files. Two are compared in one pass over
both, in key order and with little memory.

``fetch_file`` fetches a file into a folder of this machine, ``fetch_shard`` the files that a shard server needs, and
``copy_generation`` copies a generation into another store, or another cluster's part of a store. The copy has the same
number and manifest, and what exists in the target is not copied again, so a copy can be repeated.

A copy keeps the dataset's namespace and name, which its shard files contain, and its uid, by which a new dataset of
that name adopts it (``builder.existing``). Until then it belongs to no live dataset there, so it is first noted as
retained: otherwise a sweep would remove it. If a copy fails and leaves nothing, a sweep removes the note.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

from lookupdb import disk
from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, NotEnoughRoom, StoreError, UsageError
from lookupdb.keys import is_file_name
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, check_shard_size
from lookupdb.shardfile import FRAMED, ShardReader, unframe_start
from lookupdb.store.dataset import (
    OnCopied,
    StoreAddress,
    StoredDataset,
    call_with_retries,
    is_older,
    parse_manifest,
    read_announcement,
)
from lookupdb.store.directory import folder_errors
from lookupdb.store.sweep import MARK_NOTE, retain
from lookupdb.wording import check_path


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """A manifest, and the place of its files."""

    where: str
    manifest: Manifest
    place: StoredDataset | Path

    @contextmanager
    def file(self, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        """Return the file of one shard on this machine, with the size in the manifest; a copy, if one is needed, is in
        ``scratch`` and removed afterwards. Raises StoreError, CorruptFile."""
        if isinstance(self.place, Path):
            located: AbstractContextManager[Path] = nullcontext(self.place / shard.file)
        else:
            located = self.place.shard(self.manifest.generation, shard, scratch)
        with located as path:
            check_shard_size(path, shard)
            yield path

    def check_files(self) -> None:
        """Raise CorruptFile if a shard's file is missing or has another size than in the manifest; StoreError
        (GenerationMissing if the generation was removed meanwhile). Reads no file."""
        if isinstance(self.place, Path):
            for shard in self.manifest.shards:
                check_shard_size(self.place / shard.file, shard)
            return
        try:
            self.place.check_files(self.manifest)
        except CorruptFile:
            self.place.manifest(self.manifest.generation)
            raise

    @contextmanager
    def shards(self, scratch: Path, entries: Sequence[ShardFile] | None = None) -> Iterator[list[ShardReader]]:
        """Open every shard in order, or those of ``entries``. Raises StoreError, CorruptFile."""
        with ExitStack() as stack:
            shards = [
                stack.enter_context(open_shard(stack.enter_context(self.file(entry, scratch))))
                for entry in (self.manifest.shards if entries is None else entries)
            ]
            # Shards with the same dictionary, as all of a generation have, share one copy: a processor's cache has no
            # room for hundreds.
            by_dictionary: dict[bytes, ShardReader] = {}
            for shard in shards:
                first = by_dictionary.setdefault(shard.dictionary, shard)
                shard.dictionary, shard.inflate = first.dictionary, first.inflate
            yield shards


def find_in_folder(folder: Path) -> StoredGeneration:
    """Return the generation whose manifest.json is in ``folder``. Raises StoreError, CorruptFile, and UsageError for a
    path that is not UTF-8."""
    check_path(folder)
    path = folder / FILE_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{folder} holds no whole generation: {path}: {error.strerror}",
            hint="give the folder that holds manifest.json and the shard files, or gN with --store and --dataset",
        ) from error
    return StoredGeneration(str(folder), parse_manifest(text, str(path)), folder)


def find_shard_entry(path: Path) -> ShardFile:
    """Return the entry of a shard file in the manifest.json beside it. Raises StoreError, CorruptFile."""
    for shard in find_in_folder(path.parent).manifest.shards:
        if shard.file == path.name:
            return shard
    raise StoreError(f"{path.parent / FILE_NAME} names no {path.name}")


def find_in_store(dataset: StoredDataset, generation: str) -> StoredGeneration:
    """Return ``generation`` of ``dataset``. Raises StoreError, CorruptFile."""
    return StoredGeneration(f"{dataset.url}/{generation}", dataset.manifest(generation), dataset)


def open_shard(path: Path) -> ShardReader:
    """Open the shard file at ``path``. Raises CorruptFile, StoreError."""
    if path.is_file() and path.stat().st_size == 0:
        raise CorruptFile(f"{path} is empty, expected a shard file")
    try:
        return ShardReader(path)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror or error}") from error


SAMPLES: Final = 5
"""Default number of samples for each kind of change."""

MAX_VALUE_CHARACTERS: Final = 4000
"""Limit of a sampled value, in characters. A longer one is cut, with an ellipsis."""
MAX_VALUE_BYTES: Final = 4 * (MAX_VALUE_CHARACTERS + 1)
"""Bytes of a sampled value to keep in memory: enough to see that it is too long, even if each character takes 4."""

_Entry = tuple[bytes, Any, ShardReader]
"""A key, the cursor that points at it until the next entry of its shard is read, and the shard."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key with its values before and after; long ones are cut; None if the key does not exist."""

    key: bytes
    before: bytes | None
    after: bytes | None


@dataclass(slots=True)
class GenerationDifference:
    """Numbers of keys that were added, removed, changed or stayed the same, with the first changes of each kind in key
    order."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    samples: dict[str, list[KeyChange]] = field(default_factory=lambda: {"added": [], "removed": [], "changed": []})
    most_samples: int = SAMPLES
    """The limit for each kind."""

    @property
    def has_changes(self) -> bool:
        """True if the generations differ."""
        return bool(self.added or self.removed or self.changed)


def compare_generations(
    before: StoredGeneration, after: StoredGeneration, scratch: Path, most_samples: int = SAMPLES
) -> GenerationDifference:
    """Compare all records of two generations, which may have different numbers of shards.

    Shard s of N holds the keys whose hash is s modulo N. So shards whose numbers are equal modulo the greatest common
    divisor of both numbers of shards hold the same keys, and are compared with each other. Remote files are copied to
    ``scratch``, one such group at a time, except identical groups. Raises StoreError, CorruptFile, NotEnoughRoom.
    """
    result = GenerationDifference(most_samples=most_samples)
    groups = math.gcd(len(before.manifest.shards), len(after.manifest.shards))
    for group in range(groups):
        old, new = before.manifest.shards[group::groups], after.manifest.shards[group::groups]
        if [shard.sha256 for shard in old] == [shard.sha256 for shard in new]:
            result.same += sum(shard.records for shard in old)  # identical content, whatever the files' names
            continue
        with before.shards(scratch, old) as old_shards, after.shards(scratch, new) as new_shards:
            old_entries = heapq.merge(*map(_read_entries, old_shards), key=itemgetter(0))
            _compare_streams(old_entries, heapq.merge(*map(_read_entries, new_shards), key=itemgetter(0)), result)
        for changes in result.samples.values():  # the first ones in key order, of several streams
            changes.sort(key=lambda change: change.key)
            del changes[result.most_samples :]
    return result


def _read_entries(shard: ShardReader) -> Iterator[_Entry]:
    """Yield the entries of ``shard`` in key order. Their values are not read yet, because a merge holds an entry of
    every shard at once.
    """
    cursor = shard.txn.cursor()
    for key in cursor.iternext(keys=True, values=False):
        yield key, cursor, shard


def _compare_streams(before: Iterator[_Entry], after: Iterator[_Entry], result: GenerationDifference) -> None:
    """Compare two streams in key order, and sample the first changes of each kind."""
    sample_counts = dict.fromkeys(result.samples, 0)

    def sample(kind: str, key: bytes, old: _Entry | None, new: _Entry | None) -> None:
        if sample_counts[kind] < result.most_samples:
            sample_counts[kind] += 1
            result.samples[kind].append(KeyChange(key, old and _value(old), new and _value(new)))

    old, new = next(before, None), next(after, None)
    while old or new:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            result.removed += 1
            sample("removed", old[0], old, None)
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            result.added += 1
            sample("added", new[0], None, new)
            new = next(after, None)
        else:
            if is_same_value(old[2], old[1].value(), new[2], new[1].value()):
                result.same += 1
            else:
                result.changed += 1
                sample("changed", old[0], old, new)
            old, new = next(before, None), next(after, None)


def is_same_value(old_shard: ShardReader, old: bytes, new_shard: ShardReader, new: bytes) -> bool:
    """Return whether two stored values are equal. Equal bytes are equal values if they are uncompressed or share a
    dictionary; others are inflated."""
    if old == new and (old[0] == FRAMED or old_shard.dictionary == new_shard.dictionary):
        return True
    return old_shard.expand(old) == new_shard.expand(new)


def _value(entry: _Entry) -> bytes:
    """Return as much of the value as a sample keeps."""
    _, cursor, shard = entry
    return unframe_start(shard.expand(cursor.value()), MAX_VALUE_BYTES)


# Statistics of shard files: bytes per record, compression, LMDB's wasted pages, and sample records.


@dataclass(frozen=True, slots=True)
class ShardFigures:
    """Sums over one or several shards, in bytes unless the name says otherwise."""

    records: int
    key_bytes: int
    value_bytes: int
    stored_bytes: int
    file_bytes: int
    dictionary_bytes: int
    """Size in one file; each file holds a copy."""
    overflow_pages: int
    """Pages that hold (a part of) one long value and nothing else."""
    overflow_waste_bytes: int
    """Unused bytes at the ends of those pages."""

    def per_record(self, size: int) -> float:
        """Return ``size`` divided by the number of records."""
        return size / self.records if self.records else 0.0

    @property
    def compression(self) -> float:
        """Stored bytes divided by value bytes."""
        return self.stored_bytes / self.value_bytes if self.value_bytes else 1.0


def measure_shards(shards: Sequence[ShardReader]) -> ShardFigures:
    """Sum up the metadata of the files, without reading records."""
    extras = [shard.meta.extra for shard in shards]
    pages = [shard.pages() for shard in shards]
    waste = sum(
        page["overflow_pages"] * page["psize"] - int(extra.get("overflow_bytes", 0))
        for page, extra in zip(pages, extras, strict=True)
    )
    return ShardFigures(
        records=sum(shard.meta.records for shard in shards),
        key_bytes=sum(int(extra.get("key_bytes", 0)) for extra in extras),
        value_bytes=sum(int(extra.get("value_bytes", 0)) for extra in extras),
        stored_bytes=sum(int(extra.get("stored_bytes", 0)) for extra in extras),
        file_bytes=sum(shard.path.stat().st_size for shard in shards),
        dictionary_bytes=max((shard.dictionary_bytes for shard in shards), default=0),
        overflow_pages=sum(page["overflow_pages"] for page in pages),
        overflow_waste_bytes=waste,
    )


def sample_records(shards: Sequence[ShardReader], count: int = SAMPLES) -> list[tuple[bytes, bytes]]:
    """Return the first ``count`` keys of the first shards that have records, with their values; long ones are cut."""
    records = ((shard, key, stored) for shard in shards for key, stored in shard.items())
    return [
        (key, unframe_start(shard.expand(stored), MAX_VALUE_BYTES)) for shard, key, stored in islice(records, count)
    ]


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


def fetch_file(
    dataset: StoredDataset, folder: Path, generation: str, entry: ShardFile, pace: Pace, patience: float
) -> bool:
    """Fetch a shard's file into the existing ``folder``, unless it is there whole. Return whether it was fetched.

    The file gets its name once it is verified and on the disk. A failing store is retried until nothing arrives for
    ``patience`` seconds. Raises StoreError, CorruptFile, FolderDenied, NotEnoughRoom.
    """
    path = folder / entry.file
    if _is_whole(path, entry, pace):
        return False
    free = shutil.disk_usage(folder).free
    if free < entry.bytes:
        raise NotEnoughRoom(
            f"{folder} has {free} bytes free, {entry.file} needs {entry.bytes}",
            hint="make room there, or use another folder",
        )
    partial = path.with_name(f".{path.name}.partial")
    digest = hashlib.sha256()
    try:
        with folder_errors(f"cannot write {partial}"), partial.open("xb", buffering=0) as file:
            written_bytes = dropped_bytes = 0
            for chunk in read_resumed(dataset, generation, entry, patience):
                write_all(file.fileno(), chunk)
                digest.update(chunk)
                written_bytes += len(chunk)
                pace(len(chunk))
                if written_bytes - dropped_bytes >= _DROP_EVERY_BYTES:
                    dropped_bytes = written_bytes
                    _sync_and_drop_pages(file.fileno())
            os.fchmod(file.fileno(), 0o444)
            _sync_and_drop_pages(file.fileno())
        sha256 = digest.hexdigest()
        for what, expected, actual in (("bytes", entry.bytes, written_bytes), ("sha256", entry.sha256, sha256)):
            if expected != actual:
                raise CorruptFile(
                    f"{entry.file} of {generation} has {what} {actual} in the store, its index says {expected}",
                    hint="the generation is damaged: build another",
                )
        with folder_errors(f"cannot write {path}"):
            partial.rename(path)
            disk.sync_folder(folder)
    finally:
        partial.unlink(missing_ok=True)
    return True


def _is_whole(path: Path, entry: ShardFile, pace: Pace) -> bool:
    """Return whether an earlier fetch completed ``path``."""
    if not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            pace(len(chunk))
            os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
    return digest.hexdigest() == entry.sha256


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


def write_all(descriptor: int, data: Any) -> None:
    """Write all of ``data``. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_and_drop_pages(descriptor: int) -> None:
    """Drop the file's pages from the page cache, which drops synced pages only."""
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
    dataset: StoredDataset, folder: Path, generation: str, number: int, *, rate: int, patience: float = PATIENCE_SECONDS
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
    is_fetched = fetch_file(dataset, folder, generation, entry, Throttle(rate), patience)
    with folder_errors(f"cannot write {path}"):  # last: its presence says that the shard can be served
        with unfinished.open("wb", buffering=0) as written:
            write_all(written.fileno(), text)
            os.fsync(written.fileno())
        unfinished.rename(path)
        disk.sync_folder(folder)
    seconds = round(time.monotonic() - began, 3)
    return FetchResult("fetched" if is_fetched else "present", entry.file, entry.bytes, seconds)


_MAX_SHOWN: Final = 10
"""Maximum number of datasets in one message."""


@dataclass(frozen=True, slots=True)
class CopiedGeneration:
    """The outcome for one generation."""

    outcome: Literal["copied", "present"]
    manifest: Manifest
    """The manifest in the target."""
    damaged: tuple[str, ...]
    """Newer generations of the source that are damaged, which is why this one was copied."""


def find_addresses(addresses: Sequence[StoreAddress], names: Sequence[str], uid: str | None) -> Iterator[StoreAddress]:
    """Return the ``addresses`` with ``uid`` and one of ``names`` ([namespace/]name), or any name if there are none.
    Raises UsageError if a name matches none."""
    fitting = [address for address in addresses if uid is None or address.uid == uid[:8]]
    for name in names:
        if not any(_is_named(address, name) for address in fitting):
            shown = ", ".join(f"{address} ({address.uid})" for address in addresses[:_MAX_SHOWN]) or "none"
            more = f" and {len(addresses) - _MAX_SHOWN} more" if len(addresses) > _MAX_SHOWN else ""
            raise UsageError(
                f"the store has no dataset {name}{'' if uid is None else f' with the uid {uid}'}",
                hint=f"it has: {shown}{more}; --cluster-id names another part of it",
            )
    return (address for address in fitting if not names or any(_is_named(address, name) for name in names))


def _is_named(address: StoreAddress, name: str) -> bool:
    namespace, _, own = name.rpartition("/")
    return address.name == own and namespace in ("", address.namespace)


def copy_generation(
    source: StoredDataset, target: StoredDataset, generation: str | None, scratch: Path, on_copied: OnCopied
) -> CopiedGeneration:
    """Copy ``generation``, or the announced one, else the newest whole one that passed its gates.

    Raises GenerationMissing if there is none, GenerationExists if ``target`` has another generation of that number,
    CorruptFile if that one is damaged or a file does not match its manifest, StoreError, NotEnoughRoom.
    """
    original, damaged = _choose(source, generation)
    _find_copy(target, original)  # another generation of that number is not retained
    _retain(target)
    outcome: Literal["copied", "present"] = "present"
    standing = _find_copy(target, original)  # a sweep that did not see the note of `_retain` may have removed the copy
    if standing is None:
        try:
            with target.claim(original.generation, scratch) as claim:
                standing = claim.publish_copy(source, original.generation, original, on_copied)
            outcome = "copied"
        except GenerationExists:  # from another copy, or from a killed one whose publication is now complete
            standing = _find_copy(target, original)
            if standing is None:
                raise
    _retain(target)  # a sweep may have removed the note
    return CopiedGeneration(outcome, standing, damaged)


def _choose(source: StoredDataset, generation: str | None) -> tuple[Manifest, tuple[str, ...]]:
    """Return the manifest to copy, and newer damaged generations if the newest whole one was chosen."""
    if generation is None and (announced := read_announcement(source)) is not None:
        generation = announced.generation
    published = source.published_generations()  # first: a generation may be published in between
    manifests = source.whole_manifests()
    usable = [name for name, manifest in manifests.items() if manifest.refused is None]
    name = generation or (usable[-1] if usable else None)
    if name is None or name not in manifests:
        raise GenerationMissing(
            f"{source.url} has no whole {generation or 'generation'} to copy",
            hint=f"it has: {', '.join(manifests) or 'none'}; by default the one that active.json announces is copied",
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
            hint = f"remove {target.url}/{generation} and copy again, or choose another one with --generation"
            raise CorruptFile(f"the target's {generation} is damaged: {error.message}", hint=hint) from error
    if standing is None or _without_names(standing) == _without_names(original):
        return standing
    raise GenerationExists(
        f"{target.url} has another {original.generation}, of {standing.uid}, built at {standing.built_at}",
        hint="choose another one with --generation, or remove the target's",
    )


def _retain(target: StoredDataset) -> None:
    """Note that ``target`` is retained. A sweep lists generations before it looks for the note, so it removes nothing
    that comes after the note."""
    retain(target)
    if target.read_note(MARK_NOTE) is not None:
        target.write_note(MARK_NOTE, None)


def _without_names(manifest: Manifest) -> Manifest:
    """Return the part that two copies have in common: all but the names of files in their stores."""
    return replace(manifest, shards=tuple(replace(shard, file="") for shard in manifest.shards))
