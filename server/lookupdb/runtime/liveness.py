"""Whether a worker still runs its event loop: judged by its heartbeat, without I/O.

A worker beats every ``BEAT_SECONDS`` from its event loop, once that runs. What counts is how long the supervisor has
seen it silent *while looking*: a look adds at most two beats' time, however long ago the look before was. A container
that is paused, a machine that sleeps or a supervisor that gets no processor can thus not make all workers look dead.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from lookupdb.runtime.worker import BEAT_SECONDS

STALE_SECONDS: Final = 5.0
"""A worker silent for so long is not ready. Its longest turn is the 500 lookups of one read: as long as this on a cold
disk that takes 10 ms for each."""
HUNG_SECONDS: Final = 15.0
"""A worker silent for so long is killed. Three times as long, because a worker that comes back by itself still has its
clients' connections."""
START_SECONDS: Final = 120.0
"""A worker that has not beaten yet imports and opens its file, behind others who do so too: it is given so long."""


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long workers may be silent. Nobody chooses them but tests, which cannot wait for so long."""

    stale_seconds: float = STALE_SECONDS
    hung_seconds: float = HUNG_SECONDS
    start_seconds: float = START_SECONDS


class Verdict(enum.Enum):
    """About one worker."""

    ALIVE = enum.auto()
    STALE = enum.auto()
    HUNG = enum.auto()


@dataclass(slots=True)
class Liveness:
    """One process of a worker, from its start on. ``beats`` is what the counter said then."""

    beats: int
    looked_at: float
    limits: LivenessLimits = field(default_factory=LivenessLimits)
    begun: bool = False
    """Whether it has beaten, or said that it is ready."""
    silence: float = 0.0
    """Seconds of looking without a beat."""

    def begin(self) -> None:
        """The worker is ready: from now on it has to beat."""
        self.begun, self.silence = True, 0.0

    def look(self, now: float, beats: int, *, waits_for_disk: bool = False) -> Verdict:
        """The verdict at ``now``, when the counter says ``beats``.

        A worker that waits for the disk is not ready, but killing it would only make the next one wait.
        """
        self.silence += min(now - self.looked_at, 2 * BEAT_SECONDS)
        self.looked_at = now
        if beats != self.beats:
            self.beats, self.begun, self.silence = beats, True, 0.0
        if not self.begun:
            return Verdict.HUNG if self.silence >= self.limits.start_seconds else Verdict.ALIVE
        if waits_for_disk:
            self.silence = min(self.silence, self.limits.stale_seconds)
        if self.silence >= self.limits.hung_seconds:
            return Verdict.HUNG
        return Verdict.STALE if self.silence >= self.limits.stale_seconds else Verdict.ALIVE
