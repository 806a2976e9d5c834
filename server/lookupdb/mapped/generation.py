"""Open a generation on the local disk, and follow its dataset to the next one.

``Opener`` reads the manifest, locks it, checks the files and maps them. Now and then, on a lookup, ``Follower`` looks
for another generation and switches the mapping to it, without a thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from lookupdb import keys, native, records
from lookupdb.errors import (
    CorruptFile,
    GenerationMissing,
    LookupdbError,
    NotEnoughRoom,
    StoreError,
    UsageError,
    opening_error,
)
from lookupdb.manifest import (
    ANNOUNCEMENT_NOTE,
    FILE_NAME,
    GENERATION,
    LOST_HINT,
    MAX_ANNOUNCEMENT_BYTES,
    Manifest,
    check_shard_size,
    generation_number,
    is_stale,
    parse_announcement,
    verify_shard_file,
)
from lookupdb.records import Key

if TYPE_CHECKING:
    from lookupdb.mapped.python_generation import PythonGeneration as MappedFiles


# Locations: the folders of this machine that ``lookupdb.open`` accepts, and the active generation of each.
#
# There are three kinds: a generation's own folder, which never changes; a folder that ``lookupdb sync`` keeps, whose
# link ``current`` names the active generation; and a dataset's folder in a directory store, whose announcement
# (active.json) names it. Without an announcement, or if it is stale, the newest whole generation that passed its gates
# is active.


log = logging.getLogger(__name__)

SYNC_DIR_VARIABLE: Final = "LOOKUPDB_SYNC_DIR"
"""The variable with the folder of ``lookupdb sync``, in which datasets are found by name."""
CURRENT: Final = "current"
DEFAULT_NAMESPACE: Final = "default"
_LOCAL_STORE: Final = Path(".lookupdb/store/local")
"""The store of ``lookupdb up`` without --data-dir."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NAME: Final = re.compile(r"(?:([a-z0-9][-a-z0-9]{0,62})/)?([a-z0-9][-a-z0-9]{0,62})")

Identity = tuple[int, int, int, int]
"""Device, inode, and the two times of the last change: a file that was replaced or changed gets another identity."""


# The kinds of locations. An unpickled mapping opens its location by ``path``. ``identity`` takes one system call, and
# changes whenever another generation may be active. ``target`` finds the active one. Both raise OSError, ``target``
# also StoreError.


@dataclass(frozen=True, slots=True)
class GenerationFolder:
    """One generation's folder."""

    path: Path

    def identity(self) -> Identity:
        """Return a constant: the folder never changes."""
        return (0, 0, 0, 0)

    def target(self) -> Path:
        """Return the folder."""
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
        """Return the folder of the active generation."""
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
        """Return the folder's identity: renaming anything into the folder changes it."""
        return identify(self.path.stat())

    def target(self) -> Path:
        """Return the folder of the announced generation. Without an announcement, or if it is stale, the newest usable
        one is active."""
        note = self.path / ANNOUNCEMENT_NOTE
        announced = None
        with suppress(FileNotFoundError), note.open("rb") as file:
            content = file.read(MAX_ANNOUNCEMENT_BYTES + 1)
            announced = parse_announcement(content, str(note)).generation
        if announced is not None and _is_there(self.path / announced / FILE_NAME):
            return self.path / announced
        names = list_generations(self.path)
        newest = next((name for name in reversed(names) if _may_answer(self.path / name)), None)
        if announced is None:
            if newest is None:
                raise GenerationMissing(
                    f"{self.path} has no whole generation that passed its gates",
                    hint=f"it has: {', '.join(names)}" if names else "build one: lookupdb build --help",
                )
            return self.path / newest
        if newest is None or not is_stale(announced, newest):
            raise GenerationMissing(
                f"{note} announces {announced}, but there is no {announced} beside it", hint=LOST_HINT
            )
        _warn_of_stale(note, announced, newest)
        return self.path / newest


Location = GenerationFolder | SyncedFolder | StoreFolder
"""A dataset's place on this machine."""


@lru_cache(maxsize=64)  # to log it once, although a mapping looks often
def _warn_of_stale(note: Path, announced: str, newest: str) -> None:
    log.warning("%s announces %s, which is gone: using the newest one, %s", note, announced, newest)


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
    """Return the error for a dataset at ``path`` that cannot be opened; it names ``error.filename``, else ``path``."""
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
    if not os.fspath(place):
        raise UsageError(
            "a dataset's path or name is empty", hint="if it comes from a variable, set that; the current folder is '.'"
        )
    root, name = os.environ.get(SYNC_DIR_VARIABLE), _NAME.fullmatch(place) if isinstance(place, str) else None
    if root and name:
        path = Path(os.path.abspath(root)) / (name[1] or DEFAULT_NAMESPACE) / name[2]  # noqa: PTH100
    else:
        path = Path(os.path.abspath(place))  # noqa: PTH100 - resolve() would follow links
    try:
        if path.name == CURRENT and path.is_symlink():
            return SyncedFolder(path.parent)
        if _is_there(path / FILE_NAME):
            return GenerationFolder(path)
        if (path / CURRENT).is_symlink():
            return SyncedFolder(path)
        if not path.is_dir():
            raise _missing_folder_error(path, place)
        if _is_there(path / ANNOUNCEMENT_NOTE) or list_generations(path):
            return StoreFolder(path)
        raise GenerationMissing(
            f"{path} holds no generation: expected {FILE_NAME}, {CURRENT}, {ANNOUNCEMENT_NOTE} or g1, g2, … in it",
            hint="give a generation's folder, or a dataset's: <folder of lookupdb sync>/<namespace>/<name>,"
            " or <store>/<cluster>/<namespace>/<name>-<uid>",
        )
    except OSError as error:
        raise unopened_error(path, error) from error


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


MAX_MANIFEST_BYTES: Final = 16 << 20
"""The largest manifest that is read."""
_AGAIN: Final = "fetch or build it again"


class Decoders(NamedTuple):
    """Functions from stored JSON to values. Both raise ValueError for invalid JSON."""

    quickly: Callable[[bytes], Any]
    """For values without long numbers: it rounds integers beyond 64 bits, and rejects exponents beyond a float's."""
    exactly: Callable[[bytes], Any]
    """For all values."""


MakeFiles = Callable[[list[Path], tuple[str, ...], Callable[[Key], bytes], Decoders | None, Any], "MappedFiles"]
"""Maps files. Raises OSError, ValueError, CorruptFile."""


class OpenGeneration:
    """The manifest of an open generation, and the shared lock on it. The lock lasts as long as anything of the
    generation is in use: ``lookupdb sync`` removes no generation that a program has mapped."""

    def __init__(self, folder: Path, manifest: Manifest, identity: tuple[int, int], descriptor: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self.identity = identity
        """Device and inode of the manifest."""
        self._descriptor = descriptor

    @property
    def dataset(self) -> tuple[str, str, str]:
        """Namespace, name and uid of the dataset."""
        return (self.manifest.namespace, self.manifest.name, self.manifest.uid)

    def describe_damage(self, shard: int, key: object, problem: str) -> CorruptFile:
        """Return the error for a damaged record: that of ``key``, or if that is None, the next one of an iteration."""
        path = self.folder / self.manifest.shards[shard].file
        what = "a record" if key is None else f"what is stored under {key!r:.100}"
        return CorruptFile(f"{path}: {what} is damaged: {problem}", hint=_AGAIN)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            status = os.fstat(self._descriptor)
            # A program that becomes a daemon closes all descriptors: this number may belong to another file by now.
            if (status.st_dev, status.st_ino) == self.identity:
                os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Opener:
    """The way to open generations."""

    make_files: MakeFiles
    verifies: bool
    """True to check every file's checksum first, which reads all of it."""

    def open(self, folder: Path) -> MappedFiles:
        """Open the generation in ``folder``.

        Raises GenerationMissing if it is missing or being removed; CorruptFile if a file differs from the manifest;
        NotEnoughRoom, StoreError.
        """
        facts = _hold_manifest(folder)
        manifest = facts.manifest
        paths = [folder / shard.file for shard in manifest.shards]
        for number, (path, shard) in enumerate(zip(paths, manifest.shards, strict=True)):
            if keys.parse_attempt(shard.file, number, len(paths)) is None:
                raise CorruptFile(f"{folder / FILE_NAME}: shard {number} is misnamed: {shard.file!r:.100}", hint=_AGAIN)
            (verify_shard_file if self.verifies else check_shard_size)(path, shard)
        decoders = Decoders(orjson.loads, records.decode_json) if manifest.value_format == "json" else None
        encode = keys.make_columns_encoder(manifest.normalize, manifest.key_columns, manifest.separator)
        try:
            files = self.make_files(paths, manifest.normalize, encode, decoders, facts)
            for number in range(len(paths)):
                _check_description(files, number, facts)
        except FileNotFoundError as error:
            raise CorruptFile(f"{folder} has lost a file while it was opened: {error}", hint=_AGAIN) from error
        except OSError as error:
            raise opening_error(Path(str(error.filename or folder)), error.errno or 0) from error
        except ValueError as error:
            raise CorruptFile(f"{folder} holds a file that is not one of its shards: {error}", hint=_AGAIN) from error
        # Files are opened by their paths: if the folder was replaced, some may belong to the new generation.
        if _identify_manifest(facts.folder) != facts.identity:
            raise GenerationMissing(
                f"{facts.folder} was replaced, or removed, while it was opened", hint="open it again"
            )
        if not keys.has_same_normalization(manifest.normalize, manifest.unicode):
            log.warning(
                "%s was normalised with Unicode %s, this Python has %s: keys with characters that differ between them"
                " may be missed until the dataset is built again",
                folder,
                manifest.unicode,
                keys.UNICODE_VERSION,
            )
        return files


def _hold_manifest(folder: Path) -> OpenGeneration:
    """Read the manifest in ``folder``, and hold a shared lock on it. Raises GenerationMissing, CorruptFile,
    StoreError, NotEnoughRoom."""
    path = folder / FILE_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GenerationMissing(f"there is no generation in {folder}: it has no {FILE_NAME}", hint=_AGAIN) from error
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    try:
        _lock(descriptor, folder)
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise CorruptFile(f"{path} has more than {MAX_MANIFEST_BYTES} bytes, the limit for a manifest", hint=_AGAIN)
        status = os.fstat(descriptor)
        manifest = Manifest.from_json(text, str(path))
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except BaseException:
        os.close(descriptor)
        raise
    return OpenGeneration(folder, manifest, (status.st_dev, status.st_ino), descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise GenerationMissing(f"the generation in {folder} is being removed", hint="open the newest one") from error
    except OSError as error:
        # Some file systems have no locks. Then a generation may be removed while it is mapped, and takes disk space
        # until it is closed.
        log.debug("%s: no lock: %s", folder, error)


def _identify_manifest(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of the manifest in ``folder``, as ``OpenGeneration.identity``; None if there is none."""
    try:
        status = os.stat(folder / FILE_NAME)  # noqa: PTH116 - as cheap as it can be
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _check_description(files: MappedFiles, number: int, facts: OpenGeneration) -> None:
    """Raise ValueError if a file is not the shard that the manifest names, or has another format."""
    manifest = facts.manifest
    version = files.describe(number, b"format")
    if version != b"%d" % keys.FORMAT_VERSION:
        raise ValueError(f"shard {number} has format {version!r}, this lookupdb reads {keys.FORMAT_VERSION}")
    try:
        said = orjson.loads(files.describe(number, b"manifest") or b"")
        found = (said["shard"], said["shards"], files.count(number), tuple(said["normalize"]), said["value_format"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"shard {number} lacks metadata: {error}") from error
    shards, records = len(manifest.shards), manifest.shards[number].records
    expected = (number, shards, records, manifest.normalize, manifest.value_format)
    if found != expected:
        raise ValueError(f"shard, shards, records, normalisation and format are {found}, expected {expected}")


def choose_make_files() -> MakeFiles:
    """Return the function that maps files: the native one if kernels are installed."""
    module = native.kernels()
    if module is not None:
        make_files: MakeFiles = module.MappedGeneration
        return make_files
    try:
        from lookupdb.mapped.python_generation import PythonGeneration
    except ModuleNotFoundError as error:
        raise UsageError(
            f"without native kernels, lookupdb.open needs {error.name}, which is not installed",
            hint="pip install 'lookupdb[serve]'",
        ) from error
    return PythonGeneration


# Switch a mapping to its dataset's active generation. There is no thread: now and then a lookup checks first.


RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each retry of a generation that could not be opened; the last number repeats. A new generation is
tried at once."""
_ATTEMPTS: Final = 3
"""Attempts to open: a generation may be removed after it was found."""
_TICK_NANOSECONDS: Final = 1_000_000_000
"""The coarsest resolution of file systems' timestamps."""


class Follower:
    """Find a dataset's active generation, open it, and switch the mapping, ``view``, to it."""

    def __init__(
        self, location: Location, opener: Opener, dataset: tuple[str, str, str], refresh_seconds: float | None
    ) -> None:
        self.location = location
        self.opener = opener
        self.refresh_seconds = refresh_seconds
        """Seconds between two checks, for pickling."""
        self._dataset = dataset
        self._seen: Identity | None = None
        self._retries = 0
        self._retry_at = 0.0
        self._told = ""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def look(self, view: Any) -> None:
        """Switch ``view`` to the active generation, if it can be opened. A failure is logged once and retried later;
        the current generation keeps answering. Does nothing while another thread does so."""
        lock = self._own_lock()
        if lock.acquire(blocking=False):
            try:
                self._look(view)
            finally:
                lock.release()

    def reload(self, view: Any) -> bool:
        """Look now. Return whether the mapping was switched. Raises StoreError, NotEnoughRoom: then the current
        generation keeps answering."""
        with self._own_lock():
            self._seen = None
            identity = self._identify()
            changed = self._change_over(view)
            self._note_success(identity)
            return changed

    def _own_lock(self) -> threading.Lock:
        """Return this process's lock: after a fork, a thread of the parent may have held the parent's."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _look(self, view: Any) -> None:
        identity = self._identify()
        is_new = identity != self._seen
        if not is_new and (not self._retries or time.monotonic() < self._retry_at):
            return
        if is_new:
            self._retries = 0
        try:
            self._change_over(view)
        except LookupdbError as problem:
            self._seen = identity
            self._retry_at = time.monotonic() + RETRY_SECONDS[min(self._retries, len(RETRY_SECONDS) - 1)]
            self._retries += 1
            if str(problem) != self._told:
                self._told = str(problem)
                log.warning(
                    "%s: another generation cannot be opened, the current one keeps answering: %s",
                    self.location.path,
                    problem,
                )
        else:
            self._note_success(identity)

    def _identify(self) -> Identity:
        try:
            return self.location.identity()
        except OSError as error:
            return (-(error.errno or 1), 0, 0, 0)

    def _change_over(self, view: Any) -> bool:
        present = view.newest()
        if present is None:
            return False  # closed by another thread
        path = self.location.path
        try:
            files = open_target(self.location, self.opener, present.facts)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise GenerationMissing(
                f"the folder {path} is gone", hint="the open generation keeps answering; open another folder"
            ) from error
        except OSError as error:
            raise unopened_error(path, error) from error
        if files is None:
            return False
        if files.facts.dataset != self._dataset:
            found = "{} is a generation of {}/{} ({})".format(files.facts.folder, *files.facts.dataset)
            raise CorruptFile(
                "{}, expected one of {}/{} ({})".format(found, *self._dataset),
                hint="the dataset was deleted and created again: close the mapping, and open it again",
            )
        if view.newest() is None:
            return False
        view.put(files)
        manifest, previous = files.facts.manifest, present.facts.manifest.generation
        name = f"{manifest.namespace}/{manifest.name}"
        log.info("%s: switched to %s from %s", name, manifest.generation, previous)
        return True

    def _note_success(self, identity: Identity) -> None:
        # A file that changed less than a tick ago may change again with the same timestamp.
        is_settled = time.time_ns() - max(identity[2:]) > _TICK_NANOSECONDS
        self._seen = identity if is_settled else None
        self._retries, self._told = 0, ""


def open_target(location: Location, opener: Opener, present: OpenGeneration | None) -> MappedFiles | None:
    """Open the active generation at ``location``; return None if it is ``present``. Raises StoreError, NotEnoughRoom,
    OSError."""
    for attempt in range(1, _ATTEMPTS + 1):
        target = location.target()
        found = _identify_manifest(target)
        if present is not None and found == present.identity:
            return None
        try:
            return opener.open(target)
        except (GenerationMissing, CorruptFile):
            # It may have been removed or replaced since it was found: then another one is active.
            if attempt == _ATTEMPTS or (location.target() == target and _identify_manifest(target) == found):
                raise
    return None
