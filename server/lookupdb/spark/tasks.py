"""Code that runs in Spark's executors: map slices, merge samples, write shards.

Tasks take and yield Arrow batches, as ``mapInArrow`` wants. Nothing here imports pyspark. An error that a user must see
becomes a row, so that Spark does not retry it and its message arrives unchanged; any other exception fails the task,
which Spark retries.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from lookupdb import __version__, native
from lookupdb.builder.core import Policy, SliceOutcome, garbage_collection_paused, map_slice, reduce_shards
from lookupdb.builder.csv_rows import check_quotes
from lookupdb.builder.files import Compression, Format, LocalFile, Slice, describe_local_file, tell_changes
from lookupdb.builder.listing import SourceObject, fetch_files, find_files
from lookupdb.builder.options import BuildBudget, SilentProgress, scratch_folder
from lookupdb.builder.table_files import TableDataFile
from lookupdb.builder.write import Record, Sorter, make_record_buffer, make_sample
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, LookupdbError, SourceUnreadable
from lookupdb.keys import shard_number
from lookupdb.manifest import SourceFile
from lookupdb.shardfile import ShardMeta
from lookupdb.store.dataset import ShardTarget
from lookupdb.wording import strip_secrets

Batches = Iterator[pa.RecordBatch]

RECORDS: Final = "shard int, key binary, place bigint, value binary"
"""The schema of records, in Spark's words."""
RESULTS: Final = "number int, kind string, data binary"
"""The schema of task results: number of a slice or shard, kind of result, and the result, pickled or as bytes."""
MARK: Final = -1
"""The place of a row that only marks that a shard exists, so that no shard is without rows."""
ERROR: Final = -2
"""The place of a row of shard 0 whose value is a pickled error. Rows of both kinds have empty keys, so they are sorted
first."""
_PIECE_BYTES: Final = 512 << 10
"""Small, because the driver's JVM holds several copies of a row while it passes the row to Python."""
BUFFER_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class SourceItem:
    """A ``SourceObject`` that can be pickled."""

    description: SourceFile
    format: Format
    compression: Compression
    delimiter: str
    path: Path | None
    """None for a file behind a URL, which each task finds again."""
    data_file: TableDataFile | None = None
    """For a file of a table: its entry there, with its location."""

    @classmethod
    def describe(cls, item: SourceObject) -> SourceItem:
        """Return ``item`` in a form that can be pickled."""
        path = item.place if isinstance(item.place, Path) else None
        return cls(item.description, item.format, item.compression, item.delimiter, path, item.data_file)

    def locate(self, spec: DatasetSpec) -> SourceObject:
        """Return the object, to be read on this machine. Raises BadSource."""
        name = self.description.url
        place: Any = self.path if self.data_file is None else self.data_file.located.place
        if place is None:
            url = next((url for url in spec.source.urls if strip_secrets(url) == name), name)
            (found,) = find_files(url, base=None, volume=None)
            place = found.place
        return SourceObject(self._describe_here(), self.format, self.compression, self.delimiter, place, self.data_file)

    def _describe_here(self) -> SourceFile:
        """Return the description of the file on this machine. Its time may differ: each pod mounts a ConfigMap when it
        starts. Raises SourceUnreadable if the driver found other content."""
        known = self.description
        if self.path is None or None in (known.etag, known.modified):
            return known
        here = describe_local_file(known.url, self.path.stat())
        with self.path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() == known.etag:
                return replace(known, modified=here.modified)
        raise SourceUnreadable(f"{known.url} changed while it was read", hint="build again once it is complete")


@dataclass(frozen=True, slots=True)
class MapJob:
    """The input of every task that maps a slice."""

    spec: DatasetSpec
    items: Sequence[SourceItem]
    slices: Sequence[Slice | None]
    """None for a slice that an earlier one covers."""
    budget: BuildBudget
    known_bytes: int
    """Lower bound of the bytes of all files, decompressed. It sizes the sample."""
    outcomes: Sequence[tuple[int, int] | None] = ()
    """In the second pass, the numbers of rows and rejected rows that the first pass found in each slice."""
    fetched: Sequence[SourceFile] = ()
    """In the second pass, the files as the first pass fetched them."""


@dataclass(frozen=True, slots=True)
class MappedSlice:
    """The report of the first pass on a slice, apart from its sample."""

    outcome: SliceOutcome
    description: SourceFile
    """The file as it was fetched, with a checksum if nothing else identifies it."""
    bytes: int
    """Size of the file once decompressed."""
    quotes_error: BadSource | None = None
    """Raised by ``check_quotes`` for a file that the driver does not have."""


@dataclass(frozen=True, slots=True)
class ReduceJob:
    """The input of every task that writes a shard."""

    meta: ShardMeta
    dictionary: bytes
    policy: Policy
    target: ShardTarget


def make_task(work: Callable[[Any, Batches], Batches], job: object) -> Callable[[Batches], Batches]:
    """Return ``work`` bound to ``job``, ready to be sent to executors."""
    payload, version = pickle.dumps(job), __version__
    kernels = "0" if native.kernels() is None else "1"

    def run(batches: Batches) -> Batches:
        return run_task(work, payload, version, kernels, batches)

    return run


def run_task(
    work: Callable[[Any, Batches], Batches], payload: bytes, version: str, kernels: str, batches: Batches
) -> Batches:
    """Run ``work`` in an executor, with the same kernels as the driver: native ones and Python's write different files
    of samples. Raises LookupdbError if the executor has another lookupdb."""
    if version != __version__:
        raise LookupdbError(
            f"an executor has lookupdb {__version__}, the driver {version}",
            hint="give executors the image or the environment of the driver: both need the same version",
        )
    os.environ[native.VARIABLE] = kernels
    with garbage_collection_paused():
        yield from work(load(payload), batches)


def result_batch(number: int, kind: str, data: bytes) -> pa.RecordBatch:
    """Return one row of ``RESULTS``."""
    return pa.RecordBatch.from_arrays(
        [pa.array([number], pa.int32()), pa.array([kind]), pa.array([data], pa.binary())], ["number", "kind", "data"]
    )


def load(data: bytes) -> Any:
    """Unpickle what the driver sent to a task, or a task to the driver."""
    return pickle.loads(data)  # noqa: S301 - both are parts of one build


class CountingSorter(Sorter):
    """Forgets records: the first pass only counts and samples."""

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """Forget the record."""

    def _spill(self) -> None:
        self.records = make_record_buffer()


def scratch_base() -> Path:
    """Return the folder for scratch folders of tasks."""
    return Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())


def _fetch(job: MapJob, piece: Slice, scratch: Path) -> LocalFile:
    (file,) = fetch_files([job.items[piece.file].locate(job.spec)], scratch, SilentProgress())
    return file


def _describe(job: MapJob, piece: Slice, file: LocalFile) -> SourceFile:
    """Return the description of ``file`` for the driver, which knows the time of its own copy."""
    item = job.items[piece.file]
    return file.description if item.path is None else item.description


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def scan_slices(job: MapJob, batches: Batches) -> Batches:
    """First pass: yield what is in each slice, and its sample. An error may have no message: the driver then has the
    slice mapped again, once it has counted the rows before."""
    for number in _numbers(batches):
        piece = job.slices[number]
        assert piece is not None, "the first pass has all slices"
        with scratch_folder(scratch_base()) as scratch:
            try:
                file = _fetch(job, piece, scratch)
            except LookupdbError as error:
                yield result_batch(number, "fetch", pickle.dumps(error))
                continue
            yield from _scan(job, number, piece, file, scratch)


def _scan(job: MapJob, number: int, piece: Slice, file: LocalFile, scratch: Path) -> Batches:
    sample = make_sample(job.budget.sample, job.known_bytes)
    explains = piece.extends_to_row_end  # the driver knows the rows before it
    try:
        with tell_changes(file.check_unchanged), CountingSorter(scratch, BUFFER_BYTES) as sorter:
            outcome = map_slice(
                job.spec, file, number, piece, sorter, sample, job.budget, lambda *_: None, explains=explains
            )
    except LookupdbError as error:
        yield result_batch(number, "error", pickle.dumps(error))
        return
    quotes_error = None
    if not file.in_place and file.format == "csv":
        try:
            check_quotes(file, job.spec.source.csv, [outcome.quotes], job.budget.row)
        except BadSource as error:
            quotes_error = error
        outcome = replace(outcome, quotes=(False, False))
    mapped = MappedSlice(outcome, _describe(job, piece, file), file.bytes, quotes_error)
    yield result_batch(number, "mapped", pickle.dumps(mapped))
    if job.budget.sample:
        run = scratch / "sample"
        sample.write_run(run)
        yield result_batch(number, "sample", run.read_bytes())


@dataclass(frozen=True, slots=True)
class SampleJob:
    """The input of a task that merges samples."""

    sample_bytes: int
    known_bytes: int


def merge_samples(job: SampleJob, batches: Batches) -> Batches:
    """Merge all samples into one, and yield it in pieces."""
    sample = make_sample(job.sample_bytes, job.known_bytes)
    with scratch_folder(scratch_base()) as scratch:
        run = scratch / "sample"
        for batch in batches:
            for data in batch.column(2):
                run.write_bytes(data.as_py())
                sample.add_run(run)
                run.unlink()
        sample.write_run(run)
        with run.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield result_batch(0, "sample", piece)


def map_slices(job: MapJob, batches: Batches) -> Batches:
    """Second pass: yield the records of each slice, in key order."""
    for number in _numbers(batches):
        piece = job.slices[number]
        if piece is None:
            continue
        try:
            yield from _map(job, number, piece)
        except LookupdbError as error:
            yield record_batch([0], [(b"", ERROR, pickle.dumps(error))])


def _map(job: MapJob, number: int, piece: Slice) -> Batches:
    with scratch_folder(scratch_base()) as scratch, Sorter(scratch, job.budget.sorting) as sorter:
        file = _fetch(job, piece, scratch)
        sample = make_sample(0)
        with tell_changes(file.check_unchanged):
            outcome = map_slice(job.spec, file, number, piece, sorter, sample, job.budget, lambda *_: None)
        found = (outcome.rows, outcome.rejected)
        if job.outcomes[number] != found or _describe(job, piece, file) != job.fetched[piece.file]:
            raise SourceUnreadable(f"{file.name} changed while it was read", hint="build again once it is complete")
        file.check_unchanged()
        for batch in sorter:
            records = list(batch)
            yield record_batch([shard_number(key, job.spec.shards) for key, _, _ in records], records)


def record_batch(shards: Sequence[int], records: Sequence[Record]) -> pa.RecordBatch:
    """Return rows of ``RECORDS``."""
    keys, places, values = zip(*records, strict=True)
    arrays = [
        pa.array(shards, pa.int32()),
        pa.array(keys, pa.binary()),
        pa.array(places, pa.int64()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, ["shard", "key", "place", "value"])


def write_shard(job: ReduceJob, batches: Batches) -> Batches:
    """Write the shard whose records are ``batches``, in the order of key and place, and put its file under a name of
    this attempt. Its first row is its mark."""
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches)
    shard, place, value = (first.column(number)[0].as_py() for number in (0, 2, 3))
    if place == ERROR:
        yield result_batch(shard, "error", value)
        return
    assert place == MARK, "a shard begins with its mark"
    rows = map(_to_records, chain([first.slice(1)], batches))  # a generator would hold the batch as well
    attempt = job.target.new_attempt()
    with scratch_folder(scratch_base()) as scratch:
        folder = job.target.folder(scratch)
        try:
            reduced = reduce_shards(
                filter(len, rows),
                folder,
                job.meta,
                job.dictionary,
                job.policy,
                SilentProgress(),
                shards=[shard],
                attempt=attempt,
            )
            for file in reduced.files:
                job.target.put(folder / file.file)
        except LookupdbError as error:
            yield result_batch(shard, "error", pickle.dumps(error))
            return
        yield result_batch(shard, "written", pickle.dumps(reduced))


def _to_records(batch: pa.RecordBatch) -> list[Record]:
    return list(zip(*(batch.column(number).to_pylist() for number in (1, 2, 3)), strict=True))
