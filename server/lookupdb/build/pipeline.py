"""One build, from the source to the published generation: the order of the steps."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lookupdb import __version__, keys, shard_name, shardfile
from lookupdb.build import existing_generations, gates
from lookupdb.build.budget import BuildBudget, count_packers
from lookupdb.build.build_report import BuildReport
from lookupdb.build.progress import Progress
from lookupdb.build.read.slice_reader import garbage_collection_paused
from lookupdb.build.read.sorted_records import SortedRecords
from lookupdb.build.scratch import scratch_folder
from lookupdb.build.source.fetch import fetch_files
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.listing import resolve_source, source_fingerprint
from lookupdb.build.source.success_file import describe_success_file, read_success_file
from lookupdb.build.write.dictionary import choose_dictionary
from lookupdb.build.write.duplicates import DuplicateFilter
from lookupdb.build.write.generation_writer import GenerationWriter, check_open_files
from lookupdb.errors import BadSource, GenerationExists
from lookupdb.manifest import Manifest, ShardFile, Totals
from lookupdb.runtime.memory import peak_resident, return_large_blocks
from lookupdb.shardfile import ShardMeta
from lookupdb.spec import DatasetSpec
from lookupdb.store import BuildClaim, Store, StoredDataset
from lookupdb.wording import format_count


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build. The spec says what to build."""

    scratch: Path
    memory_limit: int = 1 << 30
    """Bytes that the build and the processes that it starts may use together."""
    threads: int = 1
    volume: Path | None = None
    """The folder behind volume:// urls."""
    generation: str | None = None
    """The name of the generation; None takes the next free one."""
    active: str | None = None
    """The generation that the gates compare with; None takes the newest published. If it cannot be read, the newest
    readable one takes its place."""
    unless_fingerprint: str | None = None
    """Build nothing if the source has this fingerprint and the store holds a generation of it, built to the same
    spec."""
    unless_success_file: str | None = None
    """Build nothing, and do not look at the source, if the success file has this identity and the store holds a
    generation of ``unless_fingerprint``, built to the same spec."""
    local_files: bool = True
    """Whether the build may read files of this machine outside of the volume."""


def build_generation(spec: DatasetSpec, store: Store, options: BuildOptions, progress: Progress) -> BuildReport:
    """Build one generation of ``spec`` in ``store``.

    If the store already holds ``options.generation``, built to this very spec, the build adopts it: an earlier builder
    published it and died before it could report. Raises BadSource, GateClosed, NotEnoughRoom, StoreError
    (GenerationExists if the generation was built to another spec). A build never touches earlier generations, and
    publishes the new one whole or not at all.

    Where the spec names a success file, its identity is read before anything of the source, and nothing is read unless
    it is there; if it is another one at the end, nothing is published.
    """
    started_at = time.monotonic()
    check_resources(spec, options)
    return_large_blocks()
    dataset = store.dataset(spec)
    if options.generation is not None and options.generation in dataset.generations():
        return _adopt_generation(spec, dataset, options.generation, started_at)
    success_file = find_success_file(spec, options)
    if spec.refresh.success_file is not None and success_file is None:
        return _waiting_report(spec, started_at)
    if success_file is not None and success_file == options.unless_success_file:
        known = options.unless_fingerprint
        if known is not None and existing_generations.has_generation(dataset, spec, known):
            return _unchanged_report(spec, known, success_file, started_at)
    objects = resolve_source(spec, volume=options.volume, local_files=options.local_files)
    fingerprint = source_fingerprint(objects)
    if fingerprint and _is_up_to_date(spec, dataset, options, fingerprint):
        return _unchanged_report(spec, fingerprint, success_file, started_at)
    active = existing_generations.find_active_manifest(dataset, options.active, spec.gates)
    try:
        with (
            scratch_folder(options.scratch) as scratch,
            dataset.claim(options.generation or dataset.next_generation(), scratch) as claim,
        ):
            files = fetch_files(objects, scratch, progress)
            if fingerprint is None:  # only the content identifies it
                fingerprint = source_fingerprint(files)
                assert fingerprint, "what was fetched is identified"
                if _is_up_to_date(spec, dataset, options, fingerprint):
                    return _unchanged_report(spec, fingerprint, success_file, started_at)
            build = _GenerationBuild(spec, options, progress, scratch, claim, active, success_file)
            manifest = build.run(files, fingerprint, started_at)
    except GenerationExists:
        if options.generation is None:
            raise
        # Another builder published it while this one waited for the claim.
        return _adopt_generation(spec, dataset, options.generation, started_at)
    return _built_report(manifest, build.reading_peak)


class _GenerationBuild:
    """The steps between the claim and the publication."""

    def __init__(
        self,
        spec: DatasetSpec,
        options: BuildOptions,
        progress: Progress,
        scratch: Path,
        claim: BuildClaim,
        active: Manifest | None,
        success_file: str | None,
    ) -> None:
        self.spec = spec
        self.options = options
        self.progress = progress
        self.scratch = scratch
        self.claim = claim
        self.active = active
        self.success_file = success_file
        self.reading_peak = 0

    def run(self, files: Sequence[LocalFile], fingerprint: str, started_at: float) -> Manifest:
        """Sort, write, check the gates, publish."""
        options = self.options
        limit, threads = options.memory_limit, options.threads
        with (
            garbage_collection_paused(),
            SortedRecords(self.spec, files, self.scratch, limit, threads, self.progress) as records,
        ):
            rejected, self.reading_peak = records.rejected, records.peak_memory
            duplicates = DuplicateFilter(
                self.spec.duplicates, [file.description.url for file in files], records.find_origin
            )
            facts = gates.GateFacts(records.rows, rejected, self.active, lambda _key: True)
            gates.check_gates(gates.BEFORE_WRITING, self.spec.gates, facts)
            dictionary, shards, totals = self._write(records, duplicates)
        facts = gates.GateFacts(totals.records, rejected, self.active, self._has_key)
        gates.check_gates(gates.AFTER_WRITING, self.spec.gates, facts)
        spec = self.spec
        manifest = Manifest(
            namespace=spec.namespace,
            name=spec.name,
            uid=spec.uid,
            generation=self.claim.generation,
            content=spec.content_hash(),
            fingerprint=fingerprint,
            source=tuple(file.description for file in files),
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
            seconds=round(time.monotonic() - started_at, 3),
            lookupdb=__version__,
            success_file=self.success_file,
        )
        self._check_success_file()
        self.progress.begin_phase("publishing", None, "bytes")
        published = self.claim.publish(manifest)
        self.progress.end_phase()
        return published

    def _check_success_file(self) -> None:
        """Raises BadSource if the source may have been written to while it was read."""
        if find_success_file(self.spec, self.options) != self.success_file:
            raise BadSource(
                f"{describe_success_file(self.spec)} changed while the source was read",
                hint="build again once it is complete",
            )

    def _write(
        self, records: SortedRecords, duplicates: DuplicateFilter
    ) -> tuple[bytes, tuple[ShardFile, ...], Totals]:
        spec = self.spec
        dictionary = b""
        if spec.value.compression == "zstd":
            self.progress.begin_phase("training", None, "rows")
            dictionary = choose_dictionary(
                records.sample, records=records.rows, shards=spec.shards, threads=self.options.threads
            )
            self.progress.end_phase()
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
        threads = self.options.threads
        packers = count_packers(self.options.memory_limit, shards=spec.shards, threads=threads)
        with GenerationWriter(self.claim.folder, meta, dictionary, threads, packers) as writer:
            self.progress.begin_phase("writing", records.rows, "rows")
            for count in writer.write(duplicates.drop_duplicates(records)):
                self.progress.advance(count)
            self.progress.end_phase()
            self.progress.begin_phase("syncing", None, "bytes")
            shards, totals = writer.finish()
            self.progress.end_phase()
        return dictionary, shards, totals

    def _has_key(self, text: str) -> bool:
        """Whether a lookup in the new files, made as a router makes it, finds the key."""
        try:
            key = keys.make_key_encoder(self.spec.key.normalize)(text)
        except keys.InvalidKey:
            return False
        shards = self.spec.shards
        path = self.claim.folder / shard_name.file_name(keys.shard_number(key, shards), shards)
        with shardfile.ShardReader(path) as shard:
            return shard.find(key) is not None


def find_success_file(spec: DatasetSpec, options: BuildOptions) -> str | None:
    """The identity of the success file; None when the spec names none, or it is not there. Raises BadSource."""
    if spec.refresh.success_file is None:
        return None
    return read_success_file(spec, volume=options.volume, local_files=options.local_files)


def check_resources(spec: DatasetSpec, options: BuildOptions) -> None:
    """Raises NotEnoughRoom if the build needs more memory or open files than it may have."""
    BuildBudget.for_build(options.memory_limit, shards=spec.shards, threads=options.threads)
    check_open_files(spec.shards)


def count_usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_up_to_date(spec: DatasetSpec, dataset: StoredDataset, options: BuildOptions, fingerprint: str) -> bool:
    return options.unless_fingerprint == fingerprint and existing_generations.has_generation(dataset, spec, fingerprint)


def _waiting_report(spec: DatasetSpec, started_at: float) -> BuildReport:
    return BuildReport(
        outcome="waiting",
        dataset=f"{spec.namespace}/{spec.name}",
        seconds=round(time.monotonic() - started_at, 3),
        peak_memory_bytes=peak_resident(),
        reason="WaitingForSource",
        message=f"waiting for {describe_success_file(spec)}: the source was not read, and nothing was built",
    )


def _unchanged_report(spec: DatasetSpec, fingerprint: str, success_file: str | None, started_at: float) -> BuildReport:
    return BuildReport(
        outcome="unchanged",
        dataset=f"{spec.namespace}/{spec.name}",
        fingerprint=fingerprint,
        success_file=success_file,
        seconds=round(time.monotonic() - started_at, 3),
        peak_memory_bytes=peak_resident(),
        reason="Unchanged",
        message="the source is unchanged; nothing was built",
    )


def _adopt_generation(spec: DatasetSpec, dataset: StoredDataset, generation: str, started_at: float) -> BuildReport:
    """Report ``generation``, which the store holds already. Raises GenerationExists if it was built to another spec."""
    manifest = dataset.manifest(generation)
    if manifest.content != spec.content_hash():
        raise GenerationExists(
            f"generation {generation} of {dataset.address} exists already in {dataset.url}, built to another spec",
            hint="a generation never changes: leave --generation away to build the next one",
        )
    return replace(
        _built_report(manifest, 0),
        outcome="adopted",
        seconds=round(time.monotonic() - started_at, 3),
        reason="Adopted",
        message=f"{generation} is whole already, built to this very spec at {manifest.built_at}: nothing was built",
    )


def _built_report(manifest: Manifest, reading_peak: int) -> BuildReport:
    totals = manifest.totals
    return BuildReport(
        outcome="built",
        dataset=f"{manifest.namespace}/{manifest.name}",
        generation=manifest.generation,
        fingerprint=manifest.fingerprint,
        success_file=manifest.success_file,
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
        message=f"built {manifest.generation}: {format_count(totals.records, 'record')} in "
        f"{format_count(len(manifest.shards), 'shard')}, "
        f"{manifest.seconds:.1f} s",
    )
