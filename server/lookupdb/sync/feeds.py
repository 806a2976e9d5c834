"""Feeds find a dataset's active generation: by its routing table, by its announcement, or as the store's newest."""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from lookupdb.errors import CorruptFile, GenerationMissing, LookupdbError, StoreError, UsageError
from lookupdb.manifest import Announcement, Manifest, is_stale
from lookupdb.router.routing_table import InvalidTable, RoutedDataset, RoutingTable, TableWatcher, diagnose_refusal
from lookupdb.store import Store, StoreAddress
from lookupdb.store.dataset import StoredDataset, read_announcement

# Decide which generation should be ``current``, and which may follow which. No I/O.


Origin = Literal["table", "announcement", "newest"]
_NO_MOMENT: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """The active generation, and where that was read."""

    uid: str
    """First eight characters of the dataset's uid."""
    generation: str
    origin: Origin
    version: int | None = None
    """Version of the routing table or the announcement; None without either."""
    moment: datetime.datetime = _NO_MOMENT
    """Time when it was announced, else built. In a store that was removed and filled again, only this may differ."""


def target_by_announcement(announcement: Announcement) -> SyncTarget:
    """Return the announced generation."""
    moment = parse_moment(announcement.announced_at)
    return SyncTarget(announcement.uid[:8], announcement.generation, "announcement", announcement.version, moment)


def choose_newer(by_table: SyncTarget | None, announced: SyncTarget | None) -> SyncTarget | None:
    """Return the newer of a routing table's target and an announced one. Both use the same version numbers, and either
    may arrive first. An announcement of another dataset than the table's does not count."""
    if by_table is None or announced is None:
        return by_table or announced
    is_newer = by_table.uid == announced.uid and (announced.version or 0) > (by_table.version or 0)
    return announced if is_newer else by_table


def diagnose_succession(new: SyncTarget, standing: SyncTarget | None) -> str | None:
    """Return a sentence that says why ``new`` may not follow ``standing``; None if it may.

    Versions only grow: a late write must not bring back an earlier generation. A generation with a lower number may
    follow, as after a rollback. Another uid has its own versions, and so has a store that was removed and filled again,
    which a later announcement shows.
    """
    if standing is None or new.uid != standing.uid or new.version is None or standing.version is None:
        return None
    if new.origin == standing.origin and new.moment > standing.moment:
        return None
    if new.version < standing.version:
        return f"version {new.version} is older than version {standing.version}, which is in effect"
    if new.version == standing.version and new.generation != standing.generation:
        return (
            f"version {new.version} names {new.generation}, but named {standing.generation} before: a change needs a "
            "greater version"
        )
    return None


def diagnose_manifest(manifest: Manifest, address: StoreAddress, target: SyncTarget) -> str | None:
    """Return a sentence that says why ``manifest`` is not the one of ``target``; None if it is."""
    if (manifest.namespace, manifest.name, manifest.uid[:8]) == (address.namespace, address.name, target.uid):
        return None
    return (
        f"the manifest of {target.generation} belongs to {manifest.namespace}/{manifest.name} ({manifest.uid[:8]}), "
        f"expected {address} ({target.uid})"
    )


def have_same_content(manifest: Manifest, other: Manifest) -> bool:
    """Return whether two manifests describe the same files of the same dataset. File names and gate results may
    differ."""
    first, second = (
        (found.uid, found.generation, found.built_at, [(shard.bytes, shard.sha256) for shard in found.shards])
        for found in (manifest, other)
    )
    return first == second


# Find the active generation in the store: the announced one, else the newest whole one that passed its gates. In a
# directory, an announcement is stale if its generation is gone and a newer one is there.


LISTING_SECONDS: Final = 10.0
"""Seconds for which one listing of a namespace in a bucket serves all its datasets: through a gateway it takes a
request for each thousand objects."""
LOCAL_LISTING_SECONDS: Final = 2.0
"""Seconds for which one listing of a directory serves all datasets."""
UNANNOUNCED_SECONDS: Final = 10.0
"""Seconds between two listings of a dataset's generations in a bucket if nothing is announced: a listing costs more
than a read."""


class NamespaceListings:
    """The datasets of namespaces: one listing serves all callers within some seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._found: dict[str, tuple[float, tuple[StoreAddress, ...] | StoreError]] = {}
        """Namespace → the end of its last listing, and what that found. A failure counts for all its datasets."""

    def find(self, namespace: str, name: str) -> list[StoreAddress]:
        """Return the datasets of that name; there are several if it was deleted and created again. Raises
        StoreError."""
        asked_at = time.monotonic()
        with self._lock:
            ended_at, found = self._found.get(namespace, (-math.inf, ()))
            seconds = LOCAL_LISTING_SECONDS if self._store.folder else LISTING_SECONDS
            # Measured from its end, so that a slow listing serves the callers that waited for it.
            if asked_at - ended_at >= seconds:
                try:
                    found = self._store.addresses_in(namespace)
                except StoreError as error:
                    found = error
                self._found[namespace] = time.monotonic(), found
        if isinstance(found, StoreError):
            raise found.with_traceback(None)
        return [address for address in found if address.name == name]


class StoreFeed:
    """Find the active generation of the dataset ``name`` with ``uid``; without ``uid``, of the dataset announced
    last."""

    def __init__(self, store: Store, listings: NamespaceListings, namespace: str, name: str, uid: str | None) -> None:
        self._store = store
        self._listings = listings
        self._namespace = namespace
        self._name = name
        self.uid = uid
        """Uid of the dataset to look for; None for the one announced last."""
        self._newest: dict[StoreAddress, tuple[SyncTarget | None, float]] = {}
        """Dataset without an announcement → its newest generation, and when it was found."""

    def look_for_announcement(self, uid: str) -> SyncTarget | None:
        """Return the announcement of the dataset with ``uid``, by one small read; None if there is none. Raises as
        ``look``."""
        address = StoreAddress(self._store.cluster, self._namespace, self._name, uid)
        announcement = read_announcement(self._store.dataset_at(address))
        return None if announcement is None else target_by_announcement(announcement)

    def look(self, *, takes_newest: bool = True) -> SyncTarget | None:
        """Return the active generation; None if there is none. Without ``takes_newest`` only an announced one counts.
        Raises StoreError, CorruptFile for a damaged announcement."""
        if self.uid is not None:
            addresses = [StoreAddress(self._store.cluster, self._namespace, self._name, self.uid)]
        else:
            addresses = self._listings.find(self._namespace, self._name)
        self._newest = {address: found for address, found in self._newest.items() if address in addresses}
        found = (self._look_at(address, takes_newest=takes_newest) for address in addresses)
        targets = [target for target in found if target is not None]
        # Prefer an announced generation: it was rolled out. One of another dataset may only have been built.
        announced = [target for target in targets if target.origin == "announcement"]
        return max(announced or targets, key=lambda target: target.moment, default=None)

    def _look_at(self, address: StoreAddress, *, takes_newest: bool) -> SyncTarget | None:
        dataset = self._store.dataset_at(address)
        announcement = read_announcement(dataset)
        if announcement is not None:
            self._newest.pop(address, None)
            # In a directory, a newer generation replaces an announced one that is gone.
            if takes_newest and self._store.folder and announcement.generation not in dataset.published_generations():
                newer = _find_newest(dataset, None)
                if newer is not None and is_stale(announcement.generation, newer.generation):
                    return newer
            return target_by_announcement(announcement)
        if not takes_newest:
            return None
        now = time.monotonic()
        newest, looked_at = self._newest.get(address, (None, -math.inf))
        if self._store.folder or now - looked_at >= UNANNOUNCED_SECONDS:
            newest = _find_newest(dataset, newest)
            self._newest[address] = newest, now
        return newest


def _find_newest(dataset: StoredDataset, standing: SyncTarget | None) -> SyncTarget | None:
    """Return the newest whole generation that passed its gates. The files of ``standing`` are not checked again."""
    for generation in reversed(dataset.known_generations()):
        try:
            manifest = dataset.find_manifest(generation)
        except CorruptFile:
            continue
        if manifest is None or manifest.refused is not None:
            continue
        target = SyncTarget(dataset.address.uid, generation, "newest", moment=parse_moment(manifest.built_at))
        if target != standing:
            try:
                dataset.check_files(manifest)
            except (CorruptFile, GenerationMissing):
                continue
        return target
    return None


def parse_moment(text: str) -> datetime.datetime:
    """Return ``text``, ISO 8601, as a time. Raises CorruptFile."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptFile(f"expected a time in ISO 8601, found {text!r:.80}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def absent_error(store: Store, namespace: str, name: str, uid: str | None = None) -> StoreError:
    """Return the error for a dataset without a generation that could serve."""
    dataset = f"{namespace}/{name}"
    if store.folder and not store.folder.is_dir():
        return GenerationMissing(
            f"the store {store.url} has no generation of {dataset}: the folder {store.folder} does not exist",
            hint="--store names it, relative to the working directory; `lookupdb up` keeps its store in .lookupdb/store"
            " of its own working directory",
        )
    return GenerationMissing(
        f"{store.url} has no generation of {dataset}{f'@{uid}' if uid else ''} that could serve, in the part of"
        f" {store.cluster}",
        hint="build one; --cluster-id names another part of the store, --dataset NAMESPACE/NAME another dataset",
    )


# Read the active generation from a routing table file, for example a mounted ConfigMap of the operator.


_MISSING: Final = (
    "give the routing table's file: .lookupdb/run/NAMESPACE.NAME/NAME-router-0/table/routing-table.json of"
    " `lookupdb up`, or in a pod the ConfigMap's; --store-wait says how long to wait for a file that does not exist yet"
)


class UnusableTable(InvalidTable):
    """The file that --table names is missing, or is not a usable table."""

    exit_code = 2


class TableFeed:
    """Watch the table at ``path``, and call ``on_change`` when its content or its problem has changed.

    ``dataset`` is the one that the first good table names. From then on a table with another name is refused; one with
    another uid is followed, because the dataset was created again.
    """

    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        self.path = path
        self.dataset: RoutedDataset | None = None
        self.target: SyncTarget | None = None
        self.is_mixed = False
        """True during a shard-by-shard rollout: the previous target stays."""
        self.problem: LookupdbError | None = UnusableTable(f"there is no routing table yet: {path}", hint=_MISSING)
        self._on_change = on_change
        self._table: RoutingTable | None = None
        self.watcher = TableWatcher(path, self._take, self._refuse)

    def _take(self, table: RoutingTable) -> None:
        refusal = diagnose_refusal(table, self._table)
        if self.dataset is not None and str(table.dataset) != str(self.dataset):
            refusal = f"it is the table of {table.dataset}, but this file was the table of {self.dataset}"
        if refusal is not None:
            self._refuse(f"{self.path}: {refusal}")
            return
        self.dataset, self._table, self.problem = table.dataset, table, None
        self.is_mixed = table.is_mixed  # then no single generation is active
        if not table.is_mixed:
            self.target = SyncTarget(table.dataset.uid[:8], table.active, "table", table.version)
        elif self.target is not None and self.target.uid != table.dataset.uid[:8]:
            self.target = None
        self._on_change()

    def _refuse(self, reason: str) -> None:
        self.problem = UnusableTable(reason, hint="find out what writes that file, and check --table")
        self._on_change()


DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A dataset to keep: the one with ``uid``, or any of that name."""

    namespace: str
    name: str
    uid: str | None = None
    """First eight characters of its uid."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse [NAMESPACE/]NAME[@UID]. Raises UsageError."""
        path, has_uid, uid = text.partition("@")
        namespace, has_namespace, name = path.rpartition("/")
        namespace = namespace if has_namespace else DEFAULT_NAMESPACE
        try:
            address = StoreAddress("any", namespace, name, uid if has_uid else "local")
        except UsageError as error:
            raise UsageError(
                f"{text!r} is not a dataset: {error.message}", hint="write [NAMESPACE/]NAME, or NAMESPACE/NAME@UID"
            ) from error
        return cls(address.namespace, address.name, address.uid if has_uid else None)
