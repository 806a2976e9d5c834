"""What a look at a dataset is decided from: what is cached of it, and what only matters at times: Warning events about
what does not get on, and what routers answer from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from lookupdb_operator.api import ApiError
from lookupdb_operator.cache import CachedObject, Key, ObjectCache
from lookupdb_operator.cluster import Cluster, WarningEvent
from lookupdb_operator.config import StoreAccess
from lookupdb_operator.model import BuildJob, Observed, Pod, ShardSet
from lookupdb_operator.parse import diagnose_warning
from lookupdb_operator.router_polls import RouterPolls

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 5.0
"""How long something may not get on before events are read for why."""
_WARNINGS_KEPT_SECONDS: Final = 5.0


class Observer:
    """Completes what is cached with what has to be asked."""

    def __init__(
        self,
        cache: ObjectCache,
        cluster: Cluster,
        polls: RouterPolls,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cache = cache
        self._warnings = NamespaceWarnings(cluster, clock)
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
        stuck = _find_stuck(self._cache.owned_objects(key), self._clock())
        if stuck:
            observed = _with_warnings(observed, await self._warnings.read_latest(key[0]))
        return replace(
            observed,
            routers=routers,
            refusals=refusals or {},
            store=store or StoreAccess(),
        )


class NamespaceWarnings:
    """The latest Warning events of a namespace, read for all of its datasets together: where one does not get on, most
    do not, and each look would read the same events again."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._read: dict[str, tuple[datetime, asyncio.Task[Mapping[str, WarningEvent]]]] = {}
        """Namespace → when its events were asked for, and the answer."""

    async def read_latest(self, namespace: str) -> Mapping[str, WarningEvent]:
        """By uid of what they are about; at most some seconds old."""
        now = self._clock()
        for name, (asked, _) in list(self._read.items()):
            if (now - asked).total_seconds() >= _WARNINGS_KEPT_SECONDS:
                del self._read[name]
        if namespace not in self._read:
            self._read[namespace] = now, asyncio.create_task(self._cluster.list_warnings(namespace))
        try:
            return await asyncio.shield(self._read[namespace][1])
        except ApiError as error:
            log.warning("events cannot be read", extra={"namespace": namespace, "reason": str(error)})
            return {}


def _find_stuck(objects: Iterable[CachedObject], now: datetime) -> frozenset[str]:
    """The uids of what does not get on for a reason that is in no object: a Job or StatefulSet without its pods, a
    pod whose containers the kubelet does not even begin with."""
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
        case ShardSet(deleting=False) as shards:
            return pods[cached.header.uid] < shards.replicas
        case Pod(trouble=None, deleting=False):
            return cached.awaits_images
    return False


def _with_warnings(observed: Observed, warnings: Mapping[str, WarningEvent]) -> Observed:
    def why(kind: str, name: str, uid: str) -> Any:
        warned = warnings.get(uid)
        return diagnose_warning(kind, name, warned.reason, warned.message) if warned else None

    return replace(
        observed,
        jobs=tuple(replace(job, failure=job.failure or why("Job", job.ref.name, job.ref.uid)) for job in observed.jobs),
        sets=tuple(replace(one, trouble=why("StatefulSet", one.ref.name, one.ref.uid)) for one in observed.sets),
        pods=tuple(replace(pod, trouble=pod.trouble or why("Pod", pod.name, pod.uid)) for pod in observed.pods),
    )
