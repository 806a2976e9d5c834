"""The files of a dataset's source, listed before any of them is read, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import orjson

from lookupdb.build.source.local_files import add_checksums
from lookupdb.build.source.location import LocatedFile, RemoteFile
from lookupdb.build.source.schemes import find_files
from lookupdb.errors import BadSource
from lookupdb.manifest import SourceFile
from lookupdb.spec import DatasetSpec

Format = Literal["csv", "json", "jsonl", "parquet"]
Compression = Literal["none", "gzip", "zstd"]

_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSIONS: Final[dict[str, Compression]] = {".gz": "gzip", ".zst": "zstd"}


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
        _refuse_local_files(spec.source.urls)
    located = [located for url in spec.source.urls for located in find_files(url, base=spec.base, volume=volume)]
    return tuple(_source_object(located, spec) for located in add_checksums(located))


def _refuse_local_files(urls: Iterable[str]) -> None:
    for url in urls:
        scheme, separator, _ = url.partition("://")
        if not separator or scheme == "file":
            raise BadSource(
                f"{url} is a file of the machine that builds, and such files are not read here",
                hint="use https://, s3://, gs:// or az://, or volume:// with source.volume",
            )


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
    file_format = source.format or _FORMATS.get(format_suffix)
    if file_format is None:
        raise BadSource(
            f"{located.description.url}: its name does not show its format",
            hint=f"set source.format, or name it {', '.join(_FORMATS)} (and .gz or .zst)",
        )
    if spec.key.member_names and file_format != "json":
        raise BadSource(
            f"{located.description.url} is {file_format} by its name, and key.memberNames is for one JSON object",
            hint="set source.format: json if it is one, or name the key's columns in key.columns",
        )
    return SourceObject(
        description=located.description,
        format=file_format,
        compression=source.compression or compression,
        delimiter=source.csv.delimiter or ("\t" if format_suffix == ".tsv" else ","),
        place=located.place,
    )


def _split_suffixes(url: str) -> tuple[str, Compression]:
    """The suffix that gives the format, and the compression."""
    name = url.rpartition("/")[2].lower()
    compression: Compression = "none"
    stem, dot, suffix = name.rpartition(".")
    if dot and f".{suffix}" in _COMPRESSIONS:
        compression = _COMPRESSIONS[f".{suffix}"]
        stem, dot, suffix = stem.rpartition(".")
    return dot + suffix, compression
