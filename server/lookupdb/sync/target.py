"""Which generation is to be ``current``, and which may follow which. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

from lookupdb.manifest import Manifest
from lookupdb.route.table.routing_table import RoutingTable
from lookupdb.store.announcement import Announcement
from lookupdb.store.layout import StoreAddress

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
    """Whether two manifests are of the same files of the same dataset, whatever the files are called, and whatever the
    gates were told meanwhile."""
    return _identify(manifest) == _identify(other)


def _identify(manifest: Manifest) -> tuple[object, ...]:
    checksums = tuple((shard.bytes, shard.sha256) for shard in manifest.shards)
    return manifest.uid, manifest.generation, manifest.built_at, checksums


def pause_seconds(failures: int, longest: float) -> float:
    """How long to wait after so many failures in a row: doubling, and never the same for all that failed together."""
    pause = min(longest, FIRST_PAUSE_SECONDS * float(1 << min(failures - 1, 16)))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311
