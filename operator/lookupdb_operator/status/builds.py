"""The schedule, the build under way, and how the last ones ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lookupdb_operator.status.turns import Stall

BuildOutcome = Literal["built", "adopted", "unchanged", "waiting", "gateClosed", "failed", "overridden"]


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """Where the dataset is in its schedule."""

    expression: str
    """The schedule and its time zone, to which ``nextCheck`` belongs."""
    slot: str
    """The last slot that passed; at first the moment from which on slots count."""
    due: str = ""
    """The slot whose check is asked for; empty once it was made."""
    skipped: str = ""
    """The last slot that was missed by more than startingDeadlineSeconds."""


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """The build under way: its generation's number is claimed."""

    generation: str
    content: str
    refresh: str
    """The value of the refresh annotation that it answers; empty when there was none."""
    digest: str
    """Of everything that its Job is made from: another one holds from the next build on, or at once when this one does
    not get on."""
    started_at: str
    slot: str = ""
    """The slot of the schedule whose check it is; empty for none."""
    unless_fingerprint: str = ""
    """Of the source of the generation that it compares with: what finds it again verifies that one. Empty: none."""
    unless_success_file: str = ""
    active: str = ""
    """The generation that gates compare with; empty for none."""
    stall: Stall | None = None
    active_records: int = 0
    """How many the generation has that gates compare with."""
    unless_refused: str = ""
    """The generation that a gate has refused: what would come to the same is not built again. Empty for none."""
    adopt: str = ""
    """``uid`` or ``uid/gN`` of what an earlier dataset has left, which is adopted in place of a build; empty for
    none."""
    protect: tuple[str, ...] = ()
    """With a store of the dataset's own: the generations there that its builder does not remove."""


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """How the last attempt to build ended, when it is to be repeated: it failed, or the success file was not there."""

    reason: str
    message: str
    generation: str
    content: str
    """Of the spec that failed: another one is acted on at once."""
    refresh: str
    count: int
    """In a row, for this very content and refresh."""
    retry_at: str
    digest: str = ""
    """Of everything that its Job was made from: another one is acted on at once, too."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """How a build ended, or that somebody has let through what its gates had refused, for people; of several that ended
    alike one after the other, the last one."""

    generation: str
    """The number that it had claimed."""
    outcome: BuildOutcome
    reason: str
    """One of ``plan.reasons`` if it failed, else the builder's word."""
    started_at: str
    finished_at: str
    """When its end was seen."""
    records: int = 0
    seconds: int = 0
    message: str = ""
    count: int = 1
    """How many in a row have ended so."""
