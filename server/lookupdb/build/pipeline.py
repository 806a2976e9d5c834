"""One build from source to published generation: who calls whom, in which order."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lookupdb import __version__, keys, shardfile
from lookupdb.build import existing_generations, gates
from lookupdb.build.budget import Budget
from lookupdb.build.build_result import Result
from lookupdb.build.progress import Progress
from lookupdb.build.read.slice_reader import no_collection
from lookupdb.build.read.sorted_records import SortedRecords
from lookupdb.build.scratch import scratch_folder
from lookupdb.build.source.fetch import LocalFile, fetch
from lookupdb.build.source.listing import fingerprint, resolve
from lookupdb.build.write.compression import choose_dictionary
from lookupdb.build.write.duplicates import Duplicates
from lookupdb.build.write.generation_writer import GenerationWriter, check_open_files
from lookupdb.errors import GenerationExists
from lookupdb.manifest import Manifest, ShardFile, Totals
from lookupdb.runtime.memory import peak_resident
from lookupdb.shardfile import ShardMeta
from lookupdb.spec import DatasetSpec
from lookupdb.store import Claim, Dataset, Store
from lookupdb.wording import counted


@dataclass(frozen=True, slots=True)
class Options:
    """How to build; what to build is the spec's to say."""

    scratch: Path
    memory_limit: int = 1 << 30
    """Bytes that the build may use, with the processes it starts."""
    threads: int = 1
    volume: Path | None = None
    """Where volume:// urls are found."""
    generation: str | None = None
    """None: the next free one."""
    active: str | None = None
    """The generation that gates compare with; None: the newest published. The newest readable one stands in for it."""
    unless_fingerprint: str | None = None
    """Build nothing when the source has this fingerprint and the store a generation of it, built to the same spec."""
    local_files: bool = True
    """Whether files of this machine may be read, other than those of the volume."""


def build(spec: DatasetSpec, store: Store, options: Options, progress: Progress) -> Result:
    """Build one generation of ``spec`` in ``store``.

    When ``options.generation`` is whole already and was built to this very spec, it is adopted: the builder before
    this one could publish it and not tell. Raises BadSource, GateClosed, StoreError (GenerationExists when it was built
    to another spec), NotEnoughRoom. Whatever happens, earlier generations are untouched, and the new one is there
    whole or not at all.
    """
    began = time.monotonic()
    check_room(spec, options)
    dataset = store.dataset(spec)
    if options.generation is not None and options.generation in dataset.generations():
        return _adopted(spec, dataset, options.generation, began)
    objects = resolve(spec, volume=options.volume, local_files=options.local_files)
    print_of = fingerprint(objects)
    if print_of and _need_not_be(spec, dataset, options, print_of):
        return _unchanged(spec, print_of, began)
    active = existing_generations.active_manifest(dataset, options.active, spec.gates)
    try:
        with (
            scratch_folder(options.scratch) as scratch,
            dataset.claim(options.generation or dataset.next_generation(), scratch) as claim,
        ):
            files = fetch(objects, scratch, progress)
            if print_of is None:  # only what was read tells
                print_of = fingerprint(files)
                assert print_of, "what was fetched is identified"
                if _need_not_be(spec, dataset, options, print_of):
                    return _unchanged(spec, print_of, began)
            one = _Build(spec, options, progress, scratch, claim, active)
            manifest = one.run(files, print_of, began)
    except GenerationExists:
        if options.generation is None:
            raise
        # Published while we waited for the claim of its builder.
        return _adopted(spec, dataset, options.generation, began)
    return _built(manifest, one.reading_peak)


class _Build:
    """The steps between claim and publication."""

    def __init__(
        self,
        spec: DatasetSpec,
        options: Options,
        progress: Progress,
        scratch: Path,
        claim: Claim,
        active: Manifest | None,
    ) -> None:
        self.spec = spec
        self.options = options
        self.progress = progress
        self.scratch = scratch
        self.claim = claim
        self.active = active
        self.reading_peak = 0

    def run(self, files: Sequence[LocalFile], print_of: str, began: float) -> Manifest:
        """Sort, write, check, publish."""
        options = self.options
        limit, threads = options.memory_limit, options.threads
        with no_collection(), SortedRecords(self.spec, files, self.scratch, limit, threads, self.progress) as records:
            rejected, self.reading_peak = records.rejected, records.peak_memory
            duplicates = Duplicates(self.spec.duplicates, [one.described.url for one in files], records.origin)
            facts = gates.Facts(records.rows, rejected, self.active, lambda _key: True)
            gates.pass_all(gates.BEFORE_WRITING, self.spec.gates, facts)
            dictionary, shards, totals = self._write(records, duplicates)
        facts = gates.Facts(totals.records, rejected, self.active, self._has_key)
        gates.pass_all(gates.AFTER_WRITING, self.spec.gates, facts)
        spec = self.spec
        manifest = Manifest(
            namespace=spec.namespace,
            name=spec.name,
            uid=spec.uid,
            generation=self.claim.generation,
            content=spec.content_hash(),
            fingerprint=print_of,
            source=tuple(one.described for one in files),
            key_columns=spec.key.columns,
            separator=spec.key.separator,
            normalize=spec.key.normalize,
            unicode=keys.UNICODE_VERSION,
            value_format=spec.value.format,
            compression=spec.value.compression,
            dictionary_bytes=len(dictionary),
            shards=shards,
            totals=totals,
            rejected=rejected,
            duplicates=duplicates.rows,
            built_at=_now(),
            seconds=round(time.monotonic() - began, 3),
            lookupdb=__version__,
        )
        self.progress.phase("publishing", None, "bytes")
        published = self.claim.publish(manifest)
        self.progress.done()
        return published

    def _write(self, records: SortedRecords, duplicates: Duplicates) -> tuple[bytes, tuple[ShardFile, ...], Totals]:
        spec = self.spec
        dictionary = b""
        if spec.value.compression == "zstd":
            self.progress.phase("training", None, "rows")
            dictionary = choose_dictionary(
                records.sample, records=records.rows, shards=spec.shards, threads=self.options.threads
            )
            self.progress.done()
        meta = ShardMeta(
            dataset=f"{spec.namespace}/{spec.name}",
            shard=0,
            shards=spec.shards,
            records=0,
            normalize=spec.key.normalize,
            value_format=spec.value.format,
            compression=spec.value.compression,
            content=spec.content_hash(),
        )
        with GenerationWriter(self.claim.folder, meta, dictionary, max(1, self.options.threads - 1)) as writer:
            self.progress.phase("writing", records.rows, "rows")
            for written in writer.write(duplicates.drop(records)):
                self.progress.advance(written)
            self.progress.done()
            self.progress.phase("syncing", None, "bytes")
            shards, totals = writer.finish()
            self.progress.done()
        return dictionary, shards, totals

    def _has_key(self, text: str) -> bool:
        """Looked up as a router would, in the files just written."""
        try:
            key = keys.key_encoder(self.spec.key.normalize)(text)
        except keys.InvalidKey:
            return False
        shards = self.spec.shards
        path = self.claim.folder / shardfile.file_name(keys.shard_of(key, shards), shards)
        with shardfile.Shard(path) as shard:
            return shard.find(key) is not None


def check_room(spec: DatasetSpec, options: Options) -> None:
    """Raises NotEnoughRoom when this build does not fit its memory limit, or the limit of open files."""
    Budget.of(options.memory_limit, shards=spec.shards)
    check_open_files(spec.shards)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _need_not_be(spec: DatasetSpec, dataset: Dataset, options: Options, print_of: str) -> bool:
    return options.unless_fingerprint == print_of and existing_generations.holds(dataset, spec, print_of)


def _unchanged(spec: DatasetSpec, print_of: str, began: float) -> Result:
    return Result(
        outcome="unchanged",
        dataset=f"{spec.namespace}/{spec.name}",
        fingerprint=print_of,
        seconds=round(time.monotonic() - began, 3),
        peak_memory_bytes=peak_resident(),
        reason="Unchanged",
        message="the source is unchanged; nothing was built",
    )


def _adopted(spec: DatasetSpec, dataset: Dataset, generation: str, began: float) -> Result:
    """``generation``, which is whole already. Raises GenerationExists when it was built to another spec."""
    manifest = dataset.manifest(generation)
    if manifest.content != spec.content_hash():
        raise GenerationExists(
            f"generation {generation} of {dataset.address} exists already in {dataset.url}, built to another spec",
            hint="a generation never changes: leave --generation away to build the next one",
        )
    return replace(
        _built(manifest, 0),
        outcome="adopted",
        seconds=round(time.monotonic() - began, 3),
        reason="Adopted",
        message=f"{generation} is whole already, built to this very spec at {manifest.built_at}: nothing was built",
    )


def _built(manifest: Manifest, reading_peak: int) -> Result:
    totals = manifest.totals
    return Result(
        outcome="built",
        dataset=f"{manifest.namespace}/{manifest.name}",
        generation=manifest.generation,
        fingerprint=manifest.fingerprint,
        records=totals.records,
        rejected=manifest.rejected.count,
        duplicates=manifest.duplicates.count,
        record_bytes=totals.key_bytes + totals.value_bytes,
        file_bytes=totals.file_bytes,
        largest_shard_bytes=max(shard.bytes for shard in manifest.shards),
        built_at=manifest.built_at,
        seconds=manifest.seconds,
        peak_memory_bytes=max(reading_peak, peak_resident()),
        reason="Built",
        message=f"built {manifest.generation}: {counted(totals.records, 'record')} in "
        f"{counted(len(manifest.shards), 'shard')}, "
        f"{manifest.seconds:.1f} s",
    )
