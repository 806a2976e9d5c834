"""Which files a pattern matches, the same in every store; and a file of the source that was found."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
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
_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^]]*)\]")
TABLE_FOLDERS: Final = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""Folders that only a table has, and what it is then."""
ICEBERG_FOLDER: Final = "metadata"
"""The folder of an Iceberg table whose files end in one of ``ICEBERG_ENDINGS``."""
ICEBERG_ENDINGS: Final = (".metadata.json", ".metadata.json.gz")
ICEBERG_TABLE: Final = "an Iceberg table"
FOLDER_HINT: Final = "match its files with a wildcard: folder/*.csv"


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


def is_hidden(name: str, *, is_file: bool = False) -> bool:
    """Whether a file or folder of this name is no data, by the rule of Spark and Hadoop. A partition's folder may begin
    with an underscore: ``_col=1``."""
    is_partition = "=" in name and not is_file
    return (name.startswith("_") and not is_partition) or name.startswith(".") or name.endswith("._COPYING_")


@dataclass(frozen=True, slots=True)
class PatternFolder:
    """A folder on the way to the files that a pattern matches."""

    path: str
    """With the slash at its end; empty for the one that relative paths begin at."""
    places: frozenset[int]
    """The segments of the pattern that may match the names in this folder."""
    matched: str | None
    """The outermost folder around these names that the whole pattern matches."""


class PathMatches:
    """The files that a pattern matches, of those that a store lists folder by folder.

    ``*``, ``?`` and ``[…]`` match within one name. A segment that is ``**`` matches any number of folders; as the last
    one it means ``**/*``. None of them matches a hidden name, unless its segment of the pattern begins as the name
    does.
    """

    def __init__(self, label: str, pattern: str) -> None:
        """Messages call the pattern ``label``."""
        self._label = label
        segments = pattern.split("/")
        if segments[-1] == "**":
            segments.append("*")
        fixed = next(number for number, segment in enumerate(segments) if WILDCARD.search(segment))
        self._segments = [(segment, _compile_segment(segment)) for segment in segments[fixed:]]
        self.root = PatternFolder(
            "".join(f"{segment}/" for segment in segments[:fixed]), self._skip_no_folders({0}), None
        )
        """The folder that holds all files that can match."""
        self._paths: list[str] = []
        self._left_out: str | None = None
        """A hidden name that would match else."""

    def _skip_no_folders(self, places: set[int]) -> frozenset[int]:
        """``places``, and those behind each ``**``, which may match no folder."""
        for first in sorted(places):
            place = first
            while place < len(self._segments) and self._segments[place][0] == "**":
                place += 1
                places.add(place)
        return frozenset(places)

    def _match_name(self, folder: PatternFolder, name: str, *, is_file: bool = False) -> frozenset[int]:
        """The places behind ``name``."""
        hidden, places = is_hidden(name, is_file=is_file), set()
        for place in folder.places:
            if place == len(self._segments):
                continue
            segment, matches = self._segments[place]
            if not matches(name):
                continue
            if hidden and not is_hidden(segment):
                self._left_out = self._left_out or folder.path + name
            else:
                places.add(place if segment == "**" else place + 1)
        return self._skip_no_folders(places)

    def crosses_folders(self, folder: PatternFolder) -> bool:
        """Whether everything below ``folder`` may matter: ``**`` comes next, or the pattern matches the folder."""
        return folder.matched is not None or any(
            place < len(self._segments) and self._segments[place][0] == "**" for place in folder.places
        )

    def enter(self, folder: PatternFolder, name: str) -> PatternFolder | None:
        """The folder ``name`` in ``folder``; None if nothing in it can match."""
        path, places = f"{folder.path}{name}/", self._match_name(folder, name)
        matched = None if is_hidden(name) else folder.matched
        if len(self._segments) in places:
            matched = matched or path
        return PatternFolder(path, places, matched) if places or matched else None

    def add(self, folder: PatternFolder, name: str, is_file: Callable[[], bool] = lambda: True) -> bool:
        """Whether the pattern matches the file ``name`` in ``folder``. ``is_file`` says whether it is a file after all.

        Raises BadSource for too many, and for a file that is left out though the pattern matches a folder around it.
        """
        if len(self._segments) not in self._match_name(folder, name, is_file=True):
            if folder.matched is not None and not is_hidden(name, is_file=True) and is_file():
                raise BadSource(
                    f"{self._label} matches the folder {folder.matched}, but not the file {folder.path}{name} in it",
                    hint=f"to read such files, list {folder.matched}* in source.urls, or let the pattern cross folders "
                    "(**/); to leave the folder out, narrow the pattern",
                )
            return False
        if not is_file():
            return False
        if len(self._paths) == MAX_FILES:
            raise BadSource(f"{self._label} matches more than {MAX_FILES} files", hint="narrow the pattern")
        self._paths.append(folder.path + name)
        return True

    def finish(self) -> list[str]:
        """The paths of all matches, sorted. Raises BadSource if there are none."""
        if not self._paths:
            hint = "`*` does not match `/`; `**/` matches folders"
            if self._left_out is not None:
                hint = (
                    f"names that begin with `_` or `.` are no data, so {self._left_out} was left out: "
                    "to read such files, begin the name in the pattern so"
                )
            raise SourceUnreadable(f"{self._label} matches no file", hint=hint)
        return sorted(self._paths)


def _compile_segment(segment: str) -> Callable[[str], object]:
    if segment == "**":
        return lambda _: True
    expression = _CLASS.sub(lambda found: f"[{'!' if found[1] else ''}{found[2]}]", segment)
    matches = re.compile(fnmatch.translate(expression)).match
    return lambda name: name and matches(name)
