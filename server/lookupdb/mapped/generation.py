"""Opens a generation on the local disk: its manifest is read and held, its files are checked and mapped."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from lookupdb import keys, native, shard_name
from lookupdb.disk import opening_error
from lookupdb.errors import CorruptFile, GenerationMissing, LookupdbError, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.mapped.decoders import JSON, Decoders
from lookupdb.mapped.location import Identity, Location, unopened_error

log = logging.getLogger(__name__)

MAX_MANIFEST_BYTES: Final = 16 << 20
"""No manifest is larger; what is gets read no further."""
_CHUNK_BYTES: Final = 1 << 20
_AGAIN: Final = "fetch or build it again"


class MappedFiles(Protocol):
    """All shards of a generation, mapped: native, or in Python (``python_generation``)."""

    @property
    def facts(self) -> OpenGeneration:
        """What it was made with."""

    def describe(self, shard: int, name: bytes) -> bytes | None:
        """What the file of that shard says of itself under ``name``; None if it does not."""

    def count(self, shard: int) -> int:
        """How many records that shard has."""

    def is_sequence(self) -> bool:
        """Whether the keys are "0", "1" and so on, without a gap. Reads all keys. Raises CorruptFile."""


MakeFiles = Callable[[list[Path], tuple[str, ...], Callable[[str], bytes], Decoders | None, Any], MappedFiles]
"""Maps files. Raises OSError, ValueError, CorruptFile."""


class OpenGeneration:
    """What is known of an open generation. It holds a lock on its manifest, shared with other readers, as long as
    anything of the generation is in use: ``lookupdb sync`` removes no generation that somebody has mapped."""

    def __init__(self, folder: Path, manifest: Manifest, identity: tuple[int, int], descriptor: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self.identity = identity
        """Device and inode of the manifest."""
        self._descriptor = descriptor

    @property
    def dataset(self) -> tuple[str, str, str]:
        """Whose generation it is: namespace, name and uid."""
        return (self.manifest.namespace, self.manifest.name, self.manifest.uid)

    def describe_damage(self, shard: int, key: object, problem: str) -> CorruptFile:
        """The error for what is damaged of ``key``, or of what comes next in that shard if it is None."""
        path = self.folder / self.manifest.shards[shard].file
        what = "a record" if key is None else f"what is stored under {key!r:.100}"
        return CorruptFile(f"{path}: {what} is damaged: {problem}", hint=_AGAIN)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            status = os.fstat(self._descriptor)
            # A program that becomes a daemon closes all descriptors, and this number may be another file's by now.
            if (status.st_dev, status.st_ino) == self.identity:
                os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Opener:
    """How generations are opened."""

    make_files: MakeFiles
    verifies: bool
    """Whether every file's checksum is proven first, which reads all of it."""

    def open(self, folder: Path) -> MappedFiles:
        """Open the generation in ``folder``.

        Raises GenerationMissing if it is not there, or is being removed; CorruptFile if anything of it is not as the
        manifest says; NotEnoughRoom, StoreError.
        """
        facts = hold_manifest(folder)
        manifest = facts.manifest
        paths = [_check_file(folder, number, manifest) for number in range(len(manifest.shards))]
        if self.verifies:
            for path, shard in zip(paths, manifest.shards, strict=True):
                _check_sha256(path, shard)
        decoders = JSON if manifest.value_format == "json" else None
        encode = keys.make_key_encoder(manifest.normalize)
        try:
            files = self.make_files(paths, manifest.normalize, encode, decoders, facts)
            for number in range(len(paths)):
                _check_description(files, number, facts)
        except FileNotFoundError as error:
            raise CorruptFile(f"{folder} has lost a file while it was opened: {error}", hint=_AGAIN) from error
        except OSError as error:
            raise opening_error(Path(str(error.filename or folder)), error.errno or 0) from error
        except ValueError as error:
            raise CorruptFile(f"{folder} holds a file that is no shard of it: {error}", hint=_AGAIN) from error
        _check_in_place(facts)
        _warn_of_other_tables(facts)
        return files


def hold_manifest(folder: Path) -> OpenGeneration:
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
        text = _read(descriptor)
        if len(text) > MAX_MANIFEST_BYTES:
            raise CorruptFile(f"{path} has more than {MAX_MANIFEST_BYTES} bytes, no manifest has as many", hint=_AGAIN)
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
        # Some file systems have no locks. All that is lost: a removed generation keeps its place on the disk until
        # nobody maps it any more.
        log.debug("%s: no lock: %s", folder, error)


def _read(descriptor: int) -> bytes:
    pieces, size = [], 0
    while size <= MAX_MANIFEST_BYTES and (piece := os.read(descriptor, _CHUNK_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _check_file(folder: Path, number: int, manifest: Manifest) -> Path:
    """The path of a shard's file. Nobody maps a file of another length: a page behind its end ends the process."""
    shard = manifest.shards[number]
    if shard_name.parse_attempt(shard.file, number, len(manifest.shards)) is None:
        raise CorruptFile(f"{folder / FILE_NAME}: shard {number} is called {shard.file!r:.100}", hint=_AGAIN)
    path = folder / shard.file
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} is missing, the manifest beside it names it", hint=_AGAIN) from error
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    if size != shard.bytes:
        raise CorruptFile(f"{path} is {size} bytes long, the manifest beside it says {shard.bytes}", hint=_AGAIN)
    return path


def _check_sha256(path: Path, shard: ShardFile) -> None:
    import hashlib  # here: OpenSSL is for those who ask for it

    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if found != shard.sha256:
        raise CorruptFile(f"{path} has checksum {found}, the manifest beside it says {shard.sha256}", hint=_AGAIN)


def _check_in_place(facts: OpenGeneration) -> None:
    """Raises GenerationMissing if another generation has come to the folder's name since the manifest was opened: files
    are opened by their paths, and some of them may be of that one."""
    if identify_manifest(facts.folder) != facts.identity:
        raise GenerationMissing(f"{facts.folder} was replaced, or removed, while it was opened", hint="open it again")


def identify_manifest(folder: Path) -> tuple[int, int] | None:
    """Device and inode of the manifest in ``folder``, as ``OpenGeneration.identity``; None if there is none."""
    try:
        status = os.stat(folder / FILE_NAME)  # noqa: PTH116 - as cheap as it can be
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _check_description(files: MappedFiles, number: int, facts: OpenGeneration) -> None:
    """Raises ValueError if a file is another shard, or of another format, than the manifest says."""
    manifest = facts.manifest
    version = files.describe(number, b"format")
    if version != b"%d" % shard_name.FORMAT_VERSION:
        raise ValueError(f"shard {number} has format {version!r}, this lookupdb reads {shard_name.FORMAT_VERSION}")
    try:
        said = orjson.loads(files.describe(number, b"manifest") or b"")
        found = (said["shard"], said["shards"], files.count(number), tuple(said["normalize"]), said["value_format"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"shard {number} does not say what it is: {error}") from error
    shards, records = len(manifest.shards), manifest.shards[number].records
    expected = (number, shards, records, manifest.normalize, manifest.value_format)
    if found != expected:
        raise ValueError(f"shard, shards, records, normalisation and format are {found}, expected {expected}")


def _warn_of_other_tables(facts: OpenGeneration) -> None:
    manifest = facts.manifest
    if not keys.has_same_normalization(manifest.normalize, manifest.unicode):
        log.warning(
            "%s was normalised by Unicode %s, this Python has %s: keys with characters that are new in between may be"
            " missed, until it is built again",
            facts.folder,
            manifest.unicode,
            keys.UNICODE_VERSION,
        )


def choose_make_files() -> MakeFiles:
    """What maps files: the native kernel, where it is installed."""
    module = native.kernels()
    if module is not None:
        make_files: MakeFiles = module.MappedGeneration
        return make_files
    from lookupdb.mapped.python_generation import PythonGeneration

    return PythonGeneration


# Keeps a mapping at the generation that is to answer. No thread: some lookup, now and then, looks first.


RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""After so long what could not be opened is tried again; the last of them from then on. Anything new is tried at
once."""
_ATTEMPTS: Final = 3
"""A generation may be removed between a look at which one it is and its opening."""
_TICK_NANOSECONDS: Final = 1_000_000_000
"""File systems give what changes within a tick of their clock one time; the coarsest ones tick once a second. What has
changed since so short a time may have changed again, unseen."""


class View(Protocol):
    """What a follower changes over."""

    def newest(self) -> Any:
        """The generation that answered last; None if it is closed."""

    def put(self, generation: Any) -> None:
        """Answer from ``generation`` from now on."""


class Follower:
    """Looks whether another generation is to answer, opens it and puts it in the place of the one that does."""

    def __init__(
        self, location: Location, opener: Opener, dataset: tuple[str, str, str], refresh_seconds: float | None
    ) -> None:
        self.location = location
        self.opener = opener
        self.refresh_seconds = refresh_seconds
        """How often it is asked to look, for whoever opens the same again."""
        self._dataset = dataset
        self._seen: Identity | None = None
        self._retries = 0
        self._retry_at = 0.0
        self._told = ""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def look(self, view: View) -> None:
        """Switch ``view`` to the generation that should answer, if it can be opened. A failure is logged once and
        retried later; the current one keeps answering. Does nothing while another thread looks."""
        lock = self._own_lock()
        if lock.acquire(blocking=False):
            try:
                self._look(view)
            finally:
                lock.release()

    def reload(self, view: View) -> bool:
        """Look now. Returns whether another generation answers from now on. Raises StoreError, NotEnoughRoom: then the
        one that answers goes on."""
        with self._own_lock():
            self._seen = None
            identity = self._identify()
            changed = self._change_over(view)
            self._note_success(identity)
            return changed

    def _own_lock(self) -> threading.Lock:
        """This process' lock: in a child, the one of its parent may be held by a thread that is not there."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _look(self, view: View) -> None:
        identity = self._identify()
        is_new = identity != self._seen
        if not is_new and (not self._retries or time.monotonic() < self._retry_at):
            return
        if is_new:
            self._retries = 0
        try:
            self._change_over(view)
        except LookupdbError as problem:
            self._note_failure(identity, problem)
        else:
            self._note_success(identity)

    def _identify(self) -> Identity:
        try:
            return self.location.identity()
        except OSError as error:
            return (-(error.errno or 1), 0, 0, 0)

    def _change_over(self, view: View) -> bool:
        present = view.newest()
        if present is None:
            return False  # closed by another thread
        files = self._open_target(present.facts)
        if files is None:
            return False
        if files.facts.dataset != self._dataset:
            raise _other_dataset_error(files.facts, self._dataset)
        if view.newest() is None:
            return False
        view.put(files)
        log.info("%s: %s answers, in the place of %s", *_describe(files.facts), present.facts.manifest.generation)
        return True

    def _open_target(self, present: OpenGeneration) -> MappedFiles | None:
        """``open_target``, and no OSError: GenerationMissing if the folder is gone, else StoreError, NotEnoughRoom."""
        path = self.location.path
        try:
            return open_target(self.location, self.opener, present)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise GenerationMissing(
                f"the folder {path} is not there any more",
                hint="what is open goes on answering; open what is there now",
            ) from error
        except OSError as error:
            raise unopened_error(path, error) from error

    def _note_success(self, identity: Identity) -> None:
        self._seen = identity if _is_settled(identity) else None
        self._retries, self._told = 0, ""

    def _note_failure(self, identity: Identity, problem: Exception) -> None:
        self._seen = identity
        self._retry_at = time.monotonic() + RETRY_SECONDS[min(self._retries, len(RETRY_SECONDS) - 1)]
        self._retries += 1
        if str(problem) != self._told:
            self._told = str(problem)
            log.warning(
                "%s: another generation cannot be opened, what answers goes on: %s", self.location.path, problem
            )


def open_target(location: Location, opener: Opener, present: OpenGeneration | None) -> MappedFiles | None:
    """Open the generation at ``location`` that is to answer; None if it is the one that ``present`` is of. Raises
    StoreError, NotEnoughRoom, OSError."""
    for attempt in range(1, _ATTEMPTS + 1):
        target = location.target()
        found = identify_manifest(target)
        if present is not None and found == present.identity:
            return None
        try:
            return opener.open(target)
        except (GenerationMissing, CorruptFile):
            # Removed, half of it, or replaced, since it was found: then another one is there.
            if attempt == _ATTEMPTS or (location.target() == target and identify_manifest(target) == found):
                raise
    return None


def _is_settled(identity: Identity) -> bool:
    """Whether what has this identity gets another one when it changes again."""
    return time.time_ns() - max(identity[2:]) > _TICK_NANOSECONDS


def _describe(facts: OpenGeneration) -> tuple[str, str]:
    manifest = facts.manifest
    return f"{manifest.namespace}/{manifest.name}", manifest.generation


def _other_dataset_error(found: OpenGeneration, expected: tuple[str, str, str]) -> CorruptFile:
    return CorruptFile(
        "{} is a generation of {}/{} ({}), expected one of {}/{} ({})".format(found.folder, *found.dataset, *expected),
        hint="a dataset that was deleted and made again is another one: close the mapping and open it anew",
    )
