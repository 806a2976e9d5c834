"""Spark gives the bytes, messages and errors of a local build, whatever the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import CLUSTER, KINDS, LOCAL, both, build, comparable, published, write_iceberg, write_source
from pyiceberg.utils.config import Config
from support.buckets import create_bucket, s3_server
from support.faults import Proxy
from support.sources import dataset
from support.tables import catalog_fields

from lookupdb.spark import build as spark_build
from lookupdb.store import open_store

pytest_plugins = ["sessions"]

on_both = pytest.mark.parametrize("session", [LOCAL, CLUSTER], indirect=True)
on_cluster = pytest.mark.parametrize("session", [CLUSTER], indirect=True)
on_local = pytest.mark.parametrize("session", [LOCAL], indirect=True)


@on_both
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("kind", KINDS)
def test_files_and_reports_are_those_of_a_local_build(kind: str, tmp_path: Path) -> None:
    local, spark = both(write_source(tmp_path, kind), tmp_path)
    assert local[0]["rejected"] > 0
    assert local[0]["duplicates"] > 0
    assert spark == local


@on_both
@pytest.mark.usefixtures("session")
def test_slices_with_wrong_cuts_are_mapped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    scan_again = spark_build._Scan._scan_again

    def note(scan: Any, number: int, job: Any) -> Any:
        again.append(number)
        return scan_again(scan, number, job)

    monkeypatch.setattr(spark_build._Scan, "_scan_again", note)
    text = "".join(f"x{line},y{line}\n" for line in range(600))
    (tmp_path / "rows.csv").write_text("k,v\n" + "".join(f'k{row},"{text}"\n' for row in range(12)))
    local, spark = both(dataset(tmp_path, "rows.csv", shards=2), tmp_path)
    assert again
    assert spark == local


BROKEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "an open quote": ("rows.csv", "k,v\n" + "".join(f"k{n},v{n}\n" for n in range(4000)) + 'z,"open\n' * 3, {}),
    "a short row": ("rows.csv", "k,v\n" + "".join(f"k{n},v{n}\n" for n in range(4000)) + "z\n" + "y,y\n" * 9, {}),
    "no JSON": ("rows.jsonl", '{"k": "a%s"}\n' % ("x" * 90) * 900 + "{\n" + '{"k": "b"}\n', {}),
    "no key column": ("rows.jsonl", '{"x": "a%s"}\n' % ("x" * 90) * 900, {}),
    "a key twice": ("rows.csv", "k,v\n" + "".join(f"k{n % 3999},v{n}\n" for n in range(4000)), {"shards": 3}),
    "no Parquet": ("rows.parquet", "k,v\n1,2\n", {}),
    "no gzip": ("rows.csv.gz", "k,v\n1,2\n", {}),
    "escaped quotes": ("rows.csv", 'k,v\n1,"a \\" b"\n2,"c"\n3,d"e\n', {}),
    "rejected rows": ("rows.csv", "k,v\n,1\n" * 3, {}),
    "no rows": ("rows.csv", "k,v\n", {"gates": {"minRecords": 1}}),
}


@on_local
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("what", BROKEN)
def test_errors_are_those_of_a_local_build(what: str, tmp_path: Path) -> None:
    name, content, spec = BROKEN[what]
    (tmp_path / name).write_text(content)
    local, spark = both(dataset(tmp_path, name, **spec), tmp_path)
    assert spark == local
    assert len(local) == 3, "an error"


@on_both
@pytest.mark.usefixtures("session")
def test_objects_of_a_bucket_are_fetched_by_executors(s3: tuple[str, Proxy], tmp_path: Path) -> None:
    url = create_bucket(s3[0])
    local_files = write_source(tmp_path / "files", "gz")
    bucket = open_store(url)._bucket  # type: ignore[attr-defined]
    for path in sorted((tmp_path / "files").iterdir()):
        bucket.objects.upload(f"data/{path.name}", path)
    spec = replace(local_files, base=None, source=replace(local_files.source, urls=(f"{url}/data/*.gz",)))
    local, spark = both(spec, tmp_path)
    assert spark == local


@on_cluster
@pytest.mark.usefixtures("session")
def test_the_credentials_of_a_catalog_reach_executors(
    s3: tuple[str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is not the one that the environment of executors names."""
    bucket = create_bucket(s3[0])
    with s3_server() as server:
        keys = {"s3.endpoint": server, "s3.access-key-id": "x", "s3.secret-access-key": "y", "s3.region": "us-east-1"}
        write_iceberg(tmp_path / "catalog", **keys, warehouse=bucket)
        for name, value in keys.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name.upper().replace('-', '_')}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it reads the environment when it is imported
        catalog = catalog_fields(tmp_path / "catalog")
        source = {"format": "iceberg", "table": {"catalog": catalog, "name": "db.rows"}}
        spec = dataset(None, [], source=source, duplicates="last", gates={"maxRejectedRows": 1000})
        local, spark = both(spec, tmp_path)
    assert local[0]["records"] > 0
    assert spark == local
    fetched = [request.path for request in s3[1].requests if bucket.removeprefix("s3://") in request.path]
    assert not [path for path in fetched if path.endswith(".parquet")]


@on_local
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_gates_read_what_executors_wrote(kind: str, s3: tuple[str, Proxy], tmp_path: Path) -> None:
    gates = {
        "maxRejectedRows": 1000,
        "maxChangedPercent": 1,
        "maxValueBytes": 10_000,
        "expectedValues": [{"key": "nobody", "value": "1"}],
    }
    outcomes = []
    for spark in (False, True):
        store = open_store(create_bucket(s3[0]) if kind == "bucket" else str(tmp_path / f"store-{spark}"))
        before = write_source(tmp_path, "jsonl")
        build(before, store, tmp_path / "scratch", spark=False)
        spec = dataset(tmp_path, "rows.jsonl", shards=4, duplicates="first", gates=gates)
        with pytest.raises(Exception, match="gates") as error:
            build(spec, store, tmp_path / "scratch", spark=spark)
        manifest = store.dataset(spec).manifest("g2")
        outcomes.append((str(error.value), manifest.refused, manifest.totals))
        assert not list((tmp_path / "scratch").glob("*"))
    assert outcomes[0][0].replace("store-False", "") == outcomes[1][0].replace("store-True", "")
    assert outcomes[0][1:] == outcomes[1][1:]


@on_local
@pytest.mark.usefixtures("session")
def test_an_unchanged_source_is_not_built_again(tmp_path: Path) -> None:
    spec, store = write_source(tmp_path, "jsonl"), open_store(str(tmp_path / "store"))
    first = build(spec, store, tmp_path / "scratch", spark=True)
    again = build(spec, store, tmp_path / "scratch", spark=True, unless_fingerprint=first.fingerprint)
    assert (first.outcome, again.outcome) == ("built", "unchanged")
    assert published(store, spec, first)["generation"] == "g1"
    assert comparable(first)["records"] > 0
