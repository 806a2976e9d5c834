"""A store in a bucket: a generation's objects are put one by one, its manifest.json last and only if none is there.

A build holds a lease (see ``lease``) on the generation that it builds.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError

from lookupdb.errors import GenerationExists, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, generation_number
from lookupdb.store.bucket import PART_BYTES, Bucket
from lookupdb.store.dataset import Claim, Dataset, in_order, verify
from lookupdb.store.directory import store_errors
from lookupdb.store.layout import Address, checked_generation, is_generation, parse_manifest
from lookupdb.store.lease import CLAIM, Lease

if TYPE_CHECKING:
    from obstore import GetOptions

_PARTS_AT_ONCE: Final = 4
"""Bounds what an upload holds in memory: parts × their size."""


class ObjectDataset(Dataset):
    """One dataset's objects."""

    def __init__(self, bucket: Bucket, address: Address) -> None:
        self.bucket = bucket
        self.address = address
        self.url = f"{bucket.url}/{address.path}"

    def generations(self) -> tuple[str, ...]:
        """Those that have a manifest.json."""
        names = self.bucket.names(self.address.path)
        return in_order({name for name, files in names.items() if is_generation(name) and FILE_NAME in files})

    def manifest(self, generation: str) -> Manifest:
        """Gets manifest.json."""
        path = f"{self.address.path}/{checked_generation(generation)}/{FILE_NAME}"
        with self.bucket.errors("read"):
            try:
                text = bytes(obstore.get(self.bucket.store, path).bytes())
            except FileNotFoundError:
                text = None
        if text is None:
            raise self._missing(generation)
        return parse_manifest(text, f"{self.bucket.url}/{path}", generation)

    def next_generation(self) -> str:
        """One more than the highest name with any object, a claim included."""
        taken = filter(is_generation, self.bucket.folders(self.address.path))
        return f"g{max(map(generation_number, taken), default=0) + 1}"

    def local_path(self, generation: str) -> Path | None:
        """Never: objects are not files."""
        return None

    def shard(self, generation: str, shard: ShardFile, scratch: Path) -> AbstractContextManager[Path]:
        """A verified copy."""
        return self._copy(f"{self.address.path}/{checked_generation(generation)}/{shard.file}", shard, scratch)

    @contextmanager
    def _copy(self, path: str, shard: ShardFile, scratch: Path) -> Iterator[Path]:
        target = scratch / f"{uuid.uuid4().hex}-{shard.file}"
        try:
            with store_errors(f"cannot copy {self.bucket.url}/{path} to {scratch}"), target.open("wb") as file:
                for chunk in self._chunks(path, 0):
                    file.write(chunk)
            verify(target, shard)
            yield target
        finally:
            target.unlink(missing_ok=True)

    def _chunks(self, path: str, start: int) -> Iterator[bytes]:
        options: GetOptions = {"range": {"offset": start}} if start else {}
        with self.bucket.errors("read"):
            stream = obstore.get(self.bucket.store, path, options=options).stream(min_chunk_size=PART_BYTES)
        while True:
            with self.bucket.errors("read"):
                chunk = next(stream, None)
            if chunk is None:
                return
            yield bytes(chunk)

    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        """As the bucket sends it."""
        yield from self._chunks(f"{self.address.path}/{checked_generation(generation)}/{shard.file}", start)

    def claim(self, generation: str, scratch: Path) -> Claim:
        """Puts the claim object; where there is one already, watches whether its builder lives."""
        prefix = f"{self.address.path}/{checked_generation(generation)}"
        lease = Lease(self.bucket, prefix, f"generation {generation} of {self.address}")
        try:
            files = self.bucket.names(self.address.path).get(generation, [])
            if FILE_NAME in files:
                raise GenerationExists(
                    f"generation {generation} of {self.address} exists already in {self.url}",
                    hint="a generation never changes: leave --generation away to build the next one",
                )
            self._delete(prefix, [name for name in files if name != CLAIM])
            return ObjectClaim(self.bucket, prefix, lease, scratch)
        except BaseException:
            lease.release()
            raise

    def remove(self, generation: str) -> None:
        """The manifest first, then the rest."""
        prefix = f"{self.address.path}/{checked_generation(generation)}"
        files = self.bucket.names(self.address.path).get(generation, [])
        self._delete(prefix, sorted(files, key=lambda name: name != FILE_NAME))

    def _delete(self, prefix: str, files: list[str]) -> None:
        with self.bucket.errors("remove objects from"):
            for file in files:
                with suppress(FileNotFoundError):
                    obstore.delete(self.bucket.store, f"{prefix}/{file}")

    def unfinished(self) -> dict[str, float]:
        """Those with objects but no manifest.json."""
        entries = self.bucket.entries(self.address.path)
        return {
            name: max(entry["last_modified"].timestamp() for entry in files.values())
            for name, files in entries.items()
            if is_generation(name) and FILE_NAME not in files
        }

    def note(self, name: str) -> bytes | None:
        """An object beside the generations' prefixes."""
        with self.bucket.errors("read"):
            try:
                return bytes(obstore.get(self.bucket.store, f"{self.address.path}/{name}").bytes())
            except FileNotFoundError:
                return None

    def write_note(self, name: str, content: bytes | None) -> None:
        """Put or deleted."""
        path = f"{self.address.path}/{name}"
        with self.bucket.errors("write"):
            if content is None:
                with suppress(FileNotFoundError):
                    obstore.delete(self.bucket.store, path)
            else:
                obstore.put(self.bucket.store, path, content)

    def free_bytes(self) -> int | None:
        """A bucket does not say."""
        return None


class ObjectClaim(Claim):
    """Shard files are written in scratch, then put under the generation's name."""

    def __init__(self, bucket: Bucket, prefix: str, lease: Lease, scratch: Path) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._lease = lease
        self._put: list[str] = []
        self._published = False
        self.generation = prefix.rpartition("/")[2]
        self.folder = scratch / "generation"
        with store_errors(f"cannot write to the scratch folder {scratch}"):
            self.folder.mkdir()

    def publish(self, manifest: Manifest) -> None:
        """Multipart uploads; the manifest is put only if none is there, so that one builder at most succeeds."""
        for shard in manifest.shards:
            self._lease.check()
            path = f"{self._prefix}/{shard.file}"
            self._put.append(path)
            with self._bucket.errors(f"put {shard.file} into"):
                obstore.put(
                    self._bucket.store,
                    path,
                    self.folder / shard.file,
                    chunk_size=PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
        self._lease.renew()
        with self._bucket.errors("publish in"):
            obstore.put(self._bucket.store, f"{self._prefix}/{FILE_NAME}", manifest.to_json(), mode="create")
        self._published = True

    def release(self) -> None:
        """What was put and not published is removed, unless the claim is somebody else's by now."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self._published:
            with suppress(StoreError):
                self._lease.check()
                for path in self._put:
                    with suppress(BaseError, FileNotFoundError):
                        obstore.delete(self._bucket.store, path)
        self._put.clear()
        self._lease.release()
