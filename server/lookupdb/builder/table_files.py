"""Tables as sources: a table's state, its data files, and their deleted rows.

``iceberg`` and ``delta`` ask the libraries of the formats for a table's state. This module has what both share.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import obstore

from lookupdb.builder.files import LocatedFile
from lookupdb.builder.options import MIB
from lookupdb.builder.remote import SourceBucket, remote_errors
from lookupdb.builder.tables import TableFile, connect_duckdb
from lookupdb.errors import BadSource, LookupdbError, SourceMissing, SourceUnreadable, UsageError
from lookupdb.manifest import SourceFile
from lookupdb.process.launch import call_interruptibly, iterate_interruptibly


class UnsupportedTable(BadSource):
    """A table uses a feature that lookupdb cannot read."""

    reason = "UnsupportedTable"


class SnapshotMissing(BadSource):
    """A table does not have the snapshot or the version that the spec names: it has expired, or never existed."""

    reason = "SnapshotMissing"


class CatalogUnreachable(SourceUnreadable):
    """A catalog does not answer, or refuses the credentials."""

    reason = "CatalogUnreachable"


class TableMissing(SourceMissing):
    """The table does not exist."""

    reason = "TableMissing"


class DataFileMissing(SourceUnreadable):
    """A file of a table's snapshot is missing."""

    reason = "DataFileMissing"


class ExtraMissing(UsageError):
    """A package that reads the table's format is not installed."""

    reason = "ExtraMissing"


@dataclass(frozen=True, slots=True)
class TableDataFile:
    """A data file of a table's snapshot."""

    located: LocatedFile
    table: TableFile
    deletes: tuple[LocatedFile, ...] = ()
    """Iceberg's delete files for it: Parquet files of positions, or Puffin files of deletion vectors."""
    deleted: bytes = b""
    """The positions of its deleted rows, if they are known: a 64-bit roaring bitmap."""
    path: str = ""
    """Its name in the table's metadata."""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """One state of a table, from its metadata alone."""

    fingerprint: str
    description: SourceFile
    """The table itself, as the generation's manifest names it."""
    list_files: Callable[[], list[TableDataFile]]
    """Returns its data files in the order of their paths. Raises BadSource."""


LOAD_SECONDS: Final = 300
"""Limit for loading a table's state, because the libraries may wait forever."""
_SCHEMES: Final = {**dict.fromkeys(["s3a", "s3n"], "s3"), **dict.fromkeys(["abfs", "abfss", "wasb", "wasbs"], "az")}
"""Schemes of Hadoop → ours."""


@dataclass(frozen=True, slots=True)
class TableAccess:
    """The places that the files of a table may be in."""

    local_files: bool
    """Whether local files may be read."""
    volume: Path | None
    """The folder that volume:// URLs refer to, without links in its path."""
    moved: tuple[str, Path] | None = None
    """The location of a table according to its metadata, and the folder that it is in now."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """S3 options of obstore from a catalog. If there are none, obstore reads the environment."""

    def find_root(self, url: str, base: Path | None) -> str:
        """Return the location of the table at ``url``, which may be in the volume, or relative to ``base``."""
        if url.startswith("volume://") and self.volume is not None:
            return str(self.volume / url.removeprefix("volume://").lstrip("/"))
        return str(base / url) if "://" not in url and base is not None else url

    def locate(self, location: str) -> Path | tuple[Any, str]:
        """Return the file at ``location``, or a store and the path in it. Raises BadSource."""
        if self.moved is not None and location.startswith(f"{self.moved[0]}/"):
            return self._check(self.moved[1] / location.removeprefix(f"{self.moved[0]}/"), location)
        scheme, separator, rest = location.partition("://")
        if location.startswith("file:") or not separator:
            # Names of files in metadata are not escaped.
            path = location.removeprefix("file:")
            return self._check(Path("/" + path.lstrip("/") if path.startswith("//") else path), location)
        bucket, _, path = rest.partition("/")
        scheme = _SCHEMES.get(scheme, scheme)
        if scheme not in ("s3", "gs", "az") or not path:
            raise UnsupportedTable(
                f"the table has the file {location}, which is in a store that lookupdb cannot read",
                hint="its files must be in s3://, gs://, az:// (abfss://), a volume or, on a laptop, a folder",
            )
        options = self.credentials if scheme == "s3" else {}
        return SourceBucket(scheme, bucket.partition("@")[0], **options).store, path

    def _check(self, path: Path, location: str) -> Path:
        within = self.volume is not None and path.resolve().is_relative_to(self.volume)
        if not self.local_files and not within:
            raise BadSource(
                f"the table has the local file {location}, and this build may not read local files",
                hint="keep the table in s3://, gs:// or az://, or in the volume of source.volume",
            )
        return path

    def describe(self, location: str, size: int) -> LocatedFile:
        """Return a data file of the table. Its ETag is empty, because the file never changes. Raises BadSource."""
        place = self.locate(location)
        description = SourceFile(location, size, "", None)
        return LocatedFile(description, place if isinstance(place, Path) else TableObject(*place))

    def read(self, location: str) -> bytes:
        """Return the content of a metadata file. Raises FileNotFoundError and BadSource."""
        place = self.locate(location)
        if isinstance(place, Path):
            return place.read_bytes()
        store, path = place
        return bytes(call_interruptibly(lambda: obstore.get(store, path).bytes()))


@dataclass(frozen=True, slots=True)
class TableObject:
    """An object of a table. It never changes."""

    store: Any
    path: str

    def open(self, description: SourceFile) -> Iterator[bytes]:
        """Yield its bytes. Raises BadSource if its size is not that of ``description``."""
        with missing_file_errors(description.url), remote_errors(description.url):
            result = call_interruptibly(obstore.get, self.store, self.path)
            if result.meta["size"] != description.bytes:
                raise ValueError(f"expected {description.bytes} bytes, found {result.meta['size']}")
            yield from iterate_interruptibly(result.stream(min_chunk_size=1 << 20))


@contextmanager
def missing_file_errors(name: str) -> Iterator[None]:
    """Report the missing file ``name`` as DataFileMissing."""
    try:
        yield
    except (FileNotFoundError, SourceMissing) as error:
        raise DataFileMissing(
            f"{name} is missing, although the table's snapshot names it",
            hint="the snapshot has expired, or the file was removed: choose another snapshot, or repair the table",
        ) from error


# Deleted rows: the positions of rows in a data file, from 0.
#
# A deletion vector is the same in Iceberg and Delta: its length, a mark, a 64-bit roaring bitmap, a checksum.


_PUFFIN: Final = b"PFA1"
_VECTOR_MARK: Final = b"\xd1\xd3\x39\x64"
_VECTOR_KIND: Final = "deletion-vector-v1"


def collect_deleted(file: TableDataFile, paths: Mapping[str, Path]) -> bytes:
    """Return the positions of the deleted rows of ``file``, as a 64-bit roaring bitmap; empty if there are none.
    ``paths`` has a plain copy of each of its delete files, by url. Raises BadSource."""
    if not file.deletes:
        return file.deleted
    from pyroaring import BitMap64

    found = BitMap64()
    for delete in file.deletes:
        url = delete.description.url
        path = paths[url]
        try:
            with path.open("rb") as opened:
                is_puffin = opened.read(len(_PUFFIN)) == _PUFFIN
            if is_puffin:
                found |= _read_vectors(path.read_bytes(), file.path)
            else:
                with connect_duckdb(64 * MIB, 1) as connection:
                    query = "SELECT pos FROM read_parquet($1, hive_partitioning=false) WHERE file_path = $2"
                    connection.execute(query, [str(path), file.path])
                    while rows := connection.fetchmany(100_000):
                        found.update(position for (position,) in rows)
        except LookupdbError:
            raise
        except Exception as error:
            raise BadSource(
                f"{url}, a delete file of the table, cannot be read ({type(error).__name__})", hint="repair the table"
            ) from error
    return bytes(found.serialize()) if found else b""


def _read_vectors(content: bytes, data_file: str) -> Any:
    from pyiceberg.table.puffin import PuffinFile
    from pyroaring import BitMap64

    puffin, found = PuffinFile(content), BitMap64()
    for blob in puffin.footer.blobs:
        if blob.type != _VECTOR_KIND:
            raise UnsupportedTable(f"the table has deletes of the kind {blob.type}; only {_VECTOR_KIND} is supported")
        if blob.properties.get("referenced-data-file") == data_file:
            vector = puffin.get_blob_payload(blob)
            end = 4 + int.from_bytes(vector[:4], "big")
            if vector[4:8] != _VECTOR_MARK or zlib.crc32(vector[4:end]).to_bytes(4, "big") != vector[end : end + 4]:
                raise ValueError("a deletion vector is damaged")
            found |= BitMap64.deserialize(vector[8:end])
    return found
