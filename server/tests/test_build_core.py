"""The core of a build as another engine would run it: any division gives what the local build gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.sources import dataset

from lookupdb.builder import core
from lookupdb.builder.build import build_generation
from lookupdb.builder.core import MergedSlices, map_slice, merge_duplicates, plan_source, reduce_shards
from lookupdb.builder.dictionary import NO_PREVIOUS, choose_dictionary
from lookupdb.builder.files import Slice
from lookupdb.builder.listing import fetch_files, resolve_source, source_fingerprint
from lookupdb.builder.options import BuildBudget, BuildOptions, SilentProgress
from lookupdb.builder.rows import UnfinishedSlice
from lookupdb.builder.write import Record, Sorter, make_sample
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource
from lookupdb.keys import shard_number
from lookupdb.manifest import Manifest
from lookupdb.shardfile import ShardMeta
from lookupdb.store import open_store

MEMORY = 512 << 20
SHARDS = 3
QUIET = SilentProgress()


def write_source(folder: Path, name: str, number: int) -> None:
    """Rows in two files: some keys occur several times, some rows are rejected, and quoted fields hold line breaks."""
    keys = [f"key {row * 7 % 1999 + number * 5}" if row % 97 else "" for row in range(2500)]
    rows = [(key, f"{row},\n{number}") for row, key in enumerate(keys)]
    if name.endswith("csv"):
        text = "k,v\n" + "".join(f'{key},"{value}"\n' for key, value in rows)
        (folder / name).write_text(text)
    else:
        (folder / name).write_bytes(b"".join(orjson.dumps({"k": key, "v": value}) + b"\n" for key, value in rows))


def build(spec: DatasetSpec, folder: Path) -> Manifest:
    store = open_store(str(folder / "store"))
    build_generation(spec, store, BuildOptions(folder / "scratch", MEMORY), QUIET)
    return store.dataset(spec).manifest("g1")


def build_by_tasks(spec: DatasetSpec, folder: Path) -> dict[str, Any]:
    """What a driver learns: one task for each slice, then one for each shard."""
    files = fetch_files(resolve_source(spec, volume=None), folder, QUIET)
    budget = BuildBudget.for_build(MEMORY, shards=spec.shards)
    source_bytes = sum(file.bytes for file in files)
    slices = plan_source(files, 4, 4000, spec.source.csv)
    assert len(slices) > 4 * len(files)
    merged, sample = MergedSlices(spec, files, slices, budget.row), make_sample(budget.sample, source_bytes)
    records: list[list[Record]] = [[] for _ in range(spec.shards)]
    again = 0
    for number, mapped in enumerate(slices):

        def map_task(piece: Slice, number: int = number) -> tuple[core.SliceOutcome, list[Record], Path]:
            own, run = make_sample(budget.sample, source_bytes), folder / f"sample-{number}-{piece.start}"
            with Sorter(folder, budget.sorting, f"map-{number}") as sorter:
                outcome = map_slice(
                    spec, files[piece.file], number, piece, sorter, own, budget, lambda *_: None, explains=False
                )
                own.write_run(run)
                return outcome, [record for batch in sorter for record in batch], run

        piece = merged.next_slice(number)
        if piece is None:
            continue
        try:
            result = map_task(mapped) if piece.start == mapped.start else None
        except UnfinishedSlice:
            result = None
        if result is None:
            again += 1
            result = map_task(piece)
        outcome, found, run = result
        merged.merge(number, outcome)
        sample.add_run(run)
        for key, place, value in found:
            records[shard_number(key, spec.shards)].append((key, place, value))
    dictionary = choose_dictionary(sample.take_values(), NO_PREVIOUS, records=merged.rows, shards=spec.shards)[0]
    meta = ShardMeta(
        f"{spec.namespace}/{spec.name}",
        0,
        spec.shards,
        0,
        spec.key.normalize,
        spec.value.format,
        spec.value.compression,
        spec.content_hash(),
    )
    (folder / "shards").mkdir()
    parts = []
    for shard in reversed(range(spec.shards)):
        batches = [sorted(records[shard], key=lambda record: record[:2])]
        parts.append(
            reduce_shards(batches, folder / "shards", meta, dictionary, spec.duplicates, QUIET, shards=[shard])
        )
    parts.reverse()
    names, shard_files = [file.description.url for file in files], [file for part in parts for file in part.files]
    duplicates = merge_duplicates(part.duplicates for part in parts)
    return {
        "fingerprint": source_fingerprint(files),
        "rejected": merged.rejected,
        "duplicates": duplicates.describe(spec.duplicates, names, merged.find_origin),
        "shards": tuple(shard_files),
        "totals": core.add_up(shard_files, [one for part in parts for one in part.sums]),
        "dictionary_bytes": len(dictionary),
        "again": again,
    }


@pytest.fixture
def spec_of(tmp_path: Path) -> Any:
    def make(ending: str, policy: str, compression: str = "zstd") -> DatasetSpec:
        names = [f"{number}.{ending}" for number in range(2)]
        for number, name in enumerate(names):
            write_source(tmp_path, name, number)
        gates = {"maxRejectedRows": 1000}
        value = {"compression": compression}
        return dataset(tmp_path, names, shards=SHARDS, duplicates=policy, gates=gates, value=value)

    return make


@pytest.mark.parametrize(
    ("ending", "policy", "compression"),
    [("csv", "first", "zstd"), ("csv", "last", "none"), ("jsonl", "first", "none"), ("jsonl", "last", "zstd")],
)
def test_tasks_give_the_files_counts_and_messages_of_a_local_build(
    tmp_path: Path, spec_of: Any, ending: str, policy: str, compression: str
) -> None:
    spec = spec_of(ending, policy, compression)
    manifest = build(spec, tmp_path)
    (tmp_path / "tasks").mkdir()
    found = build_by_tasks(spec, tmp_path / "tasks")
    del found["again"]
    assert {name: getattr(manifest, name) for name in found} == found
    assert manifest.duplicates.count > 1000
    assert len(manifest.duplicates.samples) == len(manifest.rejected.samples) == 10


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_key_that_occurs_twice_gets_the_message_of_a_local_build(tmp_path: Path, spec_of: Any, ending: str) -> None:
    spec = spec_of(ending, "fail")
    with pytest.raises(BadSource) as expected:
        build(spec, tmp_path)
    (tmp_path / "tasks").mkdir()
    with pytest.raises(BadSource) as found:
        build_by_tasks(spec, tmp_path / "tasks")
    assert str(found.value) == str(expected.value)


def test_slices_behind_a_wrong_cut_are_mapped_again(tmp_path: Path) -> None:
    """Quoted lines look like rows: every cut is wrong until its slice is proven."""
    lines = "\n".join(f"x{number},y" for number in range(60))
    (tmp_path / "f.csv").write_text("k,v\n" + "".join(f'key {row},"{lines}"\n' for row in range(300)))
    spec = dataset(tmp_path, "f.csv", shards=SHARDS)
    manifest = build(spec, tmp_path)
    (tmp_path / "tasks").mkdir()
    found = build_by_tasks(spec, tmp_path / "tasks")
    assert found["again"] > 0
    assert found["shards"] == manifest.shards


def test_a_record_of_another_shard_is_a_mistake_of_the_engine(tmp_path: Path) -> None:
    meta = ShardMeta("default/x", 0, 2, 0, (), "json", "none", "content")
    record = next((b"%d" % number, 1, b"1") for number in range(99) if shard_number(b"%d" % number, 2) == 1)
    with pytest.raises(AssertionError, match="1 of 1 records belong to other shards"):
        reduce_shards([[record]], tmp_path, meta, b"", "first", QUIET, shards=[0])
