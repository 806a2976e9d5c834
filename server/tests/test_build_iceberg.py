"""Iceberg tables as sources: every snapshot gives what pyiceberg's own scan gives, and what is not read is named."""

from __future__ import annotations

import datetime
import json
import re
import socket
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.build_project import Project
from support.sources import read
from support.tables import (
    as_json,
    by_key,
    catalog_fields,
    commit_deletes,
    deletion_vector,
    make_catalog,
    parsed,
    positions_file,
    puffin_file,
    table_spec,
)

from lookupdb.builder.listing import open_source
from lookupdb.errors import BadSource, LookupdbError

if TYPE_CHECKING:
    from pyiceberg.table import Table

TIME = datetime.datetime(2026, 11, 28, 17, 30, 15, 123456)
PLACE = pa.struct({"city": pa.string(), "zip": pa.int32(), "inner": pa.struct({"f": pa.float32()})})
SCHEMA = pa.schema(
    [
        *(("id", pa.string()), ("n", pa.int32()), ("l", pa.int64()), ("f", pa.float32()), ("d", pa.float64())),
        *(("b", pa.bool_()), ("money", pa.decimal128(9, 2)), ("day", pa.date32()), ("time", pa.time64("us"))),
        *(("at", pa.timestamp("us")), ("utc", pa.timestamp("us", "UTC")), ("bin", pa.binary()), ("place", PLACE)),
        *(("tags", pa.list_(pa.string())), ("places", pa.list_(PLACE)), ("by_name", pa.map_(pa.string(), pa.int32()))),
    ]
)


SOME = ("id", "n", "bin", "place")
"""The columns of a table whose types are not the matter: each change of a table copies its whole schema."""


def rows(first: int, count: int) -> list[dict[str, Any]]:
    found = []
    for number in range(first, first + count):
        place = None if number % 7 == 3 else {"city": f"c{number}", "zip": number, "inner": {"f": number + 0.5}}
        numbers = {"n": number, "l": 2**40 + number, "f": number / 4, "d": number / 3, "b": number % 2 == 0}
        times = {"day": TIME.date(), "time": TIME.time(), "at": TIME, "utc": TIME.replace(tzinfo=datetime.UTC)}
        parts = {"tags": ["x", None], "place": place, "places": [place, None], "by_name": [("p", number)]}
        row = numbers | times | parts | {"money": Decimal(number) / 100, "bin": bytes([number % 256])}
        found.append({"id": f"k{number}"} | {name: None if number % 11 == 5 else row[name] for name in row})
    return found


def some(first: int, count: int) -> pa.Table:
    return every(first, count).select(SOME)


def every(first: int, count: int) -> pa.Table:
    return pa.Table.from_pylist(rows(first, count), SCHEMA)


def read_table(folder: Path, key: str = "id", **source: Any) -> dict[str, Any]:
    spec = table_spec(folder, key, format="iceberg", **source)
    return parsed(read(spec, folder / "scratch").values)


def read_snapshot(folder: Path, table: Table, snapshot: int | None = None) -> dict[str, Any]:
    state: dict[str, Any] = {} if snapshot is None else {"table": {"snapshot": snapshot}}
    return read_table(folder, url=table.metadata_location.removeprefix("file://"), **state)


@pytest.fixture
def people(tmp_path: Path) -> Table:
    table = make_catalog(tmp_path / "warehouse").create_table("db.people", some(0, 0).schema)
    table.append(some(0, 30))
    return table


def test_snapshots_with_appends_deletes_and_schema_evolution(tmp_path: Path) -> None:
    from pyiceberg.types import DecimalType, DoubleType, IntegerType, LongType, StringType

    people = make_catalog(tmp_path / "warehouse").create_table("db.people", SCHEMA)
    people.append(every(0, 30))
    people.append(every(30, 10))
    with people.update_schema() as update:
        update.rename_column("n", "number")
        update.update_column("f", DoubleType())
        update.update_column("money", DecimalType(18, 2))
        update.add_column("added", StringType())
        update.delete_column("b")
    with people.update_schema() as update:
        update.update_column("number", LongType())
        update.rename_column("place.city", "town")
        update.update_column("places.element.zip", LongType())
        update.add_column(("place", "inner", "g"), IntegerType())
        update.add_column("b", StringType())  # another column than the dropped one
        update.move_first("day")
    people.delete("id in ('k1', 'k31', 'k39')")
    newer = people.scan().to_arrow().slice(0, 2).to_pylist()
    for number, row in enumerate(newer):
        row |= {"id": f"new{number}", "number": 2**40, "b": "text", "added": "a"}
    people.append(pa.Table.from_pylist(newer, people.schema().as_arrow()))
    people.overwrite(pa.Table.from_pylist([{**newer[0], "id": "k2"}], people.schema().as_arrow()), "id == 'k2'")
    data_file = next(iter(people.scan().plan_files())).file.file_path
    commit_deletes(people, positions_file(tmp_path / "deletes.parquet", [(data_file, 0), (data_file, 2), ("other", 1)]))
    snapshots = people.snapshots()
    assert len(snapshots) >= 5
    counts = set()
    for snapshot in snapshots:
        expected = by_key(people.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist())
        assert read_snapshot(tmp_path, people, snapshot.snapshot_id) == expected
        counts.add(len(expected))
    assert len(counts) >= 4
    assert read_snapshot(tmp_path, people) == by_key(people.scan().to_arrow().to_pylist())


def test_the_newest_state_has_the_newest_names(tmp_path: Path, people: Table) -> None:
    """A change of the schema makes no snapshot."""
    spec = table_spec(
        tmp_path, format="iceberg", table={"catalog": catalog_fields(tmp_path / "warehouse"), "name": "db.people"}
    )
    before = open_source(spec, volume=None).fingerprint
    assert open_source(spec, volume=None).fingerprint == before
    with people.update_schema() as update:
        update.rename_column("n", "number")
    source = open_source(spec, volume=None)
    assert source.fingerprint != before
    snapshot = people.current_snapshot()
    assert snapshot is not None
    assert source.table is not None
    assert (source.table.url, source.table.etag) == ("iceberg:default.db.people", str(snapshot.snapshot_id))
    assert "number" in parsed(read(spec, tmp_path / "scratch").values)["k0"]
    assert "n" in read_snapshot(tmp_path, people, snapshot.snapshot_id)["k0"]


def test_members_that_swapped_their_names_and_places(tmp_path: Path) -> None:
    pair = pa.struct({"a": pa.string(), "b": pa.string()})
    schema = pa.schema({"id": pa.string(), "p": pair, "l": pa.list_(pair)})
    table = make_catalog(tmp_path / "warehouse").create_table("db.t", schema)
    table.append(pa.Table.from_pylist([{"id": "x", "p": {"a": "A", "b": "B"}, "l": [{"a": "A", "b": "B"}]}], schema))
    for path in ("p", "l.element"):
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            with table.update_schema() as update:
                update.rename_column(f"{path}.{old}", new)
        with table.update_schema() as update:
            update.move_first(f"{path}.a")
    swapped = {"a": "B", "b": "A"}
    assert by_key(table.scan().to_arrow().to_pylist()) == {"x": {"p": swapped, "l": [swapped]}}
    assert read_snapshot(tmp_path, table) == {"x": {"p": swapped, "l": [swapped]}}


def test_a_float_that_became_a_double_has_all_its_digits(tmp_path: Path) -> None:
    from pyiceberg.types import DoubleType

    table = make_catalog(tmp_path / "warehouse").create_table("db.f", pa.schema({"id": pa.string(), "f": pa.float32()}))
    table.append(pa.table({"id": ["a"], "f": pa.array([0.1], pa.float32())}))
    assert read_snapshot(tmp_path, table) == {"a": {"f": Decimal("0.1")}}
    with table.update_schema() as update:
        update.update_column("f", DoubleType())
    assert read_snapshot(tmp_path, table) == {"a": {"f": Decimal("0.10000000149011612")}}


def test_deletion_vectors_are_applied(tmp_path: Path, people: Table) -> None:
    people.append(some(30, 10))
    first, second = (task.file for task in people.scan().plan_files())
    vectors = {first.file_path: deletion_vector([0, 3]), second.file_path: deletion_vector([2])}
    commit_deletes(people, puffin_file(tmp_path / "v.puffin", vectors), file_format="PUFFIN")
    files = {path: pq.read_table(path.removeprefix("file://")).column("id").to_pylist() for path in vectors}
    gone = {files[first.file_path][0], files[first.file_path][3], files[second.file_path][2]}
    assert read_snapshot(tmp_path, people).keys() == {f"k{number}" for number in range(40)} - gone
    vectors[first.file_path] = vectors[first.file_path][:-1] + b"!"
    commit_deletes(people, puffin_file(tmp_path / "w.puffin", vectors), file_format="PUFFIN")
    with pytest.raises(BadSource, match=r"w\.puffin, a delete file of the table, cannot be read \(ValueError\)"):
        read_snapshot(tmp_path, people)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"content": "EQUALITY_DELETES", "equality_ids": [1]}, "has equality deletes", id="equality"),
        pytest.param({"file_format": "ORC"}, "delete files in ORC", id="ORC"),
        pytest.param({"key_metadata": b"k"}, "is encrypted", id="encrypted"),
        pytest.param({"file_format": "PUFFIN"}, "deletes of the kind bloom", id="another blob"),
    ],
)
def test_deletes_that_are_not_read_are_refused_by_name(
    tmp_path: Path, people: Table, fields: dict[str, Any], said: str
) -> None:
    commit_deletes(people, puffin_file(tmp_path / "v.puffin", {"x": b""}, "bloom"), **fields)
    with pytest.raises(BadSource, match=said) as raised:
        read_snapshot(tmp_path, people)
    assert raised.value.reason == "UnsupportedTable"


def test_partitions_are_columns(tmp_path: Path) -> None:
    """An imported file lacks the columns of its partition, and has no field ids."""
    from pyiceberg.transforms import BucketTransform, IdentityTransform

    catalog = make_catalog(tmp_path / "warehouse")
    schema = pa.schema({"id": pa.string(), "country": pa.string(), "v": pa.int32()})
    table = catalog.create_table("db.parts", schema)
    with table.update_spec() as update:
        update.add_field("country", IdentityTransform())
        update.add_field("id", BucketTransform(4))
    table.append(pa.table({"id": ["a", "b", "c"], "country": ["DE", "F R/ü%25", None], "v": [1, 2, 3]}, schema))
    assert read_snapshot(tmp_path, table) == by_key(table.scan().to_arrow().to_pylist())
    with table.update_schema() as change:
        change.rename_column("country", "land")
    assert read_snapshot(tmp_path, table)["a"] == {"land": "DE", "v": 1}
    imported = catalog.create_table("db.imported", schema)
    with imported.update_spec() as update:
        update.add_field("country", IdentityTransform())
    old = tmp_path / "country=IT" / "old.parquet"
    old.parent.mkdir()
    pq.write_table(pa.table({"id": ["x"], "country": ["IT"], "v": pa.array([7], pa.int32())}), old)
    imported.add_files([str(old)])
    assert read_snapshot(tmp_path, imported) == {"x": {"country": "IT", "v": 7}}


def test_a_build_of_an_unchanged_snapshot_reads_only_metadata(
    tmp_path: Path, people: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    source = {"format": "iceberg", "table": {"catalog": catalog_fields(tmp_path / "warehouse"), "name": "db.people"}}
    project.describe(source=source)
    first = project.built()
    assert (first["records"], first["generation"]) == (30, "g1")
    manifest = json.loads((Path(project.dataset.url) / "g1" / "manifest.json").read_text())
    snapshot = people.current_snapshot()
    assert snapshot is not None
    (described,) = manifest["source"]
    assert (described["url"], described["etag"]) == ("iceberg:default.db.people", str(snapshot.snapshot_id))
    with monkeypatch.context() as patch:
        patch.setattr("pyiceberg.table.DataScan.plan_files", None)
        assert project.built("--unless-fingerprint", first["fingerprint"])["outcome"] == "unchanged"
    people.delete("id == 'k3'")
    second = project.built("--unless-fingerprint", first["fingerprint"])
    assert (second["outcome"], second["records"]) == ("built", 29)
    explained = project.build("--explain").stdout
    assert "iceberg:default.db.people, snapshot " in explained
    assert "bin is binary: base64" in explained
    assert re.search(r"^ +place +json +\{", explained, re.M)
    assert "are in the footer of 1 parquet file" in explained


def test_slices_are_read_by_a_crew_alike(tmp_path: Path, people: Table) -> None:
    people.append(some(30, 10))
    people.append(some(40, 10))
    with people.update_schema() as update:
        update.rename_column("place.city", "town")
    first = next(iter(people.scan().plan_files())).file.file_path
    commit_deletes(people, positions_file(tmp_path / "d.parquet", [(first, 1), (first, 4)]))
    spec = table_spec(tmp_path, format="iceberg", url=people.metadata_location.removeprefix("file://"))
    alone = read(spec, tmp_path / "scratch")
    assert read(spec, tmp_path / "scratch", 1 << 30, parallel_from=1000) == alone
    assert len(alone.records) == 48
    assert {file for _, _, file, _ in alone.records} == {0, 1, 2}


def test_only_the_columns_that_are_needed_reach_the_reader(tmp_path: Path, people: Table) -> None:
    with people.update_schema() as update:
        update.rename_column("n", "number")
    location = people.metadata_location.removeprefix("file://")
    spec = table_spec(tmp_path, value={"columns": ["number"]}, format="iceberg", url=location)
    found = parsed(read(spec, tmp_path / "scratch").values)
    assert found["k4"] == {"number": 4}
    with pytest.raises(BadSource, match=r"key.columns names the column 'nr', which is not there"):
        read_table(tmp_path, "nr", url=location)


def failure(folder: Path, **source: Any) -> LookupdbError:
    with pytest.raises(LookupdbError) as raised:
        open_source(table_spec(folder, format="iceberg", **source), volume=None)
    return raised.value


def test_what_is_wrong_with_a_table_has_a_reason(tmp_path: Path, people: Table) -> None:
    location = people.metadata_location.removeprefix("file://")
    catalog = catalog_fields(tmp_path / "warehouse")
    expired = failure(tmp_path, url=location, table={"snapshot": 7})
    assert expired.reason == "SnapshotMissing"
    assert "has no snapshot 7: it has expired, or never existed" in expired.message
    early = failure(tmp_path, url=location, table={"asOf": "2001-01-01T00:00:00Z"})
    assert early.reason == "SnapshotMissing"
    assert failure(tmp_path, url="none.metadata.json").reason == "TableMissing"
    assert failure(tmp_path, table={"catalog": catalog, "name": "db.none"}).reason == "TableMissing"
    rest = {"properties": {"type": "rest", "uri": "http://127.0.0.1:1/"}}
    unreachable = failure(tmp_path, table={"catalog": rest, "name": "db.people"})
    assert (unreachable.reason, unreachable.may_pass) == ("CatalogUnreachable", True)
    folder = failure(tmp_path, url="warehouse/db/people")
    assert "is not a metadata file of an Iceberg table" in folder.message
    data_file = Path(next(iter(people.scan().plan_files())).file.file_path.removeprefix("file://"))
    data_file.unlink()
    with pytest.raises(BadSource, match="is missing, although the table's snapshot names it") as missing:
        read_snapshot(tmp_path, people)
    assert missing.value.reason == "DataFileMissing"
    for manifest in (tmp_path / "warehouse" / "db" / "people" / "metadata").glob("*-m0.avro"):
        manifest.unlink()
    with pytest.raises(BadSource, match=r"a manifest of the Iceberg table .* is missing") as missing:
        read_snapshot(tmp_path, people)
    assert missing.value.reason == "DataFileMissing"


def test_a_catalog_that_does_not_answer_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb.builder.iceberg.LOAD_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rest = {"properties": {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}/"}}
        slow = failure(tmp_path, table={"catalog": rest, "name": "db.people"})
    assert slow.message.endswith("cannot be loaded: no answer in 0.2 s")
    assert slow.reason == "CatalogUnreachable"


def test_a_moment_names_the_snapshot_before_it(tmp_path: Path, people: Table) -> None:
    people.append(some(30, 10))
    first = people.snapshots()[0]
    moment = datetime.datetime.fromtimestamp(first.timestamp_ms / 1000, datetime.UTC).isoformat()
    location = people.metadata_location.removeprefix("file://")
    assert len(read_table(tmp_path, url=location, table={"asOf": moment})) == 30


def test_files_of_the_machine_that_builds_are_not_read_in_a_cluster(tmp_path: Path, people: Table) -> None:
    location = people.metadata_location.removeprefix("file://")
    catalog = {"catalog": catalog_fields(tmp_path / "warehouse"), "name": "db.people"}
    sources: list[dict[str, Any]] = [{"url": location}, {"url": f"file://{location}"}, {"table": catalog}]
    for source in sources:
        spec = table_spec(tmp_path, format="iceberg", **source)
        with pytest.raises(BadSource, match="may not read"):
            open_source(spec, volume=None, local_files=False)


def test_a_table_in_a_volume_may_have_another_path_there(tmp_path: Path, people: Table) -> None:
    (tmp_path / "warehouse").rename(tmp_path / "mounted")
    name = Path(people.metadata_location).name
    url = f"volume://db/people/metadata/{name}"
    spec = table_spec(tmp_path, format="iceberg", url=url, volume={"claimName": "c"})
    assert len(read(spec, tmp_path / "scratch", volume=tmp_path / "mounted").values) == 30
    opened = open_source(spec, volume=tmp_path / "mounted", local_files=False)
    (item,) = opened.list_files()
    assert Path(str(item.place)).is_relative_to(tmp_path / "mounted" / "db" / "people" / "data")


def test_without_pyiceberg_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lookupdb.builder.iceberg", raising=False)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    missing = failure(tmp_path, url="a.metadata.json")
    assert missing.reason == "ExtraMissing"
    assert missing.hint == 'pip install "lookupdb[iceberg]"'


def test_as_json_is_what_the_page_says() -> None:
    assert as_json([("a", TIME.replace(tzinfo=datetime.UTC))]) == {"a": "2026-11-28T17:30:15.123456Z"}
