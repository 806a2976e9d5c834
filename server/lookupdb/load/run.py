"""A load from its begin to its result."""

from __future__ import annotations

import asyncio
import datetime
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.load.crew import SenderCrew
from lookupdb.load.display import LoadDisplay, describe_cutover, read_figures
from lookupdb.load.fail_if import FailCondition
from lookupdb.load.preflight import DatasetFacts
from lookupdb.load.recording import Recording
from lookupdb.load.result import LoadSetting, make_document
from lookupdb.load.sender_plan import LoadPlan, SenderPlan
from lookupdb.load.tally import Tally
from lookupdb.load.target import LoadTarget

_SHOW_SECONDS: Final = 0.5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """All that a load needs."""

    plan: LoadPlan
    target: LoadTarget
    facts: DatasetFacts
    generation: str | None
    """That is asked for by name."""
    keys: list[str]
    key_source: str
    ca_file: str | None
    sample_answer: bytes
    conditions: Sequence[FailCondition] = ()

    def make_plans(self) -> list[SenderPlan]:
        """What each sender is told."""
        answer = self.sample_answer.decode("latin-1")
        return [
            SenderPlan(self.plan, self.target, process, self.ca_file, self.keys, answer)
            for process in range(self.plan.processes)
        ]


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """What came of a load."""

    document: dict[str, Any]
    ended_by: int
    """The number of the signal that has ended it; 0 if none has."""


def run_load(order: LoadOrder, display: LoadDisplay) -> LoadEnd:
    """Load a router. The first SIGINT or SIGTERM stops sending, and there is a result; the next one ends it at once.
    Raises SenderTooSlow, SenderFailed."""
    try:
        return asyncio.run(_Load(order, display).run())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


class _Load:
    def __init__(self, order: LoadOrder, display: LoadDisplay) -> None:
        self._order, self._display = order, display
        self._recording = Recording(order.plan.duration, order.plan.processes)
        self._crew = SenderCrew(order.make_plans(), self._take)
        self._measured = 0.0
        """When measuring began, by time.monotonic()."""
        self._started_at = datetime.datetime.now(datetime.UTC)
        self._stopped_at: float | None = None
        self._ended_by = 0
        self._generations: set[str] = set()

    async def run(self) -> LoadEnd:
        with self._taking_signals():
            showing: asyncio.Task[None] | None = None

            def begin(start: float) -> None:
                nonlocal showing
                self._measured = start + self._order.plan.warmup
                delay = self._measured - time.monotonic()
                self._started_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=delay)
                showing = asyncio.ensure_future(self._show())

            try:
                await self._crew.run(begin)
            finally:
                if showing is not None:
                    showing.cancel()
        self._recording.finish()
        return LoadEnd(self._make_document(), self._ended_by)

    def _make_document(self) -> dict[str, Any]:
        order = self._order
        seconds = order.plan.duration
        if self._ended_by:
            stopped = self._stopped_at or time.monotonic()
            seconds = min(seconds, max(0.0, stopped - self._measured)) if self._measured else 0.0
        setting = LoadSetting(
            url=order.target.url,
            facts=order.facts,
            generation=order.generation,
            plan=order.plan,
            keys=len(order.keys),
            key_source=order.key_source,
            started_at=self._started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        )
        return make_document(
            setting,
            self._recording,
            seconds=seconds,
            is_interrupted=bool(self._ended_by),
            conditions=order.conditions,
        )

    def _take(self, process: int, begin: float, tally: Tally) -> None:
        self._recording.take(process, begin, tally)
        for name, span in tally.generations.items():
            if name not in self._generations:
                if self._generations:
                    self._display.tell(describe_cutover(name, span.first))
                self._generations.add(name)

    async def _show(self) -> None:
        while True:
            seconds = time.monotonic() - self._measured
            self._display.show(read_figures(self._recording, seconds, self._order.plan.duration))
            await asyncio.sleep(_SHOW_SECONDS)

    @contextmanager
    def _taking_signals(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "it is run in a task"

        def take(number: int) -> None:
            if self._ended_by:
                task.cancel()
                return
            self._ended_by, self._stopped_at = number, time.monotonic()
            self._crew.stop()

        handled: list[int] = []
        with suppress(ValueError, RuntimeError):  # not in the main thread: nobody sends it signals
            for number in _SIGNALS:
                loop.add_signal_handler(number, take, number)
                handled.append(number)
        try:
            yield
        finally:
            for handled_number in handled:
                loop.remove_signal_handler(handled_number)
