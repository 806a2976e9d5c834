"""Every few minutes the cache is compared with lists, and every dataset is queued, whatever happens. Before that, the
gate: no dataset is looked at before the cache has all that the API server lists.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from lookupdb.store.announcement import Announcement
from lookupdb_operator import names, status
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.client import REFRESH_SECONDS, AccountKeys, ApiError, NotFound
from lookupdb_operator.cluster.cluster import Listing
from lookupdb_operator.cluster.reflector import Informers
from lookupdb_operator.live_datasets import LiveDatasetsWriter, NotAnnounced
from lookupdb_operator.loop.queue import LookDeferred, LookQueue
from lookupdb_operator.metrics import Health, Metrics
from lookupdb_operator.model import AnnouncementReport, Observed, ObservedDataset, Plan, Pod, RouterReport
from lookupdb_operator.names import Kind
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import Condition, DatasetStatus
from lookupdb_operator.store import ShardKeyReader, StoreAccessReader

# The Kubernetes Events about a dataset whose conditions change, from data to data; and how often they are posted.


_PROGRESS_EVERY: Final = 5.0
"""Seconds between two writes of a status in which only progress has changed."""
_EVENTS_AT_ONCE: Final = 10
_EVENT_EVERY: Final = 30.0
"""Seconds until a dataset that has had all of its events of one reason may have another one of it."""


@dataclass(frozen=True, slots=True)
class EventReport:
    """One Event to be."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def list_event_reports(old: DatasetStatus, new: DatasetStatus) -> tuple[EventReport, ...]:
    """One report for each reason that a condition changed to. What tells of a failure is a warning.

    A failure shows in several conditions, at once or one after the other (an image that cannot be pulled: of a router,
    then of a builder); people are told of it once.
    """
    known = {condition.reason for condition in old.conditions} - reasons.HEALTHY_REASONS
    reports: dict[str, EventReport] = {}
    for before, after in _list_changes(old, new):
        if after.reason in known and not _has_stopped_serving(before, after):
            continue
        warns = _has_stopped_serving(before, after) or (
            after.reason not in reasons.HEALTHY_REASONS and not _is_only_starting(after, new)
        )
        report = EventReport("Warning" if warns else "Normal", after.reason, after.message)
        if after.reason not in reports or after.type == status.DEGRADED:
            reports[after.reason] = report
    return (*reports.values(), *_list_skipped_checks(old, new), *_list_renewed_tables(old, new))


def _list_renewed_tables(old: DatasetStatus, new: DatasetStatus) -> Iterator[EventReport]:
    before, after = old.table, new.table
    if before is None or after is None or after.version <= before.version:
        return
    if replace(before, version=after.version, written_at=after.written_at, confirmed_at=after.confirmed_at) == after:
        message = (
            f"Routing table {before.version} is written again, as {after.version}: there was other content under its"
            " version, which a router may have read, or a router has a newer one."
        )
        yield EventReport("Warning", reasons.TABLE_RENEWED, message)


def _list_skipped_checks(old: DatasetStatus, new: DatasetStatus) -> Iterator[EventReport]:
    slot = _skipped_slot(new)
    if slot not in ("", _skipped_slot(old)):
        message = (
            f"The check of {slot} was missed by more than refresh.startingDeadlineSeconds, and is skipped. The next one"
            f" is at {new.next_check}."
        )
        yield EventReport("Warning", reasons.CHECK_SKIPPED, message)


def _skipped_slot(now: DatasetStatus) -> str:
    return "" if now.schedule is None else now.schedule.skipped


def _list_changes(old: DatasetStatus, new: DatasetStatus) -> Iterator[tuple[Condition | None, Condition]]:
    for after in new.conditions:
        before = old.condition(after.type)
        if before is not None and (before.status, before.reason) == (after.status, after.reason):
            continue
        if before is None and after.type == status.DEGRADED and after.status == "False":
            continue  # that nothing is wrong with a new dataset is no news
        yield before, after


def _is_only_starting(after: Condition, new: DatasetStatus) -> bool:
    """Whether something is only not ready yet: nothing is wrong with it."""
    degraded = new.condition(status.DEGRADED)
    return after.type == status.READY and degraded is not None and degraded.status == "False"


def _has_stopped_serving(before: Condition | None, after: Condition) -> bool:
    return after.type == status.READY and after.status != "True" and before is not None and before.status == "True"


class ProgressWrites:
    """When a status in which only progress has changed was last written: the servers of a rollout get ready one by
    one, and a write for each would be one for each shard."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[Key, float] = {}

    def remaining_pause(self, dataset: ObservedDataset, plan: Plan) -> float:
        """Seconds for which nothing needs to be written or done; 0 when ``plan`` is to be carried out now."""
        if plan.apply or plan.delete or plan.status == dataset.status:
            return 0.0
        if _without_progress(plan.status) != _without_progress(dataset.status):
            return 0.0
        wait = self._written.get(dataset.key, float("-inf")) + _PROGRESS_EVERY - self._clock()
        return max(0.0, wait if plan.next_look_in is None else min(wait, plan.next_look_in))

    def note_write(self, key: Key) -> None:
        """A status of the dataset was written."""
        self._written[key] = self._clock()

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
        self._written.pop(key, None)


class EventBudget:
    """How many events of one reason each dataset may have: some at once, and then one every half minute. What goes to
    and fro for ever must not fill the cluster's store of events, and must not keep another fault from being told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[Key, dict[str, tuple[float, float]]] = {}
        """By reason, of which there are some fifty: events that count, at a moment."""

    def allows(self, key: Key, reason: str) -> bool:
        """Whether there may be another event of ``reason``, which then counts."""
        now = self._clock()
        reasons_spent = self._spent.setdefault(key, {})
        spent, moment = reasons_spent.get(reason, (0.0, now))
        spent = max(0.0, spent - (now - moment) / _EVENT_EVERY)
        if spent + 1 > _EVENTS_AT_ONCE:
            return False
        reasons_spent[reason] = spent + 1, now
        return True

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
        self._spent.pop(key, None)


def _without_progress(now: DatasetStatus) -> DatasetStatus:
    """``now`` without what changes from server to server: counts for people, and the words of conditions."""
    conditions = tuple(replace(condition, message="") for condition in now.conditions)
    return replace(now, shards="", conditions=conditions)


# Announces outside of looks: a gateway that does not answer takes seconds, in which it must not occupy a worker of the
# queue, nor hold anything else of the dataset up.
#
# A look says what is due (``Plan.announce``). When the store has it, or when it has failed for long, the dataset is
# looked at again, and sees that (``Observed.announcement``).


log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 600.0
"""A gateway that is being replaced, or a store that is away for a while, is nobody's trouble."""
_AT_ONCE: Final = 16


class Announcer(Protocol):
    """Writes one announcement."""

    async def announce(self, announcement: Announcement) -> None:
        """Return when the store has it. Raises NotAnnounced."""


@dataclass(slots=True)
class _Attempts:
    announcement: Announcement
    task: asyncio.Task[None]
    report: AnnouncementReport


class Announcements:
    """What is being announced, at most one announcement for each dataset."""

    def __init__(
        self,
        announcer: Announcer | None,
        wake: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``announcer`` is None where nothing is announced; ``wake`` is called with the dataset that has news."""
        self._announcer = announcer
        self._wake = wake
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._attempts: dict[Key, _Attempts] = {}

    def report(self, key: Key) -> AnnouncementReport:
        """What has become of what was last due."""
        attempts = self._attempts.get(key)
        return AnnouncementReport() if attempts is None else attempts.report

    def follow(self, key: Key, due: Announcement | None) -> None:
        """Announce ``due`` from now on, in place of what was due before."""
        attempts = self._attempts.get(key)
        if due is None or self._announcer is None:
            self.forget(key)
        elif attempts is None or attempts.announcement != due:
            self.forget(key)
            task = asyncio.create_task(self._announce(key, due, self._announcer), name="announcing")
            self._attempts[key] = _Attempts(due, task, AnnouncementReport())

    def forget(self, key: Key) -> None:
        """Nothing is due."""
        if attempts := self._attempts.pop(key, None):
            attempts.task.cancel()

    async def close(self) -> None:
        """End all attempts."""
        tasks = [attempts.task for attempts in self._attempts.values()]
        self._attempts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _announce(self, key: Key, due: Announcement, announcer: Announcer) -> None:
        told_at, pause, logged = self._clock(), FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                async with self._slots:
                    await announcer.announce(due)
            except NotAnnounced as error:
                problem = str(error)
            except Exception as error:  # whatever it is, it is tried again
                log.exception("%s/%s: an announcement failed, by a defect", *key)
                problem = f"{type(error).__name__}: {error}"
            else:
                log.info("%s/%s: announced %s", *key, due.generation)
                self._note(key, due, AnnouncementReport(written=due))
                return
            if problem != logged:
                log.warning("%s/%s: %s is not announced: %s", *key, due.generation, problem)
                logged = problem
            # Another problem is not told sooner either: what alternates would be written to status at each attempt.
            if self._clock() - told_at >= PATIENCE_SECONDS:
                told_at = self._clock()
                self._note(key, due, AnnouncementReport(problem=problem))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the load
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _note(self, key: Key, due: Announcement, report: AnnouncementReport) -> None:
        attempts = self._attempts.get(key)
        if attempts is not None and attempts.announcement == due and attempts.report != report:
            attempts.report = report
            self._wake(key)


# Polls routers for the routing table that they answer from, outside of looks: a router that does not answer takes
# seconds, in which it must not occupy a worker of the queue.
#
# A look that needs the reports is ended (``ReportsPending``). When all routers have answered or timed out, the dataset
# is queued again, and its next look has their reports.


_ASKED_AT_ONCE: Final = 128
_ASKED_AT_ONCE_OF_A_DATASET: Final = 16
"""A dataset with many routers that do not answer leaves room for others."""


class ReportsPending(LookDeferred):
    """Raised instead of what is observed: routers are being asked, and the dataset is looked at again afterwards."""


class RouterClient(Protocol):
    """Asks one router."""

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """What the router at ``ip`` answers from; a report with a problem when it does not answer."""


class RouterPolls:
    """The polls under way, and the reports that no look has taken yet; at most one of either for each dataset."""

    def __init__(self, client: RouterClient, wake: Callable[[Key], None]) -> None:
        """``wake`` is called with the dataset whose reports are there."""
        self._client = client
        self._wake = wake
        self._turns = asyncio.Semaphore(_ASKED_AT_ONCE)
        self._polls: dict[Key, asyncio.Task[None]] = {}
        self._reports: dict[Key, Mapping[str, RouterReport]] = {}

    def take_reports(self, observed: Observed) -> Mapping[str, RouterReport]:
        """What each router of ``observed`` has answered since the last call, by the pod's uid. Raises ReportsPending
        when the routers have yet to be asked."""
        key = observed.dataset.key
        routers = _running_routers(observed)
        if key in self._reports:
            return self._reports.pop(key)
        if not routers:
            return {}
        if key not in self._polls:
            self._polls[key] = asyncio.create_task(self._poll(key, observed.dataset.uid, routers))
        raise ReportsPending("routers are being asked")

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
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
                return pod.uid, await self._client.ask_router(pod.ip, dataset_uid)

        reports: Mapping[str, RouterReport] = {}
        try:
            reports = dict(await asyncio.gather(*(ask(pod) for pod in routers)))
        except Exception:  # whatever it is, the dataset is looked at again
            log.exception("%s/%s: routers cannot be asked", *key)
        self._polls.pop(key, None)
        self._reports[key] = reports
        self._wake(key)


def _running_routers(observed: Observed) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in observed.pods
        if pod.component == names.ROUTER and pod.phase == "Running" and pod.ip and not pod.deleting
    )


_JITTER: Final = 0.1
_COMPARE_EVERY: Final = 0.5
"""Seconds between looks at whether the informers have caught up."""
_PATIENCE: Final = 120.0
"""Seconds in which an informer must tell of what is listed; a watch reconnects in less."""
_WATCH_LAG: Final = 5.0
"""Seconds in which a watch tells of what is listed."""
_LIVE_DATASETS_EVERY: Final = 10.0
_RETRY_SECONDS: Final = 1.0
"""Seconds until what the API server did not do is tried again, at the start."""


class Resync:
    """Compares the cache with lists, reads the Secrets of the release (the store's unless a gateway does), queues every
    dataset."""

    def __init__(
        self,
        *,
        cache: ObjectCache,
        queue: LookQueue[Key],
        informers: Informers,
        listing: Listing,
        store: StoreAccessReader | None,
        live_datasets: LiveDatasetsWriter | None,
        account_keys: AccountKeys,
        shard_key: ShardKeyReader | None = None,
        metrics: Metrics,
        health: Health,
        seconds: float,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._informers = informers
        self._listing = listing
        self._store = store
        self._live_datasets = live_datasets
        self._shard_key = shard_key
        self._account_keys = account_keys
        self._metrics = metrics
        self._health = health
        self._seconds = seconds
        self._kinds_to_compare = itertools.cycle(names.WATCHED)

    async def run(self) -> None:
        """Open the informers once the cache has every dataset; then compare and queue until it is cancelled."""
        await self._informers.wait_synced()
        await self._repeat(self._compare_datasets, _RETRY_SECONDS, until_done=True)
        log.info("watching %d datasets", len(self._cache.dataset_keys()))
        self._informers.open()
        self._queue_all()
        async with asyncio.TaskGroup() as group:
            if self._live_datasets:
                group.create_task(self._repeat(self._live_datasets.write, _LIVE_DATASETS_EVERY))
            group.create_task(self._repeat(self._refresh_account_keys, REFRESH_SECONDS))
            group.create_task(self._resync())

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._seconds * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - not a secret
            try:
                await self._compare_datasets()
                await self._compare_children(next(self._kinds_to_compare))
                if self._store and await self._store.refresh():
                    log.info("the store's credentials have changed")
                if self._shard_key and await self._shard_key.refresh():
                    log.warning("the key of shard servers' passwords has changed: every dataset is rolled out anew")
            except ApiError as error:
                log.warning("resync: %s", error)
                continue
            self._queue_all()

    async def _refresh_account_keys(self) -> None:
        if await self._account_keys.refresh():
            log.info("the keys of service accounts have changed")
            self._queue_all()

    def _queue_all(self) -> None:
        for key in tuple(self._cache.dataset_keys()):
            self._queue.add(key)
        self._note_idle_success()

    def _note_idle_success(self) -> None:
        """Note a success where there is no dataset; where there is one, only a look at it is a success."""
        if not self._cache.dataset_keys():
            self._metrics.note_success()

    async def _compare_datasets(self) -> None:
        """Return when the cache has every LookupDataset. Fails the health check when kopf never tells of one."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while unseen := await self._informers.compare(names.DATASET_KIND, self._listing):
            if asyncio.get_running_loop().time() > deadline:
                self._health.report_failure(f"no watch has told of {unseen} of kind {names.DATASET_KIND.name}")
            await asyncio.sleep(_COMPARE_EVERY)

    async def _compare_children(self, kind: Kind) -> None:
        """Compare one kind, another one at each resync: reflectors lose nothing, unless an API server's watch does."""
        if not await self._informers.compare(kind, self._listing):
            return
        await asyncio.sleep(_WATCH_LAG)
        if unseen := await self._informers.compare(kind, self._listing):
            log.warning("no watch has told of %d of kind %s; listing them anew", unseen, kind.name)
            self._informers.relist(kind)

    async def _repeat(self, action: Callable[[], Awaitable[Any]], seconds: float, until_done: bool = False) -> None:
        while True:
            try:
                await action()
                if until_done:
                    return
            except ApiError as error:
                log.warning("%s", error)
            await asyncio.sleep(seconds)


async def wait_for_api(listing: Listing, seconds: float = _RETRY_SECONDS) -> None:
    """Return when the API server knows LookupDatasets, lets them be listed, and names them among what it has: kopf
    looks there once, and would never watch what is not named yet."""
    while True:
        try:
            await listing.list_uids(names.DATASET_KIND)
            if await listing.is_discovered(names.DATASET_KIND):
                return
            log.info("the API server does not name LookupDatasets yet")
        except NotFound:
            log.warning("the API server does not know LookupDatasets; is their CustomResourceDefinition installed?")
        except ApiError as error:
            log.warning("%s", error)
        await asyncio.sleep(seconds)
