"""A store in a bucket: find, read and remove the generations of its datasets. ``publication`` puts them there."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, generation_number
from lookupdb.store.bucket import Bucket
from lookupdb.store.dataset import (
    BuildClaim,
    Store,
    StoreAddress,
    StoredDataset,
    check_generation,
    describe_missing_files,
    is_generation,
    parse_manifest,
    sort_generations,
    verify_shard_file,
)
from lookupdb.store.directory import folder_errors
from lookupdb.store.objects import Version, object_version
from lookupdb.store.publication import CLAIM, BucketClaim, Lease, PublicationDecided, complete_abandoned_publication

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
        """Generation → its manifest and that object's version: finding the whole generations needs every manifest."""

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
        """Return the manifest of that version from memory; else get it, and remember it."""
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
        """Put it on the condition that it still is the version that was read."""
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
        """Return one more than the highest of these."""
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
        """Return the path if it is this bucket."""
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
            complete_abandoned_publication(self.bucket, prefix, decided.manifest)
            raise self._claim_error(generation) from None
        try:
            files = self.bucket.files(prefix)
            if FILE_NAME in files:
                raise self._claim_error(generation)
            self.bucket.delete([f"{prefix}/{name}" for name in files if name != CLAIM])
            return BucketClaim(self.bucket, prefix, lease, scratch)
        except BaseException:
            lease.remove()
            raise

    def _find_abandoned_claim(self, prefix: str, dead_seconds: float) -> str | None:
        """Return the ETag of a claim that was not renewed for that long."""
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
            self.bucket.delete([f"{prefix}/{FILE_NAME}"])
        self.bucket.delete([f"{prefix}/{name}" for name in files if name != FILE_NAME])

    def unfinished_generations(self) -> dict[str, float]:
        """Return generations with objects but no manifest.json, except empty ones: those are markers of folders, which
        no build leaves and obstore cannot delete."""
        return {
            name: max(entry["last_modified"].timestamp() for entry in files.values())
            for name, files in self.bucket.entries(self.address.path).items()
            if is_generation(name) and FILE_NAME not in files and any(entry["size"] for entry in files.values())
        }

    def read_note(self, name: str) -> bytes | None:
        """Read an object beside the generations' prefixes."""
        return self.bucket.read(f"{self.address.path}/{name}").body

    def write_note(self, name: str, content: bytes | None) -> None:
        """Put or delete that object."""
        path = f"{self.address.path}/{name}"
        if content is None:
            self.bucket.delete([path])
        else:
            self.bucket.objects.put(path, content)


def _published_generations(listings: Mapping[str, ObjectListing]) -> tuple[str, ...]:
    return sort_generations({name for name, files in listings.items() if is_generation(name) and FILE_NAME in files})


def _object_sizes(files: ObjectListing) -> dict[str, int]:
    return {name: entry["size"] for name, entry in files.items()}
