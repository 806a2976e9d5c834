"""What is active by the store alone: what is announced there, else the newest whole generation that no gate refused. In
a directory an announcement is stale whose generation is gone, when a newer one is there."""

from __future__ import annotations

import datetime
import threading
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lookupdb.errors import CorruptFile, GenerationMissing, StoreError
from lookupdb.manifest import Manifest
from lookupdb.store import Store, StoreAddress
from lookupdb.store.announcement import Announcement, is_stale, read_announcement
from lookupdb.store.dataset import StoredDataset
from lookupdb.sync.target import SyncTarget, target_by_announcement, target_by_manifest
from lookupdb.wording import format_count

LISTING_SECONDS: Final = 10.0
"""For so long one listing of a namespace in a bucket serves all datasets of it: through a gateway it takes a request
for each thousand objects."""
LOCAL_LISTING_SECONDS: Final = 2.0
"""The same of a directory."""
_MOST_OTHERS: Final = 5
"""Datasets of one name that a message names."""
UNANNOUNCED_SECONDS: Final = 10.0
"""Between two listings of a dataset's generations in a bucket, where nothing is announced: they cost more than a
read."""


class _Finding(NamedTuple):
    target: SyncTarget
    moment: datetime.datetime
    """When it was announced; of what is not announced, when it was built."""


@dataclass(slots=True)
class _NamespaceListing:
    """Of one namespace; what has failed is not tried again for each of its datasets."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ended_at: float = float("-inf")
    found: tuple[StoreAddress, ...] | StoreError = ()


class NamespaceListings:
    """The datasets of namespaces, listed once for all who ask within some seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._namespaces: dict[str, _NamespaceListing] = {}

    def find(self, namespace: str, name: str) -> list[StoreAddress]:
        """The datasets of that name, which may have lived one after the other. Raises StoreError."""
        asked_at = time.monotonic()
        with self._lock:
            listing = self._namespaces.setdefault(namespace, _NamespaceListing())
        with listing.lock:  # one that takes long keeps nobody from another
            seconds = LOCAL_LISTING_SECONDS if self._store.is_local else LISTING_SECONDS
            # By its end: one that takes longer than that is for all others, too, of whom only some ask at a time.
            if asked_at - listing.ended_at >= seconds:
                listing.found = self._list(namespace)
                listing.ended_at = time.monotonic()
            found = listing.found
        if isinstance(found, StoreError):
            raise found.with_traceback(None)
        return [address for address in found if address.name == name]

    def _list(self, namespace: str) -> tuple[StoreAddress, ...] | StoreError:
        try:
            return self._store.addresses_in(namespace)
        except StoreError as error:
            return error


@dataclass(slots=True)
class _Newest:
    """The newest generation of a dataset without an announcement, and when that was found."""

    finding: _Finding | None
    looked_at: float


class StoreFeed:
    """Of the dataset ``name``: of the one with ``uid``, or without one, of the one that was announced last."""

    def __init__(self, store: Store, listings: NamespaceListings, namespace: str, name: str, uid: str | None) -> None:
        self._store = store
        self._listings = listings
        self._namespace = namespace
        self._name = name
        self.uid = uid
        """Of the only dataset that is looked for; None: of whichever was announced last."""
        self._newest: dict[StoreAddress, _Newest] = {}

    def look_for_announcement(self, uid: str) -> SyncTarget | None:
        """What is announced of the dataset with ``uid``, by one small read; None if nothing is. Raises the same."""
        address = StoreAddress(self._store.cluster, self._namespace, self._name, uid)
        announcement = read_announcement(self._store.dataset_at(address))
        return None if announcement is None else target_by_announcement(announcement)

    def look(self, *, takes_newest: bool = True) -> SyncTarget | None:
        """What is active now; None if there is no generation of the dataset that could be, or, unless the newest one is
        taken, none that is announced. Raises StoreError, CorruptFile for an announcement that is none."""
        if self.uid is not None:
            addresses = [StoreAddress(self._store.cluster, self._namespace, self._name, self.uid)]
        else:
            addresses = self._listings.find(self._namespace, self._name)
        self._newest = {address: found for address, found in self._newest.items() if address in addresses}
        found = (self._look_at(address, takes_newest=takes_newest) for address in addresses)
        findings = [finding for finding in found if finding is not None]
        # Where one is announced, nobody has rolled out what was only built of another.
        announced = [finding for finding in findings if finding.target.origin == "announcement"]
        return max(announced or findings, key=lambda finding: finding.moment).target if findings else None

    def _look_at(self, address: StoreAddress, *, takes_newest: bool) -> _Finding | None:
        dataset = self._store.dataset_at(address)
        announcement = read_announcement(dataset)
        if announcement is not None:
            self._newest.pop(address, None)
            if not takes_newest or not self._store.is_local or (finding := _find_newer(dataset, announcement)) is None:
                return _Finding(target_by_announcement(announcement), _parse_moment(announcement.announced_at))
            return finding
        if not takes_newest:
            return None
        newest, now = self._newest.get(address), time.monotonic()
        if newest is None or self._store.is_local or now - newest.looked_at >= UNANNOUNCED_SECONDS:
            standing = None if newest is None else newest.finding
            newest = self._newest[address] = _Newest(_find_newest(dataset, standing), now)
        return newest.finding


def _find_newer(dataset: StoredDataset, announcement: Announcement) -> _Finding | None:
    """The newest generation of a directory, if the one that is announced is gone and it is newer; else None."""
    if announcement.generation in dataset.published_generations():
        return None
    found = _find_newest(dataset, None)
    return found if found is not None and is_stale(announcement.generation, found.target.generation) else None


def _find_newest(dataset: StoredDataset, standing: _Finding | None) -> _Finding | None:
    """The newest whole generation that no gate has refused; whether ``standing`` is whole is not looked at again."""
    for generation in reversed(dataset.known_generations()):
        try:
            manifest = dataset.find_manifest(generation)
        except CorruptFile:
            continue
        if manifest is None or manifest.refused is not None:
            continue
        finding = _Finding(target_by_manifest(manifest, dataset.address), _parse_moment(manifest.built_at))
        if finding == standing or _is_whole(dataset, manifest):
            return finding
    return None


def _is_whole(dataset: StoredDataset, manifest: Manifest) -> bool:
    try:
        dataset.check_files(manifest)
    except (CorruptFile, GenerationMissing):
        return False
    return True


def _parse_moment(text: str) -> datetime.datetime:
    """Raises CorruptFile."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptFile(f"expected a moment in ISO 8601, found {text!r:.80}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def absent_error(
    store: Store, listings: NamespaceListings, namespace: str, name: str, uid: str | None = None
) -> StoreError:
    """The error for a dataset of which the store has nothing that could serve. Where the one with ``uid`` was looked
    for, it names those of other uids that are there under the name."""
    dataset = f"{namespace}/{name}"
    missing = store.find_missing_folder()
    if missing is not None:
        return GenerationMissing(
            f"the store {store.url} has no generation of {dataset}: it is not there, {missing} is no folder",
            hint="--store names it, and a path counts from where this command was started; `lookupdb up` keeps its"
            " store in .lookupdb/store of where that was started",
        )
    others = _describe_others(store, listings, namespace, name, uid) if uid is not None else ""
    if others:
        return GenerationMissing(
            f"{store.url} has no generation of {dataset} with the uid {uid} that could serve: it has {others}",
            hint=f"give the uid that is meant, {dataset}@UID, or none: then whichever lives under that name is kept",
        )
    return GenerationMissing(
        f"{store.url} has no generation of {dataset}{f'@{uid}' if uid else ''} that could serve, in the part of"
        f" {store.cluster}",
        hint="build one; --cluster-id names another part of the store, --dataset NAMESPACE/NAME another dataset",
    )


def _describe_others(store: Store, listings: NamespaceListings, namespace: str, name: str, uid: str) -> str:
    """What the store has of the datasets of that name with another uid; empty for nothing, or where it does not say."""
    try:
        found = [
            (address.uid, len(store.dataset_at(address).known_generations()))
            for address in listings.find(namespace, name)[:_MOST_OTHERS]
            if address.uid != uid
        ]
    except StoreError:
        return ""
    return ", ".join(f"{format_count(count, 'generation')} of the uid {other}" for other, count in found if count)
