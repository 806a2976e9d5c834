"""The interface to one dataset's generations, wherever they are kept.

A generation's files stay until one of these removes them, and nobody else does:

    who                     what                                  when
    the sweep of a cluster  of a dataset that lives, a whole      it is none of the newest ``keepGenerations``;
    (``sweep``)             generation                            the operator's list does not protect it, because
                                                                  its status does not refer to it; a newer one is
                                                                  protected
    the same                of such a dataset, a damaged or a     the same, however many are kept
                            refused generation
    the same                of a dataset that is gone, all        it was marked a grace period ago, and is not to be
                                                                  retained
    the same                what has no manifest                  its builder is dead, and it has not changed for a
                                                                  grace period
    a builder that is told  of its own dataset, what the sweep    it begins, before it builds: so it is where no sweep
    what to keep            would remove of one that lives, but   knows the store (``superseded.remove_superseded``)
                            for what is announced
    `lookupdb up`           all but the newest                    another generation has become active
                            ``keepGenerations``, the active and   (``superseded.prune``)
                            what is announced
    a builder (``claim``)   what dead builders have left of       it begins
                            unfinished generations

What is announced of a dataset is no generation's: the sweep removes it with the last one of a dataset that is gone.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, StoreError, UsageError
from lookupdb.manifest import Manifest, ShardFile, generation_number
from lookupdb.store.layout import StoreAddress, check_generation

OnCopied = Callable[[int], None]
_CHUNK: Final = 1 << 20
_DAMAGED: Final = "the generation is damaged: build another, or fetch it again"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The published generations of a dataset, oldest first."""

    usable: list[str] = field(default_factory=list)
    """Whole, and refused by no gate."""
    refused: list[str] = field(default_factory=list)
    """Whole, and refused by one."""
    damaged: list[str] = field(default_factory=list)


class BuildClaim(ABC):
    """The sole right to build one generation. A claim that is left without ``publish`` leaves nothing of that
    generation.

    A killed process loses its claim: the next claim on the dataset removes its partial files. A process that stands
    still for too long loses it too, and cannot publish any more.
    """

    generation: str
    folder: Path
    """An empty folder on this machine, for the generation's shard files."""

    @abstractmethod
    def publish(self, manifest: Manifest) -> Manifest:
        """Make the generation whole: its shard files first, manifest.json last. Returns the manifest with the files'
        names in the store.

        Raises StoreError, NotEnoughRoom. If the store did not answer whether it published, a new claim on the same
        generation finds out, and completes what was decided.
        """

    @abstractmethod
    def publish_copy(self, source: StoredDataset, original: str, manifest: Manifest, on_copied: OnCopied) -> Manifest:
        """``publish``, with the shard files of the generation ``original`` of ``source``, whose shards ``manifest``
        has as they are there; ``on_copied`` gets the bytes of each as it is copied.

        What a store copies by itself is compared by its size alone; all else by its checksum. Raises CorruptFile if
        a file of ``original`` is missing or is not what the manifest says, and what ``publish`` raises.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the claim up and remove what can certainly not be published any more. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class StoredDataset(ABC):
    """One dataset's generations. A whole one has its manifest.json, and every shard that it names with the right
    size. A whole one that a gate has refused is marked in its manifest, and no candidate for serving."""

    address: StoreAddress
    url: str
    """The folder that holds the generations."""

    def generations(self) -> tuple[str, ...]:
        """The whole generations that no gate has refused, oldest first. Raises StoreError."""
        return tuple(name for name, manifest in self.whole_manifests().items() if manifest.refused is None)

    def refused_generations(self) -> tuple[str, ...]:
        """The whole generations that a gate has refused, oldest first. Raises StoreError."""
        return tuple(name for name, manifest in self.whole_manifests().items() if manifest.refused is not None)

    @abstractmethod
    def whole_manifests(self) -> dict[str, Manifest]:
        """The manifests of all whole generations, by name, oldest first. Raises StoreError."""

    @abstractmethod
    def _published_manifests(self) -> Iterator[tuple[str, Manifest | None]]:
        """Every published generation, oldest first, with its manifest if it is whole. Keeps none in memory. Raises
        StoreError."""

    def take_inventory(self) -> Inventory:
        """What there is, one manifest in memory at a time: whoever writes here may have put many large ones. Raises
        StoreError."""
        found = Inventory()
        for name, manifest in self._published_manifests():
            if manifest is None:
                found.damaged.append(name)
            else:
                (found.usable if manifest.refused is None else found.refused).append(name)
        return found

    @abstractmethod
    def published_generations(self) -> tuple[str, ...]:
        """The generations that have a manifest.json, whole or damaged, oldest first. Raises StoreError."""

    @abstractmethod
    def known_generations(self) -> tuple[str, ...]:
        """The generations of which there is anything, published or not, oldest first: a cheap look at names. Raises
        StoreError."""

    @abstractmethod
    def manifest(self, generation: str) -> Manifest:
        """The manifest. Raises GenerationMissing if there is no manifest.json, CorruptFile if it cannot be parsed."""

    @abstractmethod
    def find_manifest(self, generation: str) -> Manifest | None:
        """The same; None if there is no manifest.json, without a look at what else there is. Nothing is remembered."""

    def admit(self, generation: str) -> Manifest:
        """Override the gates that have refused ``generation``: from now on it is as if none had. Returns its manifest,
        which says why it was refused. Done twice, it is done once.

        Raises GenerationMissing, CorruptFile, StoreError; UsageError if no gate has refused it.
        """
        manifest = self.manifest(generation)
        if manifest.refused is None:
            if not manifest.overridden:
                raise UsageError(f"no gate has refused {generation} of {self.address}: there is nothing to override")
            return manifest
        admitted = replace(manifest, refused=None, overridden=manifest.refused.reasons)
        self._replace_manifest(manifest, admitted)
        return admitted

    @abstractmethod
    def _replace_manifest(self, before: Manifest, after: Manifest) -> None:
        """Replace manifest.json, if it still is ``before``. Raises GenerationMissing if it was removed, StoreError if
        it is another one."""

    @abstractmethod
    def next_generation(self) -> str:
        """The name after every name in use, including those of running builds."""

    @abstractmethod
    def local_path(self, generation: str) -> Path | None:
        """The folder of ``generation`` if it is on this machine's disk, else None."""

    @abstractmethod
    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        """The file of one shard on this machine: the original, or a verified copy in ``scratch`` that is removed
        afterwards."""

    def object_path(self, generation: str, shard: ShardFile, bucket: str) -> str | None:
        """The path of a shard's object in the bucket whose identity is ``bucket``; None if it is no object there."""
        return None

    @contextmanager
    def verified_shard(self, generation: str, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        """``shard``, whose checksum was proven just now, also of an original."""
        with self.shard(generation, shard, scratch) as path:
            if self.local_path(generation) is not None:
                verify_shard_file(path, shard)
            yield path

    @abstractmethod
    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        """The bytes of a shard's file from ``start`` on, in chunks as they arrive, not verified.

        Raises StoreError, also between chunks: the caller can resume behind the last chunk.
        """

    @abstractmethod
    def claim(self, generation: str, scratch: Path, *, dead_seconds: float = math.inf) -> BuildClaim:
        """Claim ``generation`` for building; takes over the claim of a builder that is known to be dead. One that has
        not renewed its claim for ``dead_seconds`` is, by this machine's clock: others have to be watched for a while.

        Raises GenerationExists if it is whole, CorruptFile if it is published and damaged, StoreError if another
        process is building it.
        """

    @abstractmethod
    def remove(self, generation: str) -> None:
        """Remove a generation, its manifest first; a missing generation is no error. Raises StoreError."""

    @abstractmethod
    def unfinished_generations(self) -> dict[str, float]:
        """Generations without manifest.json, and when any of their files last changed (UNIX time): running builds, and
        the remains of dead builders and interrupted removals. Raises StoreError."""

    @abstractmethod
    def read_note(self, name: str) -> bytes | None:
        """The content of the dataset's small file ``name``, which belongs to no generation. Raises StoreError."""

    @abstractmethod
    def write_note(self, name: str, content: bytes | None) -> None:
        """Write such a file, or remove it if ``content`` is None, together with a folder that is empty then. Raises
        StoreError."""

    def hold_notes(self) -> AbstractContextManager[None]:
        """While the block runs nobody else holds the notes, where the store can tell: for who reads one to write
        another. Raises StoreError if somebody else holds them for long."""
        return nullcontext()

    def find_write_obstacle(self) -> str | None:
        """Why a build could not write here, as far as a look can tell that writes nothing; None if nothing is known."""
        return None

    @abstractmethod
    def free_bytes(self) -> int | None:
        """The free bytes of the store; None if it has no known limit."""

    def damaged_generations(self) -> tuple[str, ...]:
        """The published generations that are not whole, oldest first. They cannot be rolled out."""
        published, intact = (
            self.published_generations(),
            set(self.whole_manifests()),
        )  # in this order: a generation may be published in between
        return tuple(generation for generation in published if generation not in intact)

    def newest_generation(self) -> str | None:
        """The newest whole generation that no gate has refused."""
        return next(reversed(self.generations()), None)

    def newest_refused(self) -> str | None:
        """The newest whole generation that a gate has refused."""
        return next(reversed(self.refused_generations()), None)

    def _claim_error(self, generation: str) -> StoreError:
        """Why ``generation``, which has a manifest.json, cannot be claimed."""
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
        """The error for a missing shard. Raises GenerationMissing if its whole generation is gone."""
        self.manifest(generation)
        return CorruptFile(
            f"{shard.file} of {generation} is missing in {self.url}, its manifest names it",
            hint="the generation is damaged: build another",
        )

    def check_files(self, manifest: Manifest) -> None:
        """Raises CorruptFile if a shard's file is missing, or not as long as ``manifest`` says; StoreError."""
        if damage := _summarize(self._missing_files(manifest)):
            raise CorruptFile(f"{manifest.generation} in {self.url} is damaged: {damage}", hint=_DAMAGED)

    def _describe_damage(self, generation: str) -> str:
        """Why a published generation is not whole; empty if it is."""
        try:
            return _summarize(self._missing_files(self.manifest(generation)))
        except CorruptFile as error:
            return error.message

    @abstractmethod
    def _missing_files(self, manifest: Manifest) -> tuple[str, ...]:
        """A sentence for each shard of a published generation that is missing or has the wrong size."""

    def _missing_generation_error(self, generation: str) -> GenerationMissing:
        found = self.take_inventory()
        available = ", ".join(sort_generations([*found.usable, *found.refused])) or "none"
        return GenerationMissing(
            f"{self.url} has no generation {check_generation(generation)}", hint=f"it has: {available}"
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


def _summarize(missing: Sequence[str]) -> str:
    return f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else "".join(missing)


def is_older(generation: str, other: str) -> bool:
    """Whether ``generation`` has a lower number than ``other``."""
    return generation_number(generation) < generation_number(other)


def sort_generations(names: Collection[str]) -> tuple[str, ...]:
    """Generations, sorted by their numbers."""
    return tuple(sorted(names, key=generation_number))


def file_sha256(path: Path) -> str:
    """The checksum of a file, which is read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify_shard_file(path: Path, shard: ShardFile) -> None:
    """Raises CorruptFile if the file at ``path`` is not the one that the manifest describes, StoreError if it cannot be
    read."""
    check_shard_size(path, shard)
    try:
        actual = file_sha256(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if actual != shard.sha256:
        raise CorruptFile(f"{path} has checksum {actual}, its manifest says {shard.sha256}", hint=_DAMAGED)


def check_shard_size(path: Path, shard: ShardFile) -> None:
    """Raises CorruptFile if the file is missing or not as long as the manifest says, StoreError if it cannot be looked
    at. Nobody maps a file before: touching a page behind its end ends the process."""
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} is missing, its manifest names it", hint=_DAMAGED) from error
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
    if size != shard.bytes:
        raise CorruptFile(f"{path} is {size} bytes long, its manifest says {shard.bytes}", hint=_DAMAGED)
