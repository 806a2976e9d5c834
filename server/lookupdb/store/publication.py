"""Publishes a generation in a bucket: shard by shard, then at once.

1. The builder puts each shard under a name that is unique to the attempt, so that no builder overwrites another's.
2. The builder lists the bucket: every shard must be there with its size.
3. The builder puts the manifest into its own claim, on the condition that the claim still is its own (``lease``).
   This is the decision: a builder that lost its claim is refused here, however late it comes.
4. The builder puts manifest.json, if there is none, and deletes the claim. Whoever meets a decided claim does the same.

Every answer may be lost, and every request may take effect although it seemed to fail. So after an error the builder
reads the bucket, and what stands there counts. Who may delete what, and when:

- A builder deletes what its own attempt put, as long as nothing is decided, or once the claim is certainly another's:
  then nothing can publish it. While the decision is unknown, and after it, the builder deletes nothing but its claim,
  and that only once manifest.json exists.
- The holder of the claim deletes what all other attempts at this generation left: they cannot decide without the claim.
- ``remove`` deletes a whole generation: manifest.json first, so that it is not whole from then on, then the rest.

A manifest.json may still appear after that, if its builder stood still between 3 and 4 for all that time. It names
missing shards, so the generation is not whole, and the sweep removes it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lookupdb import shard_name
from lookupdb.errors import GenerationExists, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile
from lookupdb.store.bucket import Bucket
from lookupdb.store.dataset import BuildClaim, OnCopied, StoredDataset, describe_missing_files
from lookupdb.store.directory import folder_errors
from lookupdb.store.lease import CLAIM, Lease, LeaseState
from lookupdb.store.retry import call_with_retries

log = logging.getLogger(__name__)


class BucketClaim(BuildClaim):
    """Shard files are written in scratch, then put under the generation's name."""

    def __init__(self, bucket: Bucket, prefix: str, lease: Lease, scratch: Path) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._lease = lease
        self._uploads: list[str] = []
        self._is_published = False
        self._store_copies = True
        """Whether no copy has failed yet."""
        self.generation = prefix.rpartition("/")[2]
        self.folder = scratch / "generation"
        with folder_errors(f"cannot write to the scratch folder {scratch}"):
            self.folder.mkdir()

    def publish(self, manifest: Manifest) -> Manifest:
        """Publish in the four steps above."""
        return self._publish(manifest, lambda shard, entry: self._upload(self.folder / shard.file, entry))

    def publish_copy(self, source: StoredDataset, original: str, manifest: Manifest, on_copied: OnCopied) -> Manifest:
        """The same; the store copies what it has itself, and all else passes through the scratch folder. So does all
        that follows a copy that failed: a store that takes longer than anybody waits would take as long again."""

        def copy(shard: ShardFile, entry: ShardFile) -> None:
            if not self._copy(source.object_path(original, shard, self._bucket.identity), entry):
                with source.verified_shard(original, shard, self.folder) as path:
                    self._upload(path, entry)
            on_copied(entry.bytes)

        return self._publish(manifest, copy)

    def _publish(self, manifest: Manifest, put: Callable[[ShardFile, ShardFile], None]) -> Manifest:
        """Publish what ``put`` puts: each shard by its entry in ``manifest``, under the name in its second one."""
        shards = manifest.shards
        names = [shard_name.file_name(number, len(shards), self._lease.attempt) for number in range(len(shards))]
        stored_shards = tuple(replace(shard, file=name) for shard, name in zip(shards, names, strict=True))
        for shard, entry in zip(shards, stored_shards, strict=True):
            self._lease.check()
            put(shard, entry)
        published = replace(manifest, shards=stored_shards)
        self._check_uploads(published)
        text = published.to_json()
        self._lease.decide(text, lambda: self._is_published_as(text))
        complete_publication(self._bucket, self._prefix, text)
        self._is_published = True
        return published

    def _upload(self, path: Path, entry: ShardFile) -> None:
        """Put one shard, in parts if it is large."""
        target = f"{self._prefix}/{entry.file}"
        self._uploads.append(target)

        def put() -> None:
            try:
                self._bucket.objects.upload(target, path)
            except StoreError:
                if not self._is_there(target, entry.bytes):
                    raise

        call_with_retries(put, self._bucket.patience)

    def _copy(self, path: str | None, entry: ShardFile) -> bool:
        """Let the store copy one shard; False if it does not.

        A copy that failed may still take effect, also when this attempt has put the same bytes under that name.
        """
        if path is None or not self._store_copies:
            return False
        target = f"{self._prefix}/{entry.file}"
        self._uploads.append(target)

        def copy() -> bool:
            try:
                return self._bucket.objects.copy(path, target, entry.bytes)
            except StoreError:
                if not self._is_there(target, entry.bytes):
                    raise
                return True

        try:
            return call_with_retries(copy, self._bucket.patience)
        except StoreError as error:
            if self._bucket.objects.size(target) is not None:  # of another size
                raise
            log.warning("the store does not copy, the bytes pass through here", extra={"reason": error.message})
            self._store_copies = False
            return False

    def _is_there(self, target: str, size: int) -> bool:
        """Whether the object exists with this size. Objects appear whole, and nobody else puts one of this name."""
        try:
            return self._bucket.objects.size(target) == size
        except StoreError:
            return False

    def _check_uploads(self, manifest: Manifest) -> None:
        files = call_with_retries(lambda: self._bucket.files(self._prefix), self._bucket.patience)
        if missing := describe_missing_files(manifest, {name: entry["size"] for name, entry in files.items()}):
            raise StoreError(
                f"the store has lost what was put under {self._bucket.url}/{self._prefix}: {missing[0]}",
                hint="run the build again, and look who else writes there",
            )

    def _is_published_as(self, manifest: bytes) -> bool:
        return self._bucket.read(f"{self._prefix}/{FILE_NAME}").body == manifest

    def release(self) -> None:
        """Release the claim and delete what the rules above allow."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lease.end_heartbeat()
        state = self._lease.state
        if not self._is_published and state in (LeaseState.HELD, LeaseState.LOST):
            with suppress(StoreError):
                self._bucket.delete(self._uploads)
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
            f"{bucket.url}/{path} is there already, and another", hint="run the build again for the next generation"
        )


def complete_abandoned_publication(bucket: Bucket, prefix: str, manifest: bytes) -> None:
    """Complete the publication of a builder that decided and then died or stood still, and delete its claim."""
    with suppress(GenerationExists):
        complete_publication(bucket, prefix, manifest)
    bucket.delete([f"{prefix}/{CLAIM}"])
