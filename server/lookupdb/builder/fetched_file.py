"""A fetched file of the source, for parsers. Crew members import this without the code that fetches."""

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
    """The identified object that it is a copy of."""
    format: Format
    delimiter: str
    path: Path
    bytes: int
    """Size of the plain file."""
    in_place: bool
    """True if it is the user's own file, which may change while we read."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.description.url

    def check_unchanged(self) -> None:
        """Raise BadSource if it is the user's own file and has changed since the build began."""
        if self.in_place:
            check_unchanged(self.description, self.path)


@contextmanager
def tell_changes(check: Callable[[], object]) -> Iterator[None]:
    """If the block fails, and ``check`` shows that a file has changed, raise the error of ``check`` instead: the data
    read may be half of each version."""
    try:
        yield
    except BadSource as error:
        if not error.may_pass:
            check()
        raise


def check_unchanged(description: SourceFile, path: Path) -> None:
    """Raise BadSource if the file at ``path`` no longer matches its description."""
    try:
        now = describe_local_file(description.url, path.stat())
    except OSError as error:
        raise SourceUnreadable(f"{description.url} went away while it was read: {error.strerror}") from error
    if description.modified is not None and replace(now, etag=description.etag) != description:
        raise SourceUnreadable(f"{description.url} changed while it was read", hint="build again once it is complete")
