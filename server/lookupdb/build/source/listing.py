"""The files of a dataset's source, listed before any of them is read, and their fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import orjson

from lookupdb.build.source.decompression import decompress
from lookupdb.build.source.file_kinds import ENDINGS, FIRST_BYTES, Compression, recognize, wrong_kind_error
from lookupdb.build.source.local_files import (
    add_checksums,
    find_example,
    find_file,
    find_in_volume,
    find_path,
    find_table,
)
from lookupdb.build.source.location import LocatedFile, RemoteFile
from lookupdb.build.source.remote_objects import RemoteObject, find_http, find_objects, remote_errors
from lookupdb.errors import BadSource, SourceUnreadable
from lookupdb.manifest import SourceFile
from lookupdb.spec import DatasetSpec
from lookupdb.wording import strip_secrets

Format = Literal["csv", "json", "jsonl", "parquet"]

_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSIONS: Final = {ending: compression for compression, ending in ENDINGS.items()}
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One file or object of the source, and how it is read."""

    description: SourceFile
    format: Format
    compression: Compression
    delimiter: str
    """The character between the fields of CSV."""
    place: Path | RemoteFile


def resolve_source(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> tuple[SourceObject, ...]:
    """The files that the source's urls name, in the order of the urls and, within one url, of their paths.

    ``volume`` is the folder behind volume:// urls. Without ``local_files``, no other file of this machine is read.
    Raises BadSource for a file that is missing, unreadable or not allowed.
    """
    if not local_files:
        refuse_local_files(spec.source.urls)
    files = [file for url in spec.source.urls for file in find_files(url, base=spec.base, volume=volume)]
    objects = tuple(_source_object(file, spec) for file in add_checksums(files))
    _refuse_tables(objects)
    return objects


def _refuse_tables(objects: Iterable[SourceObject]) -> None:
    """Raises BadSource for a file of a table: such a folder has files with rows that are no longer in the table."""
    tables: dict[Path, str | None] = {}
    for item in objects:
        table = None
        if item.format == "parquet" and isinstance(item.place, Path):
            table = find_table(item.place, tables)
        elif item.format == "parquet" and isinstance(item.place, RemoteObject):
            table = item.place.find_table()
        if table is not None:
            raise BadSource(
                f"{item.description.url} is a file of {table}, whose files alone do not say which of their rows are "
                "in the table",
                hint="export the table as Parquet files to a folder of its own, with Spark, DuckDB (delta_scan, "
                "iceberg_scan) or the deltalake library, and read those",
            )


def refuse_local_files(urls: Iterable[str]) -> None:
    """Raises BadSource for a url that is a file of this machine."""
    for url in urls:
        scheme, separator, _ = url.partition("://")
        if not separator or scheme == "file":
            raise BadSource(
                f"{strip_secrets(url)} is a file of the machine that builds, and such files are not read here",
                hint="use https://, s3://, gs:// or az://, or volume:// with source.volume",
            )


def find_files(url: str, *, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    """The files that ``url`` names or, with wildcards, matches, sorted by path; at least one. Raises BadSource."""
    label = strip_secrets(url)
    try:
        return _dispatch(url, label, base, volume)
    except OSError as error:  # of looking for a file: a folder that may not be searched, a name that is too long
        raise SourceUnreadable(f"{label} cannot be read: {error.strerror or error}") from error
    except (ValueError, re.error) as error:
        why = "" if label != url and "netloc" in str(error) else f": {error}"  # what it quotes has the password
        raise BadSource(f"{label!r} is not a url{why}", hint="check source.url") from error


def _dispatch(url: str, label: str, base: Path | None, volume: Path | None) -> list[LocatedFile]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return find_path(label, url, base)
    if scheme == "volume":
        return find_in_volume(label, rest, volume)
    finder = SCHEMES.get(scheme)
    if finder is None:
        schemes = ", ".join(f"{name}://" for name in (*SCHEMES, "volume"))
        raise BadSource(
            f"{label}: {scheme}:// is not a scheme a source is read from",
            hint=f"use one of {schemes}; http:// is for this machine alone",
        )
    return finder(url, label)


SCHEMES: Final[dict[str, Callable[[str, str], list[LocatedFile]]]] = {
    "file": find_file,
    "https": find_http,
    "http": find_http,
    "s3": find_objects,
    "gs": find_objects,
    "az": find_objects,
    "example": find_example,
}
"""Scheme → the function that finds the files of a url; messages call that by its second argument. ``find_files``
handles ``volume``, because it knows the mount."""


class HasDescription(Protocol):
    """An object of the source, in any stage of its fetch."""

    @property
    def description(self) -> SourceFile:
        """The object as it was when it was read."""


def is_identified(description: SourceFile) -> bool:
    """Whether a change of the object would show: some web servers send neither ETag nor time."""
    return description.etag is not None or description.modified is not None


def source_fingerprint(objects: Iterable[HasDescription]) -> str | None:
    """32 hex digits that change with any object's url, size and ETag, or time if it has no ETag, and with their order.

    None if an object is not identified before it is fetched: an equal size does not prove that nothing changed.
    """
    entries = []
    for item in objects:
        if not is_identified(item.description):
            return None
        entry = asdict(item.description)
        if entry["etag"] is not None:
            del entry["modified"]
        entries.append(entry)
    return hashlib.sha256(orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _source_object(located: LocatedFile, spec: DatasetSpec) -> SourceObject:
    source = spec.source
    format_suffix, compression = _split_suffixes(located.description.url)
    compression = source.compression or compression
    if compression == "none":
        compression = located.coding
    file_format = source.format or _FORMATS.get(format_suffix)
    if file_format is None:
        raise _unknown_format_error(located, compression)
    if spec.key.member_names and file_format != "json":
        raise BadSource(
            f"{located.description.url} is {file_format} by its name, and key.memberNames is for one JSON object",
            hint="set source.format: json if it is one, or name the key's columns in key.columns",
        )
    return SourceObject(
        description=located.description,
        format=file_format,
        compression=compression,
        delimiter=source.csv.delimiter or ("\t" if format_suffix == ".tsv" else ","),
        place=located.place,
    )


def _unknown_format_error(located: LocatedFile, compression: Compression) -> BadSource:
    """The error for a file whose format nobody says: what it is by its first bytes, if they show it."""
    name = located.description.url
    kind = recognize(read_beginning(located, compression))
    if kind is not None and not kind.is_read:
        return wrong_kind_error(kind, name if compression == "none" else f"{name}, unpacked,", "")
    looks_like = f"; by its first bytes it is {kind.name}" if kind else ""
    return BadSource(
        f"{name}: its name does not show its format{looks_like}",
        hint=f"set source.format, or name it {', '.join(_FORMATS)} (and {', '.join(_COMPRESSIONS)} if it is compressed)"
        + (f"; {kind.hint}" if kind else ""),
    )


def read_chunks(file: LocatedFile | SourceObject) -> Iterator[bytes]:
    """The bytes of ``file`` as they are stored or sent. Raises BadSource."""
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


def read_beginning(file: LocatedFile | SourceObject, compression: Compression) -> bytes:
    """The first bytes of ``file`` without its ``compression``, as many as show its kind. Raises BadSource."""
    chunks, first = read_chunks(file), b""
    if compression != "none":
        chunks = decompress(chunks, compression, file.description.url)
    for chunk in chunks:
        first += chunk[:FIRST_BYTES]
        if len(first) >= FIRST_BYTES:
            break
    return first[:FIRST_BYTES]


def _split_suffixes(url: str) -> tuple[str, Compression]:
    """The suffix that gives the format, and the compression."""
    name = url.rpartition("/")[2].lower()
    compression: Compression = "none"
    stem, dot, suffix = name.rpartition(".")
    if dot and f".{suffix}" in _COMPRESSIONS:
        compression = _COMPRESSIONS[f".{suffix}"]
        stem, dot, suffix = stem.rpartition(".")
    return dot + suffix, compression
