"""What can be done with one dataset's generations, wherever they are kept."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.manifest import Manifest, ShardFile, generation_number
from lookupdb.store.layout import Address, checked_generation

_CHUNK: Final = 1 << 20


class Claim(ABC):
    """The sole right to build one generation. Leaving it without ``publish`` leaves nothing of that generation.

    A process that is killed loses its claim: its partial files are removed by the next claim on the dataset.
    """

    generation: str
    folder: Path
    """An empty folder on this machine, for the generation's shard files."""

    @abstractmethod
    def publish(self, manifest: Manifest) -> None:
        """Make the generation whole: its shard files first, manifest.json last. Raises StoreError, NotEnoughRoom."""

    @abstractmethod
    def release(self) -> None:
        """Give the claim up and remove what was not published. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Dataset(ABC):
    """One dataset's generations. Only whole ones are seen: those whose manifest.json stands."""

    address: Address
    url: str
    """Of the folder that holds the generations."""

    @abstractmethod
    def generations(self) -> tuple[str, ...]:
        """The whole generations, oldest first. Raises StoreError."""

    @abstractmethod
    def manifest(self, generation: str) -> Manifest:
        """Raises GenerationMissing when there is no such whole generation, CorruptFile when its manifest is not one."""

    @abstractmethod
    def next_generation(self) -> str:
        """The name after every name in use, those of builds under way included."""

    @abstractmethod
    def local_path(self, generation: str) -> Path | None:
        """The folder of ``generation`` when it is on this machine's disk, else None."""

    @abstractmethod
    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        """The file of one shard on this machine: itself, or a verified copy in ``scratch``, removed after."""

    @abstractmethod
    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        """The bytes of a shard's file from ``start`` on, in chunks, as they come: nothing is verified.

        Raises StoreError, also in the midst: read on from what has come.
        """

    @abstractmethod
    def claim(self, generation: str, scratch: Path) -> Claim:
        """Claim ``generation`` for building; a dead builder's claim is taken over once it is known to be dead.

        Raises GenerationExists when it is whole, StoreError when somebody else is building it.
        """

    @abstractmethod
    def remove(self, generation: str) -> None:
        """Remove a generation, its manifest first; one that is not there is no error. Raises StoreError."""

    @abstractmethod
    def unfinished(self) -> dict[str, float]:
        """Generations that are not whole, and when anything of them last changed (UNIX time): builds under way, and
        what dead ones and interrupted removals left. Raises StoreError."""

    @abstractmethod
    def note(self, name: str) -> bytes | None:
        """The content of the dataset's small file ``name``, which is of no generation. Raises StoreError."""

    @abstractmethod
    def write_note(self, name: str, content: bytes | None) -> None:
        """Write, or with None remove, such a file; a folder that is empty then goes too. Raises StoreError."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """How much more the store can take; None when it does not say."""

    def newest(self) -> str | None:
        """The newest whole generation."""
        return next(reversed(self.generations()), None)

    def prune(self, keep: int, protect: Collection[str] = ()) -> tuple[str, ...]:
        """Remove all but the newest ``keep`` generations and those in ``protect``; what was removed, oldest first."""
        generations = self.generations()
        removed = tuple(name for name in generations[: max(0, len(generations) - keep)] if name not in protect)
        for name in removed:
            self.remove(name)
        return removed

    def _missing(self, generation: str) -> GenerationMissing:
        there = ", ".join(self.generations()) or "none"
        return GenerationMissing(
            f"{self.url} has no generation {checked_generation(generation)}", hint=f"it has: {there}"
        )


def in_order(names: Collection[str]) -> tuple[str, ...]:
    """Generations by their numbers."""
    return tuple(sorted(names, key=generation_number))


def sha256_of(path: Path) -> str:
    """The checksum of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify(path: Path, shard: ShardFile) -> None:
    """Raises CorruptFile when the file at ``path`` is not the one that the manifest describes."""
    size = path.stat().st_size
    if size != shard.bytes:
        raise CorruptFile(
            f"{path} is {size} bytes long, its manifest says {shard.bytes}", hint="build or fetch it again"
        )
    found = sha256_of(path)
    if found != shard.sha256:
        raise CorruptFile(
            f"{path} has checksum {found}, its manifest says {shard.sha256}", hint="build or fetch it again"
        )
