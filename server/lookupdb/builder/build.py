"""Run one build, from the source to the published generation."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from pathlib import Path

from lookupdb import __version__, keys
from lookupdb.builder import existing, gates
from lookupdb.builder.crew import SortedRecords
from lookupdb.builder.fetch import fetch_files
from lookupdb.builder.fetched_file import LocalFile
from lookupdb.builder.gate_facts import WrittenGeneration, gather_facts
from lookupdb.builder.listing import (
    describe_success_file,
    not_whole_error,
    read_success_file,
    resolve_source,
    source_fingerprint,
)
from lookupdb.builder.options import BuildBudget, BuildOptions, BuildReport, count_packers, scratch_folder
from lookupdb.builder.progress import Progress
from lookupdb.builder.read import garbage_collection_paused
from lookupdb.builder.write import DuplicateFilter, GenerationWriter, check_open_files, choose_dictionary
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import GenerationExists, SourceUnreadable
from lookupdb.manifest import ExcludedRows, Manifest, Refusal, ShardFile, Totals
from lookupdb.process.memory import peak_resident, return_large_blocks
from lookupdb.shardfile import ShardMeta
from lookupdb.store import BuildClaim, Store, StoredDataset


def build_generation(spec: DatasetSpec, store: Store, options: BuildOptions, progress: Progress) -> BuildReport:
    """Build one generation of ``spec`` in ``store``.

    If the store already holds ``options.generation``, built from this spec, the build adopts it: an earlier builder
    published it and died before it could report. A build never touches earlier generations, and publishes the new one
    whole or not at all. Raises BadSource, GateClosed, NotEnoughRoom, StoreError (GenerationExists if the generation was
    built from another spec, or by another build than ``options.build_id``).

    If the spec names a success file, it is read before the source. If the file is missing, nothing is read; if it has
    changed by the end, nothing is published.

    A generation that fails a gate is published too, marked in its manifest, unless it is empty.

    With ``options.adopt``, a dataset without generations of its own gets a copy of an earlier dataset's generation, and
    the source is not read. Raises AdoptionFailed if there is none to adopt. A dataset that has its own generation
    builds; with ``options.build_id`` it gets a copy of that one, which the caller did not know of.
    """
    started_at = time.monotonic()
    check_resources(spec, options)
    return_large_blocks()
    dataset = store.dataset(spec)
    if options.generation is not None and existing.is_whole(dataset, options.generation):
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)
    if options.adopt is not None and (copy := existing.copy_existing(spec, store, options.adopt, options, progress)):
        return copy
    success_file = find_success_file(spec, options)
    if spec.refresh.success_file is not None and success_file is None:
        return _waiting_report(spec, started_at)
    if success_file is not None and success_file == options.unless_success_file:
        known = options.unless_fingerprint
        if known is not None and existing.has_generation(dataset, spec, known, options.active):
            return _unchanged_report(spec, known, success_file, started_at)
    objects = resolve_source(spec, volume=options.volume, local_files=options.local_files)
    fingerprint = source_fingerprint(objects)
    check_seen(spec, options, success_file, fingerprint)
    if fingerprint and _is_up_to_date(spec, dataset, options, fingerprint):
        return _unchanged_report(spec, fingerprint, success_file, started_at)
    active = existing.find_active(dataset, options.active, options.active_records, spec.gates)
    if fingerprint:
        existing.check_refusal(spec, dataset, options.unless_refused, fingerprint, active)
    try:
        with (
            scratch_folder(options.scratch) as scratch,
            dataset.claim(options.generation or dataset.next_generation(), scratch) as claim,
        ):
            files = fetch_files(objects, scratch, progress)
            if fingerprint is None:  # only its content identifies it
                fingerprint = source_fingerprint(files)
                assert fingerprint, "what was fetched is identified"
                check_seen(spec, options, success_file, fingerprint)
                if _is_up_to_date(spec, dataset, options, fingerprint):
                    return _unchanged_report(spec, fingerprint, success_file, started_at)
                existing.check_refusal(spec, dataset, options.unless_refused, fingerprint, active)
            build = _GenerationBuild(spec, options, progress, scratch, claim, dataset, active, success_file)
            manifest = build.run(files, fingerprint, started_at)
    except GenerationExists:
        if options.generation is None:
            raise
        # Another builder published it while this build waited for the claim.
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)
    return existing.built_report(manifest, build.reading_peak)


class _GenerationBuild:
    """Perform the steps between the claim and the publication."""

    def __init__(
        self,
        spec: DatasetSpec,
        options: BuildOptions,
        progress: Progress,
        scratch: Path,
        claim: BuildClaim,
        dataset: StoredDataset,
        active: gates.ActiveGeneration | None,
        success_file: str | None,
    ) -> None:
        self.spec = spec
        self.options = options
        self.progress = progress
        self.scratch = scratch
        self.claim = claim
        self.dataset = dataset
        self.active = active
        self.success_file = success_file
        self.reading_peak = 0

    def run(self, files: Sequence[LocalFile], fingerprint: str, started_at: float) -> Manifest:
        """Sort, write, check the gates, publish. Raises GenerationRefused."""
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
            dictionary, shards, totals = self._write(records, duplicates)
        refused = self._judge(totals, rejected)
        if refused is not None and totals.records == 0:
            raise existing.refusal_error(refused, None)
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
            refused=refused,
            build=options.build_id,
        )
        self._check_success_file()
        self.progress.begin_phase("publishing", None, "bytes")
        published = self.claim.publish(manifest)
        self.progress.end_phase()
        if refused is not None:
            raise existing.refusal_error(refused, published)
        return published

    def _check_success_file(self) -> None:
        """Raise BadSource if the source may have changed while it was read."""
        if find_success_file(self.spec, self.options) != self.success_file:
            raise SourceUnreadable(
                f"{describe_success_file(self.spec)} changed while the source was read",
                hint="build again once it is complete",
            )

    def _judge(self, totals: Totals, rejected: ExcludedRows) -> Refusal | None:
        """Return why the generation must not be rolled out; None if every gate passed."""
        written = WrittenGeneration(self.spec, self.claim.folder)
        facts = gather_facts(written, totals, rejected, self.active, self.dataset, self.scratch, self.progress)
        closed = gates.find_closed_gates(self.spec.gates, facts)
        if not closed:
            return None
        return Refusal(
            reasons=gates.describe_closed_gates(closed),
            gates=self.spec.gates.content_hash(),
            active=self.active.generation if self.active else "",
            unjudged=gates.describe_closed_gates([gate for gate in closed if gate.is_unjudged]),
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


def find_success_file(spec: DatasetSpec, options: BuildOptions) -> str | None:
    """Return the identity of the success file; None if the spec names none, or it is missing. Raises BadSource."""
    if spec.refresh.success_file is None:
        return None
    return read_success_file(spec, volume=options.volume, local_files=options.local_files)


def check_seen(spec: DatasetSpec, options: BuildOptions, success_file: str | None, fingerprint: str | None) -> None:
    """Raise SourceNotWhole if the source has changed since it was seen, and its success file has not. A source without
    ETags and times is checked after its fetch."""
    has_changed = fingerprint != options.seen_fingerprint and None not in (fingerprint, options.seen_fingerprint)
    if has_changed and success_file is not None and success_file == options.seen_success_file:
        raise not_whole_error(spec)


def check_resources(spec: DatasetSpec, options: BuildOptions) -> None:
    """Raise NotEnoughRoom if the build needs more memory or open files than allowed."""
    BuildBudget.for_build(options.memory_limit, shards=spec.shards, threads=options.threads)
    check_open_files(spec.shards)


def count_usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_up_to_date(spec: DatasetSpec, dataset: StoredDataset, options: BuildOptions, fingerprint: str) -> bool:
    return options.unless_fingerprint == fingerprint and existing.has_generation(
        dataset, spec, fingerprint, options.active
    )


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
