"""What a pass observes besides the cache: Warning events about objects that are stuck, reports of routers, results of
announcements, and how long pods were unready and tables confirmed."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from lookupdb.backoff import Backoff
from lookupdb.manifest import Announcement
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.cache import CachedObject, Key, ObjectCache
from lookupdb_operator.cluster.cluster import Cluster, WarningEvent
from lookupdb_operator.cluster.workloads import diagnose_warning
from lookupdb_operator.loop.queue import LookDeferred
from lookupdb_operator.manifests import uses_images
from lookupdb_operator.model import (
    Absence,
    AnnouncementReport,
    BuildJob,
    ExistingObject,
    NotAnnounced,
    ObjectRef,
    Observed,
    Pod,
    RouterReport,
    ShardSet,
    StoreAccess,
    Trouble,
)
from lookupdb_operator.plan import routing_tables

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 5.0
"""Seconds an object may be stuck before its events are read."""
_WARNINGS_KEPT_SECONDS: Final = 5.0
_IMAGE_VOLUMES_KNOWN_SECONDS: Final = 120.0
_UNFINISHED: Final = ("Running", "Failed")
"""States of a push that has not succeeded."""


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
        """Return the dataset ``key`` as it is now, or None if there is none. With ``ask_routers``, raises
        ReportsPending until the routers have answered."""
        observed = self._cache.observed(key)
        if observed is None:
            self._polls.forget(key)
            return None
        routers = self._polls.take_reports(observed) if ask_routers else {}
        lacks_image_volumes = uses_images(observed.dataset) and not await self._images.are_kept(key[0])
        # Stuck without a visible cause: a Job or StatefulSet without its pods, or a pod that is not started.
        objects, now = tuple(self._cache.owned_objects(key)), self._clock()
        pods = Counter(
            cached.header.owner_uid for cached in objects if isinstance(cached.item, Pod) and not cached.item.deleting
        )
        if any(
            (now - cached.header.created).total_seconds() > _QUIET_SECONDS and _is_lacking(cached, pods)
            for cached in objects
        ):
            observed = _with_warnings(observed, await self._warnings.read_latest(key[0]))
        return replace(
            observed,
            routers=routers,
            refusals=refusals or {},
            store=store or StoreAccess(),
            lacks_image_volumes=lacks_image_volumes,
        )


class ImageVolumes:
    """Ask whether the API server keeps image volumes, while a dataset needs them. The answer holds for the cluster
    until somebody changes the API server's flags."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answered_at: datetime | None = None
        """Time of the last answer."""
        self._undecided: dict[str, datetime] = {}
        """Namespace → time of an inconclusive answer there."""
        self._are_kept = True

    async def are_kept(self, namespace: str) -> bool:
        """Return whether a dry run, now or minutes ago, showed that image volumes are kept. It asks the API server in
        ``namespace``, because the operator may create StatefulSets there. True if unknown: if the API server refuses
        the dry run, it refuses StatefulSets, too."""
        async with self._asking:  # concurrent callers share the answer
            now = self._clock()
            oldest = now - timedelta(seconds=_IMAGE_VOLUMES_KNOWN_SECONDS)
            self._undecided = {name: time for name, time in self._undecided.items() if time > oldest}
            if namespace not in self._undecided and (self._answered_at is None or self._answered_at <= oldest):
                are_kept = await self._cluster.keeps_image_volumes(namespace)
                if are_kept is None:
                    self._undecided[namespace] = now
                else:
                    self._answered_at, self._are_kept = now, are_kept
            return self._are_kept


class NamespaceWarnings:
    """The latest Warning events of a namespace, read once for all its datasets: when one is stuck, most are."""

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._read: dict[str, tuple[datetime, asyncio.Task[Mapping[str, WarningEvent]]]] = {}
        """Namespace → time of the request for its events, and the answer."""

    async def read_latest(self, namespace: str) -> Mapping[str, WarningEvent]:
        """Return the latest Warning event about each object, by the object's uid; at most a few seconds old."""
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


def _is_lacking(cached: CachedObject, pods: Mapping[str, int]) -> bool:
    match cached.item:
        case BuildJob(state="Running", deleting=False, failure=None):
            return not pods[cached.header.uid]
        case ExistingObject(deleting=False) as other if other.push_state in _UNFINISHED:
            return not pods[cached.header.uid]
        case ShardSet(deleting=False) as shards:
            return pods[cached.header.uid] < shards.replicas
        case Pod(trouble=None, deleting=False):
            return cached.awaits_images
    return False


def _with_warnings(observed: Observed, warnings: Mapping[str, WarningEvent]) -> Observed:
    """Return ``observed`` with the trouble of each stuck object, from its latest Warning event."""

    def explain(ref: ObjectRef, component: str = "") -> Trouble | None:
        event = warnings.get(ref.uid)
        if event is None:
            return None
        return diagnose_warning(ref.kind, ref.name, event.reason, event.message, component=component)

    return replace(
        observed,
        jobs=tuple(replace(job, failure=job.failure or explain(job.ref)) for job in observed.jobs),
        shard_sets=tuple(
            replace(shard_set, trouble=shard_set.trouble or explain(shard_set.ref)) for shard_set in observed.shard_sets
        ),
        pods=tuple(
            replace(pod, trouble=pod.trouble or explain(ObjectRef("Pod", pod.name, pod.uid))) for pod in observed.pods
        ),
        other_objects=tuple(
            replace(other, trouble=other.trouble or explain(other.ref, names.PUSHER))
            if other.push_state in _UNFINISHED
            else other
            for other in observed.other_objects
        ),
    )


# Announcements run outside of reconcile passes: a gateway that does not answer must not block a worker.
#
# A plan says what is due (``Plan.announce``). Once the store has it, or after a long failure, the dataset is queued and
# the next pass sees the result (``Observed.announcement``).


FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 600.0
"""Time for which to retry before reporting: a restart of the gateway or a short outage of the store is no problem."""
_AT_ONCE: Final = 16


class Announcer(Protocol):
    """Writes one announcement."""

    async def announce(self, announcement: Announcement) -> None:
        """Return once the store has the announcement. Raises NotAnnounced."""


@dataclass(slots=True)
class _Attempts:
    announcement: Announcement
    task: asyncio.Task[None]
    report: AnnouncementReport


class Announcements:
    """The announcements under way, at most one for each dataset."""

    def __init__(
        self, announcer: Announcer | None, wake: Callable[[Key], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """If ``announcer`` is None, nothing is announced. ``wake`` is called with each dataset that has a new
        result."""
        self._announcer = announcer
        self._wake = wake
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._attempts: dict[Key, _Attempts] = {}

    def report(self, key: Key) -> AnnouncementReport:
        """Return the result of the last announcement that was due."""
        attempts = self._attempts.get(key)
        return AnnouncementReport() if attempts is None else attempts.report

    def follow(self, key: Key, due: Announcement | None) -> None:
        """Announce ``due`` from now on, instead of what was due before."""
        attempts = self._attempts.get(key)
        if due is None or self._announcer is None:
            self.forget(key)
        elif attempts is None or attempts.announcement != due:
            self.forget(key)
            task = asyncio.create_task(self._announce(key, due, self._announcer), name="announcing")
            self._attempts[key] = _Attempts(due, task, AnnouncementReport())

    def forget(self, key: Key) -> None:
        """Cancel the announcement of ``key``."""
        if attempts := self._attempts.pop(key, None):
            attempts.task.cancel()

    async def close(self) -> None:
        """Cancel all announcements."""
        tasks = [attempts.task for attempts in self._attempts.values()]
        self._attempts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _announce(self, key: Key, due: Announcement, announcer: Announcer) -> None:
        reported_at, logged = self._clock(), ""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, random.random)
        while True:
            try:
                async with self._slots:
                    await announcer.announce(due)
            except NotAnnounced as error:
                problem = str(error)
            except Exception as error:  # retry, whatever failed
                log.exception("%s/%s: an announcement failed because of a bug", *key)
                problem = f"{type(error).__name__}: {error}"
            else:
                log.info("%s/%s: announced %s", *key, due.generation)
                self._note(key, due, AnnouncementReport(written=due))
                return
            if problem != logged:
                log.warning("%s/%s: %s is not announced: %s", *key, due.generation, problem)
                logged = problem
            # A different problem is not reported sooner: alternating problems would write the status at each attempt.
            if self._clock() - reported_at >= PATIENCE_SECONDS:
                reported_at = self._clock()
                self._note(key, due, AnnouncementReport(problem=problem))
            await asyncio.sleep(backoff.fail())

    def _note(self, key: Key, due: Announcement, report: AnnouncementReport) -> None:
        attempts = self._attempts.get(key)
        if attempts is not None and attempts.announcement == due and attempts.report != report:
            attempts.report = report
            self._wake(key)


# Router polls run outside of reconcile passes: a router that does not answer must not block a worker.
#
# A pass that needs reports ends with ``ReportsPending``. Once all routers have answered or timed out, the dataset is
# queued and its next pass has the reports.


_ASKED_AT_ONCE: Final = 128
_ASKED_AT_ONCE_OF_A_DATASET: Final = 16
"""Leaves room for other datasets when one has many routers that do not answer."""


class ReportsPending(LookDeferred):
    """Raised instead of observing: routers are being asked, and another pass follows."""


class RouterPolls:
    """The polls under way, and the reports not yet taken; at most one of each for a dataset."""

    def __init__(self, cluster: Cluster, wake: Callable[[Key], None]) -> None:
        """``wake`` is called with each dataset whose reports have arrived."""
        self._cluster = cluster
        self._wake = wake
        self._turns = asyncio.Semaphore(_ASKED_AT_ONCE)
        self._polls: dict[Key, asyncio.Task[None]] = {}
        self._reports: dict[Key, Mapping[str, RouterReport]] = {}

    def take_reports(self, observed: Observed) -> Mapping[str, RouterReport]:
        """Return the routers' reports since the last call, by pod uid. Raises ReportsPending if they must be asked
        first."""
        key = observed.dataset.key
        routers = tuple(
            pod
            for pod in observed.pods
            if pod.component == names.ROUTER and pod.phase == "Running" and pod.ip and not pod.deleting
        )
        if key in self._reports:
            return self._reports.pop(key)
        if not routers:
            return {}
        if key not in self._polls:
            self._polls[key] = asyncio.create_task(self._poll(key, observed.dataset.uid, routers))
        raise ReportsPending("routers are being asked")

    def forget(self, key: Key) -> None:
        """Forget the deleted dataset."""
        self._reports.pop(key, None)
        if poll := self._polls.pop(key, None):
            poll.cancel()

    async def close(self) -> None:
        """Cancel all polls."""
        polls = tuple(self._polls.values())
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _poll(self, key: Key, dataset_uid: str, routers: tuple[Pod, ...]) -> None:
        turns = asyncio.Semaphore(_ASKED_AT_ONCE_OF_A_DATASET)

        async def ask(pod: Pod) -> tuple[str, RouterReport]:
            async with turns, self._turns:
                return pod.uid, await self._cluster.ask_router(pod.ip, dataset_uid)

        reports: Mapping[str, RouterReport] = {}
        try:
            reports = dict(await asyncio.gather(*(ask(pod) for pod in routers)))
        except Exception:  # the dataset is queued again, whatever failed
            log.exception("%s/%s: routers cannot be asked", *key)
        self._polls.pop(key, None)
        self._reports[key] = reports
        self._wake(key)


# How long this process has seen a pod unready, and being deleted.
#
# A pod whose kubelet counts as lost is deleted by force, without draining. Timestamps in a pod come from other clocks:
# if the operator's clock were minutes ahead, every draining pod would look lost. So only seconds seen by this process
# count. After an operator restart a lost pod stays a little longer; none is deleted too early.


@dataclass(frozen=True, slots=True)
class _Sighting:
    mark: str
    """``Pod.unready_since``. A different value means that the pod was ready in between."""
    unready_since: float
    deleting_since: float | None
    """None: not being deleted."""


class Absences:
    """Since when each pod of a dataset has been unready, by uid, as of the last reconcile pass."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` must be monotonic."""
        self._clock = clock
        self._sightings: dict[str, _Sighting] = {}

    def measure(self, observed: Observed) -> Mapping[str, Absence]:
        """Return how long each unready pod has been seen unready. Call it in each reconcile pass."""
        now, before = self._clock(), self._sightings
        seen: dict[str, _Sighting] = {}
        absences: dict[str, Absence] = {}
        for pod in observed.pods:
            if pod.ready:
                continue
            known = before.get(pod.uid)
            unready_since = known.unready_since if known is not None and known.mark == pod.unready_since else now
            deleting_since = None if known is None else known.deleting_since
            if pod.deleting and deleting_since is None:
                deleting_since = now
            seen[pod.uid] = _Sighting(pod.unready_since, unready_since, deleting_since)
            deleting = 0.0 if deleting_since is None else now - deleting_since
            absences[pod.uid] = Absence(unready=now - unready_since, deleting=deleting)
        self._sightings = seen
        return absences


# How long this process has known that a dataset's routing table is confirmed.
#
# Servers that only an older table references are stopped after their drain time. By the wall clock, that time may seem
# to have passed at once, if the clock was set forward or another operator's clock was behind. So a drain counts only
# seconds seen by this process. After an operator restart a drain lasts longer, never shorter.
#
# A router that answers from an older table restarts the drain too, because its lookups must also end. The count is
# kept here because a write of the status may be refused.


class Confirmation:
    """Since when a dataset has been seen with its current table confirmed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` must be monotonic."""
        self._clock = clock
        self._mark: tuple[str, int, str] | None = None
        """The dataset's uid, its table's version, and the confirmation time in its status; None: not confirmed."""
        self._since = 0.0

    def measure(self, observed: Observed) -> float:
        """Return for how long the dataset's current table has been seen confirmed, with no router behind; 0 if it is
        not confirmed. Call it in each reconcile pass: a pass that sees it unconfirmed restarts the count."""
        table, now = observed.dataset.status.table, self._clock()
        if table is None or not table.confirmed_at:
            self._mark = None
            return 0.0
        mark = observed.dataset.uid, table.version, table.confirmed_at
        if mark != self._mark or routing_tables.is_router_behind(observed, table):
            self._mark, self._since = mark, now
        return now - self._since
