"""The source of a dataset: its files, as they are before anything of them is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import orjson

from lookupdb.build.source.http_stream import Streamed
from lookupdb.build.source.location import Found, Remote, find, identified
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

    described: SourceFile
    format: Format
    compression: Compression
    delimiter: str
    """Between the fields, if it is CSV."""
    place: Path | Remote | Streamed


def resolve(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> tuple[SourceObject, ...]:
    """The files that the source's urls name, in the order of the urls and, within one, of their paths.

    ``volume`` is the folder behind volume:// urls; without ``local_files``, no other file of this machine is read.
    Raises BadSource for anything that is not there, not readable or not allowed.
    """
    if not local_files:
        _refuse_local_files(spec.source.urls)
    found = [one for url in spec.source.urls for one in find(url, base=spec.base, volume=volume)]
    return tuple(_source_object(one, spec) for one in identified(found))


def _refuse_local_files(urls: Iterable[str]) -> None:
    for url in urls:
        scheme, separator, _ = url.partition("://")
        if not separator or scheme == "file":
            raise BadSource(
                f"{url} is a file of the machine that builds, and such files are not read here",
                hint="use https://, s3://, gs:// or az://, or volume:// with source.volume",
            )


class Described(Protocol):
    """What has been made of one object of the source."""

    @property
    def described(self) -> SourceFile:
        """The object."""


def is_identified(described: SourceFile) -> bool:
    """Whether a change of the object would be seen: some web servers tell neither ETag nor time."""
    return described.etag is not None or described.modified is not None


def fingerprint(objects: Iterable[Described]) -> str | None:
    """32 hex digits that change when any object's url, size, ETag or (without ETag) time does, or their order.

    None when one of them is not identified, as it is once it has been fetched: of the same size is not unchanged.
    """
    entries = []
    for item in objects:
        if not is_identified(item.described):
            return None
        entry = asdict(item.described)
        if entry["etag"] is not None:
            del entry["modified"]
        entries.append(entry)
    return hashlib.sha256(orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _source_object(found: Found, spec: DatasetSpec) -> SourceObject:
    source = spec.source
    format_suffix, compression = _by_name(found.described.url)
    kind = source.format or _FORMATS.get(format_suffix)
    if kind is None:
        raise BadSource(
            f"{found.described.url}: its name does not tell its format",
            hint=f"set source.format, or name it {', '.join(_FORMATS)} (and .gz or .zst)",
        )
    if spec.key.member_names and kind != "json":
        raise BadSource(
            f"{found.described.url} is {kind} by its name, and key.memberNames is for one JSON object",
            hint="set source.format: json if it is one, or name the key's columns in key.columns",
        )
    return SourceObject(
        described=found.described,
        format=kind,
        compression=source.compression or compression,
        delimiter=source.csv.delimiter or ("\t" if format_suffix == ".tsv" else ","),
        place=found.place,
    )


def _by_name(url: str) -> tuple[str, Compression]:
    """The suffix that tells the format, and the compression."""
    name = url.rpartition("/")[2].lower()
    compression: Compression = "none"
    stem, dot, suffix = name.rpartition(".")
    if dot and f".{suffix}" in _COMPRESSIONS:
        compression = _COMPRESSIONS[f".{suffix}"]
        stem, dot, suffix = stem.rpartition(".")
    return dot + suffix, compression
