"""Keep one dataset: find the active generation, fetch it, swap ``current``, remove superseded generations.

``DatasetKeeper.run`` repeats ``step``; a fetch runs beside it. After any failure the folder keeps what it has. A
failure is logged once, and retried later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from lookupdb.backoff import delay_after, spread
from lookupdb.errors import CorruptFile, FolderDenied, GenerationMissing, LookupdbError, StoreError
from lookupdb.manifest import ANNOUNCEMENT_NOTE, LOST_HINT, Manifest
from lookupdb.process.launch import call_in_thread, call_interruptibly
from lookupdb.store import Store, StoreAddress
from lookupdb.store.generations import Throttle
from lookupdb.sync.feeds import (
    StoreFeed,
    SyncTarget,
    diagnose_manifest,
    diagnose_succession,
    have_same_content,
    parse_moment,
)
from lookupdb.sync.folder import DatasetFolder, FetchInterrupted, FetchProgress, fetch_generation, interruptible_pace

# Look for an announcement without delaying a keeper that follows a routing table.


log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""Seconds that a check waits for the store. A later answer counts at the next check."""


class AnnouncementLook:
    """Finds the announcement by ``feed``: one request at a time, however long it takes."""

    def __init__(self, feed: StoreFeed, slots: asyncio.Semaphore) -> None:
        self._feed = feed
        self._slots = slots
        self._uid = ""
        self._found: SyncTarget | None = None
        self._running: asyncio.Task[None] | None = None

    async def find(self, uid: str) -> SyncTarget | None:
        """Return the announcement of the dataset with ``uid``, as the store last answered; None if there is none."""
        if uid != self._uid:
            self._uid, self._found = uid, None
        if self._running is None:
            self._running = asyncio.create_task(self._look(uid))
        await asyncio.wait({self._running}, timeout=WAIT_SECONDS)
        return self._found

    async def _look(self, uid: str) -> None:
        try:
            async with self._slots:
                found = await call_in_thread(self._feed.look_for_announcement, uid)
            if uid == self._uid:
                self._found = found
        except StoreError as error:
            log.debug("the announcement cannot be read", extra={"reason": error.message})
        finally:
            self._running = None


# Counters of a process, for /metrics.


@dataclass(slots=True)
class SyncFigures:
    """Sums over all datasets."""

    fetches: int = 0
    fetch_seconds: float = 0.0
    fetched_bytes: int = 0
    linked_bytes: int = 0
    swaps: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Reason → number."""


FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_LOOK_PAUSE_SECONDS: Final = 30.0
"""The longest pause between two requests to a store that does not answer."""
LONGEST_FETCH_PAUSE_SECONDS: Final = 300.0
"""The longest pause between two attempts to fetch a generation."""
TIDY_SECONDS: Final = 5.0
"""Seconds between two attempts to remove a generation that a program has mapped."""
STORE_SECONDS: Final = 3.0
"""Seconds to wait for a store when the folder already holds the generation."""

Look = Callable[[], Awaitable[SyncTarget | None]]


@dataclass(frozen=True, slots=True)
class KeeperContext:
    """The objects that all keepers of a process share."""

    store: Store
    throttle: Throttle
    keep: int
    fetch_slots: asyncio.Semaphore
    figures: SyncFigures


@dataclass(frozen=True, slots=True)
class CurrentGeneration:
    """The generation that ``current`` names."""

    generation: str
    uid: str
    built_at: str
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SyncProblem:
    """The last failure, and the number of failures in a row."""

    error: LookupdbError
    failures: int
    since: float
    """UNIX time."""
    retry_at: float
    """Monotonic time."""


@dataclass(slots=True)
class RunningFetch:
    """A generation that is being obtained."""

    target: SyncTarget
    interruption: threading.Event = field(default_factory=threading.Event)
    progress: FetchProgress = field(default_factory=FetchProgress)
    task: asyncio.Task[None] | None = None


class DatasetKeeper:
    """Keep ``namespace/name`` in ``folder``. ``look`` returns the active generation, or raises LookupdbError."""

    def __init__(
        self,
        namespace: str,
        name: str,
        folder: DatasetFolder,
        look: Look,
        context: KeeperContext,
        uid: str | None = None,
    ) -> None:
        """``uid`` is the first eight characters of the uid of the dataset to keep; None for any dataset of that
        name."""
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.look = look
        self.target: SyncTarget | None = None
        self.current: CurrentGeneration | None = None
        self.look_problem: SyncProblem | None = None
        self.fetch_problem: SyncProblem | None = None
        self.running: RunningFetch | None = None
        self.kept: dict[str, int] = {}
        """Generation in the folder → its bytes."""
        self.last_fetch_seconds: float | None = None
        self.has_looked = False
        """True once a check has ended, with or without success."""
        self.folder = folder
        self._context = context
        self._settled: SyncTarget | None = None
        """The target that ``current`` points to."""
        self._is_prepared = False
        self._tidy_at: float | None = None
        self._wake = asyncio.Event()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_settled(self) -> bool:
        """True if ``current`` is the active generation."""
        return self.target is not None and self._settled == self.target

    @property
    def has_generation(self) -> bool:
        """True if ``current`` is a generation of this dataset, not of an earlier one with another uid."""
        return self.current is not None and self.uid in (None, self.current.uid[:8])

    @property
    def problem(self) -> SyncProblem | None:
        """The present problem."""
        return self.fetch_problem or self.look_problem

    def wake(self) -> None:
        """Look at once."""
        self._wake.set()

    async def run(self, poll_seconds: Callable[[], float]) -> None:
        """Keep the dataset until cancelled, looking every ``poll_seconds``."""
        while True:
            self._wake.clear()
            await self.step()
            pause = poll_seconds()
            if self.look_problem is not None:
                pause = max(pause, self.look_problem.retry_at - time.monotonic())
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def step(self) -> None:
        """Check once which generation is active, and start the work that is needed."""
        try:
            if self.running is None and not self.folder.is_intact(has_current=self.current is not None):
                self._is_prepared = False
            if not self._is_prepared:
                await call_in_thread(self._prepare)
                self._is_prepared = True
            self._take(await self.look())
        except LookupdbError as error:
            self.look_problem = self._next_problem(self.look_problem, error, LONGEST_LOOK_PAUSE_SECONDS)
        except Exception as error:  # a defect must not end the process that keeps all others
            log.exception("a check failed because of a bug", extra={"dataset": str(self)})
            defect = LookupdbError(f"{type(error).__name__}: {error}")
            self.look_problem = self._next_problem(self.look_problem, defect, LONGEST_LOOK_PAUSE_SECONDS)
        else:
            if self.look_problem is not None:
                log.info("the check succeeds again", extra={"dataset": str(self)})
                self.look_problem = None
        if self._is_prepared:
            self._drive()
        self.has_looked = True
        if self.running is None and self._tidy_at is not None and time.monotonic() >= self._tidy_at:
            await self._tidy()

    def _prepare(self) -> None:
        self.current = self._settled = None
        self.folder.lock()
        self.folder.recover()
        manifest = self.folder.current()
        if manifest is not None:
            self.current = _describe(manifest)
        self._measure()

    def _take(self, target: SyncTarget | None) -> None:
        """Make ``target`` the generation to become current. Raises StoreError if it may not follow the present one."""
        if target is None:
            return
        refusal = diagnose_succession(target, self.target)
        if refusal is not None:
            raise CorruptFile(refusal, hint="each announcement needs a greater version than the one before")
        if target != self.target:
            self.target, self.fetch_problem = target, None  # a new target is tried at once

    def _drive(self) -> None:
        """Start to obtain the target, unless it is current, already on its way, or failed a moment ago."""
        if self.running is not None:
            if self.running.target != self.target:
                self.running.interruption.set()
            return
        if self.target is None or self.is_settled:
            return
        if self.fetch_problem is not None and time.monotonic() < self.fetch_problem.retry_at:
            return
        self.running = RunningFetch(self.target)
        self.running.task = asyncio.create_task(self._obtain(self.running))

    async def _obtain(self, running: RunningFetch) -> None:
        """Obtain the generation, and point ``current`` to it if it is still the active one."""
        target = running.target
        try:
            async with self._context.fetch_slots:
                began = time.monotonic()
                manifest = await call_in_thread(self._find_or_fetch, running)
                if self.target != target:
                    return  # no longer wanted: it is removed with the superseded ones
                await call_in_thread(self.folder.point, target.generation)
                self._note_swap(target, manifest, running.progress, time.monotonic() - began)
                await self._tidy()
        except FetchInterrupted:
            pass
        except LookupdbError as error:
            self._note_fetch_problem(target, error)
        except Exception as error:
            log.exception("a fetch failed because of a bug", extra={"dataset": str(self)})
            self._note_fetch_problem(target, LookupdbError(f"{type(error).__name__}: {error}"))
        finally:
            self.running = None
            self._wake.set()

    def _find_or_fetch(self, running: RunningFetch) -> Manifest:
        """Return the target's manifest once all its files are in the folder."""
        target, folder = running.target, self.folder
        address = StoreAddress(self._context.store.cluster, self.namespace, self.name, target.uid)
        dataset = self._context.store.dataset_at(address)
        standing = self._find_standing(target)
        try:
            if standing is None:
                manifest = dataset.find_manifest(target.generation)
            else:
                manifest = call_interruptibly(dataset.find_manifest, target.generation, seconds=STORE_SECONDS)
        except (StoreError, TimeoutError):
            if standing is not None:
                return standing  # the store is not needed
            raise
        if manifest is None:
            if standing is not None:
                return standing
            message = f"{dataset.url} has no {target.generation}, which is the active generation"
            hint = "it was removed, or --store is not the store that the routing table's writer uses"
            if target.origin == "announcement":
                message, hint = f"{message}: {ANNOUNCEMENT_NOTE} there announces it", LOST_HINT
            raise GenerationMissing(message, hint=hint)
        if (refusal := diagnose_manifest(manifest, address, target)) is not None:
            raise CorruptFile(refusal, hint="find out what else writes to the store")
        if standing is not None and have_same_content(standing, manifest):
            return standing
        pace = interruptible_pace(self._context.throttle, running.interruption)
        partial = folder.open_partial(target.generation)
        fetch_generation(dataset, manifest, partial, running.progress, pace, self._make_room)
        folder.publish(target.generation)
        return manifest

    def _find_standing(self, target: SyncTarget) -> Manifest | None:
        """Return the target's manifest if the folder holds its files, as far as can be known without the store."""
        address = StoreAddress(self._context.store.cluster, self.namespace, self.name, target.uid)
        manifest = self.folder.find_whole(target.generation)
        if manifest is None or diagnose_manifest(manifest, address, target) is not None:
            return None
        return manifest if target.origin != "newest" or parse_moment(manifest.built_at) == target.moment else None

    def _make_room(self, lacking: int) -> None:
        """Remove older generations, oldest first, until ``lacking`` more bytes are free."""
        for generation in self.folder.find_superseded(keep=0):
            if lacking <= 0:
                return
            manifest = self.folder.read_manifest(generation)
            if self.folder.remove(generation) and manifest is not None:
                lacking -= manifest.totals.file_bytes

    async def _tidy(self) -> None:
        """Remove superseded generations. One that cannot be removed now is no failure."""
        try:
            is_done = await call_in_thread(self._remove_superseded)
        except (StoreError, FolderDenied) as error:
            log.warning("older generations stay", extra={"dataset": str(self), "reason": error.message})
            is_done = False
        self._tidy_at = None if is_done else time.monotonic() + TIDY_SECONDS

    def _remove_superseded(self) -> bool:
        """Remove superseded generations. Return whether none is left."""
        self.folder.remove_partials()
        removed = [self.folder.remove(generation) for generation in self.folder.find_superseded(self._context.keep)]
        self._measure()
        return all(removed)

    def _measure(self) -> None:
        manifests = {name: self.folder.read_manifest(name) for name in self.folder.generations()}
        self.kept = {name: manifest.totals.file_bytes for name, manifest in manifests.items() if manifest is not None}

    def _note_swap(self, target: SyncTarget, manifest: Manifest, progress: FetchProgress, seconds: float) -> None:
        previous, self.current, self._settled = self.current, _describe(manifest), target
        self.fetch_problem = None
        figures = self._context.figures
        obtained = progress.fetched_bytes + progress.linked_bytes
        if obtained:
            figures.fetches += 1
            figures.fetch_seconds += seconds
            figures.fetched_bytes += progress.fetched_bytes
            figures.linked_bytes += progress.linked_bytes
            self.last_fetch_seconds = seconds
        if previous != self.current:
            figures.swaps += 1
            members = {"dataset": str(self), "generation": target.generation, "by": target.origin}
            sizes = {"fetchedBytes": progress.fetched_bytes, "linkedBytes": progress.linked_bytes}
            version = {} if target.version is None else {"version": target.version}
            log.info("current", extra={**members, **version, **sizes, "seconds": round(seconds, 3)})

    def _note_fetch_problem(self, target: SyncTarget, error: LookupdbError) -> None:
        if target == self.target:
            self.fetch_problem = self._next_problem(self.fetch_problem, error, LONGEST_FETCH_PAUSE_SECONDS)

    def _next_problem(self, standing: SyncProblem | None, error: LookupdbError, longest: float) -> SyncProblem:
        """Return the new problem, and log it if it differs from the standing one."""
        self._context.figures.failures[error.reason] += 1
        is_known = standing is not None and standing.error.message == error.message
        if not is_known:
            stays = f"{self.current.generation} stays" if self.current else "nothing is there yet"
            extra = {"dataset": str(self), "reason": error.reason, "hint": error.hint}
            log.warning("%s; %s, and this is retried", error.message, stays, extra=extra)
        failures = 1 if standing is None else standing.failures + 1
        since = standing.since if standing is not None and is_known else time.time()
        pause = spread(delay_after(failures, FIRST_PAUSE_SECONDS, longest), random.random())  # noqa: S311 - no secret
        return SyncProblem(error, failures, since, time.monotonic() + pause)


def _describe(manifest: Manifest) -> CurrentGeneration:
    totals = manifest.totals
    return CurrentGeneration(manifest.generation, manifest.uid, manifest.built_at, totals.records, totals.file_bytes)
