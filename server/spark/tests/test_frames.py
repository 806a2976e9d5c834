"""`lookupdb.spark.write`: a generation of a DataFrame, with the checks of a build."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pytest
from builds import LOCAL

from lookupdb import store
from lookupdb.builder import build
from lookupdb.builder.options import BuildOptions, SilentProgress
from lookupdb.dataset.spec import DatasetSpec, parse_resource
from lookupdb.errors import BadSource, EngineMissing, GateClosed, InvalidManifest, NotEnoughRoom, SparkFailed
from lookupdb.shardfile import ShardReader, unframe
from lookupdb.spark import write as push
from lookupdb.store import StoredDataset

pytest_plugins = ["sessions"]

pytestmark = pytest.mark.parametrize("session", [LOCAL], indirect=True)


def describe(**spec: Any) -> DatasetSpec:
    full = {"source": {"pushed": True}, "key": {"columns": ["id"]}, "shards": 2} | spec
    metadata = {"name": "people", "namespace": "team"}
    return parse_resource(
        {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": metadata, "spec": full}
    )


def write(session: Any, folder: Path, rows: Any, spec: DatasetSpec, **options: Any) -> Any:
    frame = session.createDataFrame(*rows) if isinstance(rows, tuple) else rows
    return push(frame, spec, str(folder / "store"), **options)


def take(folder: Path, spec: DatasetSpec) -> dict[str, Any]:
    """Take the push as `lookupdb up` would, and return all records."""
    place = store.open_store(str(folder / "store"))
    report = build.build_generation(spec, place, BuildOptions(scratch=folder), SilentProgress())
    assert report.outcome == "built"
    return read(place.dataset(spec), str(report.generation))


def read(dataset: StoredDataset, generation: str) -> dict[str, Any]:
    records: dict[str, Any] = {}
    for shard in dataset.manifest(generation).shards:
        with dataset.shard(generation, shard, Path()) as path, ShardReader(path) as reader:
            records |= {key.decode(): json.loads(unframe(reader.expand(stored))) for key, stored in reader.items()}
    return records


def test_rows_of_many_partitions_are_pushed_and_taken(session: Any, tmp_path: Path) -> None:
    spec = describe()
    frame = session.range(0, 20_000, 1, 3).selectExpr("concat('p', id) as id", "id * 2 as double", "'x' as name")
    report = write(session, tmp_path, frame, spec)
    assert (report.outcome, report.generation, report.records) == ("built", "g1", 20_000)
    records = take(tmp_path, spec)
    assert records == {f"p{n}": {"double": 2 * n, "name": "x"} for n in range(20_000)}
    inbox = store.open_store(str(tmp_path / "store")).inbox(spec)
    assert [file.url for file in inbox.manifest("g1").source] == ["a DataFrame of 3 partitions"]


def test_types_mean_what_they_mean_in_parquet(session: Any, tmp_path: Path) -> None:
    """The same rows, written as Parquet by Spark, and pushed from there."""
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC)
    rows = [
        ("a", 1, 1.5, True, decimal.Decimal("12.340"), datetime.date(2026, 1, 2), moment, [1, 2], {"k": 1}, ("x", 2)),
        ("b", None, None, None, None, None, None, None, None, None),
    ]
    schema = (
        "id string, whole long, real double, truth boolean, price decimal(10,3), day date, moment timestamp,"
        " list array<int>, map map<string, int>, pair struct<left: string, right: int>"
    )
    spec = describe()
    frame = session.createDataFrame(rows, schema)
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # not the INT96 of old readers
    frame.coalesce(1).write.parquet(str(tmp_path / "parquet"))
    write(session, tmp_path, frame, spec)
    from_frame = take(tmp_path, spec)
    place = store.open_store(str(tmp_path / "store"))
    options = BuildOptions(scratch=tmp_path)
    build.push_generation(spec, place, [str(tmp_path / "parquet" / "*.parquet")], options, SilentProgress())
    assert take(tmp_path, spec) == from_frame
    assert from_frame["a"]["whole"] == 1
    assert from_frame["b"]["whole"] is None


def test_a_key_that_occurs_twice_is_an_error_with_both_places(session: Any, tmp_path: Path) -> None:
    rows = ([("a", 1), ("b", 2), ("a", 3)], "id string, n int")
    frame = session.createDataFrame(*rows).coalesce(1)
    with pytest.raises(BadSource, match="'a' occurs twice: row 1 of partition 0 and row 3 of partition 0"):
        write(session, tmp_path, frame, describe())
    assert store.open_store(str(tmp_path / "store")).inbox(describe()).known_generations() == ()


@pytest.mark.parametrize(("policy", "kept"), [("first", 1), ("last", 4)])
def test_first_and_last_go_by_the_columns_that_are_named(session: Any, tmp_path: Path, policy: str, kept: int) -> None:
    spec = describe(duplicates=policy)
    frame = session.createDataFrame([("a", n) for n in (3, 1, 4, 2)] + [("b", 9)], "id string, n int").repartition(2)
    with pytest.raises(InvalidManifest, match="the rows of a DataFrame have no order"):
        write(session, tmp_path, frame, spec)
    report = write(session, tmp_path, frame, spec, order_by="n")
    assert (report.records, report.duplicates) == (2, 3)
    assert take(tmp_path, spec) == {"a": {"n": kept}, "b": {"n": 9}}


def test_rejected_rows_and_gates_are_those_of_a_build(session: Any, tmp_path: Path) -> None:
    rows = ([("a", 1), (None, 2), ("c", 3)], "id string, n int")
    with pytest.raises(GateClosed, match="maxRejectedRows"):
        write(session, tmp_path, rows, describe())
    spec = describe(gates={"maxRejectedRows": 1})
    report = write(session, tmp_path, rows, spec)
    assert (report.records, report.rejected) == (2, 1)
    with pytest.raises(GateClosed, match="maxShrinkPercent"):
        write(session, tmp_path, ([("a", 1)], "id string, n int"), spec)
    with pytest.raises(GateClosed, match="minRecords"):
        write(session, tmp_path, ([], "id string, n int"), spec)


def test_a_column_that_is_missing_is_named(session: Any, tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="names the column 'id', which is not there"):
        write(session, tmp_path, ([("a", 1)], "name string, n int"), describe())


def test_names_may_have_dots(session: Any, tmp_path: Path) -> None:
    spec = describe(key={"columns": ["user.id"]})
    write(session, tmp_path, session.range(3).selectExpr("concat('k', id) as `user.id`", "id as `a.b`"), spec)
    assert take(tmp_path, spec) == {f"k{n}": {"a.b": n} for n in range(3)}


@pytest.mark.parametrize("column", ["v", "array(v)", "map('a', named_struct('b', v))"])
def test_a_variant_is_refused_before_anything_is_claimed(column: str, session: Any, tmp_path: Path) -> None:
    frame = session.sql("select 'a' as id, parse_json('1') as v").selectExpr("id", f"{column} as n")
    with pytest.raises(BadSource, match="has a VARIANT"):
        write(session, tmp_path, frame, describe())
    assert not (tmp_path / "store").exists()


def test_too_little_memory_for_a_task_is_refused(session: Any, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughRoom, match="task_memory is 64 MiB, expected at least 128 MiB"):
        write(session, tmp_path, ([("a", 1)], "id string, variant int"), describe(), task_memory=64 << 20)
    write(session, tmp_path, ([("a", 1)], "id string, variant int"), describe(), task_memory=128 << 20)


def test_executors_without_lookupdb_are_reported(session: Any, tmp_path: Path) -> None:
    frame = session.range(2).selectExpr(
        "cast(id as string) as id", """raise_error("No module named 'lookupdb'") as n"""
    )
    with pytest.raises(EngineMissing, match="not installed on the executors"):
        write(session, tmp_path, frame, describe())


def test_rows_that_differ_at_each_run_are_pushed_once(session: Any, tmp_path: Path) -> None:
    """Executors may compute a partition more than once: what is counted, sampled and written are the same rows."""
    spec = describe(value={"compression": "none"})
    frame = session.range(0, 2000, 1, 2).selectExpr("uuid() as id", "rand() as n")
    assert write(session, tmp_path, frame, spec).records == 2000
    assert len(take(tmp_path, spec)) == 2000


def test_a_function_of_the_users_that_fails_is_reported(session: Any, tmp_path: Path) -> None:
    frame = session.range(10).selectExpr("cast(id as string) as id", "raise_error('no such rate') as n")
    with pytest.raises(SparkFailed, match="Spark could not finish the build"):
        write(session, tmp_path, frame, describe())
    assert store.open_store(str(tmp_path / "store")).inbox(describe()).known_generations() == ()
