"""A whole generation, open for reading: from a store, or from a folder that holds its files.

Then the comparison of two generations, in one pass over both, in key order and little memory; and figures of files.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.shardfile import FRAMED, ShardReader, unframe_start
from lookupdb.store.dataset import StoredDataset, check_shard_size, parse_manifest
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
        folder = self.place if isinstance(self.place, Path) else self.place.local_path(self.manifest.generation)
        try:
            if folder is None:
                assert isinstance(self.place, StoredDataset)
                self.place.check_files(self.manifest)
                return
            for shard in self.manifest.shards:
                check_shard_size(folder / shard.file, shard)
        except CorruptFile:
            if isinstance(self.place, StoredDataset):
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
"""The most characters of a sampled value. A longer one is shown with an ellipsis, so that logs can hold a document."""
MAX_VALUE_BYTES: Final = 4 * (MAX_VALUE_CHARACTERS + 1)
"""Bytes of a sampled value to keep in memory: enough to show that it is longer, whatever its characters."""

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
    ``scratch``, one such group at a time, except identical pairs. Raises StoreError, CorruptFile, NotEnoughRoom.
    """
    result = GenerationDifference(most_samples=most_samples)
    groups = math.gcd(len(before.manifest.shards), len(after.manifest.shards))
    for group in range(groups):
        old, new = before.manifest.shards[group::groups], after.manifest.shards[group::groups]
        if [shard.sha256 for shard in old] == [shard.sha256 for shard in new]:
            result.same += sum(shard.records for shard in old)  # identical content, whatever the files' names
            continue
        with before.shards(scratch, old) as old_shards, after.shards(scratch, new) as new_shards:
            _compare_streams(_merge_entries(old_shards), _merge_entries(new_shards), result)
        for changes in result.samples.values():  # the first ones in key order, of several streams
            changes.sort(key=lambda change: change.key)
            del changes[result.most_samples :]
    return result


def _read_entries(shard: ShardReader) -> Iterator[_Entry]:
    """Yield the entries of ``shard`` in key order, with unread values: a merge holds one of every shard."""
    cursor = shard.txn.cursor()
    for key in cursor.iternext(keys=True, values=False):
        yield key, cursor, shard


def _merge_entries(shards: Sequence[ShardReader]) -> Iterator[_Entry]:
    return heapq.merge(*map(_read_entries, shards), key=itemgetter(0))


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
            if _is_same(old, new):
                result.same += 1
            else:
                result.changed += 1
                sample("changed", old[0], old, new)
            old, new = next(before, None), next(after, None)


def _is_same(old: _Entry, new: _Entry) -> bool:
    """Return whether two values are equal. Equal stored bytes are equal values if they are uncompressed or share a
    dictionary; others are inflated."""
    (_, old_cursor, old_shard), (_, new_cursor, new_shard) = old, new
    old_stored, new_stored = old_cursor.value(), new_cursor.value()
    if old_stored == new_stored and (old_stored[0] == FRAMED or old_shard.dictionary == new_shard.dictionary):
        return True
    return old_shard.expand(old_stored) == new_shard.expand(new_stored)


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
