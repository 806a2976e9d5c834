"""A bucket: the objects of a store, with conditional writes that survive lost answers.

A write that fails may have happened: the answer can be lost, and the store then refuses the retry. So after an error a
conditional put reads the object, and the content of the bucket decides (``put_if``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from lookupdb.errors import ListingTooLong, StoreError, StoreUnreachable
from lookupdb.store.layout import StoreAddress
from lookupdb.store.objects import RETRIES, ObjectStore, PutMode, Version
from lookupdb.store.obstore_objects import ObstoreObjects

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 3.0
LEASE_SECONDS: Final = 15.0
"""The builder of a claim that did not change for this long is dead."""
PATIENCE_SECONDS: Final = 20.0
"""Seconds that a builder retries one step of a publication, beyond the retries of a request."""
MAX_LISTING_BYTES: Final = 40 << 20
"""The most bytes of a listing, with ``_ENTRY_BYTES`` for each object besides its path: about 150,000 objects or
folders, and 100 MiB of memory. A dataset keeps at most 100 generations of 1,024 shards."""
_ENTRY_BYTES: Final = 200
_ENTRY: Final = ("size", "e_tag", "version", "last_modified")
_PROBE_PAUSE_SECONDS: Final = 0.5
"""Seconds between two probes of a store that does not answer yet."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """An object after an attempt to put it; ``body`` is None if there is no such object."""

    body: bytes | None
    version: Version
    error: StoreError | None = None
    """Why the put failed, if the answer was an error."""


class Bucket:
    """A bucket, a folder of one, or a gateway to one."""

    def __init__(
        self,
        url: str,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        lease: float = LEASE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        retries: int = RETRIES,
    ) -> None:
        """Raises UsageError or StoreError if the environment does not say how to reach it."""
        self.url = url.rstrip("/")
        self.heartbeat = heartbeat
        self.lease = lease
        self.patience = patience
        self.objects = _open_objects(self.url, retries)

    @property
    def identity(self) -> str:
        """Return a text that is equal for two references to the same bucket with the same credentials."""
        return self.objects.identity

    def wait(self, seconds: float, folder: str = "") -> None:
        """Return once the store answers. Raises StoreUnreachable after ``seconds`` without an answer."""
        began = time.monotonic()
        is_logged = False
        while True:
            try:
                self.objects.probe(folder)
            except StoreUnreachable as error:
                failure = error
            else:
                return
            if time.monotonic() - began + _PROBE_PAUSE_SECONDS > seconds:
                raise failure
            if not is_logged:
                is_logged = True
                log.warning("waiting for the store: %s", failure.message, extra={"atMostSeconds": seconds})
            time.sleep(_PROBE_PAUSE_SECONDS)

    def read(self, path: str) -> ObjectState:
        """Return the object at ``path``. Raises StoreError if it cannot be read."""
        found = self.objects.get(path)
        return ObjectState(None, {}) if found is None else ObjectState(*found)

    def put_if(self, path: str, body: bytes, mode: PutMode) -> ObjectState:
        """Put ``body`` at ``path`` on a condition ("create", or the version to replace), and return the object
        afterwards: ``body`` exactly if the put took effect, even if the answer was an error.

        A missing object may still appear, because a request can be in flight. Raises StoreError if the answer was an
        error and the bucket cannot be read.
        """
        try:
            return ObjectState(body, self.objects.put(path, body, mode))
        except StoreError as error:
            standing = self.read(path)
            return ObjectState(standing.body, standing.version, error)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist. Raises StoreError."""
        self.objects.delete(paths)

    def folders(self, path: str) -> Collection[str]:
        """Return the names directly under ``path`` that have objects under them. Raises StoreError."""
        return set(self.objects.list_folders(path))

    def files(self, path: str) -> dict[str, dict[str, Any]]:
        """Return every object under ``path``: its relative name, and its entry in the store's listing. Raises
        StoreError, ListingTooLong if they do not fit into memory."""
        return dict(self._list(path))

    def _list(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        held = 0
        for entry in self.objects.list_objects(path):
            held += len(entry["path"]) + _ENTRY_BYTES
            self._check_size(held, path, "objects")
            if entry["path"].startswith(f"{path}/"):  # except the folder's marker from a store's console
                yield entry["path"].removeprefix(f"{path}/"), {name: entry.get(name) for name in _ENTRY}

    def _check_size(self, size: int, path: str, what: str) -> None:
        """Raise ListingTooLong if a listing of ``path`` takes too many bytes."""
        if size > MAX_LISTING_BYTES:
            raise ListingTooLong(
                f"{self.url}/{path} has more {what} than lookupdb creates: its listing has more than"
                f" {MAX_LISTING_BYTES} bytes",
                hint="find out what else writes there, and remove what belongs to no generation",
            )

    def entries(self, path: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Return ``files`` grouped by the first part of the names, without files beside the folders. A folder's own
        marker is listed without its slash, like a file beside the folder. No build leaves one, and obstore cannot
        delete it."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, entry in self._list(path):
            folder, _, file = name.partition("/")
            if file:
                found.setdefault(folder, {})[file] = entry
        return found

    def namespaces(self, cluster: str) -> tuple[str, ...]:
        """Return the namespaces with objects in the part of ``cluster``, sorted."""
        return tuple(sorted(self.folders(cluster)))

    def addresses_in(self, cluster: str, namespace: str) -> tuple[StoreAddress, ...]:
        """Return the datasets of ``namespace``, by path."""
        return _find_addresses(cluster, namespace, self.folders(f"{cluster}/{namespace}"))

    def walk_addresses_in(self, cluster: str, namespace: str) -> tuple[StoreAddress, ...]:
        """Return the same in bounded memory, for any number of objects. Raises StoreError, ListingTooLong."""
        path = f"{cluster}/{namespace}"
        found: set[str] = set()
        held = 0
        for name in self.objects.walk_folders(path):
            if name not in found:
                held += len(name) + _ENTRY_BYTES
                self._check_size(held, path, "folders")
                found.add(name)
        return _find_addresses(cluster, namespace, found)


def _find_addresses(cluster: str, namespace: str, folders: Iterable[str]) -> tuple[StoreAddress, ...]:
    found = (StoreAddress.parse(cluster, namespace, folder) for folder in sorted(folders))
    return tuple(address for address in found if address)


def _open_objects(url: str, retries: int) -> ObjectStore:
    if urlsplit(url).scheme in ("http", "https"):
        from lookupdb.store.gateway import GatewayObjects

        return GatewayObjects(url, retries)
    return ObstoreObjects(url, retries)
