"""Push a DataFrame as a generation, on the user's own Spark: EMR, Databricks, a notebook.

A DataFrame may give other rows, or the same rows in other partitions, each time it is computed. So it is checkpointed
first. Then each partition is a file of the source: a task writes it to a Parquet file in its scratch folder, and maps
that like any other file. So types are converted as in Parquet. The rest is as in ``build``: scan, shuffle, write,
publish.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from lookupdb.builder.build import Decide, GenerationBuild, push_generation
from lookupdb.builder.core import MergedSlices, SliceOutcome, map_slice
from lookupdb.builder.files import LocalFile, Slice
from lookupdb.builder.listing import SourceObject
from lookupdb.builder.options import MIB, BuildBudget, BuildOptions, BuildReport, Progress, SilentProgress
from lookupdb.builder.options import scratch_folder as new_scratch_folder
from lookupdb.builder.write import Sample, Sorter, make_sample
from lookupdb.dataset.spec import LOCAL, DatasetSpec, parse_resource, read_manifest
from lookupdb.errors import BadSource, InvalidManifest, LookupdbError, NotEnoughRoom, SourceUnreadable
from lookupdb.keys import shard_number
from lookupdb.manifest import SourceFile
from lookupdb.spark import session as sessions
from lookupdb.spark import tasks
from lookupdb.spark.build import describe_written, merge_samples, publish_shards, write_shards
from lookupdb.spark.tasks import Batches, SampleJob
from lookupdb.store import Store, open_store
from lookupdb.wording import format_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MIN_TASK_MEMORY: Final = 128 * MIB
_VARIANT: Final = re.compile(r'"(?:type|elementType|keyType|valueType)":"variant"')
"""Matches a VARIANT in the JSON of a schema."""
_UNKNOWN_BYTES: Final = 1 << 20
"""The size of the rows is unknown, so each sample begins as for a small source."""


def write(
    frame: DataFrame,
    manifest: str | Path | Mapping[str, Any] | DatasetSpec,
    store: str | Store,
    *,
    cluster_id: str = LOCAL,
    order_by: str | Sequence[str] = (),
    task_memory: int = 256 * MIB,
    progress: Progress | None = None,
) -> BuildReport:
    """Push the rows of ``frame`` as a generation to the dataset of ``manifest``, which must set source.pushed: true.

    Executors write and upload the shards: they need lookupdb of the same version, and the store's credentials in their
    environment. No row passes through the driver.

    Repeated keys are an error with ``duplicates: fail``. With ``first`` or ``last``, rows are sorted by the
    columns ``order_by``; of two rows that are equal in these, either may be kept.

    ``store``: a URL, as for ``lookupdb push``; ``cluster_id``: names the part of the store. ``task_memory``: bytes of
    Python's memory for each task. Raises LookupdbError, such as BadSource, GateClosed, StoreError, SparkFailed.
    """
    sessions.check_version(frame.sparkSession)
    if isinstance(manifest, DatasetSpec):
        spec = manifest
    else:
        spec = parse_resource(dict(manifest)) if isinstance(manifest, Mapping) else read_manifest(Path(manifest))
    columns = [order_by] if isinstance(order_by, str) else list(order_by)
    if spec.duplicates != "fail" and not columns:
        raise InvalidManifest(
            f"{spec.name}: spec.duplicates is {spec.duplicates}, but the rows of a DataFrame have no order",
            hint="set order_by to the columns that order the rows, or set duplicates: fail",
        )
    if _VARIANT.search(frame.schema.json()):
        raise BadSource(
            "the DataFrame has a VARIANT, which Spark hands over in its internal form",
            hint="convert it to text with to_json, or to its type with variant_get",
        )
    if task_memory < _MIN_TASK_MEMORY:
        raise NotEnoughRoom(
            f"task_memory is {task_memory // MIB} MiB, expected at least {_MIN_TASK_MEMORY // MIB} MiB",
            hint="the default suits most DataFrames",
        )
    place = open_store(store, cluster_id) if isinstance(store, str) else store
    budget = BuildBudget.for_member(task_memory, 1, needs_sample=spec.value.compression == "zstd")
    engine = FrameEngine(frame.orderBy(*columns) if columns else frame, spec, budget)
    options = BuildOptions(scratch=Path(tempfile.gettempdir()))
    return push_generation(spec, place, (), options, progress or SilentProgress(), engine=engine)


@dataclass(frozen=True, slots=True)
class FrameJob:
    """The input of every task that maps a partition."""

    spec: DatasetSpec
    budget: BuildBudget
    columns: Sequence[str]
    """Names of the columns. In Spark they have numbers, because Spark takes a dot in a name for a field of a struct."""
    outcomes: Mapping[int, tuple[int, int]] | None = None
    """In the second pass, the numbers of rows and rejected rows that the first pass found in each partition."""


class FrameEngine:
    """Builds from a DataFrame."""

    def __init__(self, frame: DataFrame, spec: DatasetSpec, budget: BuildBudget) -> None:
        self._frame, self._spec, self._budget = frame, spec, budget

    @contextmanager
    def start(self, scratch: Path) -> Iterator[None]:
        """Apply a build's settings to the session."""
        with sessions.borrow_session(self._frame.sparkSession):
            yield

    def run(self, build: GenerationBuild, objects: Sequence[SourceObject], decide: Decide) -> BuildReport:
        """Checkpoint, scan, write and publish. Raises what a build raises."""
        session = self._frame.sparkSession
        build.progress.begin_phase("read", None, "rows")
        frozen = sessions.call_spark(self._freeze)
        merged, sample, outcomes = self._scan(frozen, build)
        build.progress.end_phase()
        dictionary, choice = build.train(sample.take_values(), merged.rows, threads=1)
        job = FrameJob(self._spec, self._budget, self._frame.columns, outcomes)
        records = frozen.mapInArrow(tasks.make_task(map_partition, job), tasks.RECORDS)
        reduced = write_shards(session, records, build, dictionary, merged.rows)
        source = [_describe(number) for number in range(max(outcomes, default=0) + 1)]
        fingerprint = hashlib.sha256("".join(file.sha256 for file in reduced.files).encode()).hexdigest()[:32]
        result = describe_written(self._spec, reduced, (dictionary, choice), merged, source, fingerprint)
        whole = SourceFile(f"a DataFrame of {format_count(len(source), 'partition')}", 0, None, None)
        return publish_shards(build, replace(result, source=(whole,)))

    def _freeze(self) -> DataFrame:
        """Return the rows as they are now: kept by executors, or in the session's checkpoint folder if there is one. If
        an executor loses some, the push fails."""
        frame = self._frame.toDF(*map(str, range(len(self._frame.columns))))
        has_folder = frame.sparkSession.sparkContext.getCheckpointDir() is not None
        return frame.checkpoint() if has_folder else frame.localCheckpoint()

    def _scan(
        self, frozen: DataFrame, build: GenerationBuild
    ) -> tuple[MergedSlices, Sample, dict[int, tuple[int, int]]]:
        """Return all partitions' merged outcomes, a sample, and row counts by partition. Raises the first BadSource."""
        from pyspark import StorageLevel

        job = FrameJob(self._spec, self._budget, self._frame.columns)
        found = frozen.mapInArrow(tasks.make_task(scan_partition, job), tasks.RESULTS).persist(StorageLevel.DISK_ONLY)
        rows = sessions.run_job(found.where("kind != 'sample'"), lambda _: None)
        errors = {row.number: row.data for row in rows if row.kind == "error"}
        results = {row.number: tasks.load(row.data) for row in rows if row.kind == "mapped"}
        last = max({*results, *errors}, default=0)
        files = [_open_nothing(number) for number in range(last + 1)]
        merged = MergedSlices(self._spec, files, [Slice(number) for number in range(last + 1)], self._budget.row)
        for number in range(last + 1):
            if number in errors:
                raise tasks.load(errors[number])
            merged.merge(number, results.get(number, SliceOutcome()))
        sample = make_sample(self._budget.sample, _UNKNOWN_BYTES)
        if self._budget.sample:
            merge_samples(found, SampleJob(self._budget.sample, _UNKNOWN_BYTES), build.scratch, sample)
        found.unpersist()
        return merged, sample, {number: (result.rows, result.rejected) for number, result in results.items()}


def _describe(number: int) -> SourceFile:
    return SourceFile(f"partition {number}", 0, None, None)


def _open_nothing(number: int) -> LocalFile:
    return LocalFile(_describe(number), "parquet", ",", Path("/"), 0, in_place=False)


@contextmanager
def _spool(job: FrameJob, batches: Batches) -> Iterator[tuple[int, LocalFile | None, Path]]:
    """Write a partition to a Parquet file; yield the partition's number, the file (None if there are no rows), and the
    scratch folder."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    with new_scratch_folder(tasks.scratch_base()) as scratch:
        path, writer = scratch / "partition.parquet", None
        try:
            for batch in batches:
                named = batch.rename_columns(job.columns)
                writer = writer or pq.ParquetWriter(path, named.schema)
                writer.write_batch(named)
        finally:
            if writer is not None:
                writer.close()
        number = context.partitionId()
        file = None if writer is None else replace(_open_nothing(number), path=path, bytes=path.stat().st_size)
        yield number, file, scratch


def scan_partition(job: FrameJob, batches: Batches) -> Batches:
    """First pass: yield what is in a partition, and its sample."""
    with _spool(job, batches) as (number, file, scratch):
        if file is None:
            return
        sample = make_sample(job.budget.sample, _UNKNOWN_BYTES)
        try:
            with tasks.CountingSorter(scratch, tasks.BUFFER_BYTES) as sorter:
                outcome = map_slice(job.spec, file, number, Slice(number), sorter, sample, job.budget, lambda *_: None)
        except LookupdbError as error:
            yield tasks.result_batch(number, "error", pickle.dumps(error))
            return
        yield tasks.result_batch(number, "mapped", pickle.dumps(outcome))
        if job.budget.sample:
            sample.write_run(scratch / "sample")
            yield tasks.result_batch(number, "sample", (scratch / "sample").read_bytes())


def map_partition(job: FrameJob, batches: Batches) -> Batches:
    """Second pass: yield the records of a partition, in key order."""
    assert job.outcomes is not None, "the second pass knows what the first one found"
    try:
        with _spool(job, batches) as (number, file, scratch):
            if file is None:
                return
            with Sorter(scratch, job.budget.sorting) as sorter:
                outcome = map_slice(
                    job.spec, file, number, Slice(number), sorter, make_sample(0), job.budget, lambda *_: None
                )
                if job.outcomes.get(number) != (outcome.rows, outcome.rejected):
                    raise SourceUnreadable(f"{file.name} changed while it was read", hint="push again")
                for batch in sorter:
                    records = list(batch)
                    yield tasks.record_batch([shard_number(key, job.spec.shards) for key, _, _ in records], records)
    except LookupdbError as error:
        yield tasks.record_batch([0], [(b"", tasks.ERROR, pickle.dumps(error))])
