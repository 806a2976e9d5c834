"""The success file: whoever writes the source writes it last, so that it says that the source is whole.

Its identity is read before anything of the source is. It changes with each write of the file, also when what is written
is the same, for most are empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson

from lookupdb.build.source.listing import find_files, is_identified, refuse_local_files
from lookupdb.build.source.location import LocatedFile
from lookupdb.build.source.remote_objects import remote_errors
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.spec import DatasetSpec
from lookupdb.wording import strip_secrets

_MAX_BYTES: Final = 1 << 20
"""Read of a file that its server does not identify: it says that it is there, and is not the data."""


class SourceNotWhole(SourceUnreadable):
    """The source has changed, and its success file has not: somebody may be writing the next one."""

    reason = "SourceNotWhole"
    may_pass = False


def read_success_file(spec: DatasetSpec, *, volume: Path | None, local_files: bool = True) -> str | None:
    """The identity of the success file that ``spec`` names, 32 hex digits; None when there is no such file.

    Raises BadSource when it cannot be told: access is denied, or nobody answers.
    """
    url = spec.refresh.success_file
    assert url is not None, "only where one is named"
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
        identity["content"] = _hash_begin(file)
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def not_whole_error(spec: DatasetSpec) -> SourceNotWhole:
    """The error of a source that has changed under its success file."""
    return SourceNotWhole(
        f"the source has changed since {describe_success_file(spec)} was written, and is read when that is written anew"
    )


def describe_success_file(spec: DatasetSpec) -> str:
    """The url of the success file, for messages."""
    url = spec.refresh.success_file
    assert url is not None, "only where one is named"
    return f"the success file {strip_secrets(url)}"


def _hash_begin(file: LocatedFile) -> str:
    """The checksum of its first bytes."""
    checksum, left = hashlib.sha256(), _MAX_BYTES
    for chunk in _read_chunks(file):
        checksum.update(chunk[:left])
        left -= len(chunk)
        if left <= 0:
            break
    return checksum.hexdigest()


def _read_chunks(file: LocatedFile) -> Iterator[bytes]:
    if isinstance(file.place, Path):
        yield file.place.read_bytes()
        return
    with remote_errors(file.description.url):
        yield from file.place.open(file.description)
