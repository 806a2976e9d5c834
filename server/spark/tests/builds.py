"""Build the same dataset locally and with Spark, and compare everything that a user sees."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.types import LongType
from support.sources import dataset
from support.tables import commit_deletes, deletion_vector, make_catalog, positions_file

from lookupdb.builder.build import build_generation
from lookupdb.builder.options import BuildOptions, BuildReport, SilentProgress
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError
from lookupdb.spark.build import SparkEngine
from lookupdb.store import Store, open_store

LOCAL: Final = "local[2]"
CLUSTER: Final = "local-cluster[2,1,1024]"
PARALLEL_FROM: Final = 1 << 14
"""Small, so that small sources are cut into many slices."""
_TIMES: Final = {"built_at", "seconds", "peak_memory_bytes", "message"}
ROWS: Final = 3000


def build(spec: DatasetSpec, store: Store, scratch: Path, *, spark: bool, **options: Any) -> BuildReport:
    """Build the next generation of ``spec`` in ``store``."""
    chosen = BuildOptions(scratch, memory_limit=1 << 30, threads=2, **options)
    engine = SparkEngine(spec, chosen, parallel_from=PARALLEL_FROM) if spark else None
    return build_generation(spec, store, chosen, SilentProgress(), engine)


def both(spec: DatasetSpec, folder: Path, **options: Any) -> tuple[Any, Any]:
    """The local and the Spark build of ``spec``: what they report and publish, or their errors; nothing else is
    left."""
    outcomes: list[Any] = []
    for spark in (False, True):
        store, scratch = open_store(str(folder / f"store-{spark}")), folder / "scratch"
        try:
            report = build(spec, store, scratch, spark=spark, **options)
        except LookupdbError as error:
            outcomes.append((type(error), error.message, error.hint))
            assert not list((folder / f"store-{spark}").rglob("*.lmdb"))
        else:
            outcomes.append((comparable(report), published(store, spec, report)))
        assert not list(scratch.glob("*"))
        assert not [path for path in (folder / f"store-{spark}").rglob(".*") if path.is_file()]
    return outcomes[0], outcomes[1]


def comparable(report: BuildReport) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if name not in _TIMES}


def published(store: Store, spec: DatasetSpec, report: BuildReport) -> dict[str, Any]:
    """The manifest without times, and files by what they hold: a bucket's have other names."""
    assert report.generation is not None
    manifest = asdict(store.dataset(spec).manifest(report.generation))
    shards = [(shard["bytes"], shard["records"], shard["sha256"]) for shard in manifest.pop("shards")]
    return {**{name: value for name, value in manifest.items() if name not in _TIMES}, "shards": shards}


def records(count: int = ROWS) -> Iterator[dict[str, Any]]:
    """Records with repeated keys, some without a key, long texts, and texts with line breaks that look like rows."""
    chance = random.Random(7)
    for number in range(count):
        key = "" if number % 500 == 499 else f"k{chance.randrange(count)}"
        note = f"note {number}"
        if number % 90 == 7:
            note = "".join(f"\nk{line},looks like a row,{line}" for line in range(40))
        elif number % 211 == 5:
            note = 'a "quoted" word; ' * 3000
        yield {"k": key, "note": note, "n": number}


def _csv(rows: Iterator[dict[str, Any]]) -> str:
    quote: Callable[[str], str] = lambda text: '"' + text.replace('"', '""') + '"'  # noqa: E731
    return "k,note,n\n" + "".join(f"{row['k']},{quote(row['note'])},{row['n']}\n" for row in rows)


def _lines(rows: Iterator[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_source(folder: Path, kind: str) -> DatasetSpec:
    """Write a source of ``kind`` into ``folder``, and return its dataset."""
    folder.mkdir(exist_ok=True)
    spec: dict[str, Any] = {"shards": 3, "duplicates": "last", "gates": {"maxRejectedRows": 1000}}
    match kind:
        case "csv":
            (folder / "rows.csv").write_text(_csv(records()))
            return dataset(folder, "rows.csv", **{**spec, "duplicates": "first"})
        case "gz":
            for number in range(3):
                text = _csv(row for row in records() if row["n"] % 3 == number)
                (folder / f"rows-{number}.csv.gz").write_bytes(gzip.compress(text.encode()))
            return dataset(folder, "rows-*.csv.gz", **spec)
        case "json":
            (folder / "rows.json").write_text(json.dumps(list(records())))
            return dataset(folder, "rows.json", **spec)
        case "jsonl":
            (folder / "rows.jsonl").write_text(_lines(records()))
            return dataset(folder, "rows.jsonl", **spec)
        case "parquet":
            import duckdb

            (folder / "rows.jsonl").write_text(_lines(records()))
            duckdb.sql(
                f"copy (from read_json('{folder / 'rows.jsonl'}')) to '{folder / 'rows.parquet'}' (row_group_size 500)"
            )
            return dataset(folder, "rows.parquet", **spec)
        case "hive":
            for country in ("DE", "FR", "__HIVE_DEFAULT_PARTITION__"):
                (folder / f"country={country}").mkdir()
                (folder / f"country={country}" / "part.csv").write_text(_csv(records(400)))
            value = {"columns": ["n", "country"]}
            return dataset(folder, "country=*/part.csv", ["k", "country"], **{**spec, "value": value})
        case "iceberg":
            return dataset(folder, write_iceberg(folder), **{**spec, "source": {"format": "iceberg"}})
        case "delta":
            return dataset(folder, write_delta(folder / "table"), **{**spec, "source": {"format": "delta"}})
        case _:
            raise AssertionError(kind)


def _tables() -> tuple[pa.Table, pa.Table]:
    """The rows in two parts; the second has a column more."""
    rows = list(records())
    return pa.Table.from_pylist(rows[:2000]), pa.Table.from_pylist(
        [{**row, "added": row["n"] % 7} for row in rows[2000:]]
    )


def write_iceberg(folder: Path, **properties: str) -> str:
    """Write a table whose rows were appended, deleted in both ways, and whose schema was changed; return the path of
    its metadata. ``properties`` are those of its catalog."""
    first, second = _tables()
    catalog = make_catalog(folder, **properties)
    table = catalog.create_table("db.rows", first.schema)
    table.append(first)
    with table.update_schema() as update:
        update.rename_column("n", "number")
        update.add_column("added", LongType())
        update.move_first("note")
    table.append(second.rename_columns(["k", "note", "number", "added"]))
    table.delete("number in (5, 2500)")
    name = next(iter(table.scan().plan_files())).file.file_path
    if not properties:
        commit_deletes(table, positions_file(folder / "deletes.parquet", [(name, place) for place in (0, 7, 300)]))
    return table.metadata_location.removeprefix("file://")


def write_delta(folder: Path) -> str:
    """Write a table whose rows were appended, deleted in both ways, and whose schema was changed; return its path."""
    first, second = _tables()
    write_deltalake(folder, first)
    write_deltalake(folder, second, mode="append", schema_mode="merge")
    DeltaTable(folder).delete("n = 5 or n = 2500")
    table = DeltaTable(folder)
    found = table.get_add_actions(flatten=True)
    file, size, rows = (found.column(name)[0].as_py() for name in ("path", "size_bytes", "num_records"))
    vector = deletion_vector([0, 7, 300])
    (folder / "vectors.bin").write_bytes(b"\x01" + vector)
    stored = {"storageType": "p", "pathOrInlineDv": f"file://{folder}/vectors.bin", "offset": 1, "cardinality": 3}
    stored["sizeInBytes"] = len(vector) - 8
    features = {name: ["deletionVectors"] for name in ("readerFeatures", "writerFeatures")}
    change = {"path": file, "dataChange": True}
    added = {**change, "partitionValues": {}, "size": size, "modificationTime": 0, "deletionVector": stored}
    added["stats"] = json.dumps({"numRecords": rows})
    actions: list[Any] = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}]
    actions += [{"remove": {**change, "deletionTimestamp": 0}}, {"add": added}]
    log = folder / "_delta_log" / f"{table.version() + 1:020}.json"
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return str(folder)


KINDS: Final = ("csv", "gz", "json", "jsonl", "parquet", "hive", "iceberg", "delta")
