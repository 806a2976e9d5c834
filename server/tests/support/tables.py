"""Tables as their own libraries write and read them, to compare with."""

from __future__ import annotations

import base64
import datetime
import json
import uuid
import zlib
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lookupdb.dataset.spec import DatasetSpec, parse_resource

if TYPE_CHECKING:  # imported by the functions that need it: that takes half a second
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.table import Table


def table_spec(base: Path, key: str = "id", *, value: Any = None, refresh: Any = None, **source: Any) -> DatasetSpec:
    """The spec of a dataset whose source is a table."""
    spec: dict[str, Any] = {"source": source, "key": {"columns": [key]}, "shards": 2}
    spec |= {name: part for name, part in (("value", value), ("refresh", refresh)) if part}
    resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "test"}}
    return parse_resource({**resource, "spec": spec}, base)


def catalog_fields(folder: Path) -> dict[str, Any]:
    """The fields of a catalog in ``folder``."""
    return {"properties": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}}


def make_catalog(folder: Path, **properties: str) -> Catalog:
    """A catalog in ``folder``, with a namespace ``db``; its warehouse is there too, or where ``properties`` say."""
    from pyiceberg.catalog import load_catalog

    folder.mkdir(exist_ok=True)
    catalog = load_catalog("default", **catalog_fields(folder)["properties"] | properties)
    catalog.create_namespace("db")
    return catalog


def as_json(value: Any) -> Any:
    """An Arrow value as JSON, as the page on sources describes it."""
    if isinstance(value, dict):
        return {name: as_json(member) for name, member in value.items()}
    if isinstance(value, list):
        pairs = bool(value) and all(isinstance(item, tuple) for item in value)
        return {name: as_json(member) for name, member in value} if pairs else [as_json(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else Decimal(repr(value)) if isinstance(value, float) else value


def by_key(rows: Iterable[dict[str, Any]], key: str = "id") -> dict[str, Any]:
    """Rows of Arrow by their keys."""
    return {str(row[key]): {name: as_json(value) for name, value in row.items() if name != key} for row in rows}


def parsed(values: dict[str, str]) -> dict[str, Any]:
    """Values of records, parsed."""
    return {key: json.loads(value, parse_float=Decimal) for key, value in values.items()}


def positions_file(path: Path, positions: Iterable[tuple[str, int]]) -> Path:
    """A file of position deletes, of Iceberg."""
    rows = sorted(positions)
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
        ]
    )
    pq.write_table(pa.table({"file_path": [row[0] for row in rows], "pos": [row[1] for row in rows]}, schema), path)
    return path


def deletion_vector(positions: Iterable[int]) -> bytes:
    """A deletion vector, as Iceberg and Delta have it."""
    content = b"\xd1\xd3\x39\x64" + bytes(BitMap64(positions).serialize())
    return len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")


def puffin_file(path: Path, vectors: dict[str, bytes], kind: str = "deletion-vector-v1") -> Path:
    """A Puffin file of deletion vectors, by data file."""
    content, blobs = b"PFA1", []
    for name, vector in vectors.items():
        blob: dict[str, Any] = {"type": kind, "fields": [2147483545], "snapshot-id": -1, "sequence-number": -1}
        blobs.append(
            {**blob, "offset": len(content), "length": len(vector), "properties": {"referenced-data-file": name}}
        )
        content += vector
    footer = json.dumps({"blobs": blobs}).encode()
    path.write_bytes(content + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1")
    return path


def commit_deletes(
    table: Table, path: Path, content: str = "POSITION_DELETES", file_format: str = "PARQUET", **fields: Any
) -> None:
    """Commit a delete file, which pyiceberg reads but does not write."""
    from pyiceberg import manifest as format_of
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
    from pyiceberg.typedef import Record

    class DeletesWriter(format_of.ManifestWriterV2):
        def content(self) -> ManifestContent:
            return format_of.ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    arguments = {
        "content": format_of.DataFileContent[content],
        "file_path": f"file://{path}",
        "file_format": format_of.FileFormat[file_format],
        "partition": Record(),
        "record_count": 1,
        "file_size_in_bytes": path.stat().st_size,
        **fields,
    }
    delete = format_of.DataFile.from_args(**arguments)
    delete.spec_id = 0
    number, folder, io = table.metadata.new_snapshot_id(), f"{table.location()}/metadata", table.io
    output = io.new_output(f"{folder}/{number}-deletes.avro")
    with DeletesWriter(table.spec(), table.schema(), output, number, "null") as writer:
        writer.add_entry(
            format_of.ManifestEntry.from_args(
                status=format_of.ManifestEntryStatus.ADDED, snapshot_id=number, data_file=delete
            )
        )
    written, parent = writer.to_manifest_file(), table.current_snapshot()
    assert parent is not None
    sequence, listed = table.metadata.next_sequence_number(), f"{folder}/snap-{number}.avro"
    with format_of.write_manifest_list(
        2, io.new_output(listed), number, parent.snapshot_id, sequence, "null"
    ) as manifests:
        manifests.add_manifests([*parent.manifests(io), written])
    snapshot = {
        "snapshot-id": number,
        "parent-snapshot-id": parent.snapshot_id,
        "manifest-list": listed,
        "sequence-number": sequence,
        "timestamp-ms": parent.timestamp_ms + 1,
        "summary": {"operation": "delete"},
        "schema-id": table.schema().schema_id,
    }
    added = AddSnapshotUpdate.model_validate({"action": "add-snapshot", "snapshot": snapshot})
    head = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
    with table.transaction() as transaction:
        transaction._apply((added, SetSnapshotRefUpdate.model_validate(head)), ())
