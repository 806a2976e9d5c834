"""What /readyz, /status and /metrics say of a running `lookupdb sync`."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookupdb import __version__
from lookupdb.manifest import generation_number
from lookupdb.runtime import memory
from lookupdb.runtime.exposition import MetricFamily, counter, gauge, labelled_counter, labelled_gauge
from lookupdb.sync.figures import SyncFigures
from lookupdb.sync.keeper import DatasetKeeper, SyncProblem
from lookupdb.sync.table_feed import TableFeed
from lookupdb.wording import strip_secrets


@dataclass(slots=True)
class SyncState:
    """All that a process keeps."""

    root: Path
    store_url: str
    keepers: dict[tuple[str, str], DatasetKeeper] = field(default_factory=dict)
    """By namespace and name."""
    tables: list[TableFeed] = field(default_factory=list)
    figures: SyncFigures = field(default_factory=SyncFigures)
    is_ending: bool = False


def explain_unready(state: SyncState) -> str | None:
    """Why not every dataset has a generation that is ``current``, as a sentence; None when each has one."""
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
    """The members of /status."""
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
    current, target, running = keeper.current, keeper.target, keeper.running
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
        "problem": keeper.problem and _describe_problem(keeper.problem),
    }


def _describe_problem(problem: SyncProblem) -> dict[str, Any]:
    since = datetime.datetime.fromtimestamp(problem.since, datetime.UTC)
    return {
        "reason": problem.error.reason,
        "message": problem.error.message,
        "hint": problem.error.hint,
        "since": since.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "failures": problem.failures,
        "triedAgainInSeconds": round(max(0.0, problem.retry_at - time.monotonic()), 1),
    }


class SyncCollector:
    """The metrics of ``state``."""

    def __init__(self, state: SyncState) -> None:
        self._state = state

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families as they are now."""
        state, figures = self._state, self._state.figures
        ready = int(explain_unready(state) is None)
        yield gauge("lookupdb_sync_ready", "1 while every dataset has a current generation.", ready)
        yield from self._collect_datasets(list(state.keepers.values()))
        yield counter("lookupdb_sync_swaps", "Times that current came to name another generation.", figures.swaps)
        yield counter("lookupdb_sync_fetches", "Generations fetched or linked.", figures.fetches)
        seconds = figures.fetch_seconds
        yield counter("lookupdb_sync_fetch_seconds", "Seconds from their beginning to the swap.", seconds)
        yield counter("lookupdb_sync_fetched_bytes", "Bytes of files copied from the store.", figures.fetched_bytes)
        help_text = "Bytes of files that are a directory store's own, under a second name."
        yield counter("lookupdb_sync_linked_bytes", help_text, figures.linked_bytes)
        failures = [({"reason": reason}, float(count)) for reason, count in sorted(figures.failures.items())]
        yield labelled_counter("lookupdb_sync_failures", "Looks and fetches that failed.", failures)
        private = memory.private_bytes(os.getpid())
        if private is not None:
            yield gauge("lookupdb_sync_private_bytes", "Memory that the process alone owns.", private)

    def _collect_datasets(self, keepers: list[DatasetKeeper]) -> Iterator[MetricFamily]:
        def label(values: Mapping[DatasetKeeper, float | None]) -> list[tuple[Mapping[str, str], float]]:
            found = ((keeper, value) for keeper, value in values.items() if value is not None)
            return [({"namespace": keeper.namespace, "dataset": keeper.name}, value) for keeper, value in found]

        yield labelled_gauge(
            "lookupdb_sync_generation",
            "The number of the current generation.",
            label({keeper: _number(keeper) for keeper in keepers}),
        )
        yield labelled_gauge(
            "lookupdb_sync_generation_built_timestamp_seconds",
            "When the current generation was built.",
            label({keeper: _built_seconds(keeper) for keeper in keepers}),
        )
        yield labelled_gauge(
            "lookupdb_sync_behind",
            "1 while another generation than the current one is active, or nobody knows which.",
            label({keeper: float(not keeper.is_settled) for keeper in keepers}),
        )
        yield labelled_gauge(
            "lookupdb_sync_kept_bytes",
            "Bytes of the generations in the folder.",
            label({keeper: float(sum(keeper.kept.values())) for keeper in keepers}),
        )
        yield labelled_gauge(
            "lookupdb_sync_last_fetch_seconds",
            "Seconds from the beginning of the last fetch to the swap.",
            label({keeper: keeper.last_fetch_seconds for keeper in keepers}),
        )


def _number(keeper: DatasetKeeper) -> float | None:
    return None if keeper.current is None else float(generation_number(keeper.current.generation))


def _built_seconds(keeper: DatasetKeeper) -> float | None:
    if keeper.current is None:
        return None
    try:
        return datetime.datetime.fromisoformat(keeper.current.built_at).timestamp()
    except ValueError:
        return None
