"""Make every file of the source a plain, uncompressed file on this machine.

A local uncompressed file is used in place. Everything else is streamed into scratch in bounded memory. We decompress it
ourselves, so that a truncated stream never passes. A file without ETag and time is identified by a checksum of its
content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from lookupdb.builder.fetched_file import LocalFile, check_unchanged, tell_changes
from lookupdb.builder.http_stream import HttpStream
from lookupdb.builder.listing import SourceObject, is_identified, read_beginning, read_chunks
from lookupdb.builder.options import scratch_errors
from lookupdb.builder.progress import Progress
from lookupdb.builder.streams import FIRST_BYTES, check_kind, decompress
from lookupdb.errors import SourceUnreadable
from lookupdb.manifest import SourceFile


def fetch_files(objects: Iterable[SourceObject], scratch: Path, progress: Progress) -> tuple[LocalFile, ...]:
    """Return the files of ``objects`` in their order. Raises BadSource, and NotEnoughRoom if ``scratch`` is full.

    Reports the bytes read, before decompression, to ``progress``.
    """
    objects = tuple(objects)
    copies = [item for item in objects if not _is_plain(item)]
    if copies:
        progress.begin_phase("fetch", sum(item.description.bytes for item in copies), "bytes")
    files = tuple(
        _use_in_place(item) if _is_plain(item) else _copy_file(item, scratch / f"source-{number:05d}", progress)
        for number, item in enumerate(objects)
    )
    if copies:
        progress.end_phase()
    return files


def find_local_file(item: SourceObject) -> LocalFile | None:
    """Return ``item`` in place; None if it is remote or compressed. Raises BadSource if it has changed since it was
    listed."""
    return _use_in_place(item) if _is_plain(item) else None


def _is_plain(item: SourceObject) -> bool:
    return isinstance(item.place, Path) and item.compression == "none"


def _use_in_place(item: SourceObject) -> LocalFile:
    assert isinstance(item.place, Path)
    check_unchanged(item.description, item.place)
    with tell_changes(lambda: _check_unchanged(item)):
        check_beginning(item)
    # An example never changes: it is part of the program.
    in_place = item.description.modified is not None
    return LocalFile(item.description, item.format, item.delimiter, item.place, item.description.bytes, in_place)


def _copy_file(item: SourceObject, target: Path, progress: Progress) -> LocalFile:
    description, checksum = item.description, None if is_identified(item.description) else hashlib.sha256()
    received = _ByteCounter(progress)
    chunks = received.count(read_chunks(item))
    if checksum:
        chunks = _hash_chunks(chunks, checksum)
    if item.compression != "none":
        chunks = decompress(chunks, item.compression, item.description.url)
    chunks = _check_beginning(chunks, item)
    with tell_changes(lambda: _check_unchanged(item)), scratch_errors(target.parent), target.open("wb") as out:
        for chunk in chunks:
            out.write(chunk)
    if isinstance(item.place, HttpStream):
        description = replace(description, bytes=received.bytes)
    received.check(description)
    _check_unchanged(item)
    if checksum:
        description = replace(description, etag=checksum.hexdigest())
    return LocalFile(description, item.format, item.delimiter, target, target.stat().st_size, False)


def _check_unchanged(item: SourceObject) -> None:
    """Raise BadSource if it is a local file that has changed since it was listed."""
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


def _hash_chunks(chunks: Iterable[bytes], checksum: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        checksum.update(chunk)
        yield chunk


class _ByteCounter:
    """Count the bytes received of a file."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self.bytes = progress, 0

    def count(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield ``chunks`` and count them."""
        for chunk in chunks:
            self.bytes += len(chunk)
            yield chunk
            self._progress.advance(len(chunk))

    def check(self, description: SourceFile) -> None:
        """Raise BadSource if the count differs from the size in ``description``."""
        if self.bytes != description.bytes:
            raise SourceUnreadable(
                f"{description.url} changed while it was read: expected {description.bytes} bytes, got {self.bytes}",
                hint="build again once it is complete",
            )
