"""Sources on this machine: paths, file:// urls, files of the mounted volume, and the examples that lookupdb ships.

First comes the matching of patterns, which is the same in every store.
"""

from __future__ import annotations

import datetime
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from lookupdb.builder.streams import Compression
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.manifest import SourceFile
from lookupdb.wording import check_path, strip_secrets

# Patterns of paths, and the files that they match.


MAX_FILES: Final = 10_000
"""The most files that one url may match: more suggest a mistake in the pattern."""
WILDCARD: Final = re.compile(r"[*?\[]")
"""The characters that make a path a pattern."""
_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^]]*)\]")
TABLE_FOLDERS: Final = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""Folder that only a table has → the kind of table."""
ICEBERG_FOLDER: Final = "metadata"
"""The folder of an Iceberg table whose files end in one of ``ICEBERG_ENDINGS``."""
ICEBERG_ENDINGS: Final = (".metadata.json", ".metadata.json.gz")
ICEBERG_TABLE: Final = "an Iceberg table"
FOLDER_HINT: Final = "match its files with a wildcard: folder/*.csv"


class RemoteFile(Protocol):
    """A file that is not on this machine."""

    def open(self, description: SourceFile) -> Iterator[bytes]:
        """Return its bytes in chunks. Raises BadSource, also if it no longer matches ``description``."""


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """A file or object, and where to read it."""

    description: SourceFile
    place: Path | RemoteFile
    coding: Compression = "none"
    """The Content-Encoding in which a web server sends it."""


def is_hidden(name: str, *, is_file: bool = False) -> bool:
    """Return whether a file or folder of this name holds no data, by the rule of Spark and Hadoop. A partition's folder
    may begin with an underscore: ``_col=1``."""
    is_partition = "=" in name and not is_file
    return (name.startswith("_") and not is_partition) or name.startswith(".") or name.endswith("._COPYING_")


@dataclass(frozen=True, slots=True)
class PatternFolder:
    """A folder on the way to the files that a pattern matches."""

    path: str
    """Its path with the final slash; empty for the folder of relative paths."""
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
        """A hidden name that would otherwise match."""

    def _skip_no_folders(self, places: set[int]) -> frozenset[int]:
        """Return ``places``, and those after each ``**``, which may match no folder."""
        for first in sorted(places):
            place = first
            while place < len(self._segments) and self._segments[place][0] == "**":
                place += 1
                places.add(place)
        return frozenset(places)

    def _match_name(self, folder: PatternFolder, name: str, *, is_file: bool = False) -> frozenset[int]:
        """Return the places after ``name``."""
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
        """Return whether everything below ``folder`` may matter: ``**`` comes next, or the pattern matches the
        folder."""
        return folder.matched is not None or any(
            place < len(self._segments) and self._segments[place][0] == "**" for place in folder.places
        )

    def enter(self, folder: PatternFolder, name: str) -> PatternFolder | None:
        """Return the folder ``name`` in ``folder``; None if nothing in it can match."""
        path, places = f"{folder.path}{name}/", self._match_name(folder, name)
        matched = None if is_hidden(name) else folder.matched
        if len(self._segments) in places:
            matched = matched or path
        return PatternFolder(path, places, matched) if places or matched else None

    def add(self, folder: PatternFolder, name: str, is_file: Callable[[], bool] = lambda: True) -> bool:
        """Return whether the pattern matches the file ``name`` in ``folder``. ``is_file`` confirms that it is a file.

        Raises BadSource for too many files, and for one that is left out although the pattern matches a folder around
        it.
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
        """Return the paths of all matches, sorted. Raises BadSource if there are none."""
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


MAX_CHECKSUM_BYTES: Final = 64 << 20
"""Local files get a checksum as their ETag if their total size is at most this, which takes a fraction of a second to
read."""
_RESCUED: Final = "lost+found/"
"""A folder of file systems that only root may list, and that holds no data."""


def find_path(label: str, path: str, base: Path | None) -> list[LocatedFile]:
    """Return the files at ``path``, which may be relative to ``base`` or a pattern; messages call it ``label``. Raises
    BadSource."""
    if not Path(path).is_absolute() and base is None:
        raise BadSource(
            f"{label} is a relative path, and there is no manifest's folder to take it from",
            hint="use https://, s3://, gs://, az:// or volume://; relative paths are for a laptop",
        )
    root = base or Path("/")
    return [_locate(root / match, match) for match in _match_files(label, path, root)]


def find_file(url: str, label: str) -> list[LocatedFile]:
    """Return the files that a file:// url names or matches. Raises BadSource."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise BadSource(f"{label}: a file:// url has no host", hint="write three slashes: file:///folder/file.csv")
    path = unquote(url.removeprefix("file://").removeprefix("localhost"))
    return [_locate(Path(match), Path(match).as_uri()) for match in _match_files(label, path, Path("/"))]


def find_in_volume(label: str, path: str, volume: Path | None) -> list[LocatedFile]:
    """Return the files that ``path`` names or matches within the mounted volume. Raises BadSource."""
    if volume is None:
        raise BadSource(f"{label}: no volume is mounted", hint="give its folder with --volume")
    root = volume.resolve()
    files = []
    for match in _match_files(label, path.lstrip("/"), root):
        if not (root / match).resolve().is_relative_to(root):
            raise BadSource(f"{label}: {match} leads out of the volume")
        files.append(_locate(root / match, f"volume://{match}"))
    return files


def find_example(url: str, label: str) -> list[LocatedFile]:
    """Return the example that lookupdb ships under this name. Raises BadSource."""
    name = url.removeprefix("example://")
    folder = resources.files("lookupdb").joinpath("data")
    names = sorted(entry.name for entry in folder.iterdir() if ".csv" in entry.name)
    if name not in names:
        raise BadSource(f"{label}: there is no such example", hint=f"lookupdb ships with {', '.join(names)}")
    with resources.as_file(folder.joinpath(name)) as path:
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        return [LocatedFile(SourceFile(url, len(content), etag, None), path)]


def _match_files(label: str, path: str, root: Path) -> list[str]:
    """Return paths of files, relative to ``root`` as ``path`` is. A file whose name looks like a pattern is matched
    literally."""
    literal = root / path
    if literal.is_file() or not WILDCARD.search(path):
        if literal.is_dir():
            raise BadSource(f"{label} is a folder, expected a file", hint=FOLDER_HINT)
        return [path]
    matches = PathMatches(label, path)
    _walk_folder(root, matches, matches.root, ())
    return matches.finish()


def _walk_folder(root: Path, matches: PathMatches, folder: PatternFolder, parents: tuple[tuple[int, int], ...]) -> None:
    """Find the files in ``folder``. Follows links, except to one of the ``parents``, named by device and inode."""
    try:
        status = (root / folder.path).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in parents:
            return
        with os.scandir(root / folder.path) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:
        if folder.path.endswith(_RESCUED):
            return
        raise SourceUnreadable(f"the folder {folder.path} cannot be listed: {error.strerror}") from error
    for entry in entries:
        if not entry.is_dir():
            matches.add(folder, entry.name)
        elif (inner := matches.enter(folder, entry.name)) is not None:
            _walk_folder(root, matches, inner, (*parents, identity))


def find_table(path: Path, tables: dict[Path, str | None]) -> str | None:
    """Return the table that the file at ``path`` belongs to, "a Delta table at …"; None if there is none. ``tables``
    caches the result for each folder."""
    folders = dict.fromkeys(path.resolve().parents)
    if ".." not in path.parts:
        folders.update(dict.fromkeys(path.parents))  # the table's files may be links
    for folder in folders:
        if folder not in tables:
            tables[folder] = _recognize_table(folder)
        if (kind := tables[folder]) is not None:
            return f"{kind} at {folder}"
    return None


def _recognize_table(folder: Path) -> str | None:
    for name, kind in TABLE_FOLDERS.items():
        if (folder / name).is_dir():
            return kind
    try:
        is_iceberg = any(entry.name.endswith(ICEBERG_ENDINGS) for entry in (folder / ICEBERG_FOLDER).iterdir())
    except OSError:
        return None
    return ICEBERG_TABLE if is_iceberg else None


def _locate(path: Path, url: str) -> LocatedFile:
    label = strip_secrets(url)
    check_path(path, BadSource)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise BadSource(
                f"{label} is not a regular file, but {_describe_kind(status.st_mode)}",
                hint="write what it gives to a file first: a source is read more than once",
            )
        with path.open("rb"):
            pass
    except FileNotFoundError as error:
        where = f" ({path})" if label == url else ""
        raise SourceMissing(f"{label}: there is no such file{where}", hint="check source.url") from error
    except OSError as error:
        raise SourceUnreadable(f"{label} cannot be read: {error.strerror}") from error
    return LocatedFile(describe_local_file(url, status), path)


def _describe_kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a folder" if stat.S_ISDIR(mode) else "a device"


def add_checksums(files: list[LocatedFile]) -> list[LocatedFile]:
    """Return the files, the local ones with a checksum as ETag unless they are large together. Then a remounted
    ConfigMap, or a file that is rewritten unchanged, is no change. Raises BadSource."""
    if sum(file.description.bytes for file in files if _needs_checksum(file)) > MAX_CHECKSUM_BYTES:
        return files
    return [_add_checksum(file) if _needs_checksum(file) else file for file in files]


def _needs_checksum(file: LocatedFile) -> bool:
    """Return whether it is a local file without ETag. An example has its checksum from the start."""
    return isinstance(file.place, Path) and file.description.etag is None


def _add_checksum(file: LocatedFile) -> LocatedFile:
    assert isinstance(file.place, Path)
    try:
        with file.place.open("rb") as content:
            checksum = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise SourceUnreadable(f"{file.description.url} cannot be read: {error.strerror}") from error
    return replace(file, description=replace(file.description, etag=checksum))


def describe_local_file(url: str, status: os.stat_result) -> SourceFile:
    """Describe a local file as it is now. Its time is kept to the nanosecond, so that a quick second write shows."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return SourceFile(url, status.st_size, None, f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z")
