"""The interface to one dataset's generations, independent of their store.

Only these remove files of a generation:

    by                      generations                           condition
    the sweep of a cluster  whole ones of a live dataset          not among the newest ``keepGenerations``, and not
    (``sweep``)                                                   protected by the operator's list: the status does
                                                                  not refer to it; newer ones are protected
    the sweep               damaged or rejected ones of a live    as above, without counting ``keepGenerations``
                            dataset
    the sweep               all of a deleted dataset              marked a grace period ago, and not retained
    the sweep               those without a manifest              the builder is dead, and nothing has changed for a
                                                                  grace period
    a builder with a limit  as the sweep would for its own        before it builds, if no sweep knows the store
    of generations          dataset, except the announced one     (``sweep.remove_superseded``)
    `lookupdb up`           all but the newest                    another generation has become active
                            ``keepGenerations``, the active and   (``sweep.prune``)
                            the announced one
    a builder (``claim``)   unfinished ones of dead builders      when it begins

The announcement belongs to no generation: the sweep removes it with the last one of a deleted dataset.
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
    """Whole generations that passed their gates, or were overridden."""
    refused: list[str] = field(default_factory=list)
    """Whole generations that failed a gate."""
    damaged: list[str] = field(default_factory=list)


class BuildClaim(ABC):
    """The sole right to build one generation. A claim that ends without ``publish`` leaves nothing of that generation.

    A killed process loses its claim: the next claim on the dataset removes its partial files. A process that is
    suspended for too long loses it too, and can no longer publish.
    """

    generation: str
    folder: Path
    """An empty folder on this machine, for the generation's shard files."""

    @abstractmethod
    def publish(self, manifest: Manifest) -> Manifest:
        """Make the generation whole: its shard files first, manifest.json last. Return the manifest with the files'
        names in the store.

        Raises StoreError, NotEnoughRoom. If the store did not say whether it published, a new claim on the same
        generation finds out, and completes the decision.
        """

    @abstractmethod
    def publish_copy(self, source: StoredDataset, original: str, manifest: Manifest, on_copied: OnCopied) -> Manifest:
        """``publish``, with the shard files of the generation ``original`` of ``source``, which ``manifest`` lists as
        they are there; ``on_copied`` gets the bytes of each as it is copied.

        A copy within a store is verified by its size, any other by its checksum. Raises CorruptFile if a file of
        ``original`` is missing or does not match its manifest, and what ``publish`` raises.
        """

    @abstractmethod
    def release(self) -> None:
        """Give up the claim and remove files that can certainly not be published any more. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class StoredDataset(ABC):
    """One dataset's generations. A whole one has its manifest.json, and every shard that it names with the right size.
    A whole one that failed a gate is marked in its manifest, and cannot serve."""

    address: StoreAddress
    url: str
    """The folder that holds the generations."""

    def generations(self) -> tuple[str, ...]:
        """Return the whole generations that passed their gates, oldest first. Raises StoreError."""
        return tuple(name for name, manifest in self.whole_manifests().items() if manifest.refused is None)

    def refused_generations(self) -> tuple[str, ...]:
        """Return the whole generations that failed a gate, oldest first. Raises StoreError."""
        return tuple(name for name, manifest in self.whole_manifests().items() if manifest.refused is not None)

    @abstractmethod
    def whole_manifests(self) -> dict[str, Manifest]:
        """Return the manifests of all whole generations, by name, oldest first. Raises StoreError."""

    @abstractmethod
    def _published_manifests(self) -> Iterator[tuple[str, Manifest | None]]:
        """Yield every published generation, oldest first, with its manifest if it is whole. Keeps none in memory.
        Raises StoreError."""

    def take_inventory(self) -> Inventory:
        """Return the inventory, with one manifest in memory at a time: a user may have put many large ones there.
        Raises StoreError."""
        found = Inventory()
        for name, manifest in self._published_manifests():
            if manifest is None:
                found.damaged.append(name)
            else:
                (found.usable if manifest.refused is None else found.refused).append(name)
        return found

    @abstractmethod
    def published_generations(self) -> tuple[str, ...]:
        """Return the generations that have a manifest.json, whole or damaged, oldest first. Raises StoreError."""

    @abstractmethod
    def known_generations(self) -> tuple[str, ...]:
        """Return all generations with any file, published or not, oldest first: a cheap listing of names. Raises
        StoreError."""

    @abstractmethod
    def manifest(self, generation: str) -> Manifest:
        """Return the manifest. Raises GenerationMissing if there is no manifest.json, CorruptFile if it cannot be
        parsed."""

    @abstractmethod
    def find_manifest(self, generation: str) -> Manifest | None:
        """Return the manifest without checking anything else; None if there is no manifest.json. Nothing is cached."""

    def admit(self, generation: str) -> Manifest:
        """Override the gates that ``generation`` failed. Return its manifest, which says why it failed. Idempotent.

        Raises GenerationMissing, CorruptFile, StoreError; UsageError if it did not fail a gate.
        """
        manifest = self.manifest(generation)
        if manifest.refused is None:
            if not manifest.overridden:
                raise UsageError(f"{generation} of {self.address} passed its gates: there is nothing to override")
            return manifest
        admitted = replace(manifest, refused=None, overridden=manifest.refused.reasons)
        self._replace_manifest(manifest, admitted)
        return admitted

    @abstractmethod
    def _replace_manifest(self, before: Manifest, after: Manifest) -> None:
        """Replace manifest.json, if it still is ``before``. Raises GenerationMissing if it was removed, StoreError if
        it has changed."""

    @abstractmethod
    def next_generation(self) -> str:
        """Return the name after every name in use, including those of running builds."""

    @abstractmethod
    def local_path(self, generation: str) -> Path | None:
        """Return the folder of ``generation`` if it is on this machine's disk, else None."""

    @abstractmethod
    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        """Return the file of one shard on this machine: the original, or a verified copy in ``scratch`` that is removed
        afterwards."""

    def object_path(self, generation: str, shard: ShardFile, bucket: str) -> str | None:
        """Return the path of a shard's object in the bucket whose identity is ``bucket``; None if it is not there."""
        return None

    @contextmanager
    def verified_shard(self, generation: str, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        """Yield ``shard`` after verifying its checksum, even of an original."""
        with self.shard(generation, shard, scratch) as path:
            if self.local_path(generation) is not None:
                verify_shard_file(path, shard)
            yield path

    @abstractmethod
    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a shard's file from ``start`` on, in chunks as they arrive, not verified.

        Raises StoreError, also between chunks: the caller can resume after the last chunk.
        """

    @abstractmethod
    def claim(self, generation: str, scratch: Path, *, dead_seconds: float = math.inf) -> BuildClaim:
        """Claim ``generation`` for building; take over the claim of a dead builder. A claim that was not renewed for
        ``dead_seconds``, by this machine's clock, is dead; others have to be watched for a while.

        Raises GenerationExists if it is whole, CorruptFile if it is published and damaged, StoreError if another
        process is building it.
        """

    @abstractmethod
    def remove(self, generation: str) -> None:
        """Remove a generation, its manifest first; a missing generation is no error. Raises StoreError."""

    @abstractmethod
    def unfinished_generations(self) -> dict[str, float]:
        """Return generations without manifest.json, and when any of their files last changed (UNIX time): running
        builds, and the remains of dead builders and interrupted removals. Raises StoreError."""

    @abstractmethod
    def read_note(self, name: str) -> bytes | None:
        """Return the content of the dataset's note ``name``, a small file that belongs to no generation. Raises
        StoreError."""

    @abstractmethod
    def write_note(self, name: str, content: bytes | None) -> None:
        """Write a note, or remove it if ``content`` is None, with its folder if that is then empty. Raises
        StoreError."""

    def hold_notes(self) -> AbstractContextManager[None]:
        """Hold the notes while the block runs, to read one and write another, in a store that supports it. Raises
        StoreError if another process holds them for long."""
        return nullcontext()

    def find_write_obstacle(self) -> str | None:
        """Return why a build could not write here, without a test write; None if no reason is known."""
        return None

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the free bytes of the store; None if it has no known limit."""

    def damaged_generations(self) -> tuple[str, ...]:
        """Return the published generations that are not whole, oldest first. They cannot be rolled out."""
        published, intact = (
            self.published_generations(),
            set(self.whole_manifests()),
        )  # in this order: a generation may be published in between
        return tuple(generation for generation in published if generation not in intact)

    def newest_generation(self) -> str | None:
        """Return the newest whole generation that passed its gates."""
        return next(reversed(self.generations()), None)

    def newest_refused(self) -> str | None:
        """Return the newest whole generation that failed a gate."""
        return next(reversed(self.refused_generations()), None)

    def _claim_error(self, generation: str) -> StoreError:
        """Return why ``generation``, which has a manifest.json, cannot be claimed."""
        damage = self._describe_damage(generation)
        if not damage:
            return GenerationExists(
                f"generation {generation} of {self.address} already exists in {self.url}",
                hint="a generation never changes: omit --generation to build the next one",
            )
        return CorruptFile(
            f"generation {generation} of {self.address} in {self.url} is damaged: {damage}",
            hint="a generation never changes: omit --generation to build the next one",
        )

    def _lost_shard_error(self, generation: str, shard: ShardFile) -> CorruptFile:
        """Return the error for a missing shard. Raises GenerationMissing if its whole generation is gone."""
        self.manifest(generation)
        return CorruptFile(
            f"{shard.file} of {generation} is missing in {self.url}, its manifest names it",
            hint="the generation is damaged: build another",
        )

    def check_files(self, manifest: Manifest) -> None:
        """Raise CorruptFile if a shard's file is missing or has another size than in ``manifest``; StoreError."""
        if damage := _summarize(self._missing_files(manifest)):
            raise CorruptFile(f"{manifest.generation} in {self.url} is damaged: {damage}", hint=_DAMAGED)

    def _describe_damage(self, generation: str) -> str:
        """Return why a published generation is not whole; empty if it is."""
        try:
            return _summarize(self._missing_files(self.manifest(generation)))
        except CorruptFile as error:
            return error.message

    @abstractmethod
    def _missing_files(self, manifest: Manifest) -> tuple[str, ...]:
        """Return a sentence for each shard of a published generation that is missing or has the wrong size."""

    def _missing_generation_error(self, generation: str) -> GenerationMissing:
        found = self.take_inventory()
        available = ", ".join(sort_generations([*found.usable, *found.refused])) or "none"
        return GenerationMissing(
            f"{self.url} has no generation {check_generation(generation)}", hint=f"it has: {available}"
        )


def describe_missing_files(manifest: Manifest, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return a sentence for each shard of ``manifest`` whose file is not in ``sizes`` (name → bytes) with the right
    size."""
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
    """Return whether ``generation`` has a lower number than ``other``."""
    return generation_number(generation) < generation_number(other)


def sort_generations(names: Collection[str]) -> tuple[str, ...]:
    """Return generations, sorted by their numbers."""
    return tuple(sorted(names, key=generation_number))


def file_sha256(path: Path) -> str:
    """Return the checksum of a file, which is read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify_shard_file(path: Path, shard: ShardFile) -> None:
    """Raise CorruptFile if the file at ``path`` does not match its manifest, StoreError if it cannot be read."""
    check_shard_size(path, shard)
    try:
        actual = file_sha256(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if actual != shard.sha256:
        raise CorruptFile(f"{path} has checksum {actual}, its manifest says {shard.sha256}", hint=_DAMAGED)


def check_shard_size(path: Path, shard: ShardFile) -> None:
    """Raise CorruptFile if the file is missing or has another size than in the manifest, StoreError if it cannot be
    opened. Check this before mapping a file: touching a page behind its end kills the process."""
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} is missing, its manifest names it", hint=_DAMAGED) from error
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
    if size != shard.bytes:
        raise CorruptFile(f"{path} is {size} bytes long, its manifest says {shard.bytes}", hint=_DAMAGED)
