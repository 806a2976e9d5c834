"""A store in a bucket, through obstore.

A build holds ``<generation>/claim.json``, put only if it was not there, and puts it anew every few seconds on the
condition that it still is its own. A claim that stops changing belongs to a builder that died and may be taken over;
it is watched rather than dated, because the clocks of two machines need not agree.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import obstore
import orjson
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lookupdb.errors import StoreError
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, generation_number
from lookupdb.store.dataset import Claim, Dataset, in_order, verify
from lookupdb.store.directory import store_errors
from lookupdb.store.layout import Address, checked_generation, is_generation, parse_manifest

CLAIM: Final = "claim.json"
HEARTBEAT_SECONDS: Final = 5.0
LEASE_SECONDS: Final = 30.0
"""A claim that did not change for this long is a dead builder's."""
_CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "7days"}
"""``timeout`` is for a whole file, however large: what stalls is ended by ``read_timeout``."""
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4
"""Bounds what an upload holds in memory: parts × their size."""


class Bucket:
    """A bucket, or a folder of one."""

    def __init__(self, url: str, *, heartbeat: float = HEARTBEAT_SECONDS, lease: float = LEASE_SECONDS) -> None:
        self.url = url.rstrip("/")
        self.heartbeat = heartbeat
        self.lease = lease
        with self.errors("use"):
            # Options given here displace those that obstore would take from the environment.
            client = {**_CLIENT, "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")}
            self.store: Any = obstore.store.from_url(self.url, client_options=client)  # type: ignore[call-overload]

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn what obstore says into the error a user can act on; the last of its lines says why."""
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            reason = str(error).split("Debug source:")[0].strip()
            raise StoreError(
                f"cannot {doing} {self.url}: {reason}", hint="check its address, credentials and rights"
            ) from error

    def folders(self, path: str) -> list[str]:
        """The names directly under ``path`` that have something under them."""
        with self.errors("list"):
            prefixes = obstore.list_with_delimiter(self.store, path)["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]

    def names(self, path: str) -> dict[str, list[str]]:
        """Every object under ``path``, relative to it, by the first part of its name."""
        found: dict[str, list[str]] = {}
        with self.errors("list"):
            for page in obstore.list(self.store, path):
                for entry in page:
                    folder, _, file = entry["path"].removeprefix(path + "/").partition("/")
                    found.setdefault(folder, []).append(file)
        return found

    def addresses(self, cluster: str) -> tuple[Address, ...]:
        """Every dataset of ``cluster``, by path."""
        found = (
            Address.parse(cluster, namespace, folder)
            for namespace in sorted(self.folders(cluster))
            for folder in sorted(self.folders(f"{cluster}/{namespace}"))
        )
        return tuple(address for address in found if address)


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
                for chunk in self._chunks(path):
                    file.write(chunk)
            verify(target, shard)
            yield target
        finally:
            target.unlink(missing_ok=True)

    def _chunks(self, path: str) -> Iterator[bytes]:
        with self.bucket.errors("read"):
            yield from obstore.get(self.bucket.store, path).stream(min_chunk_size=_PART_BYTES)

    def claim(self, generation: str, scratch: Path) -> Claim:
        """Puts the claim object; where there is one already, watches whether its builder lives."""
        prefix = f"{self.address.path}/{checked_generation(generation)}"
        lease = _Lease(self.bucket, prefix, f"generation {generation} of {self.address}")
        try:
            files = self.bucket.names(self.address.path).get(generation, [])
            if FILE_NAME in files:
                raise StoreError(
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

    def free_bytes(self) -> int | None:
        """A bucket does not say."""
        return None


class _Lease:
    """A claim object and the thread that keeps it fresh."""

    def __init__(self, bucket: Bucket, prefix: str, what: str) -> None:
        self._bucket = bucket
        self._path = f"{prefix}/{CLAIM}"
        self._what = what
        self._owner = f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._beat = 0
        self._lost: str | None = None
        self._stop = threading.Event()
        with bucket.errors("claim a generation in"):
            self._version = self._take()
        self._thread = threading.Thread(target=self._keep, name="claim", daemon=True)
        self._thread.start()

    def _take(self) -> dict[str, Any]:
        try:
            return self._put("create")
        except AlreadyExistsError:
            pass
        seen = self._watch()
        try:
            return self._put("create" if seen is None else seen)
        except (AlreadyExistsError, PreconditionError) as error:
            raise self._taken() from error

    def _watch(self) -> dict[str, Any] | None:
        """The version of a claim that did not change for a lease, or None when it went away. Raises StoreError."""
        first = self._head()
        deadline = time.monotonic() + self._bucket.lease
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._bucket.lease / 10))
            now = self._head()
            if now is None:
                return None
            if now != first:
                raise self._taken()
        return first

    def _head(self) -> dict[str, Any] | None:
        try:
            meta = obstore.head(self._bucket.store, self._path)
        except FileNotFoundError:
            return None
        return _version(meta)

    def _put(self, mode: Any) -> dict[str, Any]:
        self._beat += 1
        body = orjson.dumps({"owner": self._owner, "beat": self._beat})
        return _version(obstore.put(self._bucket.store, self._path, body, mode=mode))

    def _taken(self) -> StoreError:
        return StoreError(
            f"{self._what} is being built by another process",
            hint="wait for it to end, or choose another --generation",
        )

    def _keep(self) -> None:
        while not self._stop.wait(self._bucket.heartbeat):
            try:
                self._version = self._put(self._version)
            except (PreconditionError, FileNotFoundError) as error:
                self._lost = str(error)
                return
            except BaseError:
                continue  # the network may come back before the lease is over

    def check(self) -> None:
        """Raises StoreError when somebody else took the claim over."""
        if self._lost is not None:
            raise StoreError(f"{self._what} was taken over by another process while this one stood still")

    def renew(self) -> None:
        """Prove that the claim is ours at this moment, and end the heartbeat. Raises StoreError."""
        self._end()
        self.check()
        with self._bucket.errors("claim a generation in"):
            try:
                self._version = self._put(self._version)
            except (PreconditionError, FileNotFoundError) as error:
                self._lost = str(error)
        self.check()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()

    def release(self) -> None:
        """Remove the claim if it is ours; without a network it runs out by itself."""
        self._end()
        if self._lost is None:
            self._lost = "released"
            with suppress(BaseError, FileNotFoundError):
                obstore.delete(self._bucket.store, self._path)


def _version(known: Mapping[str, Any]) -> dict[str, Any]:
    """What a condition on an object names: stores tell an ETag, a version or both."""
    return {name: known[name] for name in ("e_tag", "version") if known[name] is not None}


class ObjectClaim(Claim):
    """Shard files are written in scratch, then put under the generation's name."""

    def __init__(self, bucket: Bucket, prefix: str, lease: _Lease, scratch: Path) -> None:
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
                    chunk_size=_PART_BYTES,
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
