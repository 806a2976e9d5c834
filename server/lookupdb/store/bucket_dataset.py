"""A store in a bucket: find, read and remove the generations of its datasets, and publish them."""

from __future__ import annotations

import logging
import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb import keys
from lookupdb.errors import CorruptFile, GenerationExists, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, check_density, generation_number, verify_shard_file
from lookupdb.store.bucket import Bucket, ObjectState
from lookupdb.store.dataset import (
    BuildClaim,
    OnCopied,
    ShardTarget,
    Store,
    StoreAddress,
    StoredDataset,
    call_with_retries,
    check_generation,
    describe_missing_files,
    is_generation,
    parse_manifest,
    sort_generations,
)
from lookupdb.store.directory import folder_errors
from lookupdb.store.objects import MAX_CONDITIONAL_BYTES, PutMode, Version, object_version

# Publish a generation in a bucket: put shard after shard, then publish all at once.
#
# 1. The builder puts each shard under a name that is unique to the attempt, so that no builder overwrites another's.
# 2. The builder lists the bucket: every shard must be there with its size.
# 3. The builder puts the manifest into its own claim, on the condition that the claim still is its own (``Lease``).
#    This is the decision: a builder that lost its claim fails here, however late it comes.
# 4. The builder puts manifest.json, if there is none, and deletes the claim. Any builder that finds
#    a decided claim does the same.
#
# Every answer may be lost, and every request may take effect although it seemed to fail. So after an error the builder
# reads the bucket, and its content decides. The rules for deleting:
#
# - A builder deletes what its own attempt put, as long as nothing is decided, or once the claim is certainly another's:
#   then nothing can publish it. While the outcome is unknown, and once decided, the builder deletes only its claim, and
#   only once manifest.json exists.
# - The holder of the claim deletes what all other attempts at this generation left: they cannot decide without the
#   claim.
# - ``remove`` deletes a whole generation: manifest.json first, so that it is not whole from then on, then the rest.
#
# A manifest.json may still appear after that, if its builder was suspended between 3 and 4 for all that time. It names
# missing shards, so the generation is not whole, and the sweep removes it.


# A builder's claim in a bucket: an object that is created if it does not exist, and replaced every few seconds on the
# condition that it still is the builder's own.
#
# A claim that stops changing belongs to a dead builder and may be taken over. Others watch it instead of comparing
# times, because the clocks of two machines need not agree. A builder that lost its claim never gets it back.
#
# The claim also decides who publishes: a builder's work is decided when it has put its manifest into its own claim, by
# the same conditional put (``decide``). Nobody can take over such a claim; a builder that finds it completes the
# publication. So a builder that lost its claim can publish nothing, however long it was suspended.


CLAIM: Final = "claim.json"
_TRIES: Final = 5
"""Attempts of a conditional put, in case an older put of our own arrives late."""


class LeaseState(Enum):
    """The known state of a claim; each member says what its holder may delete."""

    HELD = auto()
    """Ours, and undecided: nobody else uses what this attempt has put."""
    LOST = auto()
    """Another's or gone, for good: this attempt will never be published, and nobody uses what it has put."""
    UNKNOWN = auto()
    """A decision was sent, but it is unknown whether it took effect: nothing may be deleted."""
    DECIDED = auto()
    """The manifest is in the claim: nothing that it names may be deleted, nor the claim before manifest.json exists."""


class PublicationDecided(Exception):
    """The claim holds a manifest that must be published."""

    def __init__(self, manifest: bytes) -> None:
        super().__init__()
        self.manifest = manifest


class Lease:
    """A claim object and the thread that keeps it fresh."""

    def __init__(self, bucket: Bucket, prefix: str, subject: str, abandoned: str | None = None) -> None:
        """``abandoned`` is the ETag of a claim whose builder is known to be dead.

        Raises StoreError if another process is building ``subject``, PublicationDecided if another process has decided
        to publish it.
        """
        self.attempt: Final = uuid.uuid4().hex[:12]
        """Unique to this claim, and part of the names of all objects put under it."""
        self.state = LeaseState.HELD
        self._bucket = bucket
        self._path = f"{prefix}/{CLAIM}"
        self._subject = subject
        self._owner = f"{os.uname().nodename}:{os.getpid()}:{self.attempt}"
        self._beat = 0
        self._version: Version = {}
        self._stop = threading.Event()
        self._acquire(abandoned)
        self._thread = threading.Thread(target=self._keep_fresh, name="claim", daemon=True)
        self._thread.start()

    def _acquire(self, abandoned: str | None) -> None:
        """Create the claim, or replace that of a dead builder."""
        standing = call_with_retries(self._create_claim, self._bucket.patience)
        if self._is_ours(standing):
            return
        assert standing.body is not None
        if manifest := _read_decision(standing):
            raise PublicationDecided(manifest)
        if abandoned is None or standing.version.get("e_tag") != abandoned:
            self._await_expiry(standing)
        if not self._is_ours(self._put_claim(standing.version)):
            raise self._taken_error()

    def _create_claim(self) -> ObjectState:
        for _ in range(2):  # an existing claim may be gone by now: its builder released it
            standing = self._put_claim("create")
            if standing.body is not None:
                return standing
        raise standing.error or self._taken_error()

    def _await_expiry(self, first: ObjectState) -> None:
        """Return when the claim has not changed for the length of a lease. Raises StoreError if it changes."""
        deadline = time.monotonic() + self._bucket.lease
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._bucket.lease / 10))
            if self._bucket.read(self._path).version != first.version:
                raise self._taken_error()

    def _put_claim(self, mode: PutMode, manifest: bytes | None = None) -> ObjectState:
        """Put the claim, and repeat this if an older put of our own arrived late and replaced the known version."""
        self._beat += 1
        body = self._render(manifest)
        for _ in range(_TRIES):
            standing = self._bucket.put_if(self._path, body, mode)
            if not self._is_ours(standing):
                break
            mode = self._version = standing.version
            if standing.body == body:
                break
        return standing

    def _render(self, manifest: bytes | None) -> bytes:
        return orjson.dumps({"owner": self._owner, "beat": self._beat, "manifest": manifest and manifest.decode()})

    def _is_ours(self, standing: ObjectState) -> bool:
        return _read_member(standing, "owner") == self._owner

    def _taken_error(self) -> StoreError:
        return StoreError(
            f"{self._subject} is being built by another process",
            hint="wait for it to end, or choose another --generation",
        )

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._bucket.heartbeat):
            with suppress(StoreError):  # the network may come back before the lease expires
                if not self._is_ours(self._put_claim(self._version)):
                    self.state = LeaseState.LOST
                    return

    def check(self) -> None:
        """Raise StoreError if another process took over the claim."""
        if self.state is LeaseState.LOST:
            raise StoreError(
                f"{self._subject} was taken over by another process while this one was suspended",
                hint="run the build again: the other process's generation is kept",
            )

    def decide(self, manifest: bytes, is_published: Callable[[], bool]) -> None:
        """Decide that ``manifest`` and no other will be published; end the heartbeat.

        ``is_published`` returns whether it is published already: any builder that finds a decision publishes the
        manifest and removes the claim, so a missing claim may be no loss. Raises StoreError, with ``state`` set.
        """
        if (size := len(self._render(manifest))) > MAX_CONDITIONAL_BYTES:
            raise StoreError(
                f"{self._subject} cannot be published: its manifest takes {size} bytes of the claim, expected at most"
                f" {MAX_CONDITIONAL_BYTES}",
                hint="it names every file of the source: use fewer files",
            )
        self.end_heartbeat()
        self.check()

        def put() -> ObjectState:
            standing = self._put_claim(self._version, manifest)
            if (
                self._is_ours(standing) and _read_decision(standing) is None
            ):  # not decided, but an earlier put may still arrive
                raise standing.error or StoreError(f"the claim of {self._subject} does not keep what is put into it")
            return standing

        self.state = LeaseState.UNKNOWN
        is_decided = self._is_ours(call_with_retries(put, self._bucket.patience))
        is_decided = is_decided or call_with_retries(is_published, self._bucket.patience)
        self.state = LeaseState.DECIDED if is_decided else LeaseState.LOST
        self.check()

    def end_heartbeat(self) -> None:
        """Stop renewing the claim: it expires unless it is put again."""
        self._stop.set()
        self._thread.join()

    def remove(self) -> None:
        """Delete the claim if it is ours. Without a network it expires by itself."""
        self.end_heartbeat()
        with suppress(StoreError):
            if self._is_ours(self._bucket.read(self._path)):
                self._bucket.objects.delete([self._path])
        self.state = LeaseState.LOST


def _read_member(standing: ObjectState, name: str) -> str | None:
    """Return a member of the claim; None if it is missing, or if the object is not a claim."""
    try:
        text = standing.body or b"{}"
        check_density(text)
        value = orjson.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _read_decision(standing: ObjectState) -> bytes | None:
    """Return the manifest that the claim's builder decided to publish; None if it has not decided."""
    manifest = _read_member(standing, "manifest")
    return None if manifest is None else manifest.encode()


log = logging.getLogger(__name__)


_LEASE_DIGITS: Final = 8
"""The name of a task's attempt begins with this many digits of the claim's attempt; the rest is random."""


@dataclass(frozen=True, slots=True)
class BucketTarget:
    """The objects of a claim, for tasks, which open the bucket with credentials from their own environment."""

    url: str
    prefix: str
    claim: str
    """The claim's attempt."""

    def new_attempt(self) -> str:
        """Return the first digits of the claim's attempt, followed by random ones. Files of equal names are equal."""
        return self.claim[:_LEASE_DIGITS] + uuid.uuid4().hex[: len(self.claim) - _LEASE_DIGITS]

    def folder(self, scratch: Path) -> Path:
        """Return ``scratch``."""
        return scratch

    def put(self, path: Path) -> None:
        """Put the file."""
        upload_shard(Bucket(self.url), f"{self.prefix}/{path.name}", path, path.stat().st_size)


def upload_shard(bucket: Bucket, target: str, path: Path, size: int) -> None:
    """Put one shard of ``size`` bytes, in parts if it is large. Raises StoreError."""

    def put() -> None:
        try:
            bucket.objects.upload(target, path)
        except StoreError:
            if not is_there(bucket, target, size):
                raise

    call_with_retries(put, bucket.patience)


def is_there(bucket: Bucket, target: str, size: int) -> bool:
    """Return whether the object exists with this size. Objects appear whole, and nobody else puts one of this name."""
    try:
        return bucket.objects.size(target) == size
    except StoreError:
        return False


class BucketClaim(BuildClaim):
    """A claim whose shard files are written in scratch, then put under the generation's name."""

    def __init__(self, bucket: Bucket, prefix: str, lease: Lease, scratch: Path) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._lease = lease
        self._uploads: list[str] = []
        self._is_published = False
        self._target: BucketTarget | None = None
        self._published: frozenset[str] = frozenset()
        """The names of published files."""
        self._store_copies = True
        """True if no copy has failed yet."""
        self.generation = prefix.rpartition("/")[2]
        self.folder = scratch / "generation"
        with folder_errors(f"cannot write to the scratch folder {scratch}"):
            self.folder.mkdir()

    def make_target(self) -> ShardTarget:
        """Return the generation's prefix. Objects that tasks put there are published, or removed with the claim."""
        self._target = BucketTarget(self._bucket.url, self._prefix, self._lease.attempt)
        return self._target

    def take_shards(self, shards: Sequence[ShardFile]) -> tuple[ShardFile, ...]:
        """Delete all other objects: while the claim is ours, nobody else puts any."""
        self._lease.check()
        names = {CLAIM, *(shard.file for shard in shards)}
        self._bucket.objects.delete([f"{self._prefix}/{name}" for name in self._list() if name not in names])
        return tuple(shards)

    def _list(self) -> dict[str, dict[str, Any]]:
        return call_with_retries(lambda: self._bucket.files(self._prefix), self._bucket.patience)

    def publish(self, manifest: Manifest) -> Manifest:
        """Publish in the four steps above; tasks may have done the first."""
        if self._target is not None:
            return self._decide(manifest)
        return self._publish(manifest, lambda shard, entry: self._upload(self.folder / shard.file, entry))

    def publish_copy(self, source: StoredDataset, original: str, manifest: Manifest, on_copied: OnCopied) -> Manifest:
        """Publish files, copied within the store if possible, else through the scratch folder. After the first failed
        copy all others go through that folder: a store that was too slow once would be too slow again."""

        def copy(shard: ShardFile, entry: ShardFile) -> None:
            if not self._copy(source.object_path(original, shard, self._bucket.identity), entry):
                with source.verified_shard(original, shard, self.folder) as path:
                    self._upload(path, entry)
            on_copied(entry.bytes)

        return self._publish(manifest, copy)

    def _publish(self, manifest: Manifest, put: Callable[[ShardFile, ShardFile], None]) -> Manifest:
        """Publish ``manifest``. ``put`` gets each shard's entry in the manifest, and the same entry with the new file's
        name."""
        shards = manifest.shards
        names = [keys.file_name(number, len(shards), self._lease.attempt) for number in range(len(shards))]
        stored_shards = tuple(replace(shard, file=name) for shard, name in zip(shards, names, strict=True))
        for shard, entry in zip(shards, stored_shards, strict=True):
            self._lease.check()
            put(shard, entry)
        return self._decide(replace(manifest, shards=stored_shards))

    def _decide(self, published: Manifest) -> Manifest:
        """Publish what has been put."""
        self._lease.check()
        if missing := describe_missing_files(published, _object_sizes(self._list())):
            raise StoreError(
                f"the store has lost what was put under {self._bucket.url}/{self._prefix}: {missing[0]}",
                hint="run the build again, and find out what else writes there",
            )
        text = published.to_json()
        self._lease.decide(text, lambda: self._bucket.read(f"{self._prefix}/{FILE_NAME}").body == text)
        complete_publication(self._bucket, self._prefix, text)
        self._published = frozenset(shard.file for shard in published.shards)
        self._is_published = True
        self._uploads.clear()
        return published

    def _upload(self, path: Path, entry: ShardFile) -> None:
        """Put one shard, in parts if it is large."""
        target = f"{self._prefix}/{entry.file}"
        self._uploads.append(target)
        upload_shard(self._bucket, target, path, entry.bytes)

    def _copy(self, path: str | None, entry: ShardFile) -> bool:
        """Let the store copy one shard; return False if it does not.

        A copy that failed may still take effect, even after this attempt has put the same bytes under that name.
        """
        if path is None or not self._store_copies:
            return False
        target = f"{self._prefix}/{entry.file}"
        self._uploads.append(target)

        def copy() -> bool:
            try:
                return self._bucket.objects.copy(path, target, entry.bytes)
            except StoreError:
                if not is_there(self._bucket, target, entry.bytes):
                    raise
                return True

        try:
            return call_with_retries(copy, self._bucket.patience)
        except StoreError as error:
            if self._bucket.objects.size(target) is not None:  # it has another size
                raise
            log.warning("the store cannot copy, so the bytes pass through here", extra={"reason": error.message})
            self._store_copies = False
            return False

    def release(self) -> None:
        """Release the claim and delete what the rules above allow."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lease.end_heartbeat()
        state = self._lease.state
        if self._is_published or state in (LeaseState.HELD, LeaseState.LOST):
            with suppress(StoreError):
                remains = list(self._uploads)
                if self._target is not None:  # what its tasks have put: a late attempt may end after the publication
                    digits = self._target.claim[:_LEASE_DIGITS]
                    found = (name for name in self._bucket.files(self._prefix) if keys.is_file_name(name))
                    left = (name for name in found if name not in self._published)
                    remains += (f"{self._prefix}/{name}" for name in left if name.rpartition("-")[2].startswith(digits))
                if remains:
                    self._bucket.objects.delete(remains)
        self._uploads.clear()
        if self._is_published or state is LeaseState.HELD:
            self._lease.remove()


def complete_publication(bucket: Bucket, prefix: str, manifest: bytes) -> None:
    """Make ``manifest``, which a claim has decided, the generation's manifest.json.

    Raises GenerationExists if it has another one, StoreError if the outcome is unknown.
    """
    path = f"{prefix}/{FILE_NAME}"

    def put() -> bytes:
        standing = bucket.put_if(path, manifest, "create")
        if standing.body is None:
            raise standing.error or StoreError(f"{bucket.url} does not keep {path}")
        return standing.body

    if call_with_retries(put, bucket.patience) != manifest:
        raise GenerationExists(
            f"{bucket.url}/{path} exists already, with other content",
            hint="run the build again for the next generation",
        )


ObjectListing = Mapping[str, dict[str, Any]]
"""Name → the object's entry in the store's listing."""


class BucketStore(Store):
    """The part of a bucket that belongs to ``cluster``."""

    def __init__(self, url: str, cluster: str, bucket: Bucket) -> None:
        self.url = url
        self.cluster = cluster
        self.identity = bucket.identity
        self._bucket = bucket

    def dataset_at(self, address: StoreAddress) -> StoredDataset:
        """Return the objects at ``address``."""
        return BucketDataset(self._bucket, address)

    def wait(self, seconds: float) -> None:
        """Probe the bucket."""
        self._bucket.wait(seconds, self.cluster)

    def namespaces(self) -> tuple[str, ...]:
        """List the folders of the cluster."""
        return tuple(sorted(self._bucket.folders(self.cluster)))

    def addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """List the folders of the namespace."""
        return self._parse_addresses(namespace, self._bucket.folders(f"{self.cluster}/{namespace}"))

    def walk_addresses_in(self, namespace: str) -> tuple[StoreAddress, ...]:
        """List all objects of the namespace."""
        return self._parse_addresses(namespace, self._bucket.walk_folders(f"{self.cluster}/{namespace}"))


class BucketDataset(StoredDataset):
    """One dataset's objects."""

    def __init__(self, bucket: Bucket, address: StoreAddress) -> None:
        self.bucket = bucket
        self.address = address
        self.url = f"{bucket.url}/{address.path}"
        self._manifests: dict[str, tuple[Version, Manifest]] = {}
        """Generation → version of its manifest.json, and the manifest. Finding whole generations needs them all."""

    def _published_manifests(self, *, keep: bool = False) -> Iterator[tuple[str, Manifest | None]]:
        """Take one listing, and a GET for each manifest.json that is not in memory."""
        listings = self.bucket.entries(self.address.path)
        for generation in _published_generations(listings):
            files = listings.pop(generation)
            manifest: Manifest | None = None
            with suppress(CorruptFile):
                manifest = (
                    self._load(generation, object_version(files[FILE_NAME])) if keep else self.find_manifest(generation)
                )
            # None if it was removed after the listing.
            is_whole = manifest is not None and not describe_missing_files(manifest, _object_sizes(files))
            yield generation, manifest if is_whole else None

    def published_generations(self) -> tuple[str, ...]:
        """Take one listing."""
        return _published_generations(self.bucket.entries(self.address.path))

    def _load(self, generation: str, version: Version) -> Manifest | None:
        """Return the manifest from memory if it is of ``version``; else get it, and remember it."""
        kept = self._manifests.get(generation)
        if kept is None or not version or kept[0] != version:
            kept = self._get(generation)
        if kept is None:
            self._manifests.pop(generation, None)
            return None
        self._manifests[generation] = kept
        return kept[1]

    def find_manifest(self, generation: str) -> Manifest | None:
        """Get manifest.json."""
        found = self._get(generation)
        return found and found[1]

    def _get(self, generation: str) -> tuple[Version, Manifest] | None:
        path = f"{self._prefix(generation)}/{FILE_NAME}"
        standing = self.bucket.read(path)
        if standing.body is None:
            return None
        return standing.version, parse_manifest(standing.body, f"{self.bucket.url}/{path}", generation)

    def _replace_manifest(self, before: Manifest, after: Manifest) -> None:
        """Put the manifest on the condition that the object still is the version that was read."""
        path = f"{self._prefix(before.generation)}/{FILE_NAME}"
        standing = self.bucket.read(path)
        text = after.to_json()
        if standing.body is not None and parse_manifest(standing.body, f"{self.bucket.url}/{path}") == before:
            standing = self.bucket.put_if(path, text, standing.version)
        if standing.body is None:
            raise self._missing_generation_error(before.generation)
        if standing.body != text:
            raise standing.error or StoreError(
                f"{self.bucket.url}/{path} was changed by another process", hint="find out what else writes there"
            )

    def _missing_files(self, manifest: Manifest) -> tuple[str, ...]:
        return describe_missing_files(manifest, _object_sizes(self.bucket.files(self._prefix(manifest.generation))))

    def _prefix(self, generation: str) -> str:
        return f"{self.address.path}/{check_generation(generation)}"

    def known_generations(self) -> tuple[str, ...]:
        """List all names with an object, including a claim."""
        return sort_generations(set(filter(is_generation, self.bucket.folders(self.address.path))))

    def next_generation(self) -> str:
        """Return one more than the highest of ``known_generations``."""
        return f"g{max(map(generation_number, self.known_generations()), default=0) + 1}"

    @contextmanager
    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        """Yield a verified copy."""
        target = scratch / f"{uuid.uuid4().hex}-{shard.file}"
        try:
            doing = f"cannot copy {self.url}/{generation}/{shard.file} to {scratch}"
            with folder_errors(doing), target.open("wb") as file:
                for chunk in self.read(generation, shard):
                    file.write(chunk)
            verify_shard_file(target, shard)
            yield target
        finally:
            target.unlink(missing_ok=True)

    def object_path(self, generation: str, shard: ShardFile, bucket: str) -> str | None:
        """Return the path if ``bucket`` is this one."""
        return f"{self._prefix(generation)}/{shard.file}" if self.bucket.identity == bucket else None

    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes as the bucket sends them. Raises CorruptFile if a published generation lacks the shard."""
        chunks = self.bucket.objects.stream(f"{self._prefix(generation)}/{shard.file}", start)
        if chunks is None:
            raise self._lost_shard_error(generation, shard)
        yield from chunks

    def claim(self, generation: str, scratch: Path, *, dead_seconds: float = math.inf) -> BuildClaim:
        """Put the claim object. If there is one already, wait to see whether its builder is alive, unless the claim is
        older than ``dead_seconds``."""
        prefix = self._prefix(generation)
        abandoned = None if dead_seconds == math.inf else self._find_abandoned_claim(prefix, dead_seconds)
        try:
            lease = Lease(self.bucket, prefix, f"generation {generation} of {self.address}", abandoned)
        except PublicationDecided as decided:
            # Its builder has decided to publish, but not yet deleted its claim: it may be dead.
            with suppress(GenerationExists):
                complete_publication(self.bucket, prefix, decided.manifest)
            self.bucket.objects.delete([f"{prefix}/{CLAIM}"])
            raise self._claim_error(generation) from None
        try:
            files = self.bucket.files(prefix)
            if FILE_NAME in files:
                raise self._claim_error(generation)
            self.bucket.objects.delete([f"{prefix}/{name}" for name in files if name != CLAIM])
            return BucketClaim(self.bucket, prefix, lease, scratch)
        except BaseException:
            lease.remove()
            raise

    def _find_abandoned_claim(self, prefix: str, dead_seconds: float) -> str | None:
        """Return the ETag of a claim that was not renewed for ``dead_seconds``; None if there is none."""
        claim = self.bucket.files(prefix).get(CLAIM)
        if claim is None or time.time() - claim["last_modified"].timestamp() < dead_seconds:
            return None
        etag: str | None = claim["e_tag"]
        return etag

    def remove(self, generation: str) -> None:
        """Remove the manifest first, then the rest."""
        prefix = self._prefix(generation)
        files = self.bucket.files(prefix)
        if FILE_NAME in files:
            self.bucket.objects.delete([f"{prefix}/{FILE_NAME}"])
        self.bucket.objects.delete([f"{prefix}/{name}" for name in files if name != FILE_NAME])

    def unfinished_generations(self) -> dict[str, float]:
        """Return generations with objects but no manifest.json. Empty objects alone do not count: they are markers of
        folders, which no build leaves and obstore cannot delete."""
        return {
            name: max(entry["last_modified"].timestamp() for entry in files.values())
            for name, files in self.bucket.entries(self.address.path).items()
            if is_generation(name) and FILE_NAME not in files and any(entry["size"] for entry in files.values())
        }

    def read_note(self, name: str) -> bytes | None:
        """Read an object beside the generations' prefixes."""
        return self.bucket.read(f"{self.address.path}/{name}").body

    def write_note(self, name: str, content: bytes | None) -> None:
        """Put or delete the note's object."""
        path = f"{self.address.path}/{name}"
        if content is None:
            self.bucket.objects.delete([path])
        else:
            self.bucket.objects.put(path, content)


def _published_generations(listings: Mapping[str, ObjectListing]) -> tuple[str, ...]:
    return sort_generations({name for name, files in listings.items() if is_generation(name) and FILE_NAME in files})


def _object_sizes(files: ObjectListing) -> dict[str, int]:
    return {name: entry["size"] for name, entry in files.items()}
