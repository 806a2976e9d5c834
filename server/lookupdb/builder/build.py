"""Build a generation, from the source to its publication. Push a generation, or publish the newest push."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, Self

from lookupdb import __version__, keys
from lookupdb.builder import crew, existing, gates
from lookupdb.builder.core import (
    PARALLEL_FROM,
    MergedSlices,
    add_up,
    check_open_files,
    garbage_collection_paused,
    map_slice,
    plan_source,
    reduce_shards,
)
from lookupdb.builder.crew import CrewState, SliceJob, SliceResult
from lookupdb.builder.dictionary import choose_dictionary, read_dictionary
from lookupdb.builder.files import Format, LocalFile, tell_changes
from lookupdb.builder.gates import ActiveGeneration
from lookupdb.builder.listing import (
    OpenSource,
    SourceObject,
    describe_success_file,
    fetch_files,
    open_source,
    read_success_file,
    source_fingerprint,
)
from lookupdb.builder.options import (
    BuildBudget,
    BuildOptions,
    BuildReport,
    Progress,
    SilentProgress,
    built_report,
    count_packers,
    idle_report,
    peak_resident,
    return_large_blocks,
    scratch_folder,
)
from lookupdb.builder.rows import ReportProgress
from lookupdb.builder.write import Batch, Sample, Sorter, make_sample
from lookupdb.dataset.spec import LOCAL, DatasetSpec
from lookupdb.errors import CorruptFile, GenerationExists, InvalidManifest, PushRejected, SourceUnreadable
from lookupdb.manifest import DictionaryChoice, ExcludedRows, Manifest, ShardFile, SourceFile, Totals
from lookupdb.shardfile import ShardMeta, ShardReader
from lookupdb.store import BuildClaim, Store, StoredDataset
from lookupdb.store.generations import open_shard
from lookupdb.store.sweep import prune


class BuildEngine(Protocol):
    """Reads the source and writes shard files, in place of this process and its crew."""

    def start(self, scratch: Path) -> AbstractContextManager[None]:
        """Start the engine, before anything is claimed."""

    def run(self, build: GenerationBuild, objects: Sequence[SourceObject], decide: Decide) -> BuildReport:
        """Build from ``objects``, and end with ``build.publish``. ``decide`` gets the fingerprint once it is known."""


Decide = Callable[[str | None], BuildReport | None]


def build_generation(
    spec: DatasetSpec, store: Store, options: BuildOptions, progress: Progress, engine: BuildEngine | None = None
) -> BuildReport:
    """Build one generation of ``spec`` in ``store``, with ``engine`` or on this machine.

    If the store already holds ``options.generation``, built from this spec, the build adopts it: an earlier builder
    published it and died before it could report. A build publishes the new generation whole or not at all. A generation
    that fails a gate is published too, marked in its manifest, unless it is empty. Raises BadSource, GateClosed,
    NotEnoughRoom, StoreError (GenerationExists if it was built from another spec, or by another
    ``options.build_id``).

    A success file is read before the source. If it is missing, nothing is read; if it has changed by the end, nothing
    is published.

    With ``options.adopt``, a dataset that has built nothing gets a copy of an earlier dataset's generation; raises
    AdoptionFailed if there is none. A dataset with a generation of its own is built from the source. But if
    ``options.build_id`` is set, that generation is copied: the caller did not know of it.

    A dataset that takes pushes gets a copy of the newest push (``_take_push``). If ``source.urls`` or an ``engine``
    gives it rows, the build pushes these as a generation.
    """
    started_at = time.monotonic()
    check_resources(spec, options)
    return_large_blocks()
    takes_push = spec.source.takes_pushes and engine is None
    dataset = store.inbox(spec) if spec.source.pushed and not takes_push else store.dataset(spec)
    if options.generation is not None and options.generation in dataset.whole_manifests():
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)
    try:
        if options.adopt is not None and (
            copy := existing.copy_existing(spec, store, options.adopt, options, progress)
        ):
            return copy
        if takes_push:
            return _take_push(spec, dataset, store.inbox(spec), options, progress)
        return _build_from_source(spec, dataset, options, progress, engine, started_at)
    except GenerationExists:
        if options.generation is None:
            raise
        # Another builder published it while this build waited for the claim.
        return existing.adopt_generation(spec, dataset, options.generation, started_at, options.build_id)


def _build_from_source(
    spec: DatasetSpec,
    dataset: StoredDataset,
    options: BuildOptions,
    progress: Progress,
    engine: BuildEngine | None,
    started_at: float,
) -> BuildReport:
    success_file = read_success_file(spec, volume=options.volume, local_files=options.local_files)
    if spec.refresh.success_file is not None and success_file is None:
        message = f"waiting for {describe_success_file(spec)}: the source was not read, and nothing was built"
        return idle_report(spec, started_at, "waiting", "WaitingForSource", message)

    def find_unchanged(fingerprint: str | None) -> BuildReport | None:
        """Return the report if the store already holds a generation of the source with this fingerprint."""
        if fingerprint is None or fingerprint != options.unless_fingerprint:
            return None
        if not existing.has_generation(dataset, spec, fingerprint, options.active):
            return None
        message = "the source is unchanged; nothing was built"
        return idle_report(spec, started_at, "unchanged", "Unchanged", message, fingerprint, success_file)

    @cache
    def find_active() -> ActiveGeneration | None:
        return existing.find_active(dataset, options.active, options.active_records, spec.gates)

    def decide(fingerprint: str | None) -> BuildReport | None:
        """Return the report if nothing is to be built from this source. Raises GenerationRefused."""
        if unchanged := find_unchanged(fingerprint):
            return unchanged
        active = find_active()
        if fingerprint is not None:
            existing.check_refusal(dataset, options.unless_refused, spec, fingerprint, active)
        return None

    if success_file is not None and success_file == options.unless_success_file:
        unread = find_unchanged(options.unless_fingerprint)
        if unread is not None:
            return unread
    source = open_source(spec, volume=options.volume, local_files=options.local_files)
    if decided := decide(source.fingerprint):
        return decided
    objects = source.list_files()
    with (
        scratch_folder(options.scratch) as scratch,
        nullcontext() if engine is None else engine.start(scratch),
        dataset.claim(options.generation or dataset.next_generation(), scratch) as claim,
    ):
        build = GenerationBuild(
            spec, options, progress, scratch, claim, dataset, find_active(), success_file, source, started_at
        )
        return build.run(objects, decide) if engine is None else engine.run(build, objects, decide)


class SortedRecords:
    """The records of ``files`` in the order of their keys' bytes; records of equal keys in the source's order.

    A crew of processes maps the slices of a large source. If a crew member failed or a slice was cut within a row, the
    build maps the slice again, in the source's order. So it always reports the source's first error, with its row.

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
        small = sum(file.bytes for file in files) < parallel_from  # however many files the source has
        members = 1 if small else min(threads, self._budget.members)
        self._slices = plan_source(files, members, parallel_from, spec.source.csv)
        if len(self._slices) > crew.MAX_CREW_SLICES:
            members, self._slices = 1, plan_source(files, 1, parallel_from, spec.source.csv)
        self._members = min(members, len(self._slices))
        self._merged = MergedSlices(spec, files, self._slices, self._budget.row)
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
        """Adopt the slices that a crew has mapped, and map the others here, in the source's order. Return the crew's
        peak memory."""
        spec, slices, merged = self._spec, self._slices, self._merged
        report: ReportProgress = self._progress.advance
        states, peak, folder = [CrewState.UNREAD] * len(slices), 0, self._scratch
        with ExitStack() as stack:
            if self._members > 1:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="slices-", dir=self._scratch)))
                budget = BuildBudget.for_member(self._memory_limit, self._members, needs_sample=self._needs_sample)
                job = SliceJob(spec, self._files, slices, folder, budget)
                with crew.Crew(job, self._members) as members:
                    states, peak = members.run(report)
                report = SilentProgress().advance  # the crew has reported all bytes, and has exited: its memory is free
            for number, mapped in enumerate(slices):
                piece = merged.next_slice(number)
                if piece is None:
                    continue
                if states[number] is CrewState.DONE and piece.start == mapped.start:
                    result = SliceResult.load(folder, number, spec)
                    self._sorter.adopt(number, folder, result.runs, result.spool)
                    sample.add_run(folder / result.sample)
                    outcome = result.outcome
                else:
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

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._sorter)


@dataclass(frozen=True, slots=True)
class WrittenShards:
    """The result of an engine: what it read and wrote."""

    source: tuple[SourceFile, ...]
    fingerprint: str
    dictionary: bytes
    choice: DictionaryChoice | None
    files: tuple[ShardFile, ...]
    totals: Totals
    rejected: ExcludedRows
    duplicates: ExcludedRows
    peak_memory: int
    """Upper bound of the resident memory of this machine's processes, in bytes."""


@dataclass(frozen=True, slots=True)
class GenerationBuild:
    """The steps between the claim and the publication."""

    spec: DatasetSpec
    options: BuildOptions
    progress: Progress
    scratch: Path
    claim: BuildClaim
    dataset: StoredDataset
    active: ActiveGeneration | None
    success_file: str | None
    source: OpenSource
    started_at: float

    def run(self, objects: Sequence[SourceObject], decide: Decide) -> BuildReport:
        """Build on this machine: fetch, sort, write, check the gates, publish. Raises GenerationRefused."""
        spec, options, progress = self.spec, self.options, self.progress
        files = fetch_files(objects, self.scratch, progress)
        # The fingerprint may need the content.
        if self.source.fingerprint is None and (decided := decide(source_fingerprint(files))):
            return decided
        sorting = SortedRecords(spec, files, self.scratch, options.memory_limit, options.threads, progress)
        with garbage_collection_paused(), sorting as records:
            dictionary, choice = self.train(records.sample, records.rows, options.threads)
            reduced = reduce_shards(
                records,
                self.claim.folder,
                describe_shards(spec),
                dictionary,
                spec.duplicates,
                progress,
                rows=records.rows,
                threads=options.threads,
                packers=count_packers(options.memory_limit, shards=spec.shards, threads=options.threads),
            )
            urls = [file.description.url for file in files]
            duplicates = reduced.duplicates.describe(spec.duplicates, urls, records.find_origin)
        fingerprint = self.source.fingerprint or source_fingerprint(files)
        assert fingerprint, "what was fetched is identified"
        return self.publish(
            WrittenShards(
                source=self.source.describe(files),
                fingerprint=fingerprint,
                dictionary=dictionary,
                choice=choice,
                files=reduced.files,
                totals=add_up(reduced.files, reduced.sums),
                rejected=records.rejected,
                duplicates=duplicates,
                peak_memory=records.peak_memory,
            ),
            existing.WrittenGeneration(spec, self.claim.folder),
        )

    def publish(self, result: WrittenShards, generation: existing.WrittenGeneration) -> BuildReport:
        """Check the gates of the generation that an engine has written, and publish it. Raises GenerationRefused."""
        spec, progress = self.spec, self.progress
        totals = result.totals
        facts = existing.gather_facts(
            generation, totals, result.rejected, self.active, self.dataset, self.scratch, progress
        )
        closed = gates.find_closed_gates(spec.gates, facts)
        refused = existing.make_refusal(spec, closed, self.active) if closed else None
        is_pushed = spec.source.pushed
        if refused is not None and (is_pushed or totals.records == 0):
            raise existing.refusal_error(refused, None, is_pushed=is_pushed)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        manifest = Manifest(
            namespace=spec.namespace,
            name=spec.name,
            uid=spec.uid,
            generation=self.claim.generation,
            content=spec.content_hash(),
            fingerprint=result.fingerprint,
            source=result.source,
            key_columns=spec.key.columns,
            separator=spec.key.separator,
            normalize=spec.key.normalize,
            unicode=keys.UNICODE_VERSION,
            value_format=spec.value.format,
            compression=spec.value.compression,
            dictionary_bytes=len(result.dictionary),
            shards=result.files,
            totals=totals,
            rejected=result.rejected,
            duplicates=result.duplicates,
            built_at=now.replace("+00:00", "Z"),
            seconds=round(time.monotonic() - self.started_at, 3),
            lookupdb=__version__,
            success_file=self.success_file,
            refused=refused,
            build=self.options.build_id,
            dictionary=result.choice,
        )
        options = self.options
        found = read_success_file(spec, volume=options.volume, local_files=options.local_files)
        if found != self.success_file:
            raise SourceUnreadable(
                f"{describe_success_file(spec)} changed while the source was read",
                hint="build again once it is complete",
            )
        progress.begin_phase("publishing", None, "bytes")
        published = self.claim.publish(manifest)
        progress.end_phase()
        if refused is not None:
            raise existing.refusal_error(refused, published)
        return built_report(published, result.peak_memory)

    def train(self, sample: Sequence[bytes], rows: int, threads: int) -> tuple[bytes, DictionaryChoice | None]:
        """Return the dictionary for ``sample`` of ``rows`` rows, and why it was chosen; nothing without compression.
        Each of ``threads`` needs memory of its own."""
        if self.spec.value.compression == "none":
            return b"", None
        self.progress.begin_phase("training", None, "rows")
        previous = read_dictionary(self.dataset, self.active)
        chosen = choose_dictionary(sample, previous, records=rows, shards=self.spec.shards, threads=threads)
        self.progress.end_phase()
        return chosen


def describe_shards(spec: DatasetSpec) -> ShardMeta:
    """Return the metadata that all shards share: number and records are 0."""
    return ShardMeta(
        dataset=f"{spec.namespace}/{spec.name}",
        shard=0,
        shards=spec.shards,
        records=0,
        normalize=spec.key.normalize,
        value_format=spec.value.format,
        compression=spec.value.compression,
        content=spec.content_hash(),
    )


def check_resources(spec: DatasetSpec, options: BuildOptions) -> None:
    """Raise NotEnoughRoom if the build needs more memory or open files than allowed."""
    BuildBudget.for_build(options.memory_limit, shards=spec.shards, threads=options.threads)
    check_open_files(spec.shards)


# Pushes: verify the newest one, check the gates, and copy it under the dataset's next number.
#
# Only the rows of a push are trusted. Its index and files are compared with the spec and with each other, and every
# file is read once. Servers fetch the copy, so the pusher needs no write access to it. They verify its checksums, so
# they never serve a file that was replaced between the check and the copy.


KEPT_PUSHES: Final = 2
"""Number of pushes to keep: a builder may still be copying the one before the newest."""


def push_generation(
    spec: DatasetSpec,
    store: Store,
    files: Sequence[str],
    options: BuildOptions,
    progress: Progress,
    file_format: Format | None = None,
    engine: BuildEngine | None = None,
) -> BuildReport:
    """Push a generation of the rows in ``files``, or of ``engine``, to the dataset of ``spec``, and remove old pushes.
    ``file_format``: None if the files' names decide.

    Raises what ``build_generation`` raises. If a gate fails, nothing is published. Gates compare with the previous
    push.
    """
    if not spec.source.takes_pushes:
        raise InvalidManifest(
            f"{spec.namespace}/{spec.name} is built from its source, so it takes no pushes",
            hint="set spec.source.pushed: true, or build this dataset with `lookupdb build`",
        )
    if spec.uid == LOCAL and store.cluster != LOCAL:
        raise InvalidManifest(
            f"{spec.namespace}/{spec.name} has no uid, so the cluster would not find the push",
            hint=f"take the manifest from the cluster: kubectl get lds {spec.name} -n {spec.namespace} -o yaml",
        )
    source = replace(spec.source, urls=tuple(files), format=file_format)
    report = build_generation(replace(spec, source=source), store, options, progress, engine)
    prune(store.inbox(spec), KEPT_PUSHES)
    return replace(report, message=report.message.replace("built", "pushed", 1))


_KEYS_CHECKED: Final = 1000
"""The most keys of each file to check for the right shard: if the writer's hash differs, the first keys show it."""
_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"


def find_push(inbox: StoredDataset) -> Manifest | None:
    """Return the newest push; None if nothing was pushed yet. Raises StoreError, or PushRejected if its
    index cannot be read."""
    published = inbox.published_generations()
    if not published:
        return None
    with _rejecting(inbox, published[-1]):
        return inbox.manifest(published[-1])


def fingerprint_push(push: Manifest) -> str:
    """Return the fingerprint of a copy of ``push``."""
    return hashlib.sha256(push.to_json()).hexdigest()[:32]


def _take_push(
    spec: DatasetSpec, dataset: StoredDataset, inbox: StoredDataset, options: BuildOptions, progress: Progress
) -> BuildReport:
    """Copy the newest push in ``inbox`` into ``dataset``, unless that is what ``options.unless_fingerprint`` names.

    Raises PushRejected, StoreError, NotEnoughRoom, or GenerationRefused if it fails a gate.
    """
    started_at = time.monotonic()
    push = find_push(inbox)
    if push is None:
        message = f"waiting for the first push to {inbox.url}: nothing was read"
        return idle_report(spec, started_at, "waiting", "WaitingForSource", message)
    fingerprint = fingerprint_push(push)
    if fingerprint == options.unless_fingerprint and existing.has_generation(
        dataset, spec, fingerprint, options.active
    ):
        message = f"{push.generation} is still the newest push; nothing was copied"
        return idle_report(spec, started_at, "unchanged", "Unchanged", message, fingerprint)
    active = existing.find_active(dataset, options.active, options.active_records, spec.gates)
    existing.check_refusal(dataset, options.unless_refused, spec, fingerprint, active)
    source = SourceFile(f"{inbox.url}/{push.generation}", push.totals.file_bytes, None, push.built_at)
    with scratch_folder(options.scratch) as scratch, _rejecting(inbox, push.generation):
        verify_push(spec, inbox, push, scratch, progress)
        published = existing.publish_copy(
            spec,
            dataset,
            inbox,
            push,
            options,
            scratch,
            progress,
            fingerprint=fingerprint,
            source=(source,),
            refused=existing.judge(spec, inbox, push, scratch, progress, dataset, active),
            seconds=round(time.monotonic() - started_at, 3),
            overridden=(),
            adopted=None,
            success_file=None,
        )
    report = built_report(published, 0)
    return replace(report, message=f"{report.message}, a copy of push {push.generation}")


def verify_push(spec: DatasetSpec, inbox: StoredDataset, push: Manifest, scratch: Path, progress: Progress) -> None:
    """Raise PushRejected or CorruptFile if ``push`` is not a whole generation of ``spec``. Reads every file."""
    if (push.namespace, push.name) != (spec.namespace, spec.name):
        found = f"{push.namespace}/{push.name}"
        raise PushRejected(f"it was made for {found[:100]!r}, expected '{spec.namespace}/{spec.name}'")
    if differences := existing.describe_differences(push, spec):
        raise PushRejected(f"it was made for another spec: {differences}", hint="push again with the dataset's spec")
    if push.refused is not None:
        raise PushRejected("it failed a gate where it was made")
    is_past = False
    with suppress(ValueError):
        built_at = datetime.datetime.strptime(push.built_at, _MOMENT).replace(tzinfo=datetime.UTC)
        is_past = built_at <= datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
    if not is_past:
        raise PushRejected(
            f"its build time is {push.built_at[:40]!r}, expected a time in the past",
            hint="correct the clock of the machine that pushes, and push again",
        )
    totals, shards = push.totals, push.shards
    sums = (sum(shard.records for shard in shards), sum(shard.bytes for shard in shards))
    if sums != (totals.records, totals.file_bytes):
        raise PushRejected(f"its shards have {sums[0]:,} records in {sums[1]:,} bytes, which differs from its totals")
    inbox.check_files(push)
    progress.begin_phase("verifying", totals.file_bytes, "bytes")
    for number, shard in enumerate(shards):
        with inbox.verified_shard(push.generation, shard, scratch) as path, open_shard(path) as reader:
            if path.is_symlink():
                raise PushRejected(f"{shard.file} is a link, expected a file")
            _check_shard(spec, number, shard, push, reader)
        progress.advance(shard.bytes)
    progress.end_phase()


def _check_shard(spec: DatasetSpec, number: int, shard: ShardFile, push: Manifest, reader: ShardReader) -> None:
    expected = replace(describe_shards(spec), shard=number, records=reader.pages()["entries"])
    for name, value in {**asdict(expected), "extra": reader.meta.extra}.items():
        if (found := getattr(reader.meta, name)) != value:
            raise PushRejected(f"{shard.file} has {name} {str(found)[:100]!r}, expected {str(value)[:100]!r}")
    if shard.records != expected.records:
        raise PushRejected(f"{shard.file} has {expected.records:,} records, its index says {shard.records:,}")
    if reader.dictionary_bytes != push.dictionary_bytes:
        sizes = f"{reader.dictionary_bytes:,} bytes, its index says {push.dictionary_bytes:,}"
        raise PushRejected(f"{shard.file} has a dictionary of {sizes}")
    first_keys = reader.txn.cursor().iternext(keys=True, values=False)
    if any(keys.shard_number(key, spec.shards) != number for key in islice(first_keys, _KEYS_CHECKED)):
        raise PushRejected(f"{shard.file} has keys of other shards: its writer assigns keys to shards differently")


@contextmanager
def _rejecting(inbox: StoredDataset, generation: str) -> Iterator[None]:
    """Add the name of the push to an error about it."""
    try:
        yield
    except (PushRejected, CorruptFile) as error:
        hint = error.hint if isinstance(error, PushRejected) else None
        raise PushRejected(
            f"push {generation} in {inbox.url} was rejected: {error.message}", hint=hint or "push again"
        ) from error
