"""Locates a shard file, and verifies its size and checksum against the manifest before a worker maps it.

Reading the file also warms it up. If it fits into memory, its pages stay in the page cache; otherwise they are dropped,
to displace nothing hot.
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
    """The file of a shard server."""

    path: Path
    manifest: Manifest
    shard: int

    @property
    def entry(self) -> ShardFile:
        """The manifest's entry of the file."""
        return self.manifest.shards[self.shard]


def locate_shard(path: Path, shard: int | None) -> ServedShard:
    """Return the shard file named by a generation's directory and a shard number, or by its own path.

    Raises UsageError if that is ambiguous, CorruptFile if file or manifest is missing or incomplete.
    """
    directory = path if path.is_dir() else path.parent
    try:
        text = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory") from None
        raise CorruptFile(
            f"{directory}: expected {FILE_NAME} in it, found none, so this is no complete generation",
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
    """Return the only shard of the generation, or the only one whose file is present, as after a fetch for one
    server."""
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
    return [number for number, entry in enumerate(manifest.shards) if (directory / entry.file).is_file()]


def _render_numbers(shards: list[int]) -> str:
    if len(shards) > 2 and shards[-1] - shards[0] == len(shards) - 1:
        return f"{shards[0]} … {shards[-1]}"
    return ", ".join(map(str, shards[:_SHOWN_SHARDS])) + (" …" if len(shards) > _SHOWN_SHARDS else "")


@dataclass(slots=True)
class Verification:
    """One pass over the file. Call ``run`` in its own thread; ``stop`` ends it early."""

    served: ServedShard
    warm: WarmPolicy
    bytes_per_second: int
    """Limit of the read rate, which leaves the disk to servers."""
    done_bytes: int = 0
    seconds: float = 0.0
    keeps_pages: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self._stop.set()

    def run(self) -> None:
        """Read the file. Raises CorruptFile if it is missing, or its size or checksum differ from the manifest's;
        NotEnoughRoom or StoreError if it cannot be opened or read."""
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
        """Read at most ``bytes_per_second``, and return the checksum."""
        digest = hashlib.sha256()
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        # A mapped buffer goes back to the system; the heap would keep such blocks.
        with mmap.mmap(-1, CHUNK_BYTES) as buffer:
            while not self._stop.is_set() and (size := self._read_chunk(file, buffer)):
                with memoryview(buffer) as view, view[:size] as chunk:
                    digest.update(chunk)
                self._note_chunk(file, size, started)
        return digest.hexdigest()

    def _read_chunk(self, file: int, buffer: mmap.mmap) -> int:
        """Read the next bytes. A network file system may lose its server, and a disk has bad sectors."""
        try:
            return os.readv(file, [buffer])
        except OSError as error:
            raise reading_error(self.served.path, self.done_bytes, error.errno or 0) from error

    def _note_chunk(self, file: int, size: int, started: float) -> None:
        """Drop the pages of the chunk unless they are to stay, and wait until more may be read."""
        if not self.keeps_pages:
            # Only unused pages are dropped: those that a server has mapped stay.
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
