"""A brake on repairs: an object that drifted is written again at once, unless somebody changes it back each time.

The first few repairs are made at once. After each further one the object is left alone for longer, so that two writers
who do not agree do not write as fast as the API server answers. A change on our side is written at once all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lookupdb_operator import kinds, manifests
from lookupdb_operator.model import Contest, ExistingObject, Manifest, ObjectRef, Observed, ShardSet

Key = tuple[str, str]
Name = tuple[str, str]
"""Kind and name."""

AT_ONCE: Final = 3
"""Writes of the same manifest that are made at once, the first one included."""
FIRST_DELAY: Final = 10.0
LONGEST_DELAY: Final = 300.0
FORGOTTEN_AFTER: Final = 600.0
"""Seconds without a write after which an object is no longer contested."""
_PACED_ELSEWHERE: Final = frozenset({kinds.SECRET.name, kinds.POD.name})


@dataclass(frozen=True, slots=True)
class _Write:
    """The last write of one object, and how many in a row were the same."""

    mark: str
    count: int
    moment: float
    by: str


class Repairs:
    """The recent writes of each dataset's objects."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._writes: dict[Key, dict[Name, _Write]] = {}

    def list_contests(self, key: Key) -> tuple[Contest, ...]:
        """The objects of ``key`` that somebody keeps changing back."""
        writes = self._remembered(key)
        return tuple(
            Contest(*name, mark=write.mark, is_held=self._wait(write) > 0, by=write.by)
            for name, write in sorted(writes.items())
            if write.count > AT_ONCE
        )

    def note_write(self, observed: Observed, manifest: Manifest) -> None:
        """Note that ``manifest`` was written for the dataset ``observed``."""
        name = manifest["kind"], manifest["metadata"]["name"]
        if name[0] in _PACED_ELSEWHERE:
            return
        mark = manifests.write_mark(manifest)
        writes = self._remembered(observed.dataset.key)
        before = writes.get(name)
        is_repeated = before is not None and before.mark == mark
        by = _find_changer(observed, name)
        count, known = (before.count, before.by) if before is not None and is_repeated else (0, "")
        writes[name] = _Write(mark, count + 1, self._clock(), by or known)
        self._writes[observed.dataset.key] = writes

    def note_deletion(self, key: Key, ref: ObjectRef) -> None:
        """Note that the operator has itself deleted an object of ``key``: who writes it again undoes nobody's work."""
        self._remembered(key).pop((ref.kind, ref.name), None)

    def next_in(self, key: Key) -> float | None:
        """Seconds until an object of ``key`` may be written again, or is no longer contested; None when none is."""
        now = self._clock()
        waits = (
            self._wait(write) or write.moment + FORGOTTEN_AFTER - now
            for write in self._remembered(key).values()
            if write.count > AT_ONCE
        )
        return min(waits, default=None)

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
        self._writes.pop(key, None)

    def _remembered(self, key: Key) -> dict[Name, _Write]:
        oldest = self._clock() - FORGOTTEN_AFTER
        writes = {name: write for name, write in self._writes.pop(key, {}).items() if write.moment > oldest}
        if writes:
            self._writes[key] = writes
        return writes

    def _wait(self, write: _Write) -> float:
        if write.count <= AT_ONCE:
            return 0.0
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(write.count - AT_ONCE - 1, 16))
        return max(0.0, write.moment + delay - self._clock())


def _find_changer(observed: Observed, name: Name) -> str:
    """The manager that changed the object last; empty when that is unknown, or the object is absent."""
    objects: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *observed.other_objects)
    return next((item.changed_by for item in objects if (item.ref.kind, item.ref.name) == name), "")
