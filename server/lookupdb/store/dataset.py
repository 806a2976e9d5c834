"""Datasets in a store, whatever holds them: their names and paths, generations and announcement.

<store>/<cluster id>/<namespace>/<dataset>-<first 8 of its uid>/<generation>/shard-00000-of-00004.lmdb
                                                                             manifest.json
                                                               /active.json (the announcement)
                                                               /pushed/<generation>/… (pushes, if there are any)

Names are parsed here alone: a name that does not match never becomes a path. In a bucket the name of a shard's file
ends with the attempt that put it, shard-00000-of-00004-3f2b9c1e77aa.lmdb, and the manifest names it (see
``bucket_dataset``). While a generation is being built, claim.json is beside them.

Only these remove files of a generation:

    by                      generations                           condition
    the sweep of a cluster  whole ones of a live dataset          not among the newest ``keepGenerations``, not
    (``sweep``)                                                   protected by the operator's list, and older than
                                                                  the newest generation that the list protects
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
    a builder (``claim``)   unfinished ones of dead builders; in  when it begins
                            a bucket, of its own generation
    whoever pushes          pushes before the newest two          another one was pushed (``sweep.prune``)
    the sweep               all pushes of a deleted dataset       marked a grace period ago, even if it is retained

The announcement belongs to no generation: the sweep removes it with the last one of a deleted dataset.
"""

from __future__ import annotations

import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

from lookupdb import keys
from lookupdb.backoff import Backoff
from lookupdb.credentials import NAMESPACE
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, StoreDenied, StoreError, UsageError
from lookupdb.manifest import (
    ANNOUNCEMENT_NOTE,
    DAMAGED_HINT,
    GENERATION,
    WRITE_AGAIN,
    Announcement,
    Manifest,
    ShardFile,
    generation_number,
    parse_announcement,
    verify_shard_file,
)

_UID: Final = re.compile(r"[A-Za-z0-9]{1,8}")
INBOX: Final = "pushed"
"""The folder for pushes, beside the dataset's own generations."""
OnCopied = Callable[[int], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The place of one dataset's generations within a store."""

    cluster: str
    namespace: str
    name: str
    uid: str
    """Shortened to its first eight characters."""
    is_inbox: bool = False
    """True for pushes to the dataset: generations with their own numbers, which nothing serves. Builders copy them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uid", self.uid[:8])
        for part in (self.cluster, self.namespace, self.name):
            if not NAMESPACE.fullmatch(part):
                raise UsageError(f"{part!r} cannot be part of a store's path: expected at most 63 of a-z, 0-9 and -")
        if not _UID.fullmatch(self.uid):
            raise UsageError(f"a dataset's uid begins with eight letters or digits, found {self.uid!r}")

    @property
    def path(self) -> str:
        """Its path in the store, with ``/``."""
        path = dataset_path(self.cluster, self.namespace, self.name, self.uid)
        return f"{path}/{INBOX}" if self.is_inbox else path

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, cluster: str, namespace: str, folder: str) -> Self | None:
        """Return the address for ``<cluster>/<namespace>/<folder>``; None if this is not a dataset's path."""
        name, _, uid = folder.rpartition("-")
        try:
            return cls(cluster, namespace, name, uid)
        except UsageError:
            return None


def dataset_path(cluster: str, namespace: str, name: str, uid: str) -> str:
    """Return the folder of a dataset's generations, relative to the store; ``uid`` may be whole. Nothing is checked."""
    return f"{cluster}/{namespace}/{name}-{uid[:8]}"


def check_cluster_id(cluster: str) -> str:
    """Return ``cluster`` if it can be part of a path. Raises UsageError."""
    return StoreAddress(cluster, "default", "dataset", "local").cluster


def check_generation(generation: str) -> str:
    """Return ``generation`` if it is a generation's name. Raises UsageError."""
    try:
        generation_number(generation)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return generation


def is_generation(name: str) -> bool:
    """Return whether ``name`` is a generation's: g1, g2, …"""
    return GENERATION.fullmatch(name) is not None


def parse_manifest(text: bytes, where: str, generation: str | None = None) -> Manifest:
    """Parse a manifest whose files all lie within the generation's folder.

    Raises CorruptFile, which names ``where``, also if the manifest describes another generation than ``generation``.
    """
    parsed = Manifest.from_json(text, where)
    if generation is not None and parsed.generation != generation:
        raise CorruptFile(f"{where} says it describes {parsed.generation}, expected {generation}")
    for number, shard in enumerate(parsed.shards):
        if keys.parse_attempt(shard.file, number, len(parsed.shards)) is None:
            expected = keys.file_name(number, len(parsed.shards))
            raise CorruptFile(f"{where} names the file {shard.file!r}, expected {expected}")
    return parsed


@dataclass(frozen=True, slots=True)
class Inventory:
    """The published generations of a dataset, oldest first."""

    usable: list[str] = field(default_factory=list)
    """Whole generations that passed their gates, or were overridden."""
    refused: list[str] = field(default_factory=list)
    """Whole generations that failed a gate."""
    damaged: list[str] = field(default_factory=list)


class Store(ABC):
    """The part of a store that belongs to one cluster."""

    url: str
    cluster: str
    identity: str
    """Equal for two references to the same store with the same credentials."""
    folder: Path | None = None
    """The store's directory, which is cheap to list; None for a bucket."""

    def dataset(self, spec: DatasetSpec) -> StoredDataset:
        """Return the generations of the dataset that ``spec`` describes; there may be none yet."""
        return self.dataset_at(StoreAddress(self.cluster, spec.namespace, spec.name, spec.uid))

    def inbox(self, spec: DatasetSpec) -> StoredDataset:
        """Return the pushes to the dataset that ``spec`` describes."""
        return self.dataset_at(StoreAddress(self.cluster, spec.namespace, spec.name, spec.uid, is_inbox=True))

    @abstractmethod
    def dataset_at(self, address: StoreAddress) -> StoredDataset:
        """Return the generations of the dataset at ``address``."""

    def wait(self, seconds: float) -> None:  # noqa: B027 - a directory needs no wait
        """Return once a bucket answers: its server may still be starting. Raises StoreUnreachable after ``seconds``
        without an answer."""

    def addresses(self) -> tuple[StoreAddress, ...]:
        """Return every dataset of this cluster with anything in the store; a gateway shows only those of the caller's
        namespace. Raises StoreError."""
        return tuple(address for namespace in self.namespaces() for address in self.addresses_in(namespace))

    @abstractmethod
    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces with anything in the store, as far as the caller may see, sorted. Raises StoreError."""

    @abstractmethod
    def addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """Return the datasets of ``namespace`` with anything in the store, by path, from one listing. Raises
        StoreError."""

    def walk_addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """Return what ``addresses_in`` does, in bounded memory, for any number of objects; a bucket takes a request for
        each thousand. Raises StoreError, ListingTooLong."""
        return self.addresses_in(namespace)

    def _parse_addresses(self, namespace: str, folders: Iterable[str]) -> tuple[StoreAddress, ...]:
        found = (StoreAddress.parse(self.cluster, namespace, folder) for folder in sorted(folders))
        return tuple(address for address in found if address)


class ShardTarget(Protocol):
    """Where the tasks of one build put shard files, on any machine. It can be pickled, and does not hold the claim."""

    def new_attempt(self) -> str:
        """Return the name of a new attempt. Each task that writes a shard puts its own into the file's name, so that no
        file is overwritten."""

    def folder(self, scratch: Path) -> Path:
        """Return the folder in which to write a shard file."""

    def put(self, path: Path) -> None:
        """Store the finished file. Raises StoreError."""


class BuildClaim(ABC):
    """The sole right to build one generation. A claim that ends without ``publish`` leaves nothing of that generation.

    A killed process loses its claim: a later claim or a sweep removes its partial files. A process that is
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
        """``publish`` with copies of the shard files of ``source``'s generation ``original``. ``manifest`` lists them
        by their names in ``source``. ``on_copied`` gets the number of bytes of each as it is copied.

        A copy within a store is verified by its size, any other by its checksum. Raises CorruptFile if a file of
        ``original`` is missing or does not match its manifest, and what ``publish`` raises.
        """

    @abstractmethod
    def make_target(self) -> ShardTarget:
        """Return where tasks put shard files, if they run on other machines."""

    @abstractmethod
    def take_shards(self, shards: Sequence[ShardFile]) -> tuple[ShardFile, ...]:
        """Take the files that tasks have put as ``shards``, and remove what other attempts have put. Return them by the
        names under which ``publish`` then expects them. Raises StoreError."""

    @abstractmethod
    def release(self) -> None:
        """Give up the claim and remove files that can certainly not be published any more. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def whole_manifests(self) -> dict[str, Manifest]:
        """Return the manifests of all whole generations, by name, oldest first. Raises StoreError."""
        found = self._published_manifests(keep=True)
        return {generation: manifest for generation, manifest in found if manifest is not None}

    @abstractmethod
    def _published_manifests(self, *, keep: bool = False) -> Iterator[tuple[str, Manifest | None]]:
        """Yield every published generation, oldest first, with its manifest if it is whole. Manifests stay in memory
        only with ``keep``. Raises StoreError."""

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

    def manifest(self, generation: str) -> Manifest:
        """Return the manifest. Raises GenerationMissing if there is no manifest.json, CorruptFile if it cannot be
        parsed."""
        found = self.find_manifest(generation)
        if found is None:
            raise self._missing_generation_error(generation)
        return found

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
        """Return the next name after all names in use, including those of running builds."""

    def local_path(self, generation: str) -> Path | None:
        """Return the folder of ``generation`` if it is on this machine's disk, else None."""
        return None

    @abstractmethod
    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        """Return the file of one shard on this machine: the original, or a verified copy in ``scratch`` that is removed
        afterwards."""

    def object_path(self, generation: str, shard: ShardFile, bucket: str) -> str | None:
        """Return the path of a shard's object in the bucket whose identity is ``bucket``; None if it is not there."""
        return None

    @contextmanager
    def verified_shard(self, generation: str, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        """Yield what ``self.shard()`` yields, its checksum verified even if it is the original."""
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
        """Return generations without manifest.json, and when a file of each last changed (UNIX time): running builds,
        and the remains of dead builders and interrupted removals. Raises StoreError."""

    @abstractmethod
    def read_note(self, name: str) -> bytes | None:
        """Return the content of the dataset's note ``name``, a small file that belongs to no generation. Raises
        StoreError."""

    @abstractmethod
    def write_note(self, name: str, content: bytes | None) -> None:
        """Write a note, or remove it if ``content`` is None, with its folder if that is then empty. Raises
        StoreError."""

    def find_write_obstacle(self) -> str | None:
        """Return why a build could not write here, without a test write; None if no reason is known."""
        return None

    def free_bytes(self) -> int | None:
        """Return the free bytes of the store; None if it has no known limit."""
        return None

    def _claim_error(self, generation: str) -> StoreError:
        """Return why ``generation``, which has a manifest.json, cannot be claimed."""
        try:
            damage = _summarize(self._missing_files(self.manifest(generation)))
        except CorruptFile as error:
            damage = error.message
        subject = f"generation {generation} of {self.address}"
        hint = "a generation never changes: omit --generation to build the next one"
        if damage:
            return CorruptFile(f"{subject} in {self.url} is damaged: {damage}", hint=hint)
        return GenerationExists(f"{subject} already exists in {self.url}", hint=hint)

    def _lost_shard_error(self, generation: str, shard: ShardFile) -> CorruptFile:
        """Return the error for a missing shard. Raises GenerationMissing if its whole generation is gone."""
        self.manifest(generation)
        return CorruptFile(
            f"{shard.file} of {generation} is missing in {self.url}, although its index names it",
            hint="the generation is damaged: build another",
        )

    def check_files(self, manifest: Manifest) -> None:
        """Raise CorruptFile if a shard's file is missing or has another size than in ``manifest``; StoreError."""
        if damage := _summarize(self._missing_files(manifest)):
            raise CorruptFile(f"{manifest.generation} in {self.url} is damaged: {damage}", hint=DAMAGED_HINT)

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


# Read and write the announcement of a dataset's active generation (see ``manifest``).


def read_announcement(dataset: StoredDataset) -> Announcement | None:
    """Return the announcement of ``dataset``; None if there is none. Raises StoreError; CorruptFile also for the
    announcement of another dataset."""
    content = dataset.read_note(ANNOUNCEMENT_NOTE)
    if content is None:
        return None
    where = f"{dataset.url}/{ANNOUNCEMENT_NOTE}"
    found = parse_announcement(content, where)
    own = (dataset.address.namespace, dataset.address.name, dataset.address.uid)
    if own != (found.namespace, found.name, found.uid[:8]):
        raise CorruptFile(
            f"{where} announces {found.namespace}/{found.name} ({found.uid[:8]}), expected {dataset.address}"
            f" ({dataset.address.uid})",
            hint=WRITE_AGAIN,
        )
    return found


def find_announced(dataset: StoredDataset) -> str | None:
    """Return the announced generation; None if there is none, or an invalid note, which nobody follows. Raises
    StoreError."""
    try:
        standing = read_announcement(dataset)
    except CorruptFile:
        return None
    return None if standing is None else standing.generation


def write_announcement(dataset: StoredDataset, uid: str, generation: str, version: int, moment: str) -> None:
    """Announce ``generation`` of ``dataset``, whose whole uid is ``uid``, at ``moment``, unless this version or a
    later one is announced. Raises StoreError."""
    announcement = Announcement(dataset.address.namespace, dataset.address.name, uid, generation, version, moment)
    try:
        standing = read_announcement(dataset)
    except CorruptFile:
        standing = None
    if standing is None or standing.version < version:
        dataset.write_note(ANNOUNCEMENT_NOTE, announcement.to_json())


# Retries of whole requests to a store.


_FINAL: Final = (CorruptFile, GenerationExists, GenerationMissing, StoreDenied)
"""Errors that a retry cannot help."""

T = TypeVar("T")


def call_with_retries(request: Callable[[], T], seconds: float) -> T:
    """Return the result of ``request``; retry for at most ``seconds`` while it raises a StoreError that may pass."""
    deadline = time.monotonic() + seconds
    backoff = Backoff(0.25, 2.0)
    while True:
        try:
            return request()
        except _FINAL:
            raise
        except StoreError as error:
            delay = backoff.fail()
            if time.monotonic() + delay > deadline:
                raise
            log.warning("the store failed, retrying the request", extra={"reason": error.message, "delay": delay})
        time.sleep(delay)
