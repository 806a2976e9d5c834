"""Announces outside of looks: a gateway that does not answer takes seconds, in which it must not occupy a worker of the
queue, nor hold anything else of the dataset up.

A look says what is due (``Plan.announce``). When the store has it, or when it has failed for long, the dataset is
looked at again, and sees that (``Observed.announcement``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lookupdb.store.announcement import Announcement
from lookupdb_operator.model import AnnouncementReport
from lookupdb_operator.store.announcer import NotAnnounced
from lookupdb_operator.watch.cache import Key

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
