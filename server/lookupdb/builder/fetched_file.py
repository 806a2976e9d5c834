"""A file of the source as parsers have it. Crew members import this, and nothing that fetches files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lookupdb.builder.files import describe_local_file
from lookupdb.errors import BadSource, SourceUnreadable
from lookupdb.manifest import SourceFile

if TYPE_CHECKING:
    from lookupdb.builder.listing import Format


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of the source, plain and uncompressed."""

    description: SourceFile
    """The object that it is a copy of, identified."""
    format: Format
    delimiter: str
    path: Path
    bytes: int
    """The size of the plain file."""
    in_place: bool
    """It is the user's own file, which may change while we read."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.description.url

    def check_unchanged(self) -> None:
        """Raises BadSource if it is the user's own file and has changed since the build began."""
        if self.in_place:
            check_unchanged(self.description, self.path)


@contextmanager
def tell_changes(check: Callable[[], object]) -> Iterator[None]:
    """Where the block cannot use what it reads, raise what ``check`` does, if a file has changed meanwhile: what was
    read may be half of each, and says nothing of either."""
    try:
        yield
    except BadSource as error:
        if not error.may_pass:
            check()
        raise


def check_unchanged(description: SourceFile, path: Path) -> None:
    """Raises BadSource if the file at ``path`` is not what was described any more."""
    try:
        now = describe_local_file(description.url, path.stat())
    except OSError as error:
        raise SourceUnreadable(f"{description.url} went away while it was read: {error.strerror}") from error
    if description.modified is not None and replace(now, etag=description.etag) != description:
        raise SourceUnreadable(f"{description.url} changed while it was read", hint="build again once it is complete")
