"""Completes what is cached of a dataset with what is read only when it matters: Warning events about objects that do
not get on, and the routing tables that routers answer from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.cluster.cache import CachedObject, Key, ObjectCache
from lookupdb_operator.cluster.client import ApiError
from lookupdb_operator.cluster.cluster import Cluster, WarningEvent
from lookupdb_operator.cluster.diagnosis import diagnose_warning
from lookupdb_operator.config import StoreAccess
from lookupdb_operator.loop.background import RouterPolls
from lookupdb_operator.manifests import uses_images
from lookupdb_operator.model import Absence, BuildJob, ExistingObject, ObjectRef, Observed, Pod, ShardSet, Trouble
from lookupdb_operator.plan import routing_tables, windows

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 5.0
"""How long an object may not get on before events are read for the cause."""
_WARNINGS_KEPT_SECONDS: Final = 5.0
_IMAGE_VOLUMES_KNOWN_SECONDS: Final = 120.0


class Observer:
    """Observes single datasets."""

    def __init__(
        self,
        cache: ObjectCache,
        cluster: Cluster,
        polls: RouterPolls,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cache = cache
        self._warnings = NamespaceWarnings(cluster, clock)
        self._images = ImageVolumes(cluster, clock)
        self._polls = polls
        self._clock = clock

    async def observe(
        self,
        key: Key,
        *,
        ask_routers: bool = False,
        refusals: Mapping[tuple[str, str], str] | None = None,
        store: StoreAccess | None = None,
    ) -> Observed | None:
        """The dataset ``key`` as it is now; None when there is no such dataset. With ``ask_routers``, raises
        ReportsPending while routers have yet to answer."""
        observed = self._cache.observed(key)
        if observed is None:
            self._polls.forget(key)
            return None
        routers = self._polls.take_reports(observed) if ask_routers else {}
        lacks_image_volumes = uses_images(observed.dataset) and not await self._images.are_kept(key[0])
        stuck = _find_stuck(self._cache.owned_objects(key), self._clock())
        if stuck:
            observed = _with_warnings(observed, await self._warnings.read_latest(key[0]))
        return replace(
            observed,
            routers=routers,
            refusals=refusals or {},
            store=store or StoreAccess(),
            lacks_image_volumes=lacks_image_volumes,
        )


class ImageVolumes:
    """Whether the API server keeps volumes of images, asked for while a dataset needs them: the same everywhere, and
    for as long as nobody changes its flags."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asking = asyncio.Lock()
        self._told: datetime | None = None
        """When the API server said last what it does with such volumes."""
        self._untold: dict[str, datetime] = {}
        """Namespace → when it said nothing of that there, but something else."""
        self._are_kept = True

    async def are_kept(self, namespace: str) -> bool:
        """As of some minutes ago at most; asked in ``namespace``, where the operator may make StatefulSets. Yes where
        nothing is known: what the API server refuses there it refuses of the StatefulSets themselves, too."""
        async with self._asking:  # who comes meanwhile needs the same answer
            now = self._clock()
            self._untold = {name: time for name, time in self._untold.items() if not _is_old(time, now)}
            if namespace not in self._untold and (self._told is None or _is_old(self._told, now)):
                are_kept = await self._cluster.keeps_image_volumes(namespace)
                if are_kept is None:
                    self._untold[namespace] = now
                else:
                    self._told, self._are_kept = now, are_kept
            return self._are_kept


def _is_old(time: datetime, now: datetime) -> bool:
    return (now - time).total_seconds() >= _IMAGE_VOLUMES_KNOWN_SECONDS


class NamespaceWarnings:
    """The latest Warning events of a namespace, read for all of its datasets together: where one does not get on, most
    do not, and each look would read the same events again."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._read: dict[str, tuple[datetime, asyncio.Task[Mapping[str, WarningEvent]]]] = {}
        """Namespace → when its events were requested, and the answer."""

    async def read_latest(self, namespace: str) -> Mapping[str, WarningEvent]:
        """The latest Warning event about each object, by the object's uid; at most some seconds old."""
        now = self._clock()
        for name, (requested, _) in list(self._read.items()):
            if (now - requested).total_seconds() >= _WARNINGS_KEPT_SECONDS:
                del self._read[name]
        if namespace not in self._read:
            self._read[namespace] = now, asyncio.create_task(self._cluster.list_warnings(namespace))
        try:
            return await asyncio.shield(self._read[namespace][1])
        except ApiError as error:
            log.warning("events cannot be read", extra={"namespace": namespace, "reason": str(error)})
            return {}


def _find_stuck(objects: Iterable[CachedObject], now: datetime) -> frozenset[str]:
    """The uids of objects that do not get on for a cause that no object shows: a Job or StatefulSet without its pods,
    a pod whose containers the kubelet has not begun with."""
    objects = tuple(objects)
    pods = Counter(
        cached.header.owner_uid for cached in objects if isinstance(cached.item, Pod) and not cached.item.deleting
    )
    return frozenset(
        cached.header.uid
        for cached in objects
        if (now - cached.header.created).total_seconds() > _QUIET_SECONDS and _is_lacking(cached, pods)
    )


def _is_lacking(cached: CachedObject, pods: Mapping[str, int]) -> bool:
    match cached.item:
        case BuildJob(state="Running", deleting=False, failure=None):
            return not pods[cached.header.uid]
        case ExistingObject(deleting=False) as other if _is_unfinished_push(other):
            return not pods[cached.header.uid]
        case ShardSet(deleting=False) as shards:
            return pods[cached.header.uid] < shards.replicas
        case Pod(trouble=None, deleting=False):
            return cached.awaits_images
    return False


def _is_unfinished_push(other: ExistingObject) -> bool:
    return other.push_state not in (None, "Succeeded")


def _with_warnings(observed: Observed, warnings: Mapping[str, WarningEvent]) -> Observed:
    """``observed``, where what does not get on has the trouble that its latest Warning event tells."""

    def explain(ref: ObjectRef, component: str = "") -> Trouble | None:
        event = warnings.get(ref.uid)
        if event is None:
            return None
        return diagnose_warning(ref.kind, ref.name, event.reason, event.message, component=component)

    def explain_pod(pod: Pod) -> Trouble | None:
        return explain(ObjectRef("Pod", pod.name, pod.uid))

    return replace(
        observed,
        jobs=tuple(replace(job, failure=job.failure or explain(job.ref)) for job in observed.jobs),
        shard_sets=tuple(
            replace(shard_set, trouble=shard_set.trouble or explain(shard_set.ref)) for shard_set in observed.shard_sets
        ),
        pods=tuple(replace(pod, trouble=pod.trouble or explain_pod(pod)) for pod in observed.pods),
        other_objects=tuple(
            replace(other, trouble=other.trouble or explain(other.ref, names.PUSHER))
            if _is_unfinished_push(other)
            else other
            for other in observed.other_objects
        ),
    )


# How long this process has seen that a pod is not ready, and is being deleted, by a clock that nobody sets.
#
# A pod whose kubelet counts as lost is deleted by force: it drains nothing, and what it is asked meanwhile is lost. The
# moments that stand in a pod are of other machines' clocks. A clock on the wall that is minutes ahead of theirs would
# have each pod that drains taken for lost at once. So only the seconds count that this process has seen pass. An
# operator that starts waits anew: a lost pod stays a little longer then, and none goes too early.


@dataclass(frozen=True, slots=True)
class _Sighting:
    mark: str
    """``Pod.unready_since``: another one is of a pod that was ready in between, though no look was at it."""
    unready_since: float
    deleting_since: float | None
    """None: it was not being deleted yet."""


class Absences:
    """From when on each pod that is not ready was seen so, by its uid: of the last look at each dataset."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._sightings: dict[Key, dict[str, _Sighting]] = {}

    def measure(self, observed: Observed) -> Mapping[str, Absence]:
        """Of each pod that is not ready, for how long this was seen. To be called at each look."""
        now, key = self._clock(), observed.dataset.key
        before = self._sightings.pop(key, {})
        seen = {pod.uid: _see(pod, before.get(pod.uid), now) for pod in observed.pods if not pod.ready}
        if seen:
            self._sightings[key] = seen
        return {uid: _measure(sighting, now) for uid, sighting in seen.items()}

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone."""
        self._sightings.pop(key, None)


def _see(pod: Pod, before: _Sighting | None, now: float) -> _Sighting:
    unready_since = before.unready_since if before is not None and before.mark == pod.unready_since else now
    deleting_since = None if before is None else before.deleting_since
    if pod.deleting and deleting_since is None:
        deleting_since = now
    return _Sighting(pod.unready_since, unready_since, deleting_since)


def _measure(sighting: _Sighting, now: float) -> Absence:
    deleting_since = now if sighting.deleting_since is None else sighting.deleting_since
    return Absence(unready=now - sighting.unready_since, deleting=now - deleting_since)


# How long this process has known that a dataset's routing table is confirmed, by a clock that nobody sets.
#
# Servers that only an older table references are stopped once their drain time has passed. By the clock on the wall it
# may seem to have passed at once: somebody sets that clock forward, or another operator, whose clock is behind, has
# written when it began. So a drain counts only the seconds that this process has seen pass. An operator that starts
# begins each drain anew: it lasts a little longer then, and never less.
#
# So does a router that is seen to answer from an older table meanwhile: lookups that it has just begun end, too. This
# is known here, and not only from status, because the write of a status may be refused. One that comes up, or comes
# back, may have answered from an older table for less than the time between two looks. That counts for as long as an
# older table may be mounted, so that routers that come back one after the other hold no drain up for ever.


_Mark = tuple[str, int, str]
"""A dataset's uid, its table's version, and when that was confirmed, as status says it."""


@dataclass(frozen=True, slots=True)
class _Confirmation:
    mark: _Mark
    first: float
    """When it began, or a router was last seen behind."""
    since: float
    """From when on seconds count: the same, or when another router was first seen to have the table."""
    routers: frozenset[str] | None
    """Those that had the table when they were last asked, by uid; None: they were not asked yet."""


class Confirmations:
    """The moment from which on each dataset was seen with the confirmed table that it has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._confirmations: dict[Key, _Confirmation] = {}

    def seconds_confirmed(self, observed: Observed) -> float:
        """For how long the dataset has been seen with the table that it has, confirmed, and no router behind or just
        back; 0 when that is not confirmed. To be called at each look: a table that is opened again begins anew."""
        dataset, table = observed.dataset, observed.dataset.status.table
        if table is None or not table.confirmed_at:
            self.forget(dataset.key)
            return 0.0
        mark = dataset.uid, table.version, table.confirmed_at
        known, now = self._confirmations.get(dataset.key), self._clock()
        # By versions alone: a router that has other content under this one opens the table again, which begins anew.
        routers = routing_tables.find_confirming_routers(observed, table, "") if observed.routers else None
        if known is None or known.mark != mark or routing_tables.is_router_behind(observed, table):
            known = _Confirmation(mark, now, now, routers)
        has_another = known.routers is not None and not (routers or frozenset()) <= known.routers
        since = now if has_another and now - known.first < windows.STALE_MOUNT_SECONDS else known.since
        routers = known.routers if routers is None else routers
        self._confirmations[dataset.key] = _Confirmation(mark, known.first, since, routers)
        return now - since

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone, or its table is not confirmed."""
        self._confirmations.pop(key, None)
