"""Keeps one dataset: looks at what is active, has it fetched, swaps ``current``, removes what is superseded.

After any failure the folder keeps what it has. The failure is logged once, and retried later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from lookupdb.errors import CorruptFile, FolderDenied, GenerationMissing, LookupdbError, StoreError
from lookupdb.manifest import Manifest
from lookupdb.process.daemon_calls import call_in_thread, call_interruptibly
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.store.announcement import ANNOUNCEMENT_NOTE, LOST_HINT
from lookupdb.store.fetch import Throttle
from lookupdb.sync.feeds import (
    LONGEST_FETCH_PAUSE_SECONDS,
    LONGEST_LOOK_PAUSE_SECONDS,
    StoreFeed,
    SyncTarget,
    diagnose_manifest,
    diagnose_succession,
    have_same_content,
    pause_seconds,
)
from lookupdb.sync.folder import (
    DatasetFolder,
    FetchInterrupted,
    FetchProgress,
    GenerationFetch,
    find_superseded,
    interruptible_pace,
)

# Looks for an announcement beside a routing table, which nobody who follows that waits for.


log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""A store that takes longer is not waited for: what it says is taken at a later look."""


class AnnouncementLook:
    """What ``feed`` finds announced: one look at a time, however long it takes."""

    def __init__(self, feed: StoreFeed, slots: asyncio.Semaphore) -> None:
        self._feed = feed
        self._slots = slots
        self._uid = ""
        self._found: SyncTarget | None = None
        self._running: asyncio.Task[None] | None = None

    async def find(self, uid: str) -> SyncTarget | None:
        """What is announced of the dataset with ``uid``, or was when the store last answered; None if nothing is."""
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


# What a process has done since it began, as /metrics tells it.


@dataclass(slots=True)
class SyncFigures:
    """Sums over all datasets."""

    fetches: int = 0
    fetch_seconds: float = 0.0
    fetched_bytes: int = 0
    linked_bytes: int = 0
    swaps: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By reason."""


TIDY_SECONDS: Final = 5.0
"""Between two attempts to remove what somebody has mapped."""
STORE_SECONDS: Final = 3.0
"""For so long a store that does not answer is asked about a generation that is in the folder."""

Look = Callable[[], Awaitable[SyncTarget | None]]


@dataclass(frozen=True, slots=True)
class KeeperContext:
    """What all keepers of a process share."""

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
    """What went wrong last, and how often in a row."""

    error: LookupdbError
    failures: int
    since: float
    """UNIX time."""
    retry_at: float
    """By the monotonic clock."""


@dataclass(slots=True)
class RunningFetch:
    """A generation that is being obtained."""

    target: SyncTarget
    interruption: threading.Event = field(default_factory=threading.Event)
    progress: FetchProgress = field(default_factory=FetchProgress)
    task: asyncio.Task[None] | None = None


class DatasetKeeper:
    """The keeper of ``namespace/name`` in ``folder``. ``look`` says what is active, or raises LookupdbError."""

    def __init__(
        self,
        namespace: str,
        name: str,
        folder: DatasetFolder,
        look: Look,
        context: KeeperContext,
        uid: str | None = None,
    ) -> None:
        """``uid``: the first eight characters of that of the only dataset that is kept; None for whichever lives under
        the name."""
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
        """The generations in the folder, and their bytes."""
        self.last_fetch_seconds: float | None = None
        self.has_looked = False
        """Whether a look has ended, however it did."""
        self._folder = folder
        self._context = context
        self._settled: SyncTarget | None = None
        """The target that ``current`` is known to be."""
        self._is_prepared = False
        self._tidy_at: float | None = None
        self._wake = asyncio.Event()
        self._pointing = asyncio.Lock()
        """Held from the look at the target until ``current`` names it and that is known."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_settled(self) -> bool:
        """Whether ``current`` is what is active."""
        return self.target is not None and self._settled == self.target

    @property
    def has_generation(self) -> bool:
        """Whether ``current`` is a generation of the dataset that is kept: what another uid has left is none."""
        return self.current is not None and self.uid in (None, self.current.uid[:8])

    @property
    def problem(self) -> SyncProblem | None:
        """What is wrong now."""
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
        """Look once, and begin what is to be done."""
        try:
            if not self._is_prepared:
                await call_in_thread(self._prepare)
                self._is_prepared = True
            self._take(await self.look())
        except LookupdbError as error:
            self._note_look_problem(error)
        except Exception as error:  # a defect must not end the process that keeps all others
            log.exception("a look failed, by a defect", extra={"dataset": str(self)})
            self._note_look_problem(LookupdbError(f"{type(error).__name__}: {error}"))
        else:
            self._note_recovery()
        if self._is_prepared:
            self._drive()
            await self._return_if_there()
        self.has_looked = True
        await self._tidy_if_due()

    def interrupt(self) -> None:
        """Let what is being fetched end soon."""
        if self.running is not None:
            self.running.interruption.set()

    def lock(self) -> None:
        """Take the folder, unless that was done. Raises UsageError if it is another process's, StoreError."""
        self._folder.lock()

    def unlock(self) -> None:
        """Leave the folder to others."""
        self._folder.unlock()

    def _prepare(self) -> None:
        self.lock()
        self._folder.recover()
        manifest = self._folder.current()
        if manifest is not None:
            self.current = _describe(manifest)
            self._measure()

    def _take(self, target: SyncTarget | None) -> None:
        """Make ``target`` the one that is to be current. Raises StoreError if it may not follow."""
        if target is None:
            return
        refusal = diagnose_succession(target, self.target)
        if refusal is not None:
            raise CorruptFile(refusal, hint="whoever announces generations makes the version grow with each change")
        if target != self.target:
            self.target, self.fetch_problem = target, None  # another one is tried at once

    def _drive(self) -> None:
        """Begin to obtain the target, unless it is there, or being obtained, or has failed a short while ago."""
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
        try:
            async with self._context.fetch_slots:
                await self._bring(running)
        except FetchInterrupted:
            pass
        except LookupdbError as error:
            self._note_fetch_problem(running.target, error)
        except Exception as error:
            log.exception("a fetch failed, by a defect", extra={"dataset": str(self)})
            self._note_fetch_problem(running.target, LookupdbError(f"{type(error).__name__}: {error}"))
        finally:
            self.running = None
            self._wake.set()

    async def _bring(self, running: RunningFetch) -> None:
        """Obtain the generation, and let ``current`` name it if it is still the active one."""
        target, began = running.target, time.monotonic()
        manifest = await call_in_thread(self._find_or_fetch, running)
        async with self._pointing:
            if self.target != target:
                return  # it was fetched for nothing, and goes with what is superseded
            await call_in_thread(self._folder.point, target.generation)
            self._note_swap(target, manifest, running.progress, time.monotonic() - began)
        await self._tidy()

    async def _return_if_there(self) -> None:
        """Let ``current`` name the target at once if that is in the folder, while what was to be obtained before it has
        not ended: it may wait for a store that does not answer."""
        target, running = self.target, self.running
        if running is None or target is None or running.target == target or self.is_settled:
            return
        began = time.monotonic()
        try:
            manifest = await call_in_thread(self._find_standing, target)
            if manifest is None:
                return
            async with self._pointing:
                await call_in_thread(self._folder.point, target.generation)
                self._note_swap(target, manifest, FetchProgress(), time.monotonic() - began)
        except LookupdbError as error:
            self._note_fetch_problem(target, error)
        else:
            self._tidy_at = time.monotonic()

    def _find_or_fetch(self, running: RunningFetch) -> Manifest:
        """The manifest of the target, whose files are in the folder, whole."""
        target, folder = running.target, self._folder
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
            raise _missing_error(dataset, target)
        if (refusal := diagnose_manifest(manifest, address, target)) is not None:
            raise CorruptFile(refusal, hint="look who else writes to the store")
        if standing is not None and have_same_content(standing, manifest):
            return standing
        pace = interruptible_pace(self._context.throttle, running.interruption)
        fetch = GenerationFetch(dataset, pace, self._make_room)
        fetch.run(manifest, folder.open_partial(target.generation), running.progress)
        folder.publish(target.generation)
        return manifest

    def _find_standing(self, target: SyncTarget) -> Manifest | None:
        """Return the target's manifest if the folder holds it, complete as far as this is known without the store."""
        address = StoreAddress(self._context.store.cluster, self.namespace, self.name, target.uid)
        manifest = self._folder.find_whole(target.generation)
        if manifest is None or diagnose_manifest(manifest, address, target) is not None:
            return None
        return manifest if target.identity in ("", manifest.built_at) else None

    def _make_room(self, lacking: int) -> None:
        """Remove generations that are kept to go back to, the oldest first, until so many bytes are free."""
        for generation in self._superseded(keep=0):
            if lacking <= 0:
                return
            manifest = self._folder.find_manifest(generation)
            if self._folder.remove(generation) and manifest is not None:
                lacking -= manifest.totals.file_bytes

    async def _tidy_if_due(self) -> None:
        if self.running is None and self._tidy_at is not None and time.monotonic() >= self._tidy_at:
            await self._tidy()

    async def _tidy(self) -> None:
        """Remove what is superseded. What cannot be removed now is no failure."""
        try:
            is_done = await call_in_thread(self._remove_superseded)
        except (StoreError, FolderDenied) as error:
            log.warning("older generations stay", extra={"dataset": str(self), "reason": error.message})
            is_done = False
        self._tidy_at = None if is_done else time.monotonic() + TIDY_SECONDS

    def _remove_superseded(self) -> bool:
        """Whether nothing is left that is superseded."""
        self._folder.remove_partials()
        removed = [self._folder.remove(generation) for generation in self._superseded(self._context.keep)]
        self._measure()
        return all(removed)

    def _superseded(self, keep: int) -> tuple[str, ...]:
        current = self._folder.current()
        if current is None:
            return ()
        # One that cannot be read for a moment must not go, nor all others because of it.
        return find_superseded(self._folder.look_around(), current.generation, keep)

    def _measure(self) -> None:
        manifests = {name: self._folder.find_manifest(name) for name in self._folder.generations()}
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

    def _note_look_problem(self, error: LookupdbError) -> None:
        self.look_problem = self._next_problem(self.look_problem, error, LONGEST_LOOK_PAUSE_SECONDS)

    def _note_fetch_problem(self, target: SyncTarget, error: LookupdbError) -> None:
        if target == self.target:
            self.fetch_problem = self._next_problem(self.fetch_problem, error, LONGEST_FETCH_PAUSE_SECONDS)

    def _next_problem(self, standing: SyncProblem | None, error: LookupdbError, longest: float) -> SyncProblem:
        """What is wrong from now on; told when it is something else than before."""
        self._context.figures.failures[error.reason] += 1
        is_known = standing is not None and standing.error.message == error.message
        if not is_known:
            stays = f"{self.current.generation} stays" if self.current else "nothing is there yet"
            extra = {"dataset": str(self), "reason": error.reason, "hint": error.hint}
            log.warning("%s; %s, and it is tried again", error.message, stays, extra=extra)
        failures = 1 if standing is None else standing.failures + 1
        since = standing.since if standing is not None and is_known else time.time()
        return SyncProblem(error, failures, since, time.monotonic() + pause_seconds(failures, longest))

    def _note_recovery(self) -> None:
        if self.look_problem is not None:
            log.info("looked again with success", extra={"dataset": str(self)})
            self.look_problem = None


def _missing_error(dataset: StoredDataset, target: SyncTarget) -> GenerationMissing:
    message = f"{dataset.url} has no {target.generation}, which is the active generation"
    if target.origin != "announcement":
        hint = "it was removed, or the store is another one than that of whoever cuts over"
        return GenerationMissing(message, hint=hint)
    return GenerationMissing(f"{message}: {ANNOUNCEMENT_NOTE} there announces it", hint=LOST_HINT)


def _describe(manifest: Manifest) -> CurrentGeneration:
    totals = manifest.totals
    return CurrentGeneration(manifest.generation, manifest.uid, manifest.built_at, totals.records, totals.file_bytes)
