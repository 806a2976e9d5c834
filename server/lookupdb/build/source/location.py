"""A file of the source that was found, and the limit on how many files one url may match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from lookupdb.build.source.file_kinds import Compression
from lookupdb.errors import BadSource, SourceUnreadable
from lookupdb.manifest import SourceFile

MAX_FILES: Final = 10_000
"""The most files that one url may match: more are taken for a mistake in the pattern."""
WILDCARD: Final = re.compile(r"[*?\[]")
"""The characters that make a path a pattern."""


class RemoteFile(Protocol):
    """A file that is not on this machine."""

    def open(self, description: SourceFile) -> Iterator[bytes]:
        """Its bytes in chunks. Raises BadSource, also if it no longer matches ``description``."""


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """One file or object, and from where to read it."""

    description: SourceFile
    place: Path | RemoteFile
    coding: Compression = "none"
    """The Content-Encoding in which a web server sends it."""


def collect_matches(url: str, paths: Iterator[str]) -> list[str]:
    """The ``paths`` that ``url`` matches, sorted. Raises BadSource if there are none or too many."""
    matches = []
    for path in paths:
        matches.append(path)
        if len(matches) > MAX_FILES:
            raise BadSource(f"{url} matches more than {MAX_FILES} files", hint="narrow the pattern")
    if not matches:
        raise SourceUnreadable(f"{url} matches no file", hint="`*` does not match `/`; `**` matches folders")
    return sorted(set(matches))
