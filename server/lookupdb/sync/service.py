"""`lookupdb sync`: one process with a keeper for each dataset, and an admin port."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from lookupdb import __version__
from lookupdb.errors import CorruptFile, NotEnoughRoom, StoreDenied, UsageError
from lookupdb.manifest import generation_number
from lookupdb.process import admin, launch, listeners, memory
from lookupdb.process.launch import call_in_thread
from lookupdb.router.routing_table import InvalidTable
from lookupdb.store import Store, open_store
from lookupdb.store.generations import Throttle
from lookupdb.sync import feeds
from lookupdb.sync.folder import DatasetFolder
from lookupdb.sync.keeper import AnnouncementLook, DatasetKeeper, KeeperContext, Look, SyncFigures
from lookupdb.wording import strip_secrets


@dataclass(slots=True)
class SyncState:
    """The keepers of a process, and what it reports about them."""

    root: Path
    store_url: str
    keepers: dict[tuple[str, str], DatasetKeeper] = field(default_factory=dict)
    """(namespace, name) → keeper."""
    tables: list[feeds.TableFeed] = field(default_factory=list)
    figures: SyncFigures = field(default_factory=SyncFigures)
    is_ending: bool = False


def explain_unready(state: SyncState) -> str | None:
    """Return a sentence that says which dataset has no ``current`` generation, and why; None if each has one."""
    if state.is_ending:
        return "ending"
    for table in state.tables:
        if table.dataset is None:
            return table.problem.message if table.problem else f"{table.path} was not read yet"
    for keeper in state.keepers.values():
        if not keeper.has_generation:
            reason = keeper.problem.error.message if keeper.problem else "it is being fetched"
            return f"{keeper} has no generation yet: {reason}"
    return None


def describe_state(state: SyncState) -> dict[str, Any]:
    """Return the members of /status."""
    return {
        "version": __version__,
        "pid": os.getpid(),
        "folder": str(state.root),
        "store": strip_secrets(state.store_url),
        "datasets": [_describe_keeper(keeper) for keeper in state.keepers.values()],
        "tables": [
            {"file": str(table.path), "dataset": table.dataset and str(table.dataset), "mixed": table.is_mixed}
            | {"problem": table.problem and table.problem.message}
            for table in state.tables
        ],
    }


def _describe_keeper(keeper: DatasetKeeper) -> dict[str, Any]:
    current, target, running, problem = keeper.current, keeper.target, keeper.running, keeper.problem
    return {
        "dataset": str(keeper),
        "current": current
        and {
            "generation": current.generation,
            "uid": current.uid,
            "builtAt": current.built_at,
            "records": current.records,
            "bytes": current.bytes,
        },
        "active": target
        and {"generation": target.generation, "uid": target.uid, "version": target.version, "by": target.origin},
        "isCurrent": keeper.is_settled,
        "fetching": running
        and {
            "generation": running.target.generation,
            "bytes": running.progress.total_bytes,
            "doneBytes": running.progress.done_bytes,
        },
        "kept": list(keeper.kept),
        "problem": problem
        and {
            "reason": problem.error.reason,
            "message": problem.error.message,
            "hint": problem.error.hint,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(problem.since)),
            "failures": problem.failures,
            "triedAgainInSeconds": round(max(0.0, problem.retry_at - time.monotonic()), 1),
        },
    }


def collect_sync(state: SyncState) -> Iterator[admin.MetricFamily]:
    """Yield the metrics of ``state``."""
    figures = state.figures
    ready = int(explain_unready(state) is None)
    yield admin.build_info("sync")
    yield from admin.process_families((), {})
    yield admin.gauge("lookupdb_sync_ready", "1 while every dataset has a current generation.", ready)
    yield from _collect_datasets(list(state.keepers.values()))
    yield admin.counter("lookupdb_sync_swaps", "Times that a generation became current.", figures.swaps)
    yield admin.counter("lookupdb_sync_fetches", "Generations fetched or linked.", figures.fetches)
    seconds = figures.fetch_seconds
    yield admin.counter("lookupdb_sync_fetch_seconds", "Seconds from the start of fetches to their swaps.", seconds)
    yield admin.counter("lookupdb_sync_fetched_bytes", "Bytes of files copied from the store.", figures.fetched_bytes)
    help_text = "Bytes of files that are hard links to those of a directory store."
    yield admin.counter("lookupdb_sync_linked_bytes", help_text, figures.linked_bytes)
    failures = [({"reason": reason}, float(count)) for reason, count in sorted(figures.failures.items())]
    yield admin.labelled_counter("lookupdb_sync_failures", "Failed checks and fetches.", failures)
    private = memory.private_bytes(os.getpid())
    if private is not None:
        process = [({"process": "sync"}, float(memory.major_faults(os.getpid()) or 0))]
        help_text = "Page faults of the running process that had to wait for the disk."
        yield admin.labelled_counter("lookupdb_sync_major_faults", help_text, process)
        yield admin.gauge("lookupdb_sync_private_bytes", "Bytes of memory that only this process uses.", private)


def _collect_datasets(keepers: list[DatasetKeeper]) -> Iterator[admin.MetricFamily]:
    figures: tuple[tuple[str, str, Callable[[DatasetKeeper], float | None]], ...] = (
        (
            "generation",
            "The number of the current generation.",
            lambda keeper: generation_number(keeper.current.generation) if keeper.current else None,
        ),
        ("generation_built_timestamp_seconds", "Time when the current generation was built.", _built_seconds),
        (
            "behind",
            "1 while the current generation is not the active one, or the active one is unknown.",
            lambda keeper: float(not keeper.is_settled),
        ),
        ("kept_bytes", "Bytes of the generations in the folder.", lambda keeper: float(sum(keeper.kept.values()))),
        (
            "last_fetch_seconds",
            "Seconds from the start of the last fetch to its swap.",
            lambda keeper: keeper.last_fetch_seconds,
        ),
    )
    for name, help_text, read in figures:
        values = ((keeper, read(keeper)) for keeper in keepers)
        samples = [
            ({"namespace": keeper.namespace, "dataset": keeper.name}, value)
            for keeper, value in values
            if value is not None
        ]
        yield admin.labelled_gauge(f"lookupdb_sync_{name}", help_text, samples)


def _built_seconds(keeper: DatasetKeeper) -> float | None:
    if keeper.current is None:
        return None
    try:
        return datetime.datetime.fromisoformat(keeper.current.built_at).timestamp()
    except ValueError:
        return None


log = logging.getLogger(__name__)

BUCKET_POLL_SECONDS: Final = 2.0
DIRECTORY_POLL_SECONDS: Final = 0.5
_LOOKS_A_SECOND: Final = 250
"""Limit of checks a second, for all datasets together. With more datasets, each is checked less often."""
FETCHES: Final = 4
"""Fetches at the same time, so that a large dataset does not delay small ones. Each takes the memory of a few parts of
a file."""
LOOKS: Final = 8
"""Limit of checks of the store at the same time."""
_END_SECONDS: Final = 0.5
"""Seconds that running fetches get to end. The next process continues with their files."""
_CHECK_SECONDS: Final = 0.05
_SHOWN_DATASETS: Final = 10
_FINAL: Final = (CorruptFile, NotEnoughRoom, StoreDenied, UsageError)
"""Errors after which a run with --once stops waiting for a dataset."""


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The options of `lookupdb sync`."""

    root: Path
    subscriptions: tuple[feeds.Subscription, ...]
    tables: tuple[Path, ...]
    store_url: str
    cluster: str
    keep: int
    rate: int
    host: str
    admin_port: int
    ready_file: Path | None
    wait_seconds: float


class SyncService:
    """Keep the datasets that ``options`` name."""

    def __init__(self, options: SyncOptions) -> None:
        """Raises UsageError if the store's URL cannot be used."""
        self._options = options
        self._store: Store = open_store(options.store_url, options.cluster)
        self.state = SyncState(options.root, options.store_url)
        self._listings = feeds.NamespaceListings(self._store)
        self._table_of: dict[tuple[str, str], feeds.TableFeed] = {}
        self._feed_of: dict[tuple[str, str], feeds.StoreFeed] = {}
        self._running: set[DatasetKeeper] = set()
        self._tasks: list[asyncio.Task[None]] = []
        throttle = Throttle(options.rate, self._pause)
        slots = asyncio.Semaphore(FETCHES)
        self._context = KeeperContext(self._store, throttle, options.keep, slots, self.state.figures)
        self._look_slots = asyncio.Semaphore(LOOKS)

    async def run(self) -> None:
        """Keep the datasets until SIGTERM or SIGINT. Raises UsageError if another process holds the folder, StoreError
        if it cannot be written to."""
        state, stopping = self.state, asyncio.Event()

        def stop(number: int) -> None:
            log.info("ending", extra={"signal": signal.Signals(number).name})
            stopping.set()

        probes = admin.AdminPort(
            lambda: explain_unready(state), lambda: describe_state(state), (partial(collect_sync, state),)
        )
        with self._keepers():
            _handle_signals(stop)
            listener = listeners.bind_admin(self._options.host, self._options.admin_port)
            server = await probes.start(listener)
            port = listeners.bound_port(listener)
            try:
                self._start()
                log.info("keeping", extra={"folder": str(self._options.root), "admin": port})
                self._tasks.append(asyncio.create_task(self._announce(port)))
                await stopping.wait()
            finally:
                await self._end()
                if self._options.ready_file:
                    self._options.ready_file.unlink(missing_ok=True)
                await server.cleanup()

    async def run_once(self) -> None:
        """Return once every dataset has its active generation, or at least some generation if the active one cannot be
        obtained. Raises the error of the first dataset without a generation, and SystemExit after a signal."""
        received: list[int] = []
        with self._keepers():
            _handle_signals(received.append)
            deadline = time.monotonic() + self._options.wait_seconds
            try:
                self._start()
                while not received and not self._is_done(is_late=time.monotonic() >= deadline):  # noqa: ASYNC110
                    await asyncio.sleep(_CHECK_SECONDS)
            finally:
                await self._end()
        if received:
            log.info("ending", extra={"signal": signal.Signals(received[0]).name})
            raise SystemExit(128 + received[0])
        self._judge()
        there = [f"{keeper} {keeper.current.generation}" for keeper in self.state.keepers.values() if keeper.current]
        shown = there[:_SHOWN_DATASETS] + [f"and {len(there) - _SHOWN_DATASETS} more"][: len(there) > _SHOWN_DATASETS]
        log.info("all datasets are there", extra={"folder": str(self._options.root), "datasets": ", ".join(shown)})

    def _is_done(self, *, is_late: bool) -> bool:
        """Return whether there is nothing left to wait for."""
        if any(table.dataset is None for table in self.state.tables) and not is_late:
            return False
        for keeper in self.state.keepers.values():
            if keeper.running is not None or not keeper.has_looked:
                return False
            has_failed = keeper.problem is not None and isinstance(keeper.problem.error, _FINAL)
            if not (keeper.is_settled or is_late or has_failed):
                return False
        return True

    def _judge(self) -> None:
        """Raise the error of the first dataset that has no generation at all."""
        for table in self.state.tables:
            if table.dataset is None and table.problem is not None:
                raise table.problem
        for keeper in self.state.keepers.values():
            if not keeper.has_generation:
                if problem := keeper.problem:
                    raise problem.error
                raise feeds.absent_error(self._store, keeper.namespace, keeper.name, keeper.uid)
            if keeper.current is not None and not keeper.is_settled:
                stays = {"dataset": str(keeper), "generation": keeper.current.generation}
                log.warning("the present generation stays", extra=stays)

    @contextmanager
    def _keepers(self) -> Iterator[None]:
        """Add a keeper for each named dataset; it holds the folder's lock while the block runs. Keepers for tables are
        added when the table is read. Raises UsageError if another process holds a folder, StoreError."""
        try:
            for subscription in self._options.subscriptions:
                look = self._store_look(subscription)
                self._add_keeper(subscription.namespace, subscription.name, look, subscription.uid).folder.lock()
            yield
        finally:
            for keeper in self.state.keepers.values():
                if keeper.running is None:  # else the lock ends with the process
                    keeper.folder.unlock()

    def _start(self) -> None:
        for path in self._options.tables:
            self._watch(path)
        for keeper in self.state.keepers.values():
            if keeper not in self._running:
                self._run(keeper)

    def _watch(self, path: Path) -> None:
        table = feeds.TableFeed(path, lambda: self._take_table(table))
        self.state.tables.append(table)
        table.watcher.start()

    def _add_keeper(self, namespace: str, name: str, look: Look, uid: str | None = None) -> DatasetKeeper:
        folder = DatasetFolder(self._options.root, namespace, name)
        keeper = DatasetKeeper(namespace, name, folder, look, self._context, uid)
        self.state.keepers[namespace, name] = keeper
        return keeper

    def _run(self, keeper: DatasetKeeper) -> None:
        self._running.add(keeper)
        self._tasks.append(asyncio.create_task(keeper.run(self._poll_seconds)))

    def _take_table(self, table: feeds.TableFeed) -> None:
        """Keep the dataset of a table once the table is read. If two tables name the same dataset, the first one
        counts. If the dataset is also named on the command line, its announcement counts, too."""
        if table.dataset is None:
            return
        address = (table.dataset.namespace, table.dataset.name)
        is_first = address not in self._table_of
        if self._table_of.setdefault(address, table) is not table:
            log.warning("another table names the same dataset", extra={"table": str(table.path)})
            table.watcher.stop()
            return

        keeper = self.state.keepers.get(address)
        if keeper is None:
            self._run(self._add_keeper(*address, self._table_look(table, None)))
            return
        if is_first and address in self._feed_of:
            keeper.look = self._table_look(table, self._feed_of[address])
        keeper.wake()

    def _table_look(self, table: feeds.TableFeed, feed: feeds.StoreFeed | None) -> Look:
        """Return a function that finds the generation of the table, or of the announcement of ``feed`` if that is
        newer."""
        announced = None if feed is None else AnnouncementLook(feed, self._look_slots)

        async def look() -> feeds.SyncTarget | None:
            dataset, by_table, problem = table.dataset, table.target, table.problem  # they may change during the read
            if dataset is None:
                return None
            uid = dataset.uid[:8]
            if feed is not None and feed.uid not in (None, uid):
                raise InvalidTable(f"{table.path} belongs to the dataset with uid {uid}, expected {feed.uid}")
            found = None if announced is None else await announced.find(uid)
            target = feeds.choose_newer(by_table, found)
            if problem is not None and target is by_table:
                raise problem
            return target

        return look

    def _store_look(self, subscription: feeds.Subscription) -> Look:
        wanted = (subscription.namespace, subscription.name, subscription.uid)
        feed = self._feed_of[wanted[:2]] = feeds.StoreFeed(self._store, self._listings, *wanted)

        async def look() -> feeds.SyncTarget | None:
            # A table that was not read yet may name this dataset, and another generation than the newest.
            takes_newest = all(table.dataset is not None for table in self.state.tables)
            async with self._look_slots:
                target = await call_in_thread(feed.look, takes_newest=takes_newest)
            if target is None:
                raise await call_in_thread(feeds.absent_error, self._store, *wanted)
            return target

        return look

    def _poll_seconds(self) -> float:
        shortest = DIRECTORY_POLL_SECONDS if self._store.folder else BUCKET_POLL_SECONDS
        return max(shortest, len(self.state.keepers) / _LOOKS_A_SECOND)

    async def _announce(self, port: int) -> None:
        """Report once that every dataset is there."""
        while explain_unready(self.state) is not None:  # noqa: ASYNC110 - of many things, once
            await asyncio.sleep(_CHECK_SECONDS)
        log.info("ready", extra={"admin": port})
        if self._options.ready_file:
            launch.write(self._options.ready_file, {"pid": os.getpid(), "admin": port})

    def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the process."""
        deadline = time.monotonic() + seconds
        while not self.state.is_ending and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    async def _end(self) -> None:
        """End all keepers. A fetch that does not end in time ends with the process."""
        self.state.is_ending = True
        for table in self.state.tables:
            table.watcher.stop()
        for keeper in self.state.keepers.values():
            if keeper.running is not None:
                keeper.running.interruption.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        running = [keeper.running for keeper in self.state.keepers.values()]
        fetches = [fetch.task for fetch in running if fetch is not None and fetch.task is not None]
        if fetches:
            await asyncio.wait(fetches, timeout=_END_SECONDS)
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)


def _handle_signals(handle: Callable[[int], None]) -> None:
    """Call ``handle`` with the number of each SIGTERM and SIGINT from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle, number)
