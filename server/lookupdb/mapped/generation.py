"""Opens a generation on the local disk: its manifest is read and held, its files are checked and mapped."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from lookupdb import keys, native, shard_name
from lookupdb.disk import opening_error
from lookupdb.errors import CorruptFile, GenerationMissing, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.mapped.decoders import JSON, Decoders

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
