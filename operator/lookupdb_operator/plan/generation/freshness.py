"""How old the data are that serve: counted from when the build began that last read their source, or found it
unchanged. A generation that is built and does not serve makes nothing fresh; of several that serve, shard by shard or
while routers go from one to the other, the oldest data count."""

from __future__ import annotations

from collections.abc import Iterator

from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, GenerationStatus


def note_refresh(status: DatasetStatus) -> DatasetStatus:
    """``status`` with when the oldest data that serve were last known to be as their source; empty without any."""
    oldest = _find_oldest(status)
    return replace(status, last_refreshed="" if oldest is None else _fresh_at(oldest))


def _find_oldest(status: DatasetStatus) -> GenerationStatus | None:
    """Of the generations that serve, the one that was known to be as its source the longest ago."""
    if not status.generation:
        return None
    known = (status.find_generation(name) for name in _list_serving(status))
    serving = [generation for generation in known if generation is not None and _fresh_at(generation)]
    return min(serving, key=lambda generation: clock.parse_moment(_fresh_at(generation)), default=None)


def _list_serving(status: DatasetStatus) -> Iterator[str]:
    """The generations that routers may answer from. What is active counts until every router has left it."""
    table = status.table
    if table is None or not table.confirmed_at:
        yield status.generation
    if table is not None:
        yield from (table.generation, *(part.generation for part in table.parts))


def _fresh_at(generation: GenerationStatus) -> str:
    # What a version has written that did not note it was known to be fresh when it was built.
    return generation.refreshed_at or generation.built_at


def diagnose_staleness(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why the data that serve count as too old; None while they do not."""
    oldest = _find_oldest(status)
    if oldest is None or remaining_freshness(status, situation) != 0.0:
        return None
    limit = situation.desired.stale_after_seconds
    return Trouble(
        reasons.STALE,
        f"{oldest.generation} holds the source as it was at {status.last_refreshed}, which is more than"
        f" refresh.staleAfterSeconds ({limit}) ago",
    )


def remaining_freshness(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the data that serve are too old; None when they never are."""
    limit = situation.desired.stale_after_seconds
    if limit is None or not status.last_refreshed:
        return None
    return clock.seconds_until(status.last_refreshed, limit, situation.now)


def next_stale_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until it is to be said that they are too old; None when it is said, or never will be."""
    return remaining_freshness(status, situation) or None
