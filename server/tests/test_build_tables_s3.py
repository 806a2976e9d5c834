"""Tables in a bucket: Iceberg by a REST catalog with a token and credentials of its own, Delta by the environment's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.buckets import create_bucket, use_server, variables
from support.sources import read
from support.tables import catalog_fields, parsed, table_spec
from support.web import QuietHandler, web_server

from lookupdb.builder.listing import open_source
from lookupdb.errors import BadSource

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytest_plugins = ["support.s3_fixtures"]


def make_rows() -> pa.Table:
    """Two rows. Arrow imports pandas for its first table, which takes a while."""
    return pa.table({"id": ["a", "b"], "n": [1, 2]})


@pytest.fixture
def people(tmp_path: Path, server: str) -> Table:
    """An Iceberg table in a bucket."""
    from pyiceberg.catalog import load_catalog

    fields = catalog_fields(tmp_path)["properties"]
    keys = {"s3.endpoint": server, "s3.access-key-id": "x", "s3.secret-access-key": "y", "s3.region": "us-east-1"}
    catalog = load_catalog("writer", **{**fields, **keys, "warehouse": create_bucket(server)})
    catalog.create_namespace("db")
    table = catalog.create_table("db.people", make_rows().schema)
    table.append(make_rows())
    table.delete("id == 'b'")
    return table


@pytest.fixture
def rest(people: Table, server: str) -> Iterator[str]:
    """A REST catalog of the table, which gives the credentials for its files to those with a token."""
    config = {"s3.access-key-id": "x", "s3.secret-access-key": "y", "s3.endpoint": server, "s3.region": "us-east-1"}
    answers: dict[str, Any] = {
        "/v1/config": {"defaults": {}, "overrides": {}},
        "/v1/namespaces/db/tables/people": {
            "metadata-location": people.metadata_location,
            "metadata": json.loads(people.metadata.model_dump_json()),
            "config": config,
        },
    }

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
            path = self.path.partition("?")[0]
            is_known = self.headers.get("Authorization") == "Bearer sesame"
            status = 401 if not is_known else 200 if path in answers else 404
            error = {"error": {"message": "no", "type": "NoSuchTableException", "code": status}}
            body = json.dumps(answers[path] if status == 200 else error).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with web_server(Handler) as url:
        yield url


def test_a_rest_catalog_with_a_token_gives_the_credentials_of_the_files(
    tmp_path: Path, rest: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in variables(server):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    catalog = {"name": "prod", "properties": {"type": "rest", "uri": rest}}
    spec = table_spec(tmp_path, format="iceberg", table={"catalog": catalog, "name": "db.people"})
    with pytest.raises(BadSource, match="rejects the credentials") as refused:
        open_source(spec, volume=None)
    assert refused.value.reason == "CatalogUnreachable"
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TOKEN", "sesame")
    from pyiceberg.utils.config import Config  # Iceberg's is read when it is imported

    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    assert open_source(spec, volume=None, local_files=False).fingerprint
    assert parsed(read(spec, tmp_path / "scratch").values) == {"a": {"n": 1}}
    missing = table_spec(tmp_path, format="iceberg", table={"catalog": catalog, "name": "db.none"})
    with pytest.raises(BadSource, match="does not exist") as unknown:
        open_source(missing, volume=None)
    assert unknown.value.reason == "TableMissing"


def test_a_metadata_file_in_a_bucket(
    tmp_path: Path, people: Table, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(server, monkeypatch)
    spec = table_spec(tmp_path, format="iceberg", url=people.metadata_location)
    assert parsed(read(spec, tmp_path / "scratch").values) == {"a": {"n": 1}}
    (file,) = open_source(spec, volume=None).list_files()
    obstore.delete(file.place.store, file.place.path)  # type: ignore[union-attr]
    with pytest.raises(BadSource, match="is missing, although the table's snapshot names it") as missing:
        read(spec, tmp_path / "scratch")
    assert missing.value.reason == "DataFileMissing"


def test_a_delta_table_in_a_bucket(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_server(server, monkeypatch)
    write_deltalake(tmp_path / "local", make_rows().append_column("c", pa.array(["x y", None])), partition_by=["c"])
    url = create_bucket(server)
    store = obstore.store.from_url(url, client_options={"allow_http": True})
    for path in (tmp_path / "local").rglob("*.*"):
        obstore.put(store, str(path.relative_to(tmp_path / "local")), path.read_bytes())
    spec = table_spec(tmp_path, format="delta", url=url)
    assert parsed(read(spec, tmp_path / "scratch").values) == {"a": {"n": 1, "c": "x y"}, "b": {"n": 2, "c": None}}
    none = table_spec(tmp_path, format="delta", url=f"{url}/none")
    with pytest.raises(BadSource) as missing:
        open_source(none, volume=None)
    assert missing.value.reason == "TableMissing"
