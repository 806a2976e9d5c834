"""Verifies a shard file before anyone maps it: size and checksum are what the manifest says.

Reading the file warms it up: where it fits into memory its pages stay in the page cache, and where it does not they
are dropped, so that nothing hot has to make room.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lookupdb import shard_name
from lookupdb.disk import opening_error, reading_error
from lookupdb.errors import CorruptFile, UsageError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.process import memory
from lookupdb.shard.limits import WarmPolicy

CHUNK_BYTES: Final = 4 << 20
_SHOWN_SHARDS: Final = 20


@dataclass(frozen=True, slots=True)
class ServedShard:
    """The file that a shard server serves."""

    path: Path
    manifest: Manifest
    shard: int

    @property
    def entry(self) -> ShardFile:
        """The manifest's entry of the file."""
        return self.manifest.shards[self.shard]


def locate_shard(path: Path, shard: int | None) -> ServedShard:
    """Return the shard file that a generation's directory and a shard's number name, or the file itself.

    Raises UsageError when that is ambiguous, CorruptFile when file or manifest is not there or not whole.
    """
    directory = path if path.is_dir() else path.parent
    try:
        text = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory") from None
        raise CorruptFile(
            f"{directory}: expected {FILE_NAME} in it, found none, so this is no whole generation",
            hint="build it again, or fetch manifest.json together with the shard file",
        ) from None
    except OSError as error:
        raise opening_error(directory / FILE_NAME, error.errno or 0) from error
    manifest = Manifest.from_json(text, str(directory / FILE_NAME))
    shards = len(manifest.shards)
    if path.is_dir():
        return _locate_in_directory(directory, manifest, shards, shard)
    for number, entry in enumerate(manifest.shards):
        if entry.file == path.name and shard in (None, number):
            return ServedShard(path, manifest, number)
    raise UsageError(
        f"{path.name} is not {'a shard' if shard is None else f'shard {shard}'} of the generation beside it",
        hint=f"{directory / FILE_NAME} names {manifest.shards[0].file} and {shards - 1} more",
    )


def _locate_in_directory(directory: Path, manifest: Manifest, shards: int, shard: int | None) -> ServedShard:
    number = _choose_shard(directory, manifest) if shard is None else shard
    if number >= shards:
        raise UsageError(f"there is no shard {number} in {directory}: it holds 0 to {shards - 1}")
    entry = manifest.shards[number]
    if shard_name.parse_attempt(entry.file, number, shards) is None:
        raise CorruptFile(f"{directory / FILE_NAME}: shard {number} is called {entry.file!r}")
    path = directory / entry.file
    if not path.exists() and (present := _list_present(directory, manifest)):
        raise UsageError(
            f"{directory} holds no file of shard {number} ({entry.file})",
            hint=f"choose one that is there, --shard {_render_numbers(present)}; or fetch it: lookupdb fetch --help",
        )
    return ServedShard(path, manifest, number)


def _choose_shard(directory: Path, manifest: Manifest) -> int:
    """The only shard of the generation; or the only one whose file is there, as of what was fetched for one server."""
    if len(manifest.shards) == 1:
        return 0
    present = _list_present(directory, manifest)
    if len(present) == 1:
        return present[0]
    raise UsageError(
        f"{directory} holds {len(present)} of {len(manifest.shards)} shards, and a server serves one",
        hint=f"choose: --shard {_render_numbers(present)}" if present else "fetch one: lookupdb fetch --help",
    )


def _list_present(directory: Path, manifest: Manifest) -> list[int]:
    """The shards whose files are in ``directory``."""
    return [number for number, entry in enumerate(manifest.shards) if (directory / entry.file).is_file()]


def _render_numbers(shards: list[int]) -> str:
    if len(shards) > 2 and shards[-1] - shards[0] == len(shards) - 1:
        return f"{shards[0]} … {shards[-1]}"
    return ", ".join(map(str, shards[:_SHOWN_SHARDS])) + (" …" if len(shards) > _SHOWN_SHARDS else "")


@dataclass(slots=True)
class Verification:
    """One pass over the file. Call ``run`` in a thread of its own; ``stop`` ends it early."""

    served: ServedShard
    warm: WarmPolicy
    bytes_per_second: int
    """No more is read in a second, to leave the disk to servers."""
    done_bytes: int = 0
    seconds: float = 0.0
    keeps_pages: bool = False
    """Whether what is read stays in the page cache."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self._stop.set()

    def run(self) -> None:
        """Read the file. Raises CorruptFile when it is not there, or size or checksum differ from the manifest's,
        NotEnoughRoom or StoreError when it cannot be opened or read."""
        path, entry = self.served.path, self.served.entry
        started = time.monotonic()
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise CorruptFile(f"{path}: {error.strerror}", hint="fetch or build it again") from error
        except OSError as error:
            raise opening_error(path, error.errno or 0) from error
        try:
            size = os.fstat(file).st_size
            if size != entry.bytes:
                raise _mismatch(path, "bytes", entry.bytes, size)
            self.keeps_pages = self._fits(size)
            digest = self._read(file, started)
        finally:
            os.close(file)
        self.seconds = time.monotonic() - started
        if not self._stop.is_set() and digest != entry.sha256:
            raise _mismatch(path, "sha256", entry.sha256, digest)

    def _fits(self, size: int) -> bool:
        if self.warm == "auto":
            return size - (memory.resident_bytes(self.served.path) or 0) <= memory.page_cache_room()
        return self.warm == "always"

    def _read(self, file: int, started: float) -> str:
        """Return the checksum of what is read, at most at ``bytes_per_second``."""
        digest = hashlib.sha256()
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        # One buffer of its own, which goes back to the system: the heap would keep such pieces for as long as it lives.
        with mmap.mmap(-1, CHUNK_BYTES) as buffer:
            while not self._stop.is_set() and (size := self._read_chunk(file, buffer)):
                with memoryview(buffer) as view, view[:size] as chunk:
                    digest.update(chunk)
                self._note_chunk(file, size, started)
        return digest.hexdigest()

    def _read_chunk(self, file: int, buffer: mmap.mmap) -> int:
        """Read the next bytes. A network file system may lose its server in between, and a disk has bad places."""
        try:
            return os.readv(file, [buffer])
        except OSError as error:
            raise reading_error(self.served.path, self.done_bytes, error.errno or 0) from error

    def _note_chunk(self, file: int, size: int, started: float) -> None:
        """Drop the pages of what was read, if they are not to stay, and wait until more may be read."""
        if not self.keeps_pages:
            # Pages that a server has mapped stay: the kernel drops only what nobody uses.
            os.posix_fadvise(file, self.done_bytes, size, os.POSIX_FADV_DONTNEED)
        self.done_bytes += size
        ahead = self.done_bytes / self.bytes_per_second - (time.monotonic() - started)
        if ahead > 0:
            self._stop.wait(ahead)


def _mismatch(path: Path, attribute: str, expected: object, found: object) -> CorruptFile:
    return CorruptFile(
        f"{path}: the manifest says {attribute} {expected}, found {found}",
        hint="the file is damaged or of another generation: fetch or build it again",
    )
