"""Judges by its heartbeat whether a worker still runs its event loop. No I/O.

A worker beats every ``BEAT_SECONDS`` from its event loop, once that runs. What counts is how long the supervisor has
*watched* it without a beat: a judgement adds at most two beats' time, however long ago the one before was. So a paused
container, a sleeping machine or a supervisor without a processor cannot make all workers seem dead.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from lookupdb.runtime.worker import BEAT_SECONDS

STALE_SECONDS: Final = 5.0
"""A worker silent for so long is not ready. Its longest turn is the 500 lookups of one read, which takes as long on a
cold disk that needs 10 ms for each."""
HUNG_SECONDS: Final = 15.0
"""A worker silent for so long is killed. Three times as long, because a worker that comes back by itself still has its
clients' connections."""
START_SECONDS: Final = 120.0
"""A worker that has not beaten yet is importing and opening its file, perhaps behind others: it may take so long."""


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long workers may be silent. Only tests choose other values: they cannot wait for so long."""

    stale_seconds: float = STALE_SECONDS
    hung_seconds: float = HUNG_SECONDS
    start_seconds: float = START_SECONDS


class LivenessVerdict(enum.Enum):
    """The verdict on one worker."""

    ALIVE = enum.auto()
    STALE = enum.auto()
    HUNG = enum.auto()


@dataclass(slots=True)
class Liveness:
    """The heartbeat of one process of a worker. ``beats`` is its counter when the process started."""

    beats: int
    judged_at: float
    limits: LivenessLimits = field(default_factory=LivenessLimits)
    has_begun: bool = False
    """Whether it has beaten, or reported that it is ready."""
    silence: float = 0.0
    """Seconds watched without a beat."""

    def begin(self) -> None:
        """Expect heartbeats from now on: the worker is ready."""
        self.has_begun, self.silence = True, 0.0

    def judge(self, now: float, beats: int, *, waits_for_disk: bool = False) -> LivenessVerdict:
        """Return the verdict at ``now``, when the counter is ``beats``.

        A worker that waits for the disk is not ready, but killing it would only make the next one wait.
        """
        self.silence += min(now - self.judged_at, 2 * BEAT_SECONDS)
        self.judged_at = now
        if beats != self.beats:
            self.beats, self.has_begun, self.silence = beats, True, 0.0
        if not self.has_begun:
            return LivenessVerdict.HUNG if self.silence >= self.limits.start_seconds else LivenessVerdict.ALIVE
        if waits_for_disk:
            self.silence = min(self.silence, self.limits.stale_seconds)
        if self.silence >= self.limits.hung_seconds:
            return LivenessVerdict.HUNG
        return LivenessVerdict.STALE if self.silence >= self.limits.stale_seconds else LivenessVerdict.ALIVE
