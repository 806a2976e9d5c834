"""What gates judge a written generation by: reads its files, and those of the active generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from lookupdb import keys, shard_name
from lookupdb.build.gates import ActiveGeneration, GateFacts, SampledDifference
from lookupdb.build.progress import Progress
from lookupdb.build.sampled_difference import compare_with_active
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.manifest import ExcludedRows, Totals
from lookupdb.shardfile import FRAMED, ShardReader, unframe
from lookupdb.spec import DatasetSpec
from lookupdb.store import StoredDataset


def gather_facts(
    generation: WrittenGeneration,
    totals: Totals,
    rejected: ExcludedRows,
    active: ActiveGeneration | None,
    dataset: StoredDataset,
    scratch: Path,
    progress: Progress,
) -> GateFacts:
    """The facts of a generation that is written and not yet published. ``scratch`` takes a copy of one file of the
    active generation at a time."""

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
        """The value of a key as a router looks it up; None if there is none."""
        try:
            key = self._encode(text)
        except keys.InvalidKey:
            return None
        with self.open_shard(keys.shard_number(key, self.spec.shards)) as shard:
            reply = shard.find(key)
        return None if reply is None else unframe(reply)

    def list_large_values(self, limit: int) -> Iterator[tuple[bytes, int]]:
        """The keys whose values have more than ``limit`` bytes, and how many."""
        for number in range(self.spec.shards):
            with self.open_shard(number) as shard:
                for key, stored in shard.items():
                    if stored[0] == FRAMED and len(stored) <= limit:
                        continue
                    size = len(unframe(shard.expand(stored)))
                    if size > limit:
                        yield key, size

    def open_shard(self, number: int) -> AbstractContextManager[ShardReader]:
        """The file of shard ``number``."""
        return ShardReader(self.folder / shard_name.file_name(number, self.spec.shards))
