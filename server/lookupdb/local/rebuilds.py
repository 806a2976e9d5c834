"""When `up --watch` builds: once a change of manifest or source has settled, and what has failed again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from lookupdb.local.backoff import Backoff

MAX_UNSETTLED_LOOKS: Final = 10
"""A source that has changed at each of so many looks is built as it is."""


class ServingInputs(NamedTuple):
    """What decides what is served: a change of any of these is rolled out."""

    content: str
    fingerprint: str
    replicas: int
    workers: int


class DesiredInputs(NamedTuple):
    """What manifest and source ask for: a change of any of these is built at once, whatever has failed before."""

    serving: ServingInputs
    gates: str
    active: str
    """The generation that a gate compares with."""


class Decision(Enum):
    """What follows from a look."""

    REST = auto()
    """There is nothing to build, or not now."""
    SETTLE = auto()
    """The source goes on changing. Once for each build that this holds up."""
    BUILD = auto()
    """Manifest or source have changed."""
    BUILD_AGAIN = auto()
    """They are what an attempt before has failed with."""


class RebuildSchedule:
    """Decides after each look at manifest and source; pure but for its clock."""

    def __init__(self, active: DesiredInputs, now: Callable[[], float] = time.monotonic) -> None:
        """``active`` is what serves. ``now`` is a clock that is never set back, in seconds."""
        self._attempted = self._previous = active
        self._unsettled_looks = 0
        self._backoff = Backoff(now)
        """Of what was attempted last."""

    def decide(self, desired: DesiredInputs | None, serving: ServingInputs) -> Decision:
        """Say what follows from a look that saw ``desired``, None where manifest or source could not be read, while
        ``serving`` is what is served. Whoever is told to build then notes how that ended."""
        previous = self._previous
        self._previous = desired or previous
        if desired is not None and desired.serving == serving:
            self._begin(desired)  # what failed before and comes back is a change
        if desired is None:
            return Decision.REST  # nothing has been seen, of a source that goes on changing neither
        if desired.serving == serving or (desired == self._attempted and not self._backoff.is_due()):
            self._unsettled_looks = 0
            return Decision.REST
        if desired != previous and self._unsettled_looks < MAX_UNSETTLED_LOOKS:
            self._unsettled_looks += 1  # it may still be written to: built when two looks agree, or in the end as it is
            return Decision.SETTLE if self._unsettled_looks == 2 else Decision.REST
        self._unsettled_looks = 0
        if desired == self._attempted:
            return Decision.BUILD_AGAIN
        self._begin(desired)
        return Decision.BUILD

    def _begin(self, attempted: DesiredInputs) -> None:
        self._attempted = attempted
        self._backoff.reset()

    def note_failure(self, *, may_pass: bool) -> float:
        """What was attempted last has failed. Returns the seconds until it is due again."""
        return self._backoff.note_failure(may_pass=may_pass)

    def note_success(self) -> None:
        """What was attempted last serves."""
        self._backoff.reset()
