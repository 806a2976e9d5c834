"""How long this process has seen that a pod is not ready, and is being deleted, by a clock that nobody sets.

A pod whose kubelet counts as lost is deleted by force: it drains nothing, and what it is asked meanwhile is lost. The
moments that stand in a pod are of other machines' clocks. A clock on the wall that is minutes ahead of theirs would
have each pod that drains taken for lost at once. So only the seconds count that this process has seen pass. An operator
that starts waits anew: a lost pod stays a little longer then, and none goes too early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lookupdb_operator.model import Absence, Observed, Pod
from lookupdb_operator.watch.cache import Key


@dataclass(frozen=True, slots=True)
class _Sighting:
    mark: str
    """``Pod.unready_since``: another one is of a pod that was ready in between, though no look was at it."""
    unready_since: float
    deleting_since: float | None
    """None: it was not being deleted yet."""


class Absences:
    """From when on each pod that is not ready was seen so, by its uid: of the last look at each dataset."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._sightings: dict[Key, dict[str, _Sighting]] = {}

    def measure(self, observed: Observed) -> Mapping[str, Absence]:
        """Of each pod that is not ready, for how long this was seen. To be called at each look."""
        now, key = self._clock(), observed.dataset.key
        before = self._sightings.pop(key, {})
        seen = {pod.uid: _see(pod, before.get(pod.uid), now) for pod in observed.pods if not pod.ready}
        if seen:
            self._sightings[key] = seen
        return {uid: _measure(sighting, now) for uid, sighting in seen.items()}

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone."""
        self._sightings.pop(key, None)


def _see(pod: Pod, before: _Sighting | None, now: float) -> _Sighting:
    unready_since = before.unready_since if before is not None and before.mark == pod.unready_since else now
    deleting_since = None if before is None else before.deleting_since
    if pod.deleting and deleting_since is None:
        deleting_since = now
    return _Sighting(pod.unready_since, unready_since, deleting_since)


def _measure(sighting: _Sighting, now: float) -> Absence:
    deleting_since = now if sighting.deleting_since is None else sighting.deleting_since
    return Absence(unready=now - sighting.unready_since, deleting=now - deleting_since)
