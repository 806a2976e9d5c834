"""How much a new generation differs from the active one, at a cost that does not grow with the store. The gate of a
build asks this, and ``lookupdb diff --sampled``.

Shard s of N holds the keys whose hash is s modulo N: a sample of all keys that the hash has chosen, the same in every
build. So only the first shards of the active generation are read, as many as it takes for ``MAX_KEYS`` keys, but no
more than ``MAX_BYTES`` unless the first alone is larger. Of their keys one in 2^k is compared, chosen by other bits of
the hash. The new generation's files are on this machine; those that can hold such keys are read, whatever its number
of shards. Values are compared as lookups return them: compression, dictionaries and the number of shards make no
difference.

Of n keys compared, the share that is found to differ is off by 1 / (2 √n) at most, one standard deviation: 0.16 % of
100,000 keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lookupdb import shard_name
from lookupdb.build.gates import SampledDifference
from lookupdb.keys import make_sampler, shard_number
from lookupdb.manifest import Manifest, ShardFile
from lookupdb.shardfile import FRAMED, ShardReader
from lookupdb.store import StoredDataset
from lookupdb.store.stored_generation import StoredGeneration, open_shard

MAX_KEYS: Final = 100_000
"""Keys of the active generation that are enough; up to twice as many are compared."""
MAX_BYTES: Final = 1 << 30
"""Of the active generation's files that are read, but for the first."""


def compare_with_active(
    dataset: StoredDataset, active: Manifest, folder: Path, shards: int, scratch: Path
) -> SampledDifference:
    """Compare the new files in ``folder``, of ``shards`` shards, with the generation ``active`` of ``dataset``.

    Copies one file of the store at a time to ``scratch``, unless it is on this machine. Raises StoreError, CorruptFile
    if what has to be read of the active generation is damaged, NotEnoughRoom.
    """

    def open_after(stack: ExitStack, number: int) -> ShardReader:
        return stack.enter_context(ShardReader(folder / shard_name.file_name(number, shards)))

    return _compare(StoredGeneration("", active, dataset), shards, open_after, scratch)


def compare_stored(before: StoredGeneration, after: StoredGeneration, scratch: Path) -> SampledDifference:
    """Compare two generations that are stored. Copies to ``scratch`` a file of the one at a time, and those of the
    other that can hold its keys: one, if their numbers of shards are equal. Raises StoreError, CorruptFile,
    NotEnoughRoom."""

    def open_after(stack: ExitStack, number: int) -> ShardReader:
        return _open(stack, after, after.manifest.shards[number], scratch)

    return _compare(before, len(after.manifest.shards), open_after, scratch)


def _compare(
    before: StoredGeneration, shards: int, open_after: Callable[[ExitStack, int], ShardReader], scratch: Path
) -> SampledDifference:
    every = before.manifest.shards
    chosen = choose_shards(every)
    halvings = choose_halvings(sum(shard.records for shard in chosen))
    result = SampledDifference(is_whole=len(chosen) == len(every) and halvings == 0)
    is_sampled = make_sampler(halvings)
    for number, shard in enumerate(chosen):
        with ExitStack() as stack:
            old = _open(stack, before, shard, scratch)
            after = {new: open_after(stack, new) for new in _list_overlapping(number, len(every), shards)}
            _compare_before(old, after, shards, is_sampled, result)
            _count_added(old, after, (number, len(every)), is_sampled, result)
    return result


def _open(stack: ExitStack, generation: StoredGeneration, shard: ShardFile, scratch: Path) -> ShardReader:
    return stack.enter_context(open_shard(stack.enter_context(generation.file(shard, scratch))))


def choose_shards(shards: Sequence[ShardFile]) -> Sequence[ShardFile]:
    """The first of ``shards`` that are read: enough for the sample, at least one."""
    records = size = 0
    for number, shard in enumerate(shards):
        if number and (records >= MAX_KEYS or size + shard.bytes > MAX_BYTES):
            return shards[:number]
        records, size = records + shard.records, size + shard.bytes
    return shards


def choose_halvings(keys: int) -> int:
    """How often a sample of ``keys`` keys is halved, so that at least ``MAX_KEYS`` are left."""
    return max(0, (keys // MAX_KEYS).bit_length() - 1)


def _list_overlapping(number: int, shards: int, new_shards: int) -> range:
    """The new shards that can hold a key of shard ``number`` of ``shards``: both numbers are the hash's remainders."""
    step = math.gcd(shards, new_shards)
    return range(number % step, new_shards, step)


def _sampled_keys(shard: ShardReader, is_sampled: Callable[[bytes], bool]) -> Iterator[bytes]:
    return filter(is_sampled, shard.txn.cursor().iternext(keys=True, values=False))


def _compare_before(
    before: ShardReader,
    after: dict[int, ShardReader],
    shards: int,
    is_sampled: Callable[[bytes], bool],
    result: SampledDifference,
) -> None:
    for key in _sampled_keys(before, is_sampled):
        new = after[shard_number(key, shards)]
        stored = new.txn.get(key)
        if stored is None:
            result.removed += 1
            result.note("removed", key)
        elif _is_same(before, before.txn.get(key, b""), new, stored):
            result.same += 1
        else:
            result.changed += 1
            result.note("changed", key)


def _count_added(
    before: ShardReader,
    after: dict[int, ShardReader],
    place: tuple[int, int],
    is_sampled: Callable[[bytes], bool],
    result: SampledDifference,
) -> None:
    """Count the new keys that would be in the shard ``before``, whose number and number of shards are ``place``."""
    number, shards = place
    for new in after.values():
        for key in _sampled_keys(new, is_sampled):
            if shard_number(key, shards) == number and before.txn.get(key) is None:
                result.added += 1
                result.note("added", key)


def _is_same(before: ShardReader, old: bytes, after: ShardReader, new: bytes) -> bool:
    if old == new and (old[0] == FRAMED or before.dictionary == after.dictionary):
        return True
    return before.expand(old) == after.expand(new)
