"""Which generations of a folder stay to go back to, and which are superseded. Pure.

What tells which of two generations is newer, of those of one dataset:

- Numbers grow, whatever the clocks of builders say, and whatever a rollback makes current.
- Except that numbers may begin anew, when a store was lost or made again: g1 is newer than g50 then. That shows when g1
  arrives: a rollback, too, may bring what has a lower number than all that is there, but that was built before them.

So numbers have begun anew at the arrival of a generation that was built after all of higher numbers. All that was there
by then is of before. A generation is not built after it has arrived: where a builder's clock says so it was ahead, and
the time of arrival, by the clock of this machine, is the latest at which it can have been built.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lookupdb.manifest import Manifest, generation_number

_SKEW_NS: Final = 60 * 10**9
"""So far the clocks of two machines may be from each other with nothing wrong."""


@dataclass(frozen=True, slots=True)
class FoundGeneration:
    """A generation that is in the folder."""

    manifest: Manifest | None
    """None if there is none, or it is damaged."""
    arrived: int
    """When it was put there, in nanoseconds since 1970, by the clock of this machine; each later than those before."""


def find_superseded(found: Mapping[str, FoundGeneration], current: str, keep: int) -> tuple[str, ...]:
    """Of the generations that are there the ones that are neither ``current`` nor among the newest ``keep`` of its
    dataset: those of no use first, then the oldest. None if of ``current`` nothing is known."""
    manifests = {name: generation.manifest for name, generation in found.items()}
    serving = manifests.get(current)
    if serving is None:
        return ()
    own = [name for name, manifest in manifests.items() if manifest is not None and manifest.uid == serving.uid]
    ordered = _order_by_age({name: found[name] for name in own})
    kept = {current, *ordered[max(0, len(ordered) - keep) :]}
    useless = sorted(found.keys() - set(own), key=generation_number)
    return tuple(name for name in (*useless, *ordered) if name not in kept)


def _order_by_age(found: Mapping[str, FoundGeneration]) -> list[str]:
    """The generations of one dataset, the oldest first."""
    of_before: list[str] = []
    present: list[str] = []
    for name in sorted(found, key=lambda name: (found[name].arrived, generation_number(name))):
        higher = [found[other] for other in present if generation_number(other) > generation_number(name)]
        if _begins_anew(found[name], higher):
            of_before += sorted(present, key=generation_number)
            present = []
        present.append(name)
    return of_before + sorted(present, key=generation_number)


def _begins_anew(arriving: FoundGeneration, higher: Iterable[FoundGeneration]) -> bool:
    """Whether one that arrives where there are those ``higher`` numbers is none to which was gone back."""
    built = _built_ns(arriving)
    if built is None or built > arriving.arrived + _SKEW_NS:
        return False  # its time says nothing
    latest = [min(_built_ns(other) or other.arrived, other.arrived) for other in higher]
    return bool(latest) and max(latest) < built


def _built_ns(found: FoundGeneration) -> int | None:
    """When it was built, in nanoseconds since 1970, by the clock of its builder; None if that cannot be read."""
    try:
        moment = datetime.datetime.fromisoformat(found.manifest.built_at if found.manifest else "")
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp()) * 10**9
