"""One reconcile pass of one dataset: observe, plan, act. The planner decides what to do; this file decides the order,
and what happens on failure.

A pass may stop after any step: the next one starts from what the cluster then holds. The status is written first, under
the observed resource version, so that no number is claimed twice.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from lookupdb.backoff import delay_after
from lookupdb.telemetry import SpanHandle, log_fields, open_span
from lookupdb_operator import manifests, names
from lookupdb_operator.cluster.api import ApiError, Conflict, NamespaceTerminating, NotFound, Refused, Unreachable
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.loop.observe import Absences, Announcements, Confirmation, Observer
from lookupdb_operator.loop.queue import LookDeferred, RequeueRequested
from lookupdb_operator.model import (
    Config,
    Contest,
    ExistingObject,
    Manifest,
    ObjectRef,
    Observed,
    ObservedDataset,
    Plan,
    ShardSet,
    StoreAccess,
    Unattended,
)
from lookupdb_operator.plan import objects, planner, reasons
from lookupdb_operator.plan.turns import TurnQueues
from lookupdb_operator.status import DEGRADED, READY, DatasetStatus

if TYPE_CHECKING:
    from lookupdb_operator.metrics import Metrics

log = logging.getLogger(__name__)

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

    One failure can show in several conditions, such as an image that neither a router nor a builder can pull, but is
    reported once.
    """
    known = {condition.reason for condition in old.conditions} - reasons.HEALTHY_REASONS
    reports: dict[str, EventReport] = {}
    degraded = new.condition(DEGRADED)
    is_healthy = degraded is not None and degraded.status == "False"
    for after in new.conditions:
        before = old.condition(after.type)
        if before is not None and (before.status, before.reason) == (after.status, after.reason):
            continue
        if before is None and after is degraded and is_healthy:
            continue  # a new dataset without problems is no news
        was_serving = before is not None and before.status == "True"
        has_stopped_serving = was_serving and after.type == READY and after.status != "True"
        if after.reason in known and not has_stopped_serving:
            continue
        is_only_starting = after.type == READY and is_healthy
        warns = has_stopped_serving or (after.reason not in reasons.HEALTHY_REASONS and not is_only_starting)
        report = EventReport("Warning" if warns else "Normal", after.reason, after.message)
        if after.reason not in reports or after.type == DEGRADED:
            reports[after.reason] = report
    skipped = "" if new.schedule is None else new.schedule.skipped
    if skipped not in ("", "" if old.schedule is None else old.schedule.skipped):
        message = (
            f"The check of {skipped} was missed by more than refresh.startingDeadlineSeconds, and is skipped. The next"
            f" one is at {new.next_check}."
        )
        reports[reasons.CHECK_SKIPPED] = EventReport("Warning", reasons.CHECK_SKIPPED, message)
    last, table = old.table, new.table
    if last is not None and table is not None and table.version > last.version:
        renewed = replace(last, version=table.version, written_at=table.written_at, confirmed_at=table.confirmed_at)
        if renewed == table:
            message = (
                f"Routing table {last.version} is written again, as {table.version}: a router may have read other"
                " content under the old version, or has a newer version."
            )
            reports[reasons.TABLE_RENEWED] = EventReport("Warning", reasons.TABLE_RENEWED, message)
    return tuple(reports.values())


def progress_pause(dataset: ObservedDataset, plan: Plan, seconds: float) -> float:
    """Return the seconds that ``plan`` can still wait, ``seconds`` after the last write of the status; 0 if it must not
    wait. Servers of a rollout become ready one by one; this avoids a write for each of them."""
    if plan.apply or plan.delete or plan.status == dataset.status:
        return 0.0
    if _without_progress(plan.status) != _without_progress(dataset.status):
        return 0.0
    wait = _PROGRESS_EVERY - seconds
    return max(0.0, wait if plan.next_look_in is None else min(wait, plan.next_look_in))


class EventBudget:
    """A rate limit for the events of a dataset, for each reason: some at once, then one every half minute. A condition
    that flips must not fill the cluster's event store or hide other faults."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[str, tuple[float, float]] = {}
        """Reason (there are about fifty) → the number of events that still count, and when they were counted."""

    def allows(self, reason: str) -> bool:
        """Return whether another event of ``reason`` may be posted, and count it if so."""
        now = self._clock()
        spent, moment = self._spent.get(reason, (0.0, now))
        spent = max(0.0, spent - (now - moment) / _EVENT_EVERY)
        if spent + 1 > _EVENTS_AT_ONCE:
            return False
        self._spent[reason] = spent + 1, now
        return True


def _without_progress(now: DatasetStatus) -> DatasetStatus:
    """Return ``now`` without progress: the number of ready shards and the messages of conditions."""
    conditions = tuple(replace(condition, message="") for condition in now.conditions)
    return replace(now, shards="", conditions=conditions)


# A brake on repairs. The first few repairs of an object are immediate. If somebody keeps changing it back, the operator
# waits longer after each one, so that two writers do not fight as fast as the API server answers. A change of our own
# is always written at once.


KindAndName = tuple[str, str]

AT_ONCE: Final = 3
"""Number of immediate writes of the same manifest, including the first."""
FIRST_DELAY: Final = 10.0
LONGEST_DELAY: Final = 300.0
FORGOTTEN_AFTER: Final = 600.0
"""Seconds without a write after which an object is no longer contested."""
_PACED_ELSEWHERE: Final = frozenset({names.SECRET.name, names.POD.name})


@dataclass(frozen=True, slots=True)
class _Write:
    """The last write of one object, and the number of equal writes in a row."""

    mark: str
    count: int
    moment: float
    by: str


class Repairs:
    """Recent writes of a dataset's objects."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._writes: dict[KindAndName, _Write] = {}

    def list_contests(self) -> tuple[Contest, ...]:
        """Return the objects that somebody keeps changing back."""
        return tuple(
            Contest(*name, mark=write.mark, is_held=self._wait(write) > 0, by=write.by)
            for name, write in sorted(self._remembered().items())
            if write.count > AT_ONCE
        )

    def note_write(self, observed: Observed, manifest: Manifest) -> None:
        """Note that ``manifest`` was written for the dataset ``observed``."""
        name = manifest["kind"], manifest["metadata"]["name"]
        if name[0] in _PACED_ELSEWHERE:
            return
        mark = manifests.write_mark(manifest)
        before = self._remembered().get(name)
        objects: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *observed.other_objects)
        by = next((item.changed_by for item in objects if (item.ref.kind, item.ref.name) == name), "")
        count, known = (before.count, before.by) if before is not None and before.mark == mark else (0, "")
        self._writes[name] = _Write(mark, count + 1, self._clock(), by or known)

    def note_deletion(self, ref: ObjectRef) -> None:
        """Note that the operator itself deleted an object: recreating it is no conflict."""
        self._writes.pop((ref.kind, ref.name), None)

    def next_in(self) -> float | None:
        """Return seconds until a contested object may be written, or is no longer contested; None if there is none."""
        now = self._clock()
        waits = (
            self._wait(write) or write.moment + FORGOTTEN_AFTER - now
            for write in self._remembered().values()
            if write.count > AT_ONCE
        )
        return min(waits, default=None)

    def _remembered(self) -> dict[KindAndName, _Write]:
        oldest = self._clock() - FORGOTTEN_AFTER
        self._writes = {name: write for name, write in self._writes.items() if write.moment > oldest}
        return self._writes

    def _wait(self, write: _Write) -> float:
        if write.count <= AT_ONCE:
            return 0.0
        delay = delay_after(write.count - AT_ONCE, FIRST_DELAY, LONGEST_DELAY)
        return max(0.0, write.moment + delay - self._clock())


# Build and rollout slots: each pass plans with the slots of its dataset and wakes those for which one became free.


Decide = Callable[[Observed, Config, datetime], Plan]


class TurnTaking:
    """Which datasets have a slot: read once from the cached statuses, then updated after each plan."""

    def __init__(
        self, queues: TurnQueues, *, cache: ObjectCache, config: Config, wake: Callable[[Key], None] = lambda key: None
    ) -> None:
        """``wake`` is called with each dataset that gets a slot."""
        self._queues = queues
        self._cache = cache
        self._config = config
        self._wake = wake
        self._is_loaded = False
        self._granted: frozenset[Key] = frozenset()

    def use_config(self, config: Config) -> None:
        """Use other settings from now on."""
        self._config = config

    def plan(self, observed: Observed, decide: Decide, now: datetime) -> Plan:
        """Return the plan of ``decide`` for ``observed`` with its slots. Nothing else runs until the plan is noted, so
        no slot is granted twice."""
        if not self._is_loaded:
            self._is_loaded = True
            for cached in self._cache.datasets():
                self._note(cached, cached.status, now)
        dataset = observed.dataset
        self._note(dataset, dataset.status, now)
        turns = self._queues.find_turns(dataset.key, dataset.status, now)
        try:
            plan = decide(replace(observed, turns=turns), self._config, now)
        except Exception:
            self.forget(dataset.key, now)  # free its slot until the next pass
            raise
        self._note(dataset, plan.status, now)
        self._wake_granted(now)
        return plan

    def withdraw(self, dataset: ObservedDataset, now: datetime, *, postpone: bool) -> None:
        """Note that the plan for ``dataset`` was not written and claimed nothing. With ``postpone``, other datasets
        come first for a while, because this one's status cannot be written."""
        self._note(dataset, dataset.status, now)
        if postpone:
            self._queues.postpone(dataset.key, now)
        self._wake_granted(now, skipped=dataset.key)

    def forget(self, key: Key, now: datetime) -> None:
        """Forget the deleted dataset ``key``."""
        self._queues.forget(key)
        self._wake_granted(now)

    def _note(self, dataset: ObservedDataset, status: DatasetStatus, now: datetime) -> None:
        """Note the slots of a dataset. A dataset that is not ours, or has an unusable spec, gets none: it would never
        free them."""
        if dataset.parsed is None or planner.why_idle(dataset, self._config):
            self._queues.forget(dataset.key)
        else:
            self._queues.note(dataset.key, status, now)

    def _wake_granted(self, now: datetime, skipped: Key | None = None) -> None:
        granted = self._queues.list_granted(now)
        for key in granted - self._granted - {skipped}:
            self._wake(key)
        self._granted = granted


Refusals = Mapping[tuple[str, str], str]

_ASK_EVERY: Final = 600.0
"""Seconds after which a pass asks routers although nothing changed. Only routers show that a status was set back or a
cluster restored."""
_DELETED_REMEMBERED: Final = 1024
_DELETED_AGAIN: Final = 30.0
"""Seconds after which an object that still seems to exist is deleted again: the informer may lag that long."""


class _Memory:
    """What is remembered of one dataset from one pass to the next."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events = EventBudget(clock)
        self.repairs = Repairs(clock)
        self.confirmation = Confirmation(clock)
        self.absences = Absences(clock)
        self.refusals: Refusals = {}
        self.unattended: tuple[str, Unattended] | None = None
        """The dataset's uid, and the reason that was posted for leaving it alone."""
        self.needs_reports = False
        """True if the next plan needs the routers' reports."""
        self.asked_at = float("-inf")
        self.written_at = float("-inf")


class Reconciler:
    """Reconciles datasets. The queue's workers call ``look``."""

    def __init__(
        self,
        *,
        cache: ObjectCache,
        observer: Observer,
        cluster: Cluster,
        config: Config,
        store: Callable[[], StoreAccess],
        account_keys: Callable[[], str] = lambda: "",
        metrics: Metrics,
        decide: Decide,
        turns: TurnTaking,
        announcements: Announcements | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._observer = observer
        self._cluster = cluster
        self._config = config
        self._store = store
        self._account_keys = account_keys
        self._metrics = metrics
        self._decide = decide
        self._turns = turns
        self._now = now
        self._clock = clock
        self._memories: dict[Key, _Memory] = {}
        self._deleted: OrderedDict[str, float] = OrderedDict()
        self._announcements = announcements or Announcements(None, lambda key: None)

    def use_config(self, config: Config) -> None:
        """Use other settings from now on."""
        self._config = config
        self._turns.use_config(config)

    async def look(self, key: Key) -> float | None:
        """Run one reconcile pass of dataset ``key``. Return the seconds until the next one, if any is due.

        Raises RequeueRequested if it must be repeated, LookDeferred if it waits; any other exception is a defect.
        """
        outcome = "defect"
        with open_span("reconcile", *key) as span:
            try:
                with self._metrics.seconds.time():
                    seconds = await self._look(key, span)
                outcome = "done"
            except LookDeferred:
                outcome = "done"
                raise
            except RequeueRequested:
                outcome = "refused"
                self._metrics.note_success()  # everything that the API server allowed is done
                raise
            except Conflict as error:
                outcome = "conflict"
                raise RequeueRequested(str(error)) from error
            except ApiError as error:
                outcome = "unreachable" if isinstance(error, Unreachable) else "refused"
                log.warning("%s/%s: %s", *key, error)
                retry_after = error.retry_after if isinstance(error, Unreachable) else None
                raise RequeueRequested(str(error), at_least=retry_after or 0.0) from error
            else:
                self._metrics.note_success()
                return seconds
            finally:
                span.settle(outcome, is_failure=outcome != "done")
                self._metrics.reconciles.labels(outcome).inc()
                if outcome in ("defect", "unreachable"):
                    self._metrics.errors.inc()

    async def _look(self, key: Key, span: SpanHandle) -> float | None:
        """Observe, plan and act. Return the seconds until the next pass."""
        memory = self._memories.setdefault(key, _Memory(self._clock))
        needs_reports = memory.needs_reports or self._clock() - memory.asked_at >= _ASK_EVERY
        observed = await self._observer.observe(
            key, ask_routers=needs_reports, refusals=memory.refusals, store=self._store()
        )
        if observed is None:
            del self._memories[key]
            self._announcements.forget(key)
            self._metrics.forget(*key)
            self._turns.forget(key, self._now())
            return None
        if needs_reports:
            memory.asked_at = self._clock()
        observed = replace(
            observed,
            account_keys=self._account_keys(),
            contests=memory.repairs.list_contests(),
            announcement=self._announcements.report(key),
            seconds_confirmed=memory.confirmation.measure(observed),
            absences=memory.absences.measure(observed),
        )
        plan = self._turns.plan(observed, self._decide, self._now())
        deadlines = plan.next_look_in, memory.repairs.next_in()
        plan = replace(plan, next_look_in=reasons.find_earliest(deadlines))
        if plan.idle_reason:
            log.debug("%s/%s: nothing is done: %s", *key, plan.idle_reason)
        memory.needs_reports = plan.ask_routers
        if plan.status.operator == self._config.identity:
            limit = None if observed.dataset.parsed is None else observed.dataset.parsed.refresh.stale_after_seconds
            self._metrics.set_status(observed.dataset.namespace, observed.dataset.name, plan.status, stale_after=limit)
        else:
            self._metrics.forget(observed.dataset.namespace, observed.dataset.name)
        await self._report_unattended(observed.dataset, memory)
        generation = None if plan.status.table is None else plan.status.table.generation
        span.describe(generation=generation)
        with log_fields(generation=generation):
            return await self._act(observed, plan, memory)

    async def _act(self, observed: Observed, plan: Plan, memory: _Memory) -> float | None:
        """Write, apply and delete what ``plan`` says. Return the seconds until the next pass."""
        dataset = observed.dataset
        if pause := progress_pause(dataset, plan, self._clock() - memory.written_at):
            return pause
        # Write the status before any change, even if it stays the same: a conflict shows that this pass saw an outdated
        # dataset, before its old spec has effects.
        has_changes = plan.apply or plan.delete or plan.status != dataset.status
        if has_changes and not await self._claim(dataset, plan.status, memory):
            return None
        # Only what a written status confirms is announced, so that readers can rely on it.
        self._announcements.follow(dataset.key, plan.announce)
        refused = await self._apply(observed, plan.apply, memory.repairs)
        refused |= await self._delete(dataset, plan.delete, memory.repairs)
        before, memory.refusals = memory.refusals, refused
        if not refused:
            # If a refusal is over, the next pass clears its condition.
            return 0.0 if before else plan.next_look_in
        raise RequeueRequested(
            "refused: " + "; ".join(refused.values()),
            at_most=min(plan.next_look_in or objects.REFUSED_RETRY_SECONDS, objects.REFUSED_RETRY_SECONDS),
        )

    async def _claim(self, dataset: ObservedDataset, status: DatasetStatus, memory: _Memory) -> bool:
        """Write ``status`` and so claim what it contains; False if the dataset is gone."""
        try:
            written = await self._cluster.write_status(dataset, status)
            self._cache.put(names.DATASET_KIND.name, written)
            memory.written_at = self._clock()
            self._metrics.events.note(*dataset.key, dataset.status, status)
            for report in list_event_reports(dataset.status, status):
                await self._post(dataset, report, memory.events)
        except NotFound:
            return False
        except (Conflict, Refused) as error:  # not Unreachable: the status may have been written
            self._turns.withdraw(dataset, self._now(), postpone=isinstance(error, Refused))
            raise
        return True

    async def _report_unattended(self, dataset: ObservedDataset, memory: _Memory) -> None:
        """Post once, not in every pass, that this operator leaves ``dataset`` alone."""
        unattended = None if dataset.deleting else planner.diagnose_unattended(dataset, self._config)
        if unattended is None:
            memory.unattended = None
            return
        self._metrics.set_unattended(dataset.namespace, dataset.name, unattended)
        report_key = dataset.uid, unattended
        if report_key != memory.unattended:
            memory.unattended = report_key
            report = EventReport("Warning", unattended.reason, unattended.message)
            await self._post(dataset, report, memory.events)

    async def _post(self, dataset: ObservedDataset, report: EventReport, budget: EventBudget) -> None:
        level = logging.WARNING if report.type == "Warning" else logging.INFO
        log.log(level, "%s/%s: %s: %s", dataset.namespace, dataset.name, report.reason, report.message)
        if not budget.allows(report.reason):
            return
        try:
            await self._cluster.post_event(dataset, report.type, report.reason, report.message)
        except ApiError as error:  # a lost event must not stop the dataset
            log.warning("%s/%s: %s", dataset.namespace, dataset.name, error)

    async def _apply(
        self, observed: Observed, due: tuple[Manifest, ...], repairs: Repairs
    ) -> dict[tuple[str, str], str]:
        """Apply ``due`` in order and return the refusals, by kind and name. A refused object does not stop the others,
        unless the namespace is being deleted; but no server starts without the NetworkPolicy that protects it."""
        refused: dict[tuple[str, str], str] = {}
        ours = {("Pod", pod.name) for pod in observed.pods}
        ours |= {(item.ref.kind, item.ref.name) for item in observed.objects}
        is_terminating = False
        for manifest in due:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            guard = manifests.guarding_policy(manifest)
            if guard in refused and not ours & {guard, (kind, name)}:
                refused[kind, name] = "it waits for its NetworkPolicy, which the API server refuses"
                continue
            try:
                if manifests.is_made_once(manifest):
                    await self._cluster.create_secret(manifest)
                    continue
                # An object that is not known to be ours may belong to somebody else, so it is not taken over.
                answer = await self._cluster.apply(manifest, force=(kind, name) in ours)
            except (Refused, NotFound, Conflict) as error:
                # The API server treats a patch of an object that is gone as a creation, which is not allowed.
                if kind == names.POD.name and (
                    isinstance(error, NotFound | Conflict) or "cannot create resource" in error.message
                ):
                    log.info("%s/%s: Pod %s: %s", *observed.dataset.key, name, error.message)
                    continue
                if isinstance(error, Conflict) and (kind, name) in ours:
                    raise
                refused[kind, name] = error.message
                is_terminating = isinstance(error, NamespaceTerminating)
            else:
                repairs.note_write(observed, manifest)
                if kind != names.SECRET.name:
                    self._cache.put(kind, answer, is_own_write=True)
                continue
            log.warning("%s/%s: %s %s: refused: %s", *observed.dataset.key, kind, name, refused[kind, name])
            if is_terminating:
                break
        return refused

    async def _delete(
        self, dataset: ObservedDataset, refs: tuple[ObjectRef, ...], repairs: Repairs
    ) -> dict[tuple[str, str], str]:
        """Delete ``refs`` in order, except those deleted a moment ago. Return the refusals, by kind and name."""
        refused: dict[tuple[str, str], str] = {}
        for ref in refs:
            if self._clock() - self._deleted.get(ref.uid, float("-inf")) < _DELETED_AGAIN:
                continue
            try:
                await self._cluster.delete(ref, dataset.namespace)
            except Refused as error:
                refused[ref.kind, ref.name] = error.message
                log.warning("%s/%s: deleting %s %s: refused: %s", *dataset.key, ref.kind, ref.name, error.message)
                continue
            repairs.note_deletion(ref)
            self._deleted[ref.uid] = self._clock()
            self._deleted.move_to_end(ref.uid)
            if len(self._deleted) > _DELETED_REMEMBERED:
                self._deleted.popitem(last=False)
        return refused
