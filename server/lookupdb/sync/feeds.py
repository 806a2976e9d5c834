"""Which datasets are kept, as a command line names them."""

from __future__ import annotations

import datetime
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from lookupdb.errors import CorruptFile, GenerationMissing, LookupdbError, StoreError, UsageError
from lookupdb.manifest import Manifest
from lookupdb.router.table.cutover import diagnose_refusal
from lookupdb.router.table.routing_table import InvalidTable, RoutedDataset, RoutingTable, TableWatcher
from lookupdb.store import Store, StoreAddress
from lookupdb.store.announcement import Announcement, is_stale, read_announcement
from lookupdb.store.dataset import StoredDataset
from lookupdb.wording import format_count

# Which generation is to be ``current``, and which may follow which. No I/O.


Origin = Literal["table", "announcement", "newest"]

FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_LOOK_PAUSE_SECONDS: Final = 30.0
"""Between two looks at a store that is away: what comes back is noticed within this time."""
LONGEST_FETCH_PAUSE_SECONDS: Final = 300.0
"""Between two attempts at a generation that cannot be fetched."""


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """The generation that is active, and who says so."""

    uid: str
    """Of the dataset, its first eight characters."""
    generation: str
    origin: Origin
    version: int | None = None
    """Of the routing table or the announcement; None where nobody announces anything."""
    identity: str = ""
    """Of the newest generation, where nobody announces anything: a number may come to be used twice."""


def target_by_table(table: RoutingTable) -> SyncTarget | None:
    """The active generation of ``table``; None while it is mixed, for then no single generation is."""
    if table.is_mixed:
        return None
    return SyncTarget(table.dataset.uid[:8], table.active, "table", table.version)


def target_by_announcement(announcement: Announcement) -> SyncTarget:
    """What is announced."""
    return SyncTarget(announcement.uid[:8], announcement.generation, "announcement", announcement.version)


def target_by_manifest(newest: Manifest, address: StoreAddress) -> SyncTarget:
    """The newest generation of the dataset at ``address``, of which nothing is announced."""
    return SyncTarget(address.uid, newest.generation, "newest", identity=newest.built_at)


def choose_newer(by_table: SyncTarget | None, announced: SyncTarget | None) -> SyncTarget | None:
    """What is active where a routing table and an announcement say so: both count by the same versions, and either may
    be the first that is seen. Of another dataset of the name than the table's, nothing is taken."""
    if by_table is None or announced is None:
        return by_table or announced
    is_newer = by_table.uid == announced.uid and (announced.version or 0) > (by_table.version or 0)
    return announced if is_newer else by_table


def diagnose_succession(new: SyncTarget, standing: SyncTarget | None) -> str | None:
    """Why ``new`` may not follow ``standing``, as a sentence; None when it may.

    Versions only grow: a late write must not bring back what was active before. A lower number of a generation may
    follow, as after a rollback. Another uid counts from its own beginning.
    """
    if standing is None or new.uid != standing.uid or new.version is None or standing.version is None:
        return None
    if new.version < standing.version:
        return f"version {new.version} is older than version {standing.version}, which is in effect"
    if new.version == standing.version and new.generation != standing.generation:
        return (
            f"version {new.version} names {new.generation} now, and has named {standing.generation}: a change needs a "
            "greater version"
        )
    return None


def diagnose_manifest(manifest: Manifest, address: StoreAddress, target: SyncTarget) -> str | None:
    """Why ``manifest`` is not that of ``target`` of the dataset at ``address``, as a sentence; None when it is."""
    if (manifest.namespace, manifest.name, manifest.uid[:8]) == (address.namespace, address.name, target.uid):
        return None
    return (
        f"the manifest of {target.generation} is of {manifest.namespace}/{manifest.name} ({manifest.uid[:8]}), "
        f"expected {address} ({target.uid})"
    )


def have_same_content(manifest: Manifest, other: Manifest) -> bool:
    """Return whether two manifests describe the same files of the same dataset. File names and gate results may
    differ."""
    return _identify(manifest) == _identify(other)


def _identify(manifest: Manifest) -> tuple[object, ...]:
    checksums = tuple((shard.bytes, shard.sha256) for shard in manifest.shards)
    return manifest.uid, manifest.generation, manifest.built_at, checksums


def pause_seconds(failures: int, longest: float) -> float:
    """How long to wait after so many failures in a row: doubling, and never the same for all that failed together."""
    pause = min(longest, FIRST_PAUSE_SECONDS * float(1 << min(failures - 1, 16)))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311


# What is active by the store alone: what is announced there, else the newest whole generation that no gate refused. In
# a directory an announcement is stale whose generation is gone, when a newer one is there.


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


# What is active by a routing table file, which whoever cuts over writes: the ConfigMap of an operator, say.


_MISSING: Final = (
    "give the file that whoever cuts over writes: .lookupdb/run/NAMESPACE.NAME/routing-table.json of `lookupdb up`, in"
    " a pod that of the ConfigMap; --store-wait says how long one that is to come is waited for"
)


class UnusableTable(InvalidTable):
    """The file that --table names is not there, or is no table that can be used."""

    exit_code = 2


class TableFeed:
    """Watches the table at ``path``, and calls ``on_change`` when what it says has changed, or what is wrong with it.

    ``dataset`` is the one that the first good table names: a table of another name is refused from then on, but one of
    another uid is followed, for the dataset was made again.
    """

    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        self.path = path
        self.dataset: RoutedDataset | None = None
        self.target: SyncTarget | None = None
        self.is_mixed = False
        """Whether the table in effect is a step of a rollout shard by shard: what was active before it still is."""
        self.problem: LookupdbError | None = UnusableTable(f"there is no routing table yet: {path}", hint=_MISSING)
        self._on_change = on_change
        self._table: RoutingTable | None = None
        self._watcher = TableWatcher(path, self._take, self._refuse)

    def start(self) -> None:
        """Look now, and again until ``stop``."""
        self._watcher.start()

    def stop(self) -> None:
        """Look no more."""
        self._watcher.stop()

    def _take(self, table: RoutingTable) -> None:
        refusal = diagnose_refusal(table, self._table)
        if self.dataset is not None and str(table.dataset) != str(self.dataset):
            refusal = f"it is the table of {table.dataset}, and this file was that of {self.dataset}"
        if refusal is not None:
            self._refuse(f"{self.path}: {refusal}")
            return
        self.dataset, self._table, self.problem = table.dataset, table, None
        target = target_by_table(table)
        self.is_mixed = target is None
        if target is not None:
            self.target = target
        elif self.target is not None and self.target.uid != table.dataset.uid[:8]:
            self.target = None
        self._on_change()

    def _refuse(self, reason: str) -> None:
        self.problem = UnusableTable(reason, hint="look who writes that file, and whether --table is to name it")
        self._on_change()


DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A dataset: the one with ``uid``, or whichever lives under that name."""

    namespace: str
    name: str
    uid: str | None = None
    """Its first eight characters."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of [NAMESPACE/]NAME[@UID]. Raises UsageError."""
        path, has_uid, uid = text.partition("@")
        namespace, has_namespace, name = path.rpartition("/")
        namespace = namespace if has_namespace else DEFAULT_NAMESPACE
        try:
            address = StoreAddress("any", namespace, name, uid if has_uid else "local")
        except UsageError as error:
            raise UsageError(
                f"{text!r} is no dataset: {error.message}", hint="write [NAMESPACE/]NAME, or NAMESPACE/NAME@UID"
            ) from error
        return cls(address.namespace, address.name, address.uid if has_uid else None)
