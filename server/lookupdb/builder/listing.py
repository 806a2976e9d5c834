"""List the source and fetch it: the files and objects behind its URLs, plain copies of them, and the success file.

A local uncompressed file is used in place. Everything else is streamed into scratch in bounded memory. We decompress it
ourselves, so that a truncated stream never passes. A file without ETag and time is identified by a checksum of its
content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, cast

import orjson

from lookupdb.builder.files import (
    ENDINGS,
    FIRST_BYTES,
    Compression,
    Format,
    LocalFile,
    LocatedFile,
    RemoteFile,
    add_checksums,
    check_kind,
    check_unchanged,
    decompress,
    find_example,
    find_file,
    find_in_volume,
    find_path,
    find_table,
    recognize,
    tell_changes,
    wrong_kind_error,
)
from lookupdb.builder.options import Progress, scratch_errors
from lookupdb.builder.remote import HttpStream, RemoteObject, find_http, find_objects, remote_errors
from lookupdb.builder.table_files import ExtraMissing, TableAccess, TableDataFile, collect_deleted, missing_file_errors
from lookupdb.builder.tables import TableFile
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.manifest import SourceFile
from lookupdb.wording import strip_secrets

# The files of a dataset's source, listed before any is read.


FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".avro": "avro",
}
COMPRESSIONS: Final = {ending: compression for compression, ending in ENDINGS.items()}
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One file or object of the source, and how it is read."""

    description: SourceFile
    format: Format
    compression: Compression
    delimiter: str
    """The field separator of CSV."""
    place: Path | RemoteFile
    data_file: TableDataFile | None = None
    """The file as a part of a table, if it is one."""

    @property
    def table(self) -> TableFile | None:
        """How to read the file as a part of a table, if it is one."""
        return None if self.data_file is None else self.data_file.table


def is_identified(description: SourceFile) -> bool:
    """Return whether a change of the object would be noticed: some web servers send neither ETag nor time."""
    return description.etag is not None or description.modified is not None


def source_fingerprint(objects: Iterable[SourceObject | LocalFile]) -> str | None:
    """Return 32 hex digits that change with the order of the objects and any object's url, size and ETag (time if it
    has none).

    A table's state has a fingerprint of its own. Return None if an object has neither ETag nor time: an equal size
    does not prove that it is unchanged.
    """
    entries = []
    for item in objects:
        if item.table is not None:
            return item.table.fingerprint
        if not is_identified(item.description):
            return None
        entry = asdict(item.description)
        if entry["etag"] is not None:
            del entry["modified"]
        entries.append(entry)
    return hashlib.sha256(orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class OpenSource:
    """The state of a source. The state of a table is known before its files are listed."""

    fingerprint: str | None
    """None if only the content of a file identifies the source."""
    list_files: Callable[[], tuple[SourceObject, ...]]
    table: SourceFile | None = None
    """The table, if the source is one."""

    def describe(self, files: Iterable[LocalFile]) -> tuple[SourceFile, ...]:
        """Return what the manifest of a generation names as its source."""
        return tuple(file.description for file in files) if self.table is None else (self.table,)


def open_source(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> OpenSource:
    """Return the state of the source. Raises BadSource, and ExtraMissing for a table whose format cannot be read."""
    if spec.source.takes_pushes:
        return OpenSource(None, tuple)  # pushed rows need not be in files
    table_format = spec.source.format
    if table_format not in ("iceberg", "delta"):
        objects = resolve_source(spec, volume=volume, local_files=local_files)
        return OpenSource(source_fingerprint(objects), lambda: objects)
    try:
        if table_format == "iceberg":
            from lookupdb.builder.iceberg import open_iceberg as open_table
        else:
            from lookupdb.builder.delta import open_delta as open_table
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"source.format: {table_format} needs the package {error.name or table_format}, which is not installed",
            hint=f'pip install "lookupdb[{table_format}]"',
        ) from error
    table = open_table(spec, TableAccess(local_files, None if volume is None else volume.resolve()))

    def list_files() -> tuple[SourceObject, ...]:
        return tuple(
            SourceObject(file.located.description, "parquet", "none", ",", file.located.place, file)
            for file in table.list_files()
        )

    return OpenSource(table.fingerprint, list_files, table.description)


def resolve_source(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> tuple[SourceObject, ...]:
    """Return the files that the source's urls name, in the order of the urls, then of their paths.

    ``volume`` is the folder behind volume:// urls. Without ``local_files``, no other file of this machine is read.
    Raises BadSource for a file that is missing, unreadable, not allowed, or part of a table.
    """
    if not local_files:
        refuse_local_files(spec.source.urls)
    files = [file for url in spec.source.urls for file in find_files(url, base=spec.base, volume=volume)]
    objects = tuple(_source_object(file, spec) for file in add_checksums(files))
    tables: dict[Path, str | None] = {}
    for item in objects:  # the folder of a table also has files with rows that are no longer in the table
        table = None
        if item.format == "parquet" and isinstance(item.place, Path):
            table = find_table(item.place, tables)
        elif item.format == "parquet" and isinstance(item.place, RemoteObject) and item.place.bucket is not None:
            table = item.place.bucket.find_table(item.place.path)
        if table is not None:
            raise BadSource(
                f"{item.description.url} is a file of {table}: it may hold rows that the table no longer has",
                hint="read the table itself: source.format: iceberg or delta; export a Hudi table as Parquet files to "
                "another folder, and read those",
            )
    return objects


def refuse_local_files(urls: Iterable[str]) -> None:
    """Raise BadSource for a url that is a file of this machine."""
    for url in urls:
        scheme, separator, _ = url.partition("://")
        if not separator or scheme == "file":
            raise BadSource(
                f"{strip_secrets(url)} is a local file, and this build may not read local files",
                hint="use https://, s3://, gs:// or az://, or volume:// with source.volume",
            )


def find_files(url: str, *, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    """Return the files that ``url`` names or, with wildcards, matches, sorted by path; at least one. Raises
    BadSource."""
    label = strip_secrets(url)
    scheme, separator, rest = url.partition("://")
    finder = SCHEMES.get(scheme)
    try:
        if not separator:
            return find_path(label, url, base)
        if scheme == "volume":
            return find_in_volume(label, rest, volume)
        if finder is not None:
            return finder(url, label)
    except OSError as error:  # a folder without search permission, a name that is too long
        raise SourceUnreadable(f"{label} cannot be read: {error.strerror or error}") from error
    except (ValueError, re.error) as error:
        why = "" if label != url and "netloc" in str(error) else f": {error}"  # the error quotes the password
        raise BadSource(f"{label!r} is not a url{why}", hint="check source.url") from error

    schemes = ", ".join(f"{name}://" for name in (*SCHEMES, "volume"))
    raise BadSource(
        f"{label}: {scheme}:// is not a scheme of a source",
        hint=f"use one of {schemes}; http:// is for this machine alone",
    )


SCHEMES: Final[dict[str, Callable[[str, str], list[LocatedFile]]]] = {
    "file": find_file,
    "https": find_http,
    "http": find_http,
    "s3": find_objects,
    "gs": find_objects,
    "az": find_objects,
    "example": find_example,
}
"""Scheme → the function that finds the files of a url; its second argument names the url in messages. ``find_files``
handles ``volume`` itself, because it knows the mount."""


def _source_object(located: LocatedFile, spec: DatasetSpec) -> SourceObject:
    source = spec.source
    format_suffix, compression = split_suffixes(located.description.url)
    compression = source.compression or compression
    if compression == "none":
        compression = located.coding
    file_format = cast("Format | None", source.format) or FORMATS.get(format_suffix)
    name = located.description.url
    if file_format is None:
        kind = recognize(read_beginning(located, compression))
        if kind is not None and not kind.is_read:
            raise wrong_kind_error(kind, name if compression == "none" else f"{name}, decompressed,", "")
        looks_like = f"; by its first bytes it is {kind.name}" if kind else ""
        raise BadSource(
            f"{name}: its name does not show its format{looks_like}",
            hint="set source.format (for `lookupdb push`: --source-format), or name it "
            f"{', '.join(FORMATS)} (and {', '.join(COMPRESSIONS)} if it is compressed)"
            + (f"; {kind.hint}" if kind else ""),
        )
    if spec.key.member_names and file_format != "json":
        raise BadSource(
            f"{name} is {file_format} by its name, but key.memberNames needs one JSON object",
            hint="set source.format: json if it is one, or name the key's columns in key.columns",
        )
    return SourceObject(
        description=located.description,
        format=file_format,
        compression=compression,
        delimiter=source.csv.delimiter or ("\t" if format_suffix == ".tsv" else ","),
        place=located.place,
    )


def read_chunks(file: LocatedFile | SourceObject) -> Iterator[bytes]:
    """Yield the bytes of ``file`` as they are stored or sent. Raises BadSource."""
    name = file.description.url
    if not isinstance(file.place, Path):
        with remote_errors(name):
            yield from file.place.open(file.description)
        return
    try:
        with file.place.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise SourceUnreadable(f"{name} cannot be read: {error.strerror}") from error


def read_beginning(file: LocatedFile | SourceObject, compression: Compression, size: int = FIRST_BYTES) -> bytes:
    """Return the first ``size`` uncompressed bytes of ``file``, by default enough to tell its kind. Raises
    BadSource."""
    chunks, first = read_chunks(file), bytearray()
    if compression != "none":
        chunks = decompress(chunks, compression, file.description.url)
    for chunk in chunks:
        first += chunk[:size]
        if len(first) >= size:
            break
    return bytes(first[:size])


def split_suffixes(url: str) -> tuple[str, Compression]:
    """Return the suffix that gives the format, and the compression."""
    name = url.rpartition("/")[2].lower()
    compression: Compression = "none"
    stem, dot, suffix = name.rpartition(".")
    if dot and f".{suffix}" in COMPRESSIONS:
        compression = COMPRESSIONS[f".{suffix}"]
        stem, dot, suffix = stem.rpartition(".")
    return dot + suffix, compression


_MAX_BYTES: Final = 1 << 20
"""The most bytes to hash of a success file whose server sends neither ETag nor time."""


def read_success_file(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> str | None:
    """Return the identity of the success file that ``spec`` names, 32 hex digits; None if it names none, or there is no
    such file. The identity changes with each write of the file, even of the same content, because most success files
    are empty.

    Raises BadSource if access is denied or the server does not answer.
    """
    url = spec.refresh.success_file
    if url is None:
        return None
    if not local_files:
        refuse_local_files([url])
    try:
        files = find_files(url, base=spec.base, volume=volume)
    except SourceMissing:
        return None
    if len(files) != 1:
        raise BadSource(
            f"{describe_success_file(spec)} is {len(files)} files, expected one", hint="check refresh.successFile"
        )
    (file,) = files
    identity = asdict(file.description)
    if not is_identified(file.description):
        checksum, left = hashlib.sha256(), _MAX_BYTES
        for chunk in read_chunks(file):
            checksum.update(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                break
        identity["content"] = checksum.hexdigest()
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def describe_success_file(spec: DatasetSpec) -> str:
    """Return the url of the success file, for messages."""
    url = spec.refresh.success_file
    assert url is not None, "only where one is named"
    return f"the success file {strip_secrets(url)}"


# Fetch the files, as plain, uncompressed files on this machine.


def fetch_files(objects: Iterable[SourceObject], scratch: Path, progress: Progress) -> tuple[LocalFile, ...]:
    """Return the files of ``objects`` in their order. Raises BadSource, and NotEnoughRoom if ``scratch`` is full.

    Reports the bytes read, before decompression, to ``progress``.
    """
    objects = tuple(objects)
    deletes = {
        file.description.url: SourceObject(file.description, "parquet", "none", ",", file.place)
        for item in objects
        if item.data_file is not None
        for file in item.data_file.deletes
    }
    copies = [item for item in (*deletes.values(), *objects) if not _is_plain(item)]
    if copies:
        progress.begin_phase("fetch", sum(item.description.bytes for item in copies), "bytes")

    def fetch(item: SourceObject, name: str) -> LocalFile:
        return _use_in_place(item) if _is_plain(item) else _copy_file(item, scratch / name, progress)

    paths = {}
    for number, (url, item) in enumerate(deletes.items()):
        with missing_file_errors(url):
            paths[url] = fetch(item, f"deletes-{number:05d}").path
    files = []
    for number, item in enumerate(objects):
        file = fetch(item, f"source-{number:05d}")
        if item.data_file is not None:
            deleted, target = collect_deleted(item.data_file, paths), scratch / f"deleted-{number:05d}"
            if deleted:
                with scratch_errors(scratch):
                    target.write_bytes(deleted)
            table = replace(item.data_file.table, deleted=str(target) if deleted else None)
            file = replace(file, table=table)
        files.append(file)
    if copies:
        progress.end_phase()
    return tuple(files)


def find_local_file(item: SourceObject) -> LocalFile | None:
    """Return ``item`` in place; None if it is remote or compressed. Raises BadSource if it has changed since it was
    listed."""
    file = _use_in_place(item) if _is_plain(item) else None
    return file if file is None or item.data_file is None else replace(file, table=item.data_file.table)


def _is_plain(item: SourceObject) -> bool:
    return isinstance(item.place, Path) and item.compression == "none"


def _use_in_place(item: SourceObject) -> LocalFile:
    assert isinstance(item.place, Path)
    with missing_file_errors(item.description.url) if item.data_file is not None else nullcontext():
        check_unchanged(item.description, item.place)
    with tell_changes(lambda: _check_unchanged(item)):
        check_beginning(item)
    # An example never changes: it is part of the program.
    in_place = item.description.modified is not None
    return LocalFile(item.description, item.format, item.delimiter, item.place, item.description.bytes, in_place)


def _copy_file(item: SourceObject, target: Path, progress: Progress) -> LocalFile:
    description, checksum, received = item.description, hashlib.sha256(), 0
    is_hashed = not is_identified(description)

    def receive() -> Iterator[bytes]:
        nonlocal received
        for chunk in read_chunks(item):
            received += len(chunk)
            if is_hashed:
                checksum.update(chunk)
            yield chunk
            progress.advance(len(chunk))

    chunks = receive()
    if item.compression != "none":
        chunks = decompress(chunks, item.compression, item.description.url)
    chunks = _check_beginning(chunks, item)
    with tell_changes(lambda: _check_unchanged(item)), scratch_errors(target.parent), target.open("wb") as out:
        for chunk in chunks:
            out.write(chunk)
    if isinstance(item.place, HttpStream):
        description = replace(description, bytes=received)
    if received != description.bytes:
        raise SourceUnreadable(
            f"{description.url} changed while it was read: expected {description.bytes} bytes, got {received}",
            hint="build again once it is complete",
        )
    _check_unchanged(item)
    if is_hashed:
        description = replace(description, etag=checksum.hexdigest())
    return LocalFile(description, item.format, item.delimiter, target, target.stat().st_size, False)


def _check_unchanged(item: SourceObject) -> None:
    """Raise BadSource if ``item`` is a local file that has changed since it was listed."""
    if isinstance(item.place, Path):
        check_unchanged(item.description, item.place)


def check_beginning(item: SourceObject) -> None:
    """Raise BadSource if the first bytes of ``item`` show another format than expected."""
    check_kind(read_beginning(item, item.compression), item.description.url, item.format, item.compression)


def _check_beginning(chunks: Iterable[bytes], item: SourceObject) -> Iterator[bytes]:
    """Yield ``chunks`` of ``item``, uncompressed. Raises BadSource as ``check_beginning`` does."""
    first, is_checked = b"", False
    for chunk in chain(chunks, [b""]):
        if not is_checked:
            first += chunk[:FIRST_BYTES]
            if not chunk or len(first) >= FIRST_BYTES:
                check_kind(first, item.description.url, item.format, item.compression)
                is_checked = True
        yield chunk
