"""Run one build, from the source to the published generation."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Literal, Self

from lookupdb import __version__, keys
from lookupdb.builder import crew, existing, gate_facts, gates
from lookupdb.builder.core import (
    PARALLEL_FROM,
    MergedSlices,
    ReducedShards,
    add_up,
    check_open_files,
    garbage_collection_paused,
    map_slice,
    plan_source,
    reduce_shards,
)
from lookupdb.builder.crew import CrewState, SliceJob, SliceResult
from lookupdb.builder.files import LocalFile, source_fingerprint, tell_changes
from lookupdb.builder.gates import ActiveGeneration
from lookupdb.builder.listing import (
    describe_success_file,
    fetch_files,
    not_whole_error,
    read_success_file,
    resolve_source,
)
from lookupdb.builder.options import (
    BuildBudget,
    BuildOptions,
    BuildReport,
    Progress,
    SilentProgress,
    built_report,
    count_packers,
    scratch_folder,
)
from lookupdb.builder.rows import ReportProgress
from lookupdb.builder.sort import Batch, Sample, Sorter, make_sample
from lookupdb.builder.write import choose_dictionary
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import GenerationExists, SourceUnreadable
from lookupdb.manifest import ExcludedRows, Manifest, Refusal, Totals
from lookupdb.process.memory import peak_resident, return_large_blocks
from lookupdb.shardfile import ShardMeta
from lookupdb.store import BuildClaim, Store, StoredDataset


def build_generation(spec: DatasetSpec, store: Store, options: BuildOptions, progress: Progress) -> BuildReport:
    """Build one generation of ``spec`` in ``store``.

    If the store already holds ``options.generation``, built from this spec, the build adopts it: an earlier builder
    published it and died before it could report. A build publishes the new generation whole or not at all; one that
    fails a gate is published too, marked in its manifest, unless it is empty. Raises BadSource, GateClosed,
    NotEnoughRoom, StoreError (GenerationExists if it was built from another spec, or by another ``options.build_id``).

    A success file is read before the source. If it is missing, nothing is read; if it has changed by the end, nothing
    is published.

    With ``options.adopt``, a dataset without generations of its own gets a copy of an earlier dataset's generation, and
    the source is not read. Raises AdoptionFailed if there is none to adopt. A dataset that has its own generation
    builds; with ``options.build_id`` it gets a copy of that one, which the caller did not know of.
    """
    started_at = time.monotonic()
    check_resources(spec, options)
    return_large_blocks()
    dataset = store.dataset(spec)
    if options.generation is not None and options.generation in dataset.whole_manifests():
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)
    if options.adopt is not None and (copy := existing.copy_existing(spec, store, options.adopt, options, progress)):
        return copy
    success_file = find_success_file(spec, options)
    if spec.refresh.success_file is not None and success_file is None:
        message = f"waiting for {describe_success_file(spec)}: the source was not read, and nothing was built"
        return _idle_report(spec, started_at, "waiting", "WaitingForSource", message)

    def find_unchanged(fingerprint: str | None) -> BuildReport | None:
        """Return the report if the store holds the generation of the source with this fingerprint already."""
        if fingerprint is None or fingerprint != options.unless_fingerprint:
            return None
        if not existing.has_generation(dataset, spec, fingerprint, options.active):
            return None
        message = "the source is unchanged; nothing was built"
        return _idle_report(spec, started_at, "unchanged", "Unchanged", message, fingerprint, success_file)

    @cache
    def find_active() -> ActiveGeneration | None:
        return gate_facts.find_active(dataset, options.active, options.active_records, spec.gates)

    def decide(fingerprint: str | None) -> BuildReport | None:
        """Return the report if nothing is to be built from this source. Raises SourceNotWhole, GenerationRefused."""
        check_seen(spec, options, success_file, fingerprint)
        if unchanged := find_unchanged(fingerprint):
            return unchanged
        active = find_active()
        if fingerprint is not None and options.unless_refused is not None:
            refused = existing.find_refusal(dataset, options.unless_refused, spec, fingerprint, active)
            if refused is not None and refused.refused is not None:
                raise existing.refusal_error(refused.refused, refused)
        return None

    if success_file is not None and success_file == options.unless_success_file:
        unread = find_unchanged(options.unless_fingerprint)
        if unread is not None:
            return unread
    objects = resolve_source(spec, volume=options.volume, local_files=options.local_files)
    fingerprint = source_fingerprint(objects)
    if decided := decide(fingerprint):
        return decided
    try:
        with (
            scratch_folder(options.scratch) as scratch,
            dataset.claim(options.generation or dataset.next_generation(), scratch) as claim,
        ):
            files = fetch_files(objects, scratch, progress)
            # Only its content may identify the source.
            if fingerprint is None and (decided := decide(source_fingerprint(files))):
                return decided
            build = _GenerationBuild(spec, options, progress, scratch, claim, dataset, find_active(), success_file)
            return build.run(files, started_at)
    except GenerationExists:
        if options.generation is None:
            raise
        # Another builder published it while this build waited for the claim.
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)


class SortedRecords:
    """The records of ``files`` in the order of their keys' bytes; records of equal keys in the source's order.

    A crew of processes maps the slices of a large source. The build itself maps a slice again, in the source's order,
    if a crew member failed or the slice was cut within a row: so it always reports the first error in the source's
    order, with its row number.

    Entering reads, parses and sorts everything, and sets the attributes. Iterating yields the records in batches, once,
    including duplicates.

    Entering raises BadSource for a file that cannot be parsed, and NotEnoughRoom if memory or ``scratch`` do not
    suffice.
    """

    rows: int
    """Number of rows read, including rejected rows."""
    rejected: ExcludedRows
    peak_memory: int
    """Upper bound of the resident memory of all processes while they read, in bytes."""
    sample: list[bytes]
    """The values whose keys have the smallest hashes, uncompressed; empty without compression."""

    def __init__(
        self,
        spec: DatasetSpec,
        files: Sequence[LocalFile],
        scratch: Path,
        memory_limit: int,
        threads: int,
        progress: Progress,
        parallel_from: int = PARALLEL_FROM,
    ) -> None:
        """Several processes read a source of ``parallel_from`` bytes or more, as ``threads`` and memory allow."""
        self._spec, self._files, self._scratch, self._progress = spec, files, scratch, progress
        self._threads = threads
        self._memory_limit = memory_limit
        self._needs_sample = spec.value.compression == "zstd"
        self._budget = BuildBudget.for_build(
            memory_limit, shards=spec.shards, threads=threads, needs_sample=self._needs_sample
        )
        small = sum(file.bytes for file in files) < parallel_from  # whatever its number of files
        members = 1 if small else min(threads, self._budget.members)
        self.plan = plan_source(files, members, parallel_from, spec.source.csv)
        if len(self.plan.slices) > crew.MAX_CREW_SLICES:
            members, self.plan = 1, plan_source(files, 1, parallel_from, spec.source.csv)
        self._members = min(members, len(self.plan.slices))
        self._merged = MergedSlices(spec, files, self.plan.slices, self._budget.row)
        self.find_origin = self._merged.find_origin
        self._open = ExitStack()
        self._sorter: Sorter

    def __enter__(self) -> Self:
        def check_unchanged() -> None:
            for file in self._files:
                file.check_unchanged()

        with tell_changes(check_unchanged), ExitStack() as stack:
            self._sorter = stack.enter_context(Sorter(self._scratch, self._budget.sorting))
            source_bytes = sum(file.bytes for file in self._files)
            sample = make_sample(self._budget.sample, source_bytes)
            self._progress.begin_phase("read", source_bytes, "bytes")
            members_peak = self._read(sample)
            self._progress.end_phase()
            self.rows, self.rejected = self._merged.rows, self._merged.rejected
            self.sample = sample.take_values()
            self.peak_memory = peak_resident() + members_peak
            self._open = stack.pop_all()
        return self

    def _read(self, sample: Sample) -> int:
        """Adopt what a crew has mapped, and map the rest here, in the source's order. Return the crew's peak memory."""
        spec, slices, merged = self._spec, self.plan.slices, self._merged
        report: ReportProgress = self._progress.advance
        states, peak, folder = [CrewState.UNREAD] * len(slices), 0, self._scratch
        with ExitStack() as stack:
            if self._members > 1:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="slices-", dir=self._scratch)))
                budget = BuildBudget.for_member(self._memory_limit, self._members, needs_sample=self._needs_sample)
                states, peak = crew.run_crew(SliceJob(spec, self._files, slices, folder, budget), self._members, report)
                report = SilentProgress().advance  # the crew has reported all bytes, and has exited: its memory is free
            for number, mapped in enumerate(slices):
                piece = merged.next_slice(number)
                if piece is None:
                    continue
                result = SliceResult.load(folder, number) if states[number] is CrewState.DONE else None
                if result is not None and piece.start == mapped.start:
                    self._sorter.adopt(number, folder, result.runs, result.spool)
                    sample.add_run(folder / result.sample)
                    outcome = result.outcome
                else:
                    if result is not None:
                        result.discard(folder)
                    outcome = map_slice(
                        spec,
                        self._files[piece.file],
                        number,
                        piece,
                        self._sorter,
                        sample,
                        self._budget,
                        report,
                        threads=self._threads,
                    )
                merged.merge(number, outcome)
        return peak

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._sorter)


@dataclass(frozen=True, slots=True)
class _GenerationBuild:
    """The steps between the claim and the publication."""

    spec: DatasetSpec
    options: BuildOptions
    progress: Progress
    scratch: Path
    claim: BuildClaim
    dataset: StoredDataset
    active: ActiveGeneration | None
    success_file: str | None

    def run(self, files: Sequence[LocalFile], started_at: float) -> BuildReport:
        """Sort, write, check the gates, publish. Raises GenerationRefused."""
        spec, options, progress = self.spec, self.options, self.progress
        sorting = SortedRecords(spec, files, self.scratch, options.memory_limit, options.threads, progress)
        with garbage_collection_paused(), sorting as records:
            dictionary, reduced = self._write(records)
            urls = [file.description.url for file in files]
            duplicates = reduced.duplicates.describe(spec.duplicates, urls, records.find_origin)
        totals = add_up(reduced.files, reduced.sums)
        refused = self._judge(totals, records.rejected)
        if refused is not None and totals.records == 0:
            raise existing.refusal_error(refused, None)
        fingerprint = records.plan.fingerprint
        assert fingerprint, "what was fetched is identified"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
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
            shards=reduced.files,
            totals=totals,
            rejected=records.rejected,
            duplicates=duplicates,
            built_at=now.replace("+00:00", "Z"),
            seconds=round(time.monotonic() - started_at, 3),
            lookupdb=__version__,
            success_file=self.success_file,
            refused=refused,
            build=options.build_id,
        )
        if find_success_file(spec, options) != self.success_file:
            raise SourceUnreadable(
                f"{describe_success_file(spec)} changed while the source was read",
                hint="build again once it is complete",
            )
        progress.begin_phase("publishing", None, "bytes")
        published = self.claim.publish(manifest)
        progress.end_phase()
        if refused is not None:
            raise existing.refusal_error(refused, published)
        return built_report(published, records.peak_memory)

    def _judge(self, totals: Totals, rejected: ExcludedRows) -> Refusal | None:
        """Return why the generation must not be rolled out; None if every gate passed."""
        written = gate_facts.WrittenGeneration(self.spec, self.claim.folder)
        facts = gate_facts.gather_facts(
            written, totals, rejected, self.active, self.dataset, self.scratch, self.progress
        )
        closed = gates.find_closed_gates(self.spec.gates, facts)
        if not closed:
            return None
        return Refusal(
            reasons=gates.describe_closed_gates(closed),
            gates=self.spec.gates.content_hash(),
            active=self.active.generation if self.active else "",
            unjudged=gates.describe_closed_gates([gate for gate in closed if gate.is_unjudged]),
        )

    def _write(self, records: SortedRecords) -> tuple[bytes, ReducedShards]:
        spec, threads = self.spec, self.options.threads
        dictionary = b""
        if spec.value.compression == "zstd":
            self.progress.begin_phase("training", None, "rows")
            dictionary = choose_dictionary(records.sample, records=records.rows, shards=spec.shards, threads=threads)
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
        packers = count_packers(self.options.memory_limit, shards=spec.shards, threads=threads)
        return dictionary, reduce_shards(
            records,
            self.claim.folder,
            meta,
            dictionary,
            spec.duplicates,
            self.progress,
            rows=records.rows,
            threads=threads,
            packers=packers,
        )


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


def _idle_report(
    spec: DatasetSpec,
    started_at: float,
    outcome: Literal["unchanged", "waiting"],
    reason: str,
    message: str,
    fingerprint: str | None = None,
    success_file: str | None = None,
) -> BuildReport:
    """Return the report of a build that built nothing."""
    return BuildReport(
        outcome=outcome,
        dataset=f"{spec.namespace}/{spec.name}",
        fingerprint=fingerprint,
        success_file=success_file,
        seconds=round(time.monotonic() - started_at, 3),
        peak_memory_bytes=peak_resident(),
        reason=reason,
        message=message,
    )
