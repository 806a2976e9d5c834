"""Makes every file of the source a plain, uncompressed file of this machine.

A local file that is not compressed is used where it is. All else is streamed into scratch in bounded memory and
decompressed on the way by us, so that a stream that is cut short is always seen. What its server does not identify is
identified by what was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lookupdb import disk
from lookupdb.build.progress import Progress
from lookupdb.build.source.decompression import inflate
from lookupdb.build.source.http_stream import Streamed
from lookupdb.build.source.listing import Format, SourceObject, is_identified
from lookupdb.build.source.location import describe_local, remote_errors
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.manifest import SourceFile

_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of the source, plain and uncompressed."""

    described: SourceFile
    """The object it was made from, identified."""
    format: Format
    delimiter: str
    path: Path
    bytes: int
    """Of the plain file."""
    in_place: bool
    """It is the user's own file, which may change under us."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.described.url

    def check_unchanged(self) -> None:
        """Raises BadSource when it is the user's own file and no longer what it was when the build began."""
        if self.in_place:
            _check_unchanged(self.described, self.path)


def fetch(objects: Iterable[SourceObject], scratch: Path, progress: Progress) -> tuple[LocalFile, ...]:
    """The files of ``objects`` in their order. Raises BadSource, NotEnoughRoom when ``scratch`` is full.

    Tells ``progress`` of the bytes read, as they are compressed.
    """
    objects = tuple(objects)
    copied = [item for item in objects if not _is_plain(item)]
    if copied:
        progress.phase("fetch", sum(item.described.bytes for item in copied), "bytes")
    files = tuple(
        _in_place(item) if _is_plain(item) else _copy(item, scratch / f"source-{number:05d}", progress)
        for number, item in enumerate(objects)
    )
    if copied:
        progress.done()
    return files


def local_file(item: SourceObject) -> LocalFile | None:
    """``item`` where it is, None when it is not here or compressed. Raises BadSource when it has changed meanwhile."""
    return _in_place(item) if _is_plain(item) else None


def _is_plain(item: SourceObject) -> bool:
    return isinstance(item.place, Path) and item.compression == "none"


def _in_place(item: SourceObject) -> LocalFile:
    assert isinstance(item.place, Path)
    _check_unchanged(item.described, item.place)
    # An example's file does not change: it is part of the program.
    in_place = item.described.modified is not None
    return LocalFile(item.described, item.format, item.delimiter, item.place, item.described.bytes, in_place)


def _copy(item: SourceObject, target: Path, progress: Progress) -> LocalFile:
    described, checksum = item.described, None if is_identified(item.described) else hashlib.sha256()
    received = _Received(progress)
    chunks = received.count(_chunks(item))
    if checksum:
        chunks = _summed(chunks, checksum)
    if item.compression != "none":
        chunks = inflate(chunks, item.compression, item.described.url)
    with room_in(target.parent), target.open("wb") as out:
        for chunk in chunks:
            out.write(chunk)
    if isinstance(item.place, Streamed):
        described = replace(described, bytes=received.bytes)
    received.check(described)
    if isinstance(item.place, Path):
        _check_unchanged(item.described, item.place)
    if checksum:
        described = replace(described, etag=checksum.hexdigest())
    return LocalFile(described, item.format, item.delimiter, target, target.stat().st_size, False)


def _chunks(item: SourceObject) -> Iterator[bytes]:
    name = item.described.url
    if not isinstance(item.place, Path):
        with remote_errors(name):
            yield from item.place.open(item.described)
        return
    with item.place.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _summed(chunks: Iterable[bytes], checksum: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        checksum.update(chunk)
        yield chunk


class _Received:
    """Counts what is received of a file."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self.bytes = progress, 0

    def count(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """``chunks``, as they are."""
        for chunk in chunks:
            self.bytes += len(chunk)
            yield chunk
            self._progress.advance(len(chunk))

    def check(self, described: SourceFile) -> None:
        """Raises BadSource when it was not as much as ``described``."""
        if self.bytes != described.bytes:
            raise BadSource(
                f"{described.url} changed while it was read: expected {described.bytes} bytes, got {self.bytes}",
                hint="build again once it is complete",
            )


def _check_unchanged(described: SourceFile, path: Path) -> None:
    try:
        now = describe_local(described.url, path.stat())
    except OSError as error:
        raise BadSource(f"{described.url} went away while it was read: {error.strerror}") from error
    if described.modified is not None and replace(now, etag=described.etag) != described:
        raise BadSource(f"{described.url} changed while it was read", hint="build again once it is complete")


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Turn "no space left" into NotEnoughRoom naming ``folder``."""
    try:
        yield
    except OSError as error:
        if error.errno not in disk.FULL:
            raise
        raise NotEnoughRoom(
            f"no room left in the scratch folder {folder}: {error.strerror}",
            hint="a build needs about twice its uncompressed source there; give a larger folder with --scratch",
        ) from error
