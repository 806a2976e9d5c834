"""What can be done with one dataset's generations, wherever they are kept."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, StoreError
from lookupdb.manifest import Manifest, ShardFile, generation_number
from lookupdb.store.layout import StoreAddress, check_generation

_CHUNK: Final = 1 << 20


class BuildClaim(ABC):
    """The sole right to build one generation. Leaving it without ``publish`` leaves nothing of that generation.

    A process that is killed loses its claim: its partial files are removed by the next claim on the dataset. So does
    one that stood still for too long, and it can publish nothing from then on.
    """

    generation: str
    folder: Path
    """An empty folder on this machine, for the generation's shard files."""

    @abstractmethod
    def publish(self, manifest: Manifest) -> Manifest:
        """Make the generation whole, its shard files first, manifest.json last; returns the manifest as it stands then,
        with the files' names in the store.

        Raises StoreError, NotEnoughRoom. When the store did not say whether it published, a claim on the same
        generation finds out, and completes what had been decided.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the claim up and remove what is certain not to be published, now or later. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class StoredDataset(ABC):
    """One dataset's generations. A whole one has its manifest.json, and every shard that this names with its size."""

    address: StoreAddress
    url: str
    """Of the folder that holds the generations."""

    @abstractmethod
    def generations(self) -> tuple[str, ...]:
        """The whole generations, oldest first. Raises StoreError."""

    @abstractmethod
    def published_generations(self) -> tuple[str, ...]:
        """The generations whose manifest.json stands, whole or damaged, oldest first. Raises StoreError."""

    @abstractmethod
    def manifest(self, generation: str) -> Manifest:
        """Raises GenerationMissing when there is no manifest.json, CorruptFile when it is not one."""

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
    def claim(self, generation: str, scratch: Path) -> BuildClaim:
        """Claim ``generation`` for building; a dead builder's claim is taken over once it is known to be dead.

        Raises GenerationExists when it is whole, CorruptFile when it is published and damaged, StoreError when somebody
        else is building it.
        """

    @abstractmethod
    def remove(self, generation: str) -> None:
        """Remove a generation, its manifest first; one that is not there is no error. Raises StoreError."""

    @abstractmethod
    def unfinished_generations(self) -> dict[str, float]:
        """Generations without manifest.json, and when anything of them last changed (UNIX time): builds under way, and
        what dead ones and interrupted removals left. Raises StoreError."""

    @abstractmethod
    def read_note(self, name: str) -> bytes | None:
        """The content of the dataset's small file ``name``, which is of no generation. Raises StoreError."""

    @abstractmethod
    def write_note(self, name: str, content: bytes | None) -> None:
        """Write, or with None remove, such a file; a folder that is empty then goes too. Raises StoreError."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """How much more the store can take; None when it does not say."""

    def damaged_generations(self) -> tuple[str, ...]:
        """The published generations that are not whole, oldest first: nothing can be rolled out of them."""
        published, whole = (
            self.published_generations(),
            set(self.generations()),
        )  # in this order: one may be published in between
        return tuple(generation for generation in published if generation not in whole)

    def newest_generation(self) -> str | None:
        """The newest whole generation."""
        return next(reversed(self.generations()), None)

    def prune(self, keep: int, protect: Collection[str] = ()) -> tuple[str, ...]:
        """Remove all but the newest ``keep`` whole generations and those in ``protect``, and damaged ones older than
        these; what was removed, oldest first."""
        kept = self.generations()[-keep:]
        oldest = min(map(generation_number, kept), default=0)
        older = (name for name in self.published_generations() if generation_number(name) < oldest)
        removed = tuple(name for name in older if name not in protect)
        for name in removed:
            self.remove(name)
        return removed

    def _claim_error(self, generation: str) -> StoreError:
        """Why ``generation``, whose manifest.json stands, cannot be claimed."""
        damage = self._describe_damage(generation)
        if not damage:
            return GenerationExists(
                f"generation {generation} of {self.address} exists already in {self.url}",
                hint="a generation never changes: leave --generation away to build the next one",
            )
        return CorruptFile(
            f"generation {generation} of {self.address} in {self.url} is damaged: {damage}",
            hint="a generation never changes: leave --generation away to build the next one",
        )

    def _lost_shard_error(self, generation: str, shard: ShardFile) -> CorruptFile:
        """What a shard that is not there means. Raises GenerationMissing when all of its generation is gone."""
        self.manifest(generation)
        return CorruptFile(
            f"{shard.file} of {generation} is missing in {self.url}, its manifest names it",
            hint="the generation is damaged: build another",
        )

    def _describe_damage(self, generation: str) -> str:
        """What keeps a published generation from being whole; nothing when it is."""
        try:
            missing = self._missing_files(self.manifest(generation))
        except CorruptFile as error:
            return error.message
        return f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else "".join(missing)

    @abstractmethod
    def _missing_files(self, manifest: Manifest) -> tuple[str, ...]:
        """A sentence for each shard of a published generation that is not there with the size that it should have."""

    def _missing_generation_error(self, generation: str) -> GenerationMissing:
        there = ", ".join(self.generations()) or "none"
        return GenerationMissing(
            f"{self.url} has no generation {check_generation(generation)}", hint=f"it has: {there}"
        )


def describe_missing_files(manifest: Manifest, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """A sentence for each shard of ``manifest`` whose file is not in ``sizes`` (name → bytes) with the right size."""
    return tuple(
        f"{shard.file} is missing"
        if shard.file not in sizes
        else f"{shard.file} is {sizes[shard.file]} bytes long instead of {shard.bytes}"
        for shard in manifest.shards
        if sizes.get(shard.file) != shard.bytes
    )


def sort_generations(names: Collection[str]) -> tuple[str, ...]:
    """Generations by their numbers."""
    return tuple(sorted(names, key=generation_number))


def file_sha256(path: Path) -> str:
    """The checksum of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify_shard_file(path: Path, shard: ShardFile) -> None:
    """Raises CorruptFile when the file at ``path`` is not the one that the manifest describes."""
    size = path.stat().st_size
    if size != shard.bytes:
        raise CorruptFile(
            f"{path} is {size} bytes long, its manifest says {shard.bytes}", hint="build or fetch it again"
        )
    found = file_sha256(path)
    if found != shard.sha256:
        raise CorruptFile(
            f"{path} has checksum {found}, its manifest says {shard.sha256}", hint="build or fetch it again"
        )
