"""Work beside the reconcile passes: events and their limits, announcements, and router polls."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from lookupdb.backoff import Backoff
from lookupdb.manifest import Announcement
from lookupdb_operator import names, status
from lookupdb_operator.cluster.cache import Key
from lookupdb_operator.loop.queue import LookDeferred
from lookupdb_operator.model import AnnouncementReport, NotAnnounced, Observed, ObservedDataset, Plan, Pod, RouterReport
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import DatasetStatus

# Kubernetes Events about changed conditions, and their rate.


_PROGRESS_EVERY: Final = 5.0
"""Seconds between two writes of a status in which only progress has changed."""
_EVENTS_AT_ONCE: Final = 10
_EVENT_EVERY: Final = 30.0
"""Seconds until a dataset that used up its events of one reason may post another of that reason."""


@dataclass(frozen=True, slots=True)
class EventReport:
    """One Event to post."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def list_event_reports(old: DatasetStatus, new: DatasetStatus) -> tuple[EventReport, ...]:
    """Return one report for each reason that a condition changed to; failures are warnings.

    One failure can show in several conditions (an image that cannot be pulled: of a router, then of a builder) but is
    reported once.
    """
    known = {condition.reason for condition in old.conditions} - reasons.HEALTHY_REASONS
    reports: dict[str, EventReport] = {}
    degraded = new.condition(status.DEGRADED)
    is_healthy = degraded is not None and degraded.status == "False"
    for after in new.conditions:
        before = old.condition(after.type)
        if before is not None and (before.status, before.reason) == (after.status, after.reason):
            continue
        if before is None and after is degraded and is_healthy:
            continue  # a new dataset without problems is no news
        was_serving = before is not None and before.status == "True"
        has_stopped_serving = was_serving and after.type == status.READY and after.status != "True"
        if after.reason in known and not has_stopped_serving:
            continue
        is_only_starting = after.type == status.READY and is_healthy
        warns = has_stopped_serving or (after.reason not in reasons.HEALTHY_REASONS and not is_only_starting)
        report = EventReport("Warning" if warns else "Normal", after.reason, after.message)
        if after.reason not in reports or after.type == status.DEGRADED:
            reports[after.reason] = report
    skipped = "" if new.schedule is None else new.schedule.skipped
    if skipped not in ("", "" if old.schedule is None else old.schedule.skipped):
        message = (
            f"The check of {skipped} was missed by more than refresh.startingDeadlineSeconds, and is skipped. The next"
            f" one is at {new.next_check}."
        )
        reports[reasons.CHECK_SKIPPED] = EventReport("Warning", reasons.CHECK_SKIPPED, message)
    return (*reports.values(), *_list_renewed_tables(old, new))


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


class ProgressWrites:
    """When each status with only progress changed was last written. Servers of a rollout become ready one by one; this
    avoids a write for each of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[Key, float] = {}

    def remaining_pause(self, dataset: ObservedDataset, plan: Plan) -> float:
        """Return the seconds for which nothing needs to be written or done; 0 to carry out ``plan`` now."""
        if plan.apply or plan.delete or plan.status == dataset.status:
            return 0.0
        if _without_progress(plan.status) != _without_progress(dataset.status):
            return 0.0
        wait = self._written.get(dataset.key, float("-inf")) + _PROGRESS_EVERY - self._clock()
        return max(0.0, wait if plan.next_look_in is None else min(wait, plan.next_look_in))

    def note_write(self, key: Key) -> None:
        """Note that a status of the dataset was written."""
        self._written[key] = self._clock()

    def forget(self, key: Key) -> None:
        """Forget the deleted dataset."""
        self._written.pop(key, None)


class EventBudget:
    """A rate limit for the events of a dataset, for each reason: some at once, then one every half minute. A condition
    that flips must not fill the cluster's event store or hide other faults."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[Key, dict[str, tuple[float, float]]] = {}
        """By reason (there are about fifty): events that count, and the time of that count."""

    def allows(self, key: Key, reason: str) -> bool:
        """Return whether another event of ``reason`` may be posted, and count it if so."""
        now = self._clock()
        reasons_spent = self._spent.setdefault(key, {})
        spent, moment = reasons_spent.get(reason, (0.0, now))
        spent = max(0.0, spent - (now - moment) / _EVENT_EVERY)
        if spent + 1 > _EVENTS_AT_ONCE:
            return False
        reasons_spent[reason] = spent + 1, now
        return True

    def forget(self, key: Key) -> None:
        """Forget the deleted dataset."""
        self._spent.pop(key, None)


def _without_progress(now: DatasetStatus) -> DatasetStatus:
    """Return ``now`` without progress: the number of ready shards and the messages of conditions."""
    conditions = tuple(replace(condition, message="") for condition in now.conditions)
    return replace(now, shards="", conditions=conditions)


# Announcements run outside of reconcile passes: a gateway that does not answer must not block a worker.
#
# A plan says what is due (``Plan.announce``). Once the store has it, or after a long failure, the dataset is queued and
# the next pass sees the result (``Observed.announcement``).


log = logging.getLogger(__name__)

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
                log.exception("%s/%s: an announcement failed, by a defect", *key)
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


class RouterClient(Protocol):
    """Asks one router."""

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """Return the report of the router at ``ip``; it names a problem if the router does not answer."""


class RouterPolls:
    """The polls under way, and the reports not yet taken; at most one of each for a dataset."""

    def __init__(self, client: RouterClient, wake: Callable[[Key], None]) -> None:
        """``wake`` is called with each dataset whose reports have arrived."""
        self._client = client
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
                return pod.uid, await self._client.ask_router(pod.ip, dataset_uid)

        reports: Mapping[str, RouterReport] = {}
        try:
            reports = dict(await asyncio.gather(*(ask(pod) for pod in routers)))
        except Exception:  # the dataset is queued again, whatever failed
            log.exception("%s/%s: routers cannot be asked", *key)
        self._polls.pop(key, None)
        self._reports[key] = reports
        self._wake(key)
