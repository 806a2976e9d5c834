"""The driver of a build: plan, scan, repair, shuffle and write, take the files, and publish.

1. *Scan*: each task maps one slice, and reports rows, rejected rows and a sample of values. The driver merges them in
   the source's order. A slice that failed, or whose cut was wrong, is mapped again, once the rows before it are
   counted: so the first error of the source is reported with its row.
2. *Write*: each task maps one slice again and yields its records. Spark sends each to its shard's partition and sorts
   it there by key and place; one task writes each shard, and puts its file under a name of its own attempt.
3. The driver, which alone has the claim, takes the files of the attempts whose results Spark returns, removes all
   others, checks the gates and publishes.

The driver holds a few numbers for each slice, and one sample; never a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lookupdb.builder.build import Decide, GenerationBuild, WrittenShards, describe_shards
from lookupdb.builder.core import PARALLEL_FROM, MergedSlices, ReducedShards, add_up, merge_duplicates, plan_source
from lookupdb.builder.existing import StoredFiles, WrittenGeneration
from lookupdb.builder.files import LocalFile, Slice, tell_changes
from lookupdb.builder.listing import SourceObject, find_local_file, source_fingerprint
from lookupdb.builder.options import BuildOptions, BuildReport, Progress, peak_resident
from lookupdb.builder.write import Sample, make_sample
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import SparkFailed
from lookupdb.manifest import DictionaryChoice, ShardFile, SourceFile
from lookupdb.spark import session as sessions
from lookupdb.spark import tasks
from lookupdb.spark.pods import check_pods
from lookupdb.spark.tasks import MapJob, MappedSlice, ReduceJob, SampleJob, SourceItem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LEAST_PACKED: Final = 2
"""A decompressed file has at least its compressed size divided by this: see ``MapJob.known_bytes``."""

_NOWHERE: Final = Path("/dev/null")
"""Stands for the path of a file that this machine lacks. Such a file is not cut; the task that reads it fetches it."""


class SparkEngine:
    """Builds with Spark."""

    def __init__(
        self,
        spec: DatasetSpec,
        options: BuildOptions,
        conf: Mapping[str, str] | None = None,
        parallel_from: int = PARALLEL_FROM,
    ) -> None:
        """``conf`` overrides the properties in ``spec``. Raises NotEnoughRoom, RightsMissing, ExecutorsRefused."""
        master, spark = sessions.choose_master(spec, options.threads), spec.spark
        check_pods(master, {**dict(spark.conf), **(conf or {})}, spark.executor_cores, spark.executor_memory)
        self._spec, self._options, self._conf, self._parallel_from = spec, options, conf or {}, parallel_from
        self._heap, self._budget = sessions.divide_memory(spec, options.memory_limit, options.threads)
        self._session: SparkSession

    @contextmanager
    def start(self, scratch: Path) -> Iterator[None]:
        """Open the session. Raises EngineMissing."""
        with sessions.open_session(self._spec, self._options.threads, self._heap, scratch, self._conf) as session:
            self._session = session
            yield

    def run(self, build: GenerationBuild, objects: Sequence[SourceObject], decide: Decide) -> BuildReport:
        """Build from ``objects``. Raises what a local build raises, and SparkFailed."""
        with closing(_Scan(self._session, build, objects, self._budget, self._parallel_from)) as scan:

            def check_unchanged() -> None:
                for file in scan.files:
                    file.check_unchanged()

            with tell_changes(check_unchanged):
                scan.run()
            listed = build.source.fingerprint
            fingerprint = listed or source_fingerprint(scan.files)
            assert fingerprint, "the fetched files are identified"
            if listed is None and (decided := decide(fingerprint)):
                return decided
            sample = scan.take_sample()
            self._session._jvm.System.gc()  # gives back memory that Python is about to need
            dictionary, choice = build.train(sample, scan.merged.rows, threads=1)
            reduced = write_shards(self._session, scan.map_records(), build, dictionary, scan.merged.rows)
            source = [file.description for file in scan.files]
            result = describe_written(build.spec, reduced, (dictionary, choice), scan.merged, source, fingerprint)
            return publish_shards(build, replace(result, source=build.source.describe(scan.files)))


def merge_samples(samples: DataFrame, job: SampleJob, scratch: Path, sample: Sample) -> None:
    """Merge the rows of kind sample in ``samples``, a frame of ``tasks.RESULTS``, into ``sample``."""
    samples = samples.where("kind = 'sample'").repartition(1)
    merged = samples.mapInArrow(tasks.make_task(tasks.merge_samples, job), tasks.RESULTS)
    run = scratch / "sample"
    with run.open("wb") as file:
        file.writelines(row.data for row in sessions.run_job(merged, lambda _: None))
    sample.add_run(run)
    run.unlink()


def describe_written(
    spec: DatasetSpec,
    reduced: ReducedShards,
    dictionary: tuple[bytes, DictionaryChoice | None],
    merged: MergedSlices,
    source: Sequence[SourceFile],
    fingerprint: str,
) -> WrittenShards:
    """Return what was read from the ``source`` and written. Raises BadSource for a key that occurs twice, SparkFailed
    if not every row is accounted for."""
    duplicates = reduced.duplicates.describe(spec.duplicates, [file.url for file in source], merged.find_origin)
    totals = add_up(reduced.files, reduced.sums)
    if totals.records + duplicates.count + merged.rejected.count != merged.rows:
        raise SparkFailed(
            f"Spark lost rows: {merged.rows} were read, {totals.records} written,"
            f" {merged.rejected.count} rejected, {duplicates.count} were duplicates"
        )
    return WrittenShards(
        source=tuple(source),
        fingerprint=fingerprint,
        dictionary=dictionary[0],
        choice=dictionary[1],
        files=reduced.files,
        totals=totals,
        rejected=merged.rejected,
        duplicates=duplicates,
        peak_memory=peak_resident(),
    )


def publish_shards(build: GenerationBuild, result: WrittenShards) -> BuildReport:
    """Take the files that tasks have put, check the gates, and publish. Raises GenerationRefused, StoreError."""
    published = replace(result, files=build.claim.take_shards(result.files))

    def fetch(shard: ShardFile, scratch: Path) -> Any:
        path = build.claim.folder / shard.file
        return nullcontext(path) if path.exists() else build.dataset.shard(build.claim.generation, shard, scratch)

    with ExitStack() as copies:
        generation: WrittenGeneration = StoredFiles(build.spec, build.scratch, published.files, fetch, copies)
        return build.publish(published, generation)


class _Scan:
    """The first pass: what is in each slice, merged in the source's order."""

    def __init__(
        self,
        session: SparkSession,
        build: GenerationBuild,
        objects: Sequence[SourceObject],
        budget: Any,
        parallel_from: int,
    ) -> None:
        self._session, self._build, self._budget = session, build, budget
        spec = build.spec
        self.files = [
            find_local_file(item)
            or LocalFile(
                item.description, item.format, item.delimiter, _NOWHERE, item.description.bytes, False, item.table
            )
            for item in objects
        ]
        """Files that this machine lacks have only a description until a task has fetched them."""
        workers = max(2, session.sparkContext.defaultParallelism)
        cut = [replace(file, bytes=0) if file.path == _NOWHERE else file for file in self.files]
        self._planned = plan_source(cut, workers, parallel_from, spec.source.csv)
        items = [SourceItem.describe(item) for item in objects]
        self._is_compressed = [item.compression != "none" for item in objects]
        self._job = MapJob(spec, items, self._planned, budget, self._count_bytes(_LEAST_PACKED))
        self._samples: list[DataFrame] = []
        self._replaced: list[int] = []
        """Slices that were mapped again: their samples of the first job do not count."""
        self.merged: MergedSlices

    def _count_bytes(self, packed: int = 1) -> int:
        pairs = zip(self.files, self._is_compressed, strict=True)
        return sum(file.bytes // (packed if is_compressed else 1) for file, is_compressed in pairs)

    def run(self) -> None:
        """Scan all slices in the source's order, some of them twice. Raises BadSource, NotEnoughRoom."""
        job, progress = self._job, self._build.progress
        progress.begin_phase("read", self._count_bytes(), "bytes")
        report = _Share(progress, self._count_bytes())
        found = self._scan(range(len(job.slices)), job, report.advance)
        mapped = {number: tasks.load(data) for number, kind, data in found if kind == "mapped"}
        fetch_errors = {number: data for number, kind, data in found if kind == "fetch"}
        if fetch_errors:
            raise tasks.load(fetch_errors[min(fetch_errors)])
        for number, result in mapped.items():
            self._know_file(number, result)
        self.merged = MergedSlices(job.spec, self.files, self._planned, job.budget.row)
        pieces: list[Slice | None] = list(self._planned)
        outcomes: list[tuple[int, int] | None] = []
        for number, planned in enumerate(self._planned):
            piece, result = self.merged.next_slice(number), mapped.pop(number, None)
            if piece is None or piece.start != planned.start or result is None:
                self._replaced.append(number)
                pieces[number], result = piece, None
            if piece is None:
                outcomes.append(None)
                continue
            if result is None:
                result = self._scan_again(number, replace(job, slices=pieces))
            self.merged.merge(number, result.outcome)
            if result.quotes_error is not None:
                raise result.quotes_error
            outcomes.append((result.outcome.rows, result.outcome.rejected))
        report.finish(self.merged.rows)
        progress.end_phase()
        fetched = [file.description for file in self.files]
        self._job = replace(job, slices=pieces, outcomes=outcomes, fetched=fetched)

    def _know_file(self, number: int, result: MappedSlice) -> None:
        """Record what a task knows about its file after fetching it."""
        file = self._planned[number].file
        self.files[file] = replace(self.files[file], description=result.description, bytes=result.bytes)

    def _scan_again(self, number: int, job: MapJob) -> MappedSlice:
        for _, kind, data in self._scan([number], job, lambda _: None):
            if kind in ("error", "fetch"):
                raise tasks.load(data)
            result: MappedSlice = tasks.load(data)
        self._know_file(number, result)
        return result

    def _scan(
        self, numbers: Sequence[int], job: MapJob, on_progress: Callable[[float], None]
    ) -> list[tuple[int, str, bytes]]:
        """Return what tasks report of the slices ``numbers``, which are consecutive; their samples stay in Spark."""
        ids = self._session.range(numbers[0], numbers[-1] + 1, 1, len(numbers))
        found = ids.mapInArrow(tasks.make_task(tasks.scan_slices, job), tasks.RESULTS)
        if job.budget.sample:
            from pyspark import StorageLevel

            found = found.persist(StorageLevel.DISK_ONLY)
            self._samples.append(found)
        rows = sessions.run_job(found.where("kind != 'sample'"), on_progress)
        return [(row.number, row.kind, bytes(row.data)) for row in rows]

    def take_sample(self) -> list[bytes]:
        """Return the values to train the dictionary on, as a local build chooses them."""
        sample = make_sample(self._job.budget.sample, self._count_bytes())
        if not self._samples:
            return sample.take_values()
        first, *again = self._samples
        if self._replaced:
            first = first.where(f"number not in ({', '.join(map(str, self._replaced))})")
        for found in again:
            first = first.unionAll(found)
        merge_samples(first, SampleJob(self._job.budget.sample, self._job.known_bytes), self._build.scratch, sample)
        return sample.take_values()

    def close(self) -> None:
        """Remove the samples from Spark's disks."""
        for found in self._samples:
            with suppress(Exception):  # Spark may have stopped
                found.unpersist()

    def map_records(self) -> DataFrame:
        """Return the records of all slices, for ``write_shards``."""
        ids = self._session.range(0, len(self._job.slices), 1, len(self._job.slices))
        return ids.mapInArrow(tasks.make_task(tasks.map_slices, self._job), tasks.RECORDS)


class _Share:
    """Reports the finished share of a phase as bytes or rows."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def advance(self, share: float) -> None:
        """Report ``share`` as finished, if that is more than before."""
        done = int(self._total * share)
        if done > self._done:
            self._progress.advance(done - self._done)
            self._done = done

    def finish(self, rows: int = 0) -> None:
        """Report the rest."""
        self._progress.advance(max(0, self._total - self._done), rows)


def write_shards(
    session: SparkSession, records: DataFrame, build: GenerationBuild, dictionary: bytes, rows: int | None
) -> ReducedShards:
    """Write ``records`` (``tasks.RECORDS``) as shard files, and put them where the claim of ``build`` expects them. The
    files have the names of attempts until the claim takes them. Raises BadSource, NotEnoughRoom, SparkFailed,
    StoreError."""
    spec, progress = build.spec, build.progress
    marks = session.range(0, spec.shards, 1, 1).selectExpr(
        "cast(id as int) as shard", "X'' as key", f"cast({tasks.MARK} as bigint) as place", "X'' as value"
    )
    job = ReduceJob(describe_shards(spec), dictionary, spec.duplicates, build.claim.make_target())
    partitions = records.unionAll(marks).repartitionById(spec.shards, "shard")
    written = partitions.sortWithinPartitions("key", "place").mapInArrow(
        tasks.make_task(tasks.write_shard, job), tasks.RESULTS
    )
    progress.begin_phase("writing", rows, "rows")
    report = _Share(progress, rows or 0)
    found = sessions.run_job(written, report.advance)
    errors = {row.number: bytes(row.data) for row in found if row.kind == "error"}
    if errors:
        raise tasks.load(errors[min(errors)])
    shards: dict[int, ReducedShards] = {row.number: tasks.load(row.data) for row in found}
    if sorted(shards) != list(range(spec.shards)) or len(found) != spec.shards:
        raise SparkFailed(f"Spark has written {len(found)} shards, expected {spec.shards}")
    report.finish()
    progress.end_phase()
    parts = [shards[number] for number in range(spec.shards)]
    return ReducedShards(
        tuple(file for part in parts for file in part.files),
        tuple(sums for part in parts for sums in part.sums),
        merge_duplicates(part.duplicates for part in parts),
    )
