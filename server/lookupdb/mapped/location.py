"""Locations: the folders of this machine that ``lookupdb.open`` accepts, and the active generation of each.

There are three kinds: a generation's own folder, which never changes; a folder that ``lookupdb sync`` keeps, whose link
``current`` names the active generation; and a dataset's folder in a directory store, whose announcement (active.json)
names it. Without an announcement, or if it is stale, the newest whole generation that passed its gates is active.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from lookupdb.disk import opening_error
from lookupdb.errors import CorruptFile, GenerationMissing, NotEnoughRoom, StoreError, UsageError
from lookupdb.manifest import FILE_NAME, GENERATION, Manifest, generation_number
from lookupdb.wording import format_some

log = logging.getLogger(__name__)

SYNC_DIR_VARIABLE: Final = "LOOKUPDB_SYNC_DIR"
"""The variable with the folder of ``lookupdb sync``, in which datasets are found by name."""
CURRENT: Final = "current"
ANNOUNCEMENT: Final = "active.json"
DEFAULT_NAMESPACE: Final = "default"
_LOCAL_STORE: Final = Path(".lookupdb/store/local")
"""The store of ``lookupdb up`` without --data-dir."""

_MAX_NAMED: Final = 4
"""The most datasets that an error names."""
_LEVELS: Final = 4
"""Depth of the search for them: ``lookupdb up`` keeps them in .lookupdb/store/<cluster>/<namespace>/<name>-<uid>."""
_MAX_FOLDERS: Final = 200
"""The most folders to search, and the most entries of each: it may be any folder of this machine."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NAME: Final = re.compile(r"(?:([a-z0-9][-a-z0-9]{0,62})/)?([a-z0-9][-a-z0-9]{0,62})")

Identity = tuple[int, int, int, int]
"""Device, inode, and the two times of the last change: a file that was replaced or changed gets another identity."""


class Location(Protocol):
    """A dataset's place on this machine."""

    @property
    def path(self) -> Path:
        """The path by which another process opens it."""

    def identity(self) -> Identity:
        """Return an identity that changes whenever another generation may be active, by one system call. Raises
        OSError."""

    def target(self) -> Path:
        """Return the folder of the active generation. Raises StoreError, OSError."""


@dataclass(frozen=True, slots=True)
class GenerationFolder:
    """One generation's folder."""

    path: Path

    def identity(self) -> Identity:
        """See ``Location``."""
        return (0, 0, 0, 0)

    def target(self) -> Path:
        """See ``Location``."""
        return self.path


@dataclass(frozen=True, slots=True)
class SyncedFolder:
    """A dataset's folder that ``lookupdb sync`` keeps."""

    path: Path

    def identity(self) -> Identity:
        """Return the identity of the manifest behind the link. It changes even if a damaged generation was replaced by
        a sound one of the same name: the inode of an open file is not reused."""
        return identify(os.stat(f"{self.path}/{CURRENT}/{FILE_NAME}"))  # noqa: PTH116 - as cheap as it can be

    def target(self) -> Path:
        """See ``Location``."""
        try:
            return self.path / (self.path / CURRENT).readlink()
        except FileNotFoundError as error:
            raise GenerationMissing(
                f"{self.path} has lost its link {CURRENT}", hint="check that lookupdb sync runs"
            ) from error


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """A dataset's folder of a directory store."""

    path: Path

    def identity(self) -> Identity:
        """Return the folder's identity: generations and announcements are renamed into it."""
        return identify(self.path.stat())

    def target(self) -> Path:
        """See ``Location``."""
        announced = self._read_announced()
        if announced is None:
            return self._find_newest()
        folder = self.path / announced
        return folder if _is_there(folder / FILE_NAME) else self._replace_lost(announced)

    def _read_announced(self) -> str | None:
        try:
            file = (self.path / ANNOUNCEMENT).open("rb")
        except FileNotFoundError:
            return None
        # Imported here, because it loads other modules of the store.
        from lookupdb.store.dataset import MAX_ANNOUNCEMENT_BYTES, parse_announcement

        with file:
            content = file.read(MAX_ANNOUNCEMENT_BYTES + 1)
        return parse_announcement(content, str(self.path / ANNOUNCEMENT)).generation

    def _replace_lost(self, announced: str) -> Path:
        """Return the newest generation if it is newer than the ``announced`` one, which is gone. Raises
        GenerationMissing."""
        from lookupdb.store.dataset import LOST_HINT, is_stale

        newest = self._find_usable()
        note = self.path / ANNOUNCEMENT
        if newest is None or not is_stale(announced, newest):
            raise GenerationMissing(
                f"{note} announces {announced}, and there is no {announced} beside it", hint=LOST_HINT
            )
        _warn_of_stale(note, announced, newest)
        return self.path / newest

    def _find_newest(self) -> Path:
        newest = self._find_usable()
        if newest is not None:
            return self.path / newest
        names = list_generations(self.path)
        raise GenerationMissing(
            f"{self.path} has no whole generation that passed its gates",
            hint=f"it has: {', '.join(names)}" if names else "build one: lookupdb build --help",
        )

    def _find_usable(self) -> str | None:
        names = sorted(list_generations(self.path), key=generation_number, reverse=True)
        return next((name for name in names if _may_answer(self.path / name)), None)


@lru_cache(maxsize=64)  # to log it once: a mapping looks again and again
def _warn_of_stale(note: Path, announced: str, newest: str) -> None:
    log.warning("%s announces %s, which is gone: the newest one, %s, answers", note, announced, newest)


def _may_answer(folder: Path) -> bool:
    path = folder / FILE_NAME
    try:
        manifest = Manifest.from_json(path.read_bytes(), str(path))
        sizes = [(folder / shard.file).stat().st_size for shard in manifest.shards]
    except (FileNotFoundError, NotADirectoryError, CorruptFile):
        return False
    return manifest.refused is None and sizes == [shard.bytes for shard in manifest.shards]


def _is_there(path: Path) -> bool:
    """Return whether ``path`` exists. Raises OSError if that is unknown: some versions of Python report an inaccessible
    path as missing."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name that no file can have
        return False
    return True


def unopened_error(path: Path, error: OSError) -> StoreError | NotEnoughRoom:
    """Return the error for a dataset at ``path`` that cannot be opened, naming the file that the system named."""
    return opening_error(Path(os.fsdecode(error.filename or path)), error.errno or 0)


def identify(status: os.stat_result) -> Identity:
    """Return the identity in ``status``."""
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def list_generations(folder: Path) -> list[str]:
    """Return the generations in ``folder``, oldest first. Raises OSError."""
    return sorted(filter(GENERATION.fullmatch, os.listdir(folder)), key=generation_number)  # noqa: PTH208 - names


def locate(place: str | os.PathLike[str]) -> Location:
    """Return the location that ``place`` names: the path of one of the three kinds of folders, or a dataset's name,
    ``people`` or ``team/people``, in the folder that LOOKUPDB_SYNC_DIR names.

    Raises UsageError, GenerationMissing, StoreError, NotEnoughRoom.
    """
    if isinstance(place, str) and (scheme := _URL.match(place)):
        raise _url_error(scheme[1])
    path = _find_named(place) if isinstance(place, str) else None
    if not os.fspath(place):
        raise UsageError(
            "a dataset's path or name is empty", hint="check that its variable is set; the current folder is '.'"
        )
    path = path or Path(os.path.abspath(place))  # noqa: PTH100 - resolve() would follow links
    try:
        return _locate_at(path, place)
    except OSError as error:
        raise unopened_error(path, error) from error


def _find_named(name: str) -> Path | None:
    """Return the folder of the dataset ``name``; None if it is not a name, or LOOKUPDB_SYNC_DIR is not set."""
    root, match = os.environ.get(SYNC_DIR_VARIABLE), _NAME.fullmatch(name)
    if not root or not match:
        return None
    return Path(os.path.abspath(root)) / (match[1] or DEFAULT_NAMESPACE) / match[2]  # noqa: PTH100


def _locate_at(path: Path, place: str | os.PathLike[str]) -> Location:
    if path.name == CURRENT and path.is_symlink():
        return SyncedFolder(path.parent)
    if _is_there(path / FILE_NAME):
        return GenerationFolder(path)
    if (path / CURRENT).is_symlink():
        return SyncedFolder(path)
    if not path.is_dir():
        raise _missing_folder_error(path, place)
    if _is_there(path / ANNOUNCEMENT) or list_generations(path):
        return StoreFolder(path)
    raise _no_generation_error(path)


def _no_generation_error(path: Path) -> GenerationMissing:
    datasets = list(islice(_find_datasets(path), _MAX_NAMED + 1))
    if datasets:
        hint = f"open one of the datasets below it: {format_some([str(dataset) for dataset in datasets], _MAX_NAMED)}"
    else:
        hint = (
            "give a generation's folder, or a dataset's: <folder of lookupdb sync>/<namespace>/<name>,"
            " or <store>/<cluster>/<namespace>/<name>-<uid>"
        )
    return GenerationMissing(
        f"{path} holds no generation: expected {FILE_NAME}, {CURRENT}, {ANNOUNCEMENT} or g1, g2, … in it", hint=hint
    )


def _find_datasets(path: Path) -> Iterator[Path]:
    """Yield the readable dataset folders below ``path``, of ``lookupdb sync`` or of stores."""
    waiting = deque([(path, 0)])
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.popleft()
        if depth and _is_dataset(folder):
            yield folder
        elif depth < _LEVELS:
            with suppress(OSError), os.scandir(folder) as entries:
                found = [entry.name for entry in islice(entries, _MAX_FOLDERS) if entry.is_dir(follow_symlinks=False)]
                waiting.extend((folder / name, depth + 1) for name in sorted(found))


def _is_dataset(folder: Path) -> bool:
    try:
        return (folder / CURRENT).is_symlink() or _is_there(folder / ANNOUNCEMENT) or bool(list_generations(folder))
    except OSError:
        return False


def _url_error(scheme: str) -> UsageError:
    """Return the error for a URL, without the URL itself: it may hold a password."""
    hint = "give the folder's path"
    if scheme.lower() in ("http", "https"):
        hint = (
            "use lookupdb.client with a router; `lookupdb sync` keeps a generation of a bucket or a gateway in a folder"
        )
    elif scheme.lower() in ("s3", "gs", "az", "azure"):
        hint = "`lookupdb sync` keeps a generation of a bucket in a folder: open that"
    return UsageError(f"lookupdb.open maps folders of this machine, found a URL of {scheme}://", hint=hint)


def _missing_folder_error(path: Path, place: str | os.PathLike[str]) -> UsageError | GenerationMissing:
    if path.exists():
        return UsageError(f"{path} is not a folder", hint="give the folder that holds manifest.json, not a file in it")
    root = os.environ.get(SYNC_DIR_VARIABLE)
    found = f"datasets are looked up by their names in {root}" if root else f"{SYNC_DIR_VARIABLE} is not set"
    hint = "check that lookupdb sync has fetched it"
    if local := _find_built_by_up(path, place):
        hint += f"; lookupdb up has built one in {local}"
    return GenerationMissing(f"there is no folder {path} ({found})", hint=hint)


def _find_built_by_up(path: Path, place: str | os.PathLike[str]) -> Path | None:
    """Return the folder in which ``lookupdb up`` keeps the dataset that ``place`` may name: ``path`` with -local, or in
    the store of the working directory; None if there is none."""
    beside = Path(f"{path}-local")
    if os.path.isdir(beside):  # noqa: PTH112 - False also if that is unknown, for example for a name that is too long
        return beside
    match = _NAME.fullmatch(place) if isinstance(place, str) else None
    if not match:
        return None
    folder = _LOCAL_STORE / (match[1] or DEFAULT_NAMESPACE) / f"{match[2]}-local"
    return folder if folder.is_dir() else None
