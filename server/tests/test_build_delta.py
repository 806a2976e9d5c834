"""Delta tables as sources: every version gives what deltalake's own reader gives, and what is not read is named."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.build_project import Project
from support.sources import read
from support.tables import by_key, deletion_vector, parsed, table_spec

from lookupdb.builder.listing import open_source
from lookupdb.errors import BadSource, LookupdbError

TIME = datetime.datetime(2026, 11, 28, 17, 30, 15, 123456)
UTC = TIME.replace(tzinfo=datetime.UTC)


def some(first: int, count: int, **more: Any) -> pa.Table:
    numbers = range(first, first + count)
    columns = {
        "id": [f"k{number}" for number in numbers],
        "n": pa.array([None if number % 5 == 4 else number for number in numbers], pa.int32()),
        "small": pa.array([number % 100 for number in numbers], pa.int8()),
        "f": pa.array([number / 4 for number in numbers], pa.float32()),
        "d": [number / 3 for number in numbers],
        "money": pa.array([Decimal(number) / 100 for number in numbers], pa.decimal128(9, 2)),
        "day": [TIME.date()] * count,
        "utc": pa.array([UTC] * count, pa.timestamp("us", "UTC")),
        "bin": [bytes([number % 256]) for number in numbers],
        "place": [{"city": f"c{number}", "zips": [number, None]} for number in numbers],
        "country": [None if number % 3 == 2 else "D E/ü%"[number % 3 :] for number in numbers],
    }
    return pa.table({**columns, **more})


def read_table(folder: Path, key: str = "id", **source: Any) -> dict[str, Any]:
    spec = table_spec(folder, key, format="delta", **{"url": "people", **source})
    return parsed(read(spec, folder / "scratch").values)


def test_versions_with_appends_deletes_and_schema_evolution(tmp_path: Path) -> None:
    people = tmp_path / "people"
    write_deltalake(people, some(0, 20), partition_by=["country", "day"])
    write_deltalake(people, some(20, 10), mode="append")
    DeltaTable(people).delete("n = 3 or id = 'k22'")
    new = some(30, 4, added=["x", None, "y", "z"])
    write_deltalake(people, new, mode="append", schema_mode="merge")
    DeltaTable(people).update({"added": "'w'"}, predicate="n < 5")
    write_deltalake(people, some(30, 2, added=["o", "p"]), mode="overwrite", predicate="id = 'k30' or id = 'k31'")
    DeltaTable(people).create_checkpoint()
    newest = DeltaTable(people).version()
    assert newest >= 5
    counts = set()
    for version in range(newest + 1):
        expected = by_key(DeltaTable(people, version=version).to_pyarrow_table().to_pylist())
        assert read_table(tmp_path, table={"snapshot": version}) == expected
        counts.add(len(expected))
    assert len(counts) >= 4
    assert read_table(tmp_path) == expected
    assert read_table(tmp_path, url=f"file://{people}/") == expected


Log = Callable[..., Path]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Write a table by hand: deltalake writes no such features."""

    def write(
        schema: list[dict[str, Any]],
        files: dict[str, pa.Table],
        *,
        features: list[str] | None = None,
        configuration: dict[str, str] | None = None,
        columns: list[str] | None = None,
        partitions: dict[str, dict[str, str | None]] | None = None,
        **adds: Any,
    ) -> Path:
        folder = tmp_path / "people"
        (folder / "_delta_log").mkdir(parents=True)
        protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
        if features is not None:
            names = {"readerFeatures": features, "writerFeatures": features}
            protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **names}
        metadata = {
            "id": "3190a92a-cb93-4992-8702-b4a9d941da6b",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": schema}),
            "partitionColumns": columns or [],
            "configuration": configuration or {},
            "createdTime": 0,
        }
        actions: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": metadata}]
        for name, table in files.items():
            pq.write_table(table, folder / name)
            add = {
                "path": quote(name),
                "size": (folder / name).stat().st_size,
                "modificationTime": 0,
                "dataChange": True,
            }
            add["stats"] = json.dumps({"numRecords": table.num_rows})
            actions.append(
                {"add": {**add, "partitionValues": (partitions or {}).get(name, {}), **adds.get(name[0], {})}}
            )
        lines = "".join(f"{json.dumps(action)}\n" for action in actions)
        (folder / "_delta_log" / f"{0:020}.json").write_text(lines)
        return folder

    return write


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


ID_AND_N = [field("id", "string"), field("n", "integer")]
A_FILE = {"a.parquet": pa.table({"id": ["a", "b", "c", "d"], "n": pa.array([1, 2, 3, 4], pa.int32())})}


def test_deletion_vectors_are_applied(tmp_path: Path, log: Log) -> None:
    vector = deletion_vector([1, 3])
    name = "deletion_vector_61d16c75-6994-46b7-a15b-8b538852e50e.bin"
    stored = {
        "storageType": "p",
        "pathOrInlineDv": f"file://{tmp_path}/people/{name}",
        "offset": 1,
        "sizeInBytes": len(vector) - 8,
        "cardinality": 2,
    }
    files = {
        "a%20 ü.parquet": A_FILE["a.parquet"],
        "b.parquet": pa.table({"id": ["e"], "n": pa.array([5], pa.int32())}),
    }
    folder = log(ID_AND_N, files, features=["deletionVectors"], a={"deletionVector": stored})
    (folder / name).write_bytes(b"\x01" + vector)
    assert read_table(tmp_path) == {"a": {"n": 1}, "c": {"n": 3}, "e": {"n": 5}}
    (folder / name).unlink()
    with pytest.raises(BadSource):
        read_table(tmp_path)


def test_a_reader_feature_is_refused_by_name(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookupdb.builder.delta._READ_FEATURES", frozenset(["timestampNtz"]))
    log(ID_AND_N, A_FILE, features=["columnMapping", "timestampNtz"])
    refused = failure(tmp_path)
    assert (refused.reason, refused.message) == (
        "UnsupportedTable",
        "the Delta table people has the feature columnMapping, which is not supported",
    )


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_found_by_their_physical_names_or_ids(tmp_path: Path, log: Log, mode: str) -> None:
    def mapped(name: str, kind: Any, number: int) -> dict[str, Any]:
        keys = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
        return field(name, kind, **keys)

    place = {"type": "struct", "fields": [mapped("town", "string", 4), mapped("zip", "long", 5)]}
    places = {"type": "array", "elementType": place, "containsNull": True}
    schema = [mapped("id", "string", 1), mapped("number", "integer", 2), mapped("places", places, 3)]
    schema.append(mapped("land", "string", 6))

    def stored(name: str, kind: pa.DataType, number: int) -> pa.Field:
        shown = f"col-{number}" if mode == "name" else name  # by id, names mean nothing
        return pa.field(shown, kind, metadata={"PARQUET:field_id": str(number)})

    inner = pa.struct([stored("zip", pa.int64(), 5), stored("x", pa.string(), 4)])
    kinds = [stored("id", pa.string(), 1), stored("n", pa.int32(), 2), stored("number", pa.list_(inner), 3)]
    names = [kind.name for kind in inner]
    rows = [["a"], [7], [[dict(zip(names, (12345, "Rome"), strict=True))]]]
    files = {
        "a.parquet": pa.table(
            [pa.array(row, kind.type) for row, kind in zip(rows, kinds, strict=True)], pa.schema(kinds)
        )
    }
    configuration = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "6"}
    partitions = {"a.parquet": {"col-6": "IT"}}
    log(schema, files, features=["columnMapping"], configuration=configuration, columns=["land"], partitions=partitions)
    assert read_table(tmp_path) == {"a": {"number": 7, "places": [{"town": "Rome", "zip": 12345}], "land": "IT"}}


def test_types_that_were_widened_and_timestamps_of_spark(tmp_path: Path, log: Log) -> None:
    """Spark writes timestamps as INT96: with a time zone they end in Z, as those of other writers do."""
    schema = [field("id", "string"), field("n", "long"), field("d", "double"), field("t", "timestamp")]
    schema += [field("local", "timestamp_ntz")]
    old = pa.table(
        {"id": ["a"], "n": pa.array([1], pa.int8()), "d": pa.array([0.1], pa.float32()), "t": [TIME], "local": [TIME]}
    )
    new = pa.table({"id": ["b"], "n": [2**40], "d": [0.1], "t": [UTC], "local": [TIME]})
    folder = log(schema, {"a.parquet": old, "b.parquet": new}, features=["timestampNtz", "typeWidening"])
    size = (folder / "a.parquet").stat().st_size
    pq.write_table(old, folder / "a.parquet", use_deprecated_int96_timestamps=True)
    text = (folder / "_delta_log" / f"{0:020}.json").read_text()
    (folder / "_delta_log" / f"{0:020}.json").write_text(
        text.replace(f'"size": {size}', f'"size": {(folder / "a.parquet").stat().st_size}', 1)
    )
    shown = TIME.isoformat()
    assert read_table(tmp_path) == {
        "a": {"n": 1, "d": Decimal("0.10000000149011612"), "t": f"{shown}Z", "local": shown},
        "b": {"n": 2**40, "d": Decimal("0.1"), "t": f"{shown}Z", "local": shown},
    }


def failure(folder: Path, **source: Any) -> LookupdbError:
    with pytest.raises(LookupdbError) as raised:
        open_source(table_spec(folder, format="delta", **{"url": "people", **source}), volume=None).list_files()
    return raised.value


def test_a_feature_that_is_not_read_is_refused_by_name(tmp_path: Path, log: Log) -> None:
    log(ID_AND_N, A_FILE, features=["catalogManaged", "deletionVectors"])
    refused = failure(tmp_path)
    assert "catalog-managed" in refused.message, refused
    assert refused.reason == "UnsupportedTable", refused


def test_a_column_of_a_type_that_is_not_read_is_refused_by_name(tmp_path: Path, log: Log) -> None:
    log([field("id", "string"), field("v", "variant")], A_FILE, features=["variantType"])
    refused = failure(tmp_path)
    assert refused.reason == "UnsupportedTable"
    assert "variant" in refused.message


def test_what_is_wrong_with_a_table_has_a_reason(tmp_path: Path) -> None:
    people = tmp_path / "people"
    assert failure(tmp_path).reason == "TableMissing"
    write_deltalake(people, some(0, 3))
    unknown = failure(tmp_path, table={"snapshot": 7})
    assert (unknown.reason, unknown.hint) == ("SnapshotMissing", "its newest version is 0")
    assert "has no version 7: it has expired, or never existed" in unknown.message
    assert failure(tmp_path, table={"asOf": "2001-01-01T00:00:00+01:00"}).reason == "SnapshotMissing"
    with pytest.raises(BadSource, match=r"key.columns names the column 'nr', which is not there"):
        read_table(tmp_path, "nr")
    with pytest.raises(BadSource, match="may not read local files"):
        open_source(table_spec(tmp_path, format="delta", url="people"), volume=None, local_files=False)
    next(people.glob("*.parquet")).unlink()
    with pytest.raises(BadSource, match="is missing, although the table's snapshot names it") as missing:
        read_table(tmp_path)
    assert missing.value.reason == "DataFileMissing"


def test_a_moment_names_the_version_before_it(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "people", some(0, 3))
    moment = datetime.datetime.fromtimestamp(
        DeltaTable(tmp_path / "people").history(1)[0]["timestamp"] / 1000, datetime.UTC
    )
    time.sleep(0.01)
    write_deltalake(tmp_path / "people", some(3, 3), mode="append")
    later = moment + datetime.timedelta(milliseconds=2)
    assert len(read_table(tmp_path, table={"asOf": later.isoformat()})) == 3
    assert len(read_table(tmp_path, table={"asOf": moment.isoformat()})) == 3
    assert len(read_table(tmp_path, table={"asOf": "2999-01-01T00:00:00Z"})) == 6
    newest = DeltaTable(tmp_path / "people").history(1)[0]["timestamp"] / 1000 + 1
    for path in (tmp_path / "people" / "_delta_log").glob("*.json"):
        os.utime(path, (newest + 60, newest + 60))  # as a copy has
    copied = failure(tmp_path, table={"asOf": datetime.datetime.fromtimestamp(newest, datetime.UTC).isoformat()})
    assert copied.reason == "SnapshotMissing"
    assert "name a version by table.snapshot, its newest version is 1" in str(copied.hint)


def test_a_build_of_an_unchanged_version_lists_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path)
    people = tmp_path / "people"
    write_deltalake(people, some(0, 10))
    project.describe(source={"format": "delta", "url": "people"})
    first = project.built()
    assert first["records"] == 10
    with monkeypatch.context() as patch:
        patch.setattr("lookupdb.builder.delta._list_files", None)
        assert project.built("--unless-fingerprint", first["fingerprint"])["outcome"] == "unchanged"
    DeltaTable(people).delete("id = 'k1'")
    assert project.built("--unless-fingerprint", first["fingerprint"])["records"] == 9
    assert "delta:people, version 1" in project.build("--explain").stdout


def test_a_table_in_a_volume(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "people", some(0, 3))
    spec = table_spec(tmp_path, format="delta", url="volume://people", volume={"claimName": "c"})
    assert len(read(spec, tmp_path / "scratch", volume=tmp_path).values) == 3
    assert open_source(spec, volume=tmp_path, local_files=False).fingerprint


def test_without_deltalake_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lookupdb.builder.delta", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    missing = failure(tmp_path)
    assert missing.reason == "ExtraMissing"
    assert missing.hint == 'pip install "lookupdb[delta]"'
