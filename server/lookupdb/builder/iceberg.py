"""Iceberg tables, by pyiceberg: from a catalog, or from a metadata file. Only their metadata is read here."""

from __future__ import annotations

import hashlib
import io
import logging
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from pyiceberg import types
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io import FileIO, InputFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, StaticTable, Table
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from lookupdb.builder.table_files import (
    LOAD_SECONDS,
    CatalogUnreachable,
    OpenTable,
    SnapshotMissing,
    TableAccess,
    TableDataFile,
    TableMissing,
    UnsupportedTable,
    missing_file_errors,
)
from lookupdb.builder.tables import TableColumn, TableFile
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, LookupdbError
from lookupdb.manifest import SourceFile
from lookupdb.network import describe_failure
from lookupdb.process.launch import call_interruptibly
from lookupdb.wording import shorten, strip_secrets

logging.getLogger("pyiceberg.io").setLevel(logging.WARNING)  # it logs the class that reads files, once for each table

# lookupdb reads the metadata files itself, with the same credentials, proxies and limits as other sources.


_MAX_CHARACTERS: Final = 300
_S3_OPTIONS: Final = {
    "s3.endpoint": "endpoint",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
    "client.region": "region",
}
"""Maps properties of a catalog, or of its answers, to options of obstore."""
_ACCESS: Final = "lookupdb.access"


@dataclass
class _OpenFiles:
    """The places that the files of one open table may be in."""

    access: TableAccess


_open_files: WeakValueDictionary[str, _OpenFiles] = WeakValueDictionary()
"""Open tables by random name. ``MetadataIO`` gets the properties of a catalog and a table, which must not widen its
access."""


class MetadataIO(FileIO):
    """Reads metadata files. pyiceberg creates it by its class name in the properties."""

    def new_input(self, location: str) -> InputFile:
        """Return the file at ``location``."""
        return _Input(location, _open_files[self.properties[_ACCESS]])

    def new_output(self, location: str) -> Any:
        """Raise an error: nothing is written."""
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        """Raise an error: nothing is removed."""
        raise NotImplementedError


class _Input(InputFile):
    def __init__(self, location: str, files: _OpenFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return len(self._files.access.read(self.location))

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._files.access.read(self.location))


def open_iceberg(spec: DatasetSpec, access: TableAccess) -> OpenTable:
    """Return the state of the spec's table. Raises BadSource."""
    source = spec.source
    key, files = uuid.uuid4().hex, _OpenFiles(access)
    _open_files[key] = files
    properties = {"py-io-impl": f"{__name__}.{MetadataIO.__name__}", _ACCESS: key}
    if source.table.catalog is not None:
        name = f"{source.table.catalog.name}.{source.table.name}"
        with _errors(f"the Iceberg table {name}"):
            table = call_interruptibly(_load_from_catalog, spec, access, properties, seconds=LOAD_SECONDS)
        given = table.io.properties
        options = {option: given[name] for name, option in _S3_OPTIONS.items() if name in given}
        files.access = replace(access, credentials=options)
    else:
        (url,) = source.urls
        name = strip_secrets(url)
        with _errors(f"the Iceberg table {name}"):
            table = call_interruptibly(_load_from_file, url, spec.base, files, properties, seconds=LOAD_SECONDS)
    snapshot = _choose_snapshot(spec, table, name)
    pinned = source.table.snapshot is not None or source.table.as_of is not None
    schema = table.schema()
    if pinned and snapshot is not None and snapshot.schema_id is not None:
        schema = table.schemas()[snapshot.schema_id]
    snapshot_id = None if snapshot is None else snapshot.snapshot_id
    state = f"{table.metadata.table_uuid} {snapshot_id} {schema.schema_id}"
    fingerprint = hashlib.sha256(state.encode()).hexdigest()[:32]
    moment = (
        None
        if snapshot is None
        else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    )

    def list_files() -> list[TableDataFile]:
        if snapshot is None:
            return []
        manifests = f"a manifest of the Iceberg table {name}"
        with _errors(f"the Iceberg table {name}"), missing_file_errors(manifests), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = _read_name_mapping(table)
            columns = tuple(_describe(field, names, name) for field in schema.fields)
            tasks = call_interruptibly(lambda: list(table.scan(snapshot_id=snapshot_id).plan_files()))
            listed = [_list_file(task, table, schema, columns, files.access, name, fingerprint) for task in tasks]
        return sorted(listed, key=lambda file: file.path)

    size = int(snapshot.summary.get("total-files-size") or 0) if snapshot and snapshot.summary else 0
    return OpenTable(fingerprint, SourceFile(f"iceberg:{name}", size, str(snapshot_id), moment), list_files)


def _load_from_catalog(spec: DatasetSpec, access: TableAccess, properties: dict[str, str]) -> Table:
    catalog = spec.source.table.catalog
    assert catalog is not None
    given = catalog.properties
    if not access.local_files and given.get("uri", "").startswith("sqlite"):
        raise BadSource("this build may not read a catalog in a local file", hint="use a catalog of type rest")
    try:
        loaded = load_catalog(catalog.name, **given, **properties)
    except NotInstalledError as error:
        raise UnsupportedTable(f"the catalog {catalog.name}: {error}", hint="use a catalog of type rest") from error
    except ValueError as error:
        raise BadSource(
            f"the catalog {catalog.name} cannot be used: {error}",
            hint="source.table.catalog.properties are those of pyiceberg: type, uri, warehouse, …",
        ) from error
    return loaded.load_table(spec.source.table.name or "")


def _load_from_file(url: str, base: Path | None, files: _OpenFiles, properties: dict[str, str]) -> Table:
    """Load the table of the metadata file at ``url``. The table may be mounted as a volume, at another path than its
    metadata name."""
    access = files.access
    location = access.find_root(url, base)
    if not location.endswith(".metadata.json"):
        raise BadSource(
            f"{url} is not a metadata file of an Iceberg table",
            hint="name the newest file in its folder metadata that ends in .metadata.json, or use table.catalog",
        )
    table = StaticTable.from_metadata(location, properties)
    if url.startswith("volume://"):
        files.access = replace(access, moved=(table.location().rstrip("/"), Path(location).parents[1]))
    return table


def _choose_snapshot(spec: DatasetSpec, table: Table, name: str) -> Snapshot | None:
    """Return the snapshot to read; None for a table without any. Raises SnapshotMissing."""
    wanted = spec.source.table
    if wanted.snapshot is not None:
        snapshot, what = table.snapshot_by_id(wanted.snapshot), f"no snapshot {wanted.snapshot}"
    elif wanted.as_of is not None:
        moment = int(datetime.fromisoformat(wanted.as_of).timestamp() * 1000)
        snapshot, what = table.snapshot_as_of_timestamp(moment), f"no snapshot of {wanted.as_of} or before"
    else:
        return table.current_snapshot()
    if snapshot is None:
        known = [str(entry.snapshot_id) for entry in table.snapshots()]
        raise SnapshotMissing(
            f"the Iceberg table {name} has {what}: it has expired, or never existed",
            hint=f"it has {', '.join(known[-5:]) or 'none'}{' and earlier ones' if len(known) > 5 else ''}",
        )
    return snapshot


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except LookupdbError:
        raise
    except (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError, FileNotFoundError) as error:
        raise TableMissing(f"{what} does not exist", hint="check source.table and source.url") from error
    except (UnauthorizedError, ForbiddenError) as error:
        raise CatalogUnreachable(
            f"{what}: its catalog rejects the credentials ({type(error).__name__})",
            hint="give them as PYICEBERG_CATALOG__NAME__TOKEN or __CREDENTIAL in the environment; in a cluster, in the "
            "Secret of source.secretName",
        ) from error
    except TimeoutError as error:
        raise CatalogUnreachable(f"{what} cannot be loaded: no answer in {LOAD_SECONDS} s") from error
    except (ValueError, ValidationError) as error:
        if "equality deletes" in str(error):
            raise UnsupportedTable(
                f"{what} has equality deletes, which are not supported",
                hint="rewrite its data files first: Spark's rewrite_data_files with delete-file-threshold = 1 does",
            ) from error
        text = shorten(" ".join(str(error).split()), _MAX_CHARACTERS)
        raise UnsupportedTable(f"{what} cannot be read: {text}") from error
    except Exception as error:
        raise CatalogUnreachable(f"{what} cannot be loaded: {describe_failure(error)}") from error


# Columns and data files.


_TYPES: Final[dict[type, str]] = {
    types.BooleanType: "BOOLEAN",
    types.IntegerType: "INTEGER",
    types.LongType: "BIGINT",
    types.FloatType: "FLOAT",
    types.DoubleType: "DOUBLE",
    types.DateType: "DATE",
    types.TimeType: "TIME",
    types.TimestampType: "TIMESTAMP",
    types.TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    types.TimestampNanoType: "TIMESTAMP_NS",
    types.StringType: "VARCHAR",
    types.UUIDType: "UUID",
    types.BinaryType: "BLOB",
    types.FixedType: "BLOB",
}


def _read_name_mapping(table: Table) -> dict[int, tuple[str, ...]]:
    """Return, by field id, the columns' names in files without ids."""
    names: dict[int, tuple[str, ...]] = {}

    def add(fields: list[MappedField]) -> None:
        for field in fields:
            if field.field_id is not None:
                names[field.field_id] = tuple(field.names)
            add(list(field.fields))

    mapping = table.name_mapping()
    add([] if mapping is None else list(mapping.root))
    return names


def _describe(field: types.NestedField, names: dict[int, tuple[str, ...]], table: str) -> TableColumn:
    kind = field.field_type
    children: tuple[TableColumn, ...] = ()
    if isinstance(kind, types.DecimalType):
        sql_type = f"DECIMAL({kind.precision},{kind.scale})"
    elif isinstance(kind, types.StructType):
        sql_type, children = "STRUCT", tuple(_describe(child, names, table) for child in kind.fields)
    elif isinstance(kind, types.ListType):
        sql_type, children = "LIST", (_describe(kind.element_field, names, table),)
    elif isinstance(kind, types.MapType):
        parts = (kind.key_field, kind.value_field)
        sql_type, children = "MAP", tuple(_describe(part, names, table) for part in parts)
    elif type(kind) in _TYPES:
        sql_type = _TYPES[type(kind)]
    else:
        raise UnsupportedTable(
            f"the Iceberg table {table}: its column {field.name} is of type {kind}, which is not supported",
            hint="write the table without this column",
        )
    default = field.initial_default
    if isinstance(default, bytes):
        raise UnsupportedTable(f"the Iceberg table {table}: its column {field.name} has a binary default")
    return TableColumn(
        field.name,
        sql_type,
        field.field_id,
        names.get(field.field_id, ()),
        children,
        None if default is None else str(default),
    )


def _list_file(
    task: FileScanTask,
    table: Table,
    schema: Schema,
    columns: tuple[TableColumn, ...],
    access: TableAccess,
    name: str,
    fingerprint: str,
) -> TableDataFile:
    data = task.file
    for file, allowed in ((data, ("PARQUET",)), *((delete, ("PARQUET", "PUFFIN")) for delete in task.delete_files)):
        if file.file_format.name not in allowed:
            what = "data" if file is data else "delete"
            raise UnsupportedTable(
                f"the Iceberg table {name} has {what} files in {file.file_format.name}; only Parquet is supported",
                hint=f"rewrite them: {file.file_path} is one",
            )
        if file.key_metadata:
            raise UnsupportedTable(f"the Iceberg table {name} is encrypted: {file.file_path} is one such file")
    constants: dict[str, str | None] = {}
    names = {column.id: column.name for column in columns}
    for number, field in enumerate(table.specs()[data.spec_id or 0].fields):
        if isinstance(field.transform, IdentityTransform) and field.source_id in names:
            value, kind = data.partition[number], schema.find_type(field.source_id)
            constants[names[field.source_id]] = None if value is None else field.transform.to_human_string(kind, value)
    located = access.describe(data.file_path, data.file_size_in_bytes)
    deletes = tuple(
        access.describe(delete.file_path, delete.file_size_in_bytes)
        for delete in sorted(task.delete_files, key=lambda delete: delete.file_path)
    )
    return TableDataFile(located, TableFile(columns, fingerprint, constants), deletes, path=data.file_path)
