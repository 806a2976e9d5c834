"""Read the log and the deletion vectors of Delta tables with deltalake."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyroaring import BitMap64

from lookupdb.builder.table_files import (
    LOAD_SECONDS,
    CatalogUnreachable,
    OpenTable,
    SnapshotMissing,
    TableAccess,
    TableDataFile,
    TableMissing,
    UnsupportedTable,
)
from lookupdb.builder.tables import TableColumn, TableFile
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError
from lookupdb.manifest import SourceFile
from lookupdb.network import describe_failure
from lookupdb.process.launch import call_interruptibly
from lookupdb.wording import shorten, strip_secrets

_READ_FEATURES: Final = frozenset(
    ["columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"]
    + ["vacuumProtocolCheck"]
)
"""The reader features that lookupdb supports."""
_MAX_CHARACTERS: Final = 300
_FOLDER_HINT: Final = "name the table's folder, which contains _delta_log"


def open_delta(spec: DatasetSpec, access: TableAccess) -> OpenTable:
    """Return the state of the spec's table. Raises BadSource."""
    (url,) = spec.source.urls
    name = f"the Delta table {strip_secrets(url)}"
    location = access.find_root(url, spec.base).rstrip("/")
    if location.startswith("file://"):
        location = unquote(location.removeprefix("file://").removeprefix("localhost"))
    access.locate(f"{location}/_delta_log")  # raises for a folder that must not be read
    with _errors(name):
        table = call_interruptibly(_load, spec, location, name, seconds=LOAD_SECONDS)
    features = set(table.protocol().reader_features or ()) - _READ_FEATURES
    if features:
        raise UnsupportedTable(f"{name} has the feature {', '.join(sorted(features))}, which is not supported")
    identity, version = table.metadata().id, table.version()
    fingerprint = hashlib.sha256(f"{identity} {version}".encode()).hexdigest()[:32]

    def list_files() -> list[TableDataFile]:
        with _errors(name):
            return call_interruptibly(_list_files, table, location, access, name, fingerprint)

    return OpenTable(fingerprint, SourceFile(f"delta:{strip_secrets(url)}", 0, str(version), None), list_files)


def _load(spec: DatasetSpec, location: str, name: str) -> DeltaTable:
    wanted = spec.source.table
    options = {name: text for name, text in os.environ.items() if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    table = DeltaTable(location, storage_options=options)
    if wanted.snapshot is None and wanted.as_of is None:
        return table
    newest = table.version()
    moment = None if wanted.as_of is None else datetime.fromisoformat(wanted.as_of)
    times = {} if moment is None else {entry["version"]: entry.get("timestamp", 0) for entry in table.history()}
    failure, hint = None, f"its newest version is {newest}"
    try:
        table.load_as_version(moment or wanted.snapshot or 0)
        if moment is None:
            return table
        # deltalake uses the times of the log's files, which are lost if the table is copied. For a time before the
        # first version, it returns the first.
        found, milliseconds = table.version(), moment.timestamp() * 1000
        known = [version for version, time in times.items() if 0 < time <= milliseconds]
        if times.get(found, 0) <= milliseconds and max(known, default=found) <= found:
            return table
        if known:
            hint = f"the files of its log have other times than its commits: name a version by table.snapshot, {hint}"
    except DeltaError as error:
        failure = error
    what = f"version {wanted.snapshot}" if moment is None else f"version of {wanted.as_of}"
    raise SnapshotMissing(f"{name} has no {what}: it has expired, or never existed", hint=hint) from failure


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except LookupdbError:
        raise
    except TableNotFoundError as error:
        raise TableMissing(f"{name} does not exist", hint=_FOLDER_HINT) from error
    except TimeoutError as error:
        raise CatalogUnreachable(f"{name} cannot be loaded: no answer in {LOAD_SECONDS} s") from error
    except OSError as error:
        raise CatalogUnreachable(f"{name} cannot be loaded: {describe_failure(error)}") from error
    except (DeltaError, ValueError) as error:
        text = shorten(" ".join(str(error).split()), _MAX_CHARACTERS)
        if "No files in log segment" in text or "not a Delta table" in text:
            raise TableMissing(f"{name} does not exist: its folder has no log", hint=_FOLDER_HINT) from error
        raise UnsupportedTable(f"{name} cannot be read: {text}") from error


_TYPES: Final = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}


def _list_files(
    table: DeltaTable, location: str, access: TableAccess, name: str, fingerprint: str
) -> list[TableDataFile]:
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    fields = json.loads(table.schema().to_json())["fields"]
    columns = tuple(_describe(field, mode, name) for field in fields)
    logical_names = {physical: column.name for column in columns for physical in column.file_names}
    has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
    deleted = _read_vectors(table) if has_vectors else {}
    files = []
    actions = table.get_add_actions(flatten=False)
    partitions = actions.column("partition").to_pylist() if "partition" in actions.schema.names else None
    for number, (quoted_path, size) in enumerate(
        zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
    ):
        path = unquote(quoted_path)
        whole = path if "://" in path or path.startswith("/") else f"{location}/{path}"
        constants = {
            logical_names.get(key, key): _write_partition(value, name)
            for key, value in (partitions[number] if partitions else {}).items()
        }
        located = access.describe(whole, size)
        vector = deleted.pop(path, b"")
        files.append(TableDataFile(located, TableFile(columns, fingerprint, constants), deleted=vector, path=path))
    if deleted:
        raise UnsupportedTable(f"{name} has a deletion vector of {next(iter(deleted))}, which is not one of its files")
    return sorted(files, key=lambda file: file.path)


def _read_vectors(table: DeltaTable) -> dict[str, bytes]:
    """Return, by the path of each file with deleted rows, their positions as a 64-bit roaring bitmap."""
    deleted: dict[str, bytes] = {}
    root = unquote(table.table_uri)
    for batch in table.deletion_vectors():
        for path, mask in zip(batch["filepath"].to_pylist(), batch["selection_vector"].to_pylist(), strict=True):
            positions = BitMap64(number for number, is_kept in enumerate(mask) if not is_kept)
            deleted[unquote(path).removeprefix(root)] = bytes(positions.serialize())
    return deleted


def _describe(field: dict[str, Any], mode: str, table: str) -> TableColumn:
    """Return the column for a field of the table or of a struct in it."""
    metadata = field["metadata"]
    physical = metadata.get("delta.columnMapping.physicalName", field["name"]) if mode != "none" else field["name"]
    number = metadata.get("delta.columnMapping.id") if mode == "id" else None
    sql_type, children = _describe_type(field["type"], field["name"], mode, table)
    return TableColumn(field["name"], sql_type, number, (physical,), children)


def _describe_type(kind: Any, column: str, mode: str, table: str) -> tuple[str, tuple[TableColumn, ...]]:
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return kind.upper().replace(" ", ""), ()
        if kind not in _TYPES:
            raise UnsupportedTable(f"{table}: its column {column} is of type {kind}, which is not supported")
        return _TYPES[kind], ()
    if kind["type"] == "struct":
        return "STRUCT", tuple(_describe(field, mode, table) for field in kind["fields"])
    parts = {"array": ["elementType"], "map": ["keyType", "valueType"]}[kind["type"]]
    children = []
    for part in parts:
        sql_type, inner = _describe_type(kind[part], column, mode, table)
        children.append(TableColumn(part, sql_type, None, (part,), inner))
    return ("LIST" if kind["type"] == "array" else "MAP"), tuple(children)


def _write_partition(value: Any, table: str) -> str | None:
    if isinstance(value, bytes):
        raise UnsupportedTable(f"{table} is partitioned by a binary column, which is not supported")
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return None if value is None else str(value)
