"""The facts for the gates: read the files of a written generation, and those of the active one."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from pathlib import Path
from typing import Final

from lookupdb import keys, shard_name
from lookupdb.builder.gates import ActiveGeneration, GateFacts, SampledDifference, comparing_gates
from lookupdb.builder.options import Progress
from lookupdb.dataset.spec import DatasetSpec, Gates
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.keys import make_sampler, shard_number
from lookupdb.manifest import ExcludedRows, Manifest, ShardFile, Totals
from lookupdb.shardfile import FRAMED, ShardReader, unframe
from lookupdb.store import StoredDataset
from lookupdb.store.stored_generation import StoredGeneration, open_shard

# Estimate how much a new generation differs from the active one, at a cost that does not grow with the store, for a
# build's gate and ``lookupdb diff --sampled``.
#
# Shard s of N holds the keys whose hash is s modulo N: a random sample of all keys, the same in every build. So only
# the first shards of the active generation are read, enough for ``MAX_KEYS`` keys of the larger generation, but at most
# ``MAX_BYTES`` of either unless the first shard alone is larger. One key in 2^k is compared, chosen by other bits of
# the hash. Values are compared as lookups return them.
#
# If the new generation has as many shards, the keys are in the same ones. Otherwise each of its shards may hold some:
# the compared keys stay in memory, each with a hash of its value, and every file of either generation is read once. In
# a new file only keys count that would be in the shards that were read: added keys are as exact as removed ones.
#
# With n keys compared, the standard deviation of the share is at most 1 / (2 √n): 0.16 % for 100,000 keys.


log = logging.getLogger(__name__)

MAX_KEYS: Final = 100_000
"""Enough keys of the larger generation; up to twice as many are compared."""
MAX_BYTES: Final = 1 << 30
"""Bytes to read of each generation's files, except the active one's first and those that may hold the same keys."""
MAX_KEPT_BYTES: Final = 16 << 20
"""Bytes of keys in memory while two generations with different numbers of shards are compared."""


def compare_with_active(
    dataset: StoredDataset, active: Manifest, folder: Path, shards: int, totals: Totals, scratch: Path
) -> SampledDifference:
    """Compare the new files in ``folder``, of ``shards`` shards and ``totals``, with the generation ``active`` of
    ``dataset``.

    Copies one file of the store at a time to ``scratch``, unless it is on this machine. Raises StoreError, CorruptFile
    if the part of the active generation that is read is damaged, NotEnoughRoom.
    """

    def open_after(stack: ExitStack, number: int) -> ShardReader:
        return stack.enter_context(ShardReader(folder / shard_name.file_name(number, shards)))

    return _compare(StoredGeneration("", active, dataset), shards, totals, open_after, scratch)


def compare_stored(before: StoredGeneration, after: StoredGeneration, scratch: Path) -> SampledDifference:
    """Compare two stored generations. Copies one file of each at a time to ``scratch``. Raises StoreError, CorruptFile,
    NotEnoughRoom."""

    def open_after(stack: ExitStack, number: int) -> ShardReader:
        return _open(stack, after, after.manifest.shards[number], scratch)

    return _compare(before, len(after.manifest.shards), after.manifest.totals, open_after, scratch)


def _compare(
    before: StoredGeneration,
    shards: int,
    totals: Totals,
    open_after: Callable[[ExitStack, int], ShardReader],
    scratch: Path,
) -> SampledDifference:
    every = before.manifest.shards
    chosen = choose_shards(every, totals)
    halvings = choose_halvings(max(sum(shard.records for shard in chosen), totals.records * len(chosen) // len(every)))
    if shards != len(every):
        sample = _Sample(len(every), len(chosen), shards, halvings)
        return _compare_resharded(before, chosen, sample, open_after, scratch)
    result, is_sampled = SampledDifference(is_whole=len(chosen) == shards and not halvings), make_sampler(halvings)
    for number, shard in enumerate(chosen):
        with ExitStack() as stack:
            old, new = _open(stack, before, shard, scratch), open_after(stack, number)
            _compare_shards(old, new, is_sampled, result)
    return result


def _open(stack: ExitStack, generation: StoredGeneration, shard: ShardFile, scratch: Path) -> ShardReader:
    return stack.enter_context(open_shard(stack.enter_context(generation.file(shard, scratch))))


def choose_shards(shards: Sequence[ShardFile], totals: Totals) -> Sequence[ShardFile]:
    """Return the first of ``shards``, enough for the sample, at least one. The other generation, with ``totals``, has
    the same share of its keys in as many shards."""
    records = size = 0
    for number, shard in enumerate(shards):
        size += shard.bytes
        most_records = max(records, totals.records * number // len(shards))
        most_bytes = max(size, totals.file_bytes * (number + 1) // len(shards))
        if number and (most_records >= MAX_KEYS or most_bytes > MAX_BYTES):
            return shards[:number]
        records += shard.records
    return shards


def choose_halvings(keys: int) -> int:
    """Return how often to halve a sample of ``keys`` keys, so that at least ``MAX_KEYS`` are left."""
    return max(0, (keys // MAX_KEYS).bit_length() - 1)


def _sampled_keys(shard: ShardReader, is_sampled: Callable[[bytes], bool]) -> Iterator[bytes]:
    return filter(is_sampled, shard.txn.cursor().iternext(keys=True, values=False))


def _compare_shards(
    before: ShardReader, after: ShardReader, is_sampled: Callable[[bytes], bool], result: SampledDifference
) -> None:
    """Compare two shards that hold the same keys."""
    for key in _sampled_keys(before, is_sampled):
        stored = after.txn.get(key)
        if stored is None:
            result.count("removed", key)
        elif _is_same(before, before.txn.get(key, b""), after, stored):
            result.same += 1
        else:
            result.count("changed", key)
    for key in _sampled_keys(after, is_sampled):
        if before.txn.get(key) is None:
            result.count("added", key)


def _is_same(before: ShardReader, old: bytes, after: ShardReader, new: bytes) -> bool:
    if old == new and (old[0] == FRAMED or before.dictionary == after.dictionary):
        return True
    return before.expand(old) == after.expand(new)


class _Sample:
    """The compared keys of the chosen shards, by the new shard that would hold them, each with a hash of its value. It
    keeps at most ``MAX_KEPT_BYTES`` of keys."""

    def __init__(self, shards: int, sampled_shards: int, new_shards: int, halvings: int) -> None:
        self.halvings = halvings
        self.is_whole = shards == sampled_shards and not halvings
        self.new_shards = new_shards
        self._shards, self._sampled_shards = shards, sampled_shards
        self._kept: list[tuple[list[bytes], array[int]]] = [([], array("q")) for _ in range(new_shards)]
        self._kept_bytes = 0

    def is_asked_for(self, number: int) -> bool:
        """Return whether the new shard ``number`` can hold keys of a chosen shard: both numbers are the hash's
        remainders."""
        return number % math.gcd(self._shards, self.new_shards) < self._sampled_shards

    def list_new_keys(self, after: ShardReader) -> Iterator[bytes]:
        """Yield the sampled keys of a new shard that would be in a chosen one."""
        keys = _sampled_keys(after, make_sampler(self.halvings))
        return (key for key in keys if shard_number(key, self._shards) < self._sampled_shards)

    def add_shard(self, before: ShardReader) -> None:
        """Keep the sampled keys of a chosen shard."""
        is_sampled = make_sampler(self.halvings)
        for key in _sampled_keys(before, is_sampled):
            if not is_sampled(key):  # the sample was halved meanwhile
                continue
            keys, values = self._kept[shard_number(key, self.new_shards)]
            keys.append(key)
            values.append(hash(before.expand(before.txn.get(key, b""))))
            self._kept_bytes += len(key)
            if self._kept_bytes > MAX_KEPT_BYTES:
                is_sampled = self._halve()

    def take_entries(self, number: int) -> dict[bytes, int]:
        """Return the keys kept for the new shard ``number``, and forget them."""
        keys, values = self._kept[number]
        self._kept[number] = ([], array("q"))
        return dict(zip(keys, values, strict=True))

    def _halve(self) -> Callable[[bytes], bool]:
        self.halvings, self.is_whole = self.halvings + 1, False
        is_sampled = make_sampler(self.halvings)
        for number in range(self.new_shards):
            kept = [(key, value) for key, value in self.take_entries(number).items() if is_sampled(key)]
            self._kept[number] = ([key for key, _ in kept], array("q", (value for _, value in kept)))
        self._kept_bytes = sum(len(key) for keys, _ in self._kept for key in keys)
        return is_sampled


def _compare_resharded(
    before: StoredGeneration,
    sampled_shards: Sequence[ShardFile],
    sample: _Sample,
    open_after: Callable[[ExitStack, int], ShardReader],
    scratch: Path,
) -> SampledDifference:
    """Compare generations with different numbers of shards: each file is opened once, one at a time. Keys that are not
    in the sample of a chosen shard were added, those left in it were removed."""
    for shard in sampled_shards:
        with ExitStack() as stack:
            sample.add_shard(_open(stack, before, shard, scratch))
    result = SampledDifference(is_whole=sample.is_whole)
    for number in range(sample.new_shards):
        if sample.is_asked_for(number):
            with ExitStack() as stack:
                _compare_entries(sample.take_entries(number), open_after(stack, number), sample, result)
    return result


def _compare_entries(entries: dict[bytes, int], after: ShardReader, sample: _Sample, result: SampledDifference) -> None:
    for key in sample.list_new_keys(after):
        value = entries.pop(key, None)
        if value is None:
            result.count("added", key)
        elif value == hash(after.expand(after.txn.get(key, b""))):
            result.same += 1
        else:
            result.count("changed", key)
    for key in entries:
        result.count("removed", key)


def gather_facts(
    generation: WrittenGeneration,
    totals: Totals,
    rejected: ExcludedRows,
    active: ActiveGeneration | None,
    dataset: StoredDataset,
    scratch: Path,
    progress: Progress,
) -> GateFacts:
    """Return the facts of a generation that is written but not yet published. ``scratch`` takes a copy of one file of
    the active generation at a time."""

    @cache
    def compare() -> SampledDifference | str:
        if active is None or active.manifest is None:
            return "the store has lost it"
        progress.begin_phase("comparing", None, "rows")
        try:
            folder, shards = generation.folder, generation.spec.shards
            return compare_with_active(dataset, active.manifest, folder, shards, totals, scratch)
        except (CorruptFile, GenerationMissing) as error:
            return error.message
        finally:
            progress.end_phase()

    return GateFacts(
        records=totals.records,
        rejected=rejected,
        active=active,
        value_format=generation.spec.value.format,
        largest_value_bytes=totals.largest_value_bytes,
        find=generation.find,
        list_large_values=generation.list_large_values,
        compare=compare,
    )


class WrittenGeneration:
    """The files of a generation, in the folder of its builder."""

    def __init__(self, spec: DatasetSpec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self._encode = keys.make_key_encoder(spec.key.normalize)

    def find(self, text: str) -> bytes | None:
        """Return the value of a key as a router looks it up; None if there is none."""
        try:
            key = self._encode(text)
        except keys.InvalidKey:
            return None
        with self.open_shard(keys.shard_number(key, self.spec.shards)) as shard:
            reply = shard.find(key)
        return None if reply is None else unframe(reply)

    def list_large_values(self, limit: int) -> Iterator[tuple[bytes, int]]:
        """Yield the keys whose values have more than ``limit`` bytes, with the size."""
        for number in range(self.spec.shards):
            with self.open_shard(number) as shard:
                for key, stored in shard.items():
                    if stored[0] == FRAMED and len(stored) <= limit:
                        continue
                    size = len(unframe(shard.expand(stored)))
                    if size > limit:
                        yield key, size

    def open_shard(self, number: int) -> AbstractContextManager[ShardReader]:
        """Open the file of shard ``number``."""
        return ShardReader(self.folder / shard_name.file_name(number, self.spec.shards))


# The active generation: what the gates compare with.


def readable_manifests(dataset: StoredDataset) -> Iterator[Manifest]:
    """Yield the manifests of whole generations, newest first, except unreadable and rejected ones.

    Raises StoreError if the store itself cannot be read.
    """
    for generation in reversed(dataset.generations()):
        manifest = read_or_none(dataset, generation)
        if manifest is not None:  # None: removed after the listing
            yield manifest


def read_or_none(dataset: StoredDataset, generation: str) -> Manifest | None:
    """Return the manifest of ``generation``; None if it cannot be read."""
    try:
        return dataset.manifest(generation)
    except (CorruptFile, GenerationMissing):
        return None


def find_active(
    dataset: StoredDataset, generation: str | None, records: int | None, gate_spec: Gates
) -> ActiveGeneration | None:
    """Return the generation that gates compare with: ``generation``, or the newest published one that passed; None if
    there is none yet.

    If it is lost or unreadable, the newest readable one replaces it, with a warning; if there is none, its number of
    ``records`` does, if known. Otherwise, if ``gate_spec`` has a gate that needs it, raises GenerationMissing or
    CorruptFile: a source that has shrunk must not pass because the store was lost. Raises StoreError if the store
    itself cannot be read.
    """
    name = generation
    if name is None:
        published, refused = dataset.published_generations(), dataset.refused_generations()
        name = next((found for found in reversed(published) if found not in refused), None)
    if name is None:
        return None
    try:
        manifest = dataset.manifest(name)
    except (GenerationMissing, CorruptFile) as error:
        substitute = next(readable_manifests(dataset), None)
        ways_out = comparing_gates(gate_spec)
        if substitute is None and records is None and ways_out:
            hint = (
                f"no generation is left to compare with: restore {name}, or {' and '.join(ways_out)} until the next "
                "generation is built"
            )
            raise type(error)(error.message, hint=hint) from error
        log.warning(
            "the active generation cannot be read from the store",
            extra={
                "generation": name,
                "comparedWith": substitute.generation if substitute else "none",
                "reason": error.message,
            },
        )
        if substitute is None:
            return None if records is None else ActiveGeneration(name, records, None)
        manifest = substitute
    return ActiveGeneration(manifest.generation, manifest.totals.records, manifest)
