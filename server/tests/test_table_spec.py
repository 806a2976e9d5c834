"""The fields of a table as a source: what a manifest may say, as an API server and a laptop check it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tables import table_spec

from lookupdb.builder.table_files import TableAccess, UnsupportedTable
from lookupdb.dataset.spec import DatasetSpec, read_manifest
from lookupdb.errors import BadSource, InvalidManifest

CATALOG = {"properties": {"type": "rest", "uri": "https://catalog.example.com"}}
TABLE = {"catalog": CATALOG, "name": "db.people"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            {"format": "iceberg", "url": "a.metadata.json", "table": TABLE},
            "set url or urls, but not both, and neither of them with",
        ),
        ({"format": "iceberg"}, "set url or urls, but not both"),
        ({"format": "csv", "url": "a", "table": {"snapshot": 1}}, "table is for source.format iceberg or delta"),
        ({"url": "a.csv", "table": {"snapshot": 1}}, "table is for source.format iceberg or delta"),
        ({"format": "delta", "table": TABLE}, "table.catalog is for source.format iceberg"),
        ({"format": "delta", "urls": ["a", "b"]}, "the source is one table: set one url, and no compression"),
        ({"format": "delta", "url": "a", "compression": "gzip"}, "set one url, and no compression"),
        (
            {"format": "delta", "url": "a", "table": {"snapshot": 1, "asOf": "2026-01-01T00:00:00Z"}},
            "either snapshot or",
        ),
        ({"format": "delta", "url": "a", "table": {"snapshot": -1}}, "-1 is less than the minimum of 0"),
        ({"format": "delta", "url": "a", "table": {"asOf": "yesterday"}}, "expected a time with its time zone"),
        (
            {"format": "delta", "url": "a", "table": {"asOf": "2026-01-01T00:00:00"}},
            "expected a time with its time zone",
        ),
        ({"format": "iceberg", "table": {"catalog": CATALOG}}, "set both catalog and name"),
        (
            {"format": "iceberg", "table": {**TABLE, "catalog": {"name": "a__b"}}},
            "letters, digits and single underscores",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, source: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidManifest, match=said):
        table_spec(tmp_path, **source)


@pytest.mark.parametrize(
    "properties",
    [
        *(
            {name: "x"}
            for name in ("token", "credential", "s3.secret-access-key", "s3.access-key-id", "adls.sas-token")
        ),
        *({name: "x"} for name in ("client.session-token", "adls.connection-string", "header.Authorization")),
        {"uri": "postgresql://user:password@host/db"},
    ],
)
def test_credentials_do_not_belong_in_a_manifest(tmp_path: Path, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidManifest, match="credentials do not belong in a manifest"):
        table_spec(tmp_path, format="iceberg", table={"catalog": {"properties": properties}, "name": "db.people"})


def test_properties_load_no_code(tmp_path: Path) -> None:
    for name in ("py-catalog-impl", "py-io-impl"):
        with pytest.raises(InvalidManifest, match="name code to load"):
            table_spec(tmp_path, format="iceberg", table={"catalog": {"properties": {name: "os"}}, "name": "db.people"})


def test_a_spec_passes_to_another_process_and_its_table_is_a_part_of_its_hash(tmp_path: Path) -> None:
    catalog = {"properties": {**CATALOG["properties"], "oauth2-server-uri": "https://a/tokens"}}
    specs = [
        table_spec(tmp_path, format="iceberg", table={**TABLE, "catalog": catalog}),
        table_spec(tmp_path, format="iceberg", table={**TABLE, "snapshot": 2**62}),
        table_spec(tmp_path, format="delta", url="a", table={"asOf": "2026-01-01T00:00:00+01:00"}),
        table_spec(tmp_path, format="delta", url="a"),
    ]
    assert [DatasetSpec.from_json(spec.to_json()) for spec in specs] == specs
    assert len({spec.content_hash() for spec in specs}) == 4
    assert specs[1].source.table.snapshot == 2**62
    assert specs[0].source.urls == ()


def test_a_moment_needs_no_quotes(tmp_path: Path) -> None:
    manifest = tmp_path / "people.yaml"
    manifest.write_text(
        "apiVersion: lookupdb.dev/v1alpha1\nkind: LookupDataset\nmetadata: {name: people}\nspec:\n"
        "  source: {format: delta, url: people, table: {asOf: 2026-11-28T18:00:00Z}}\n  key: {columns: [id]}\n"
    )
    assert read_manifest(manifest).source.table.as_of == "2026-11-28T18:00:00Z"


def test_the_success_file_of_a_catalogs_table_has_a_whole_url(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidManifest, match="the source is in a catalog, which has no folder: give the success file's whole url"
    ):
        table_spec(tmp_path, format="iceberg", table=TABLE, refresh={"successFile": "_SUCCESS"})
    spec = table_spec(tmp_path, format="iceberg", table=TABLE, refresh={"successFile": "s3://b/done"})
    assert spec.refresh.success_file == "s3://b/done"


def test_files_of_a_table_are_read_where_sources_may_be(tmp_path: Path) -> None:
    cluster, laptop = TableAccess(False, tmp_path), TableAccess(True, None)
    assert cluster.locate(f"file://{tmp_path}/a b%20.parquet") == tmp_path / "a b%20.parquet"
    assert laptop.locate("file:/etc/x.parquet") == Path("/etc/x.parquet")
    for location in ("/etc/passwd", "file:///etc/passwd", f"{tmp_path}/../../x", "file:/etc/passwd"):
        with pytest.raises(BadSource, match="may not read local files"):
            cluster.locate(location)
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(BadSource, match="may not read local files"):
        cluster.locate(f"{tmp_path}/link/passwd")
    for location in ("hdfs://host/x.parquet", "https://host/x.parquet", "s3://bucket"):
        with pytest.raises(UnsupportedTable, match="in a store that lookupdb cannot read"):
            laptop.locate(location)
