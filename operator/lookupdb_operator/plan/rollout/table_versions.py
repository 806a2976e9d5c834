"""The versions of routing tables that there are: claimed in status, written to the ConfigMap, taken up by routers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildJob, ExistingObject, Observed, ShardSet
from lookupdb_operator.status import DatasetStatus

_HIGHEST_BELIEVED: Final = 10**14 - 1
"""The highest version that is overtaken when somebody has written it by hand: one of 14 digits. It leaves more above it
than there will ever be tables, of versions that are read of objects (15 digits), and that status can hold (2**53)."""


def known_table_version(status: DatasetStatus) -> int:
    """The highest version of a routing table that ``status`` knows of, whether or not it knows what that references."""
    return max(status.last_table, 0 if status.table is None else status.table.version)


def newest_table_version(observed: Observed) -> int:
    """The highest version of a routing table that anyone has: 0 for none. More than status knows of, when that was
    set back: a router takes up none but a newer one. What routers read is the text, in which somebody may have raised
    the version; it says nothing of status."""
    texts = (existing.text_version for existing in observed.other_objects)
    return max(written_table_version(observed), find_highest(texts), newest_read_version(observed))


def newest_read_version(observed: Observed) -> int:
    """The highest version of a routing table that a router reports: 0 for none. A router that has taken one that is not
    believed refuses all others until it is started anew."""
    return find_highest(report.newest for report in observed.routers.values())


def next_table_version(status: DatasetStatus, observed: Observed, now: datetime) -> int:
    """The version of the next routing table: above any that anyone has. When status and the ConfigMap are lost, and
    routers were not asked, nobody knows which that is. Routers that have this very version would be taken to confirm a
    table that they ignore: seconds since 1970 are more than there were tables."""
    newest = max(known_table_version(status), newest_table_version(observed))
    if not newest and any(rollout.referenced_replicas for rollout in status.rollouts):
        return int(now.timestamp())
    return newest + 1


def written_table_version(observed: Observed) -> int:
    """The version of the routing table that is written: 0 for none. As nobody has edited it, it is the operator's own,
    however high it is."""
    objects = observed.other_objects
    own = max((existing.table_version for existing in objects if not existing.changed), default=0)
    return max(own, find_highest(existing.table_version for existing in objects if existing.changed))


def is_newer_written(status: DatasetStatus, observed: Observed) -> bool:
    """Whether a newer routing table is written than ``status`` knows of: it was wiped or set back. Where somebody has
    edited the ConfigMap, the version may be edited, too: that alone tells of no such status."""
    if written_table_version(observed) <= known_table_version(status):
        return False
    return status.table is None or not is_edited(observed) or _is_behind(status, observed)


def is_edited(observed: Observed) -> bool:
    """Whether somebody has edited the ConfigMap of the routing table since it was written."""
    return any(existing.changed for existing in observed.other_objects if existing.table_version)


def find_highest(versions: Iterable[int]) -> int:
    """The highest of ``versions``, of those that are believed, and overtaken, though somebody may have written them by
    hand: 0 for none."""
    return max((version for version in versions if version <= _HIGHEST_BELIEVED), default=0)


def _is_behind(status: DatasetStatus, observed: Observed) -> bool:
    """Whether there is an object of a rollout, or of a build, that ``status`` has not come to."""
    rollout_objects: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *observed.other_objects)
    rollouts = (names.recover_number(item.rollout) for item in rollout_objects)
    generation_objects: tuple[BuildJob | ShardSet | ExistingObject, ...] = (*observed.jobs, *rollout_objects)
    generations = (names.recover_number(item.generation) for item in generation_objects)
    return max(rollouts, default=0) > status.last_rollout or max(generations, default=0) > status.last_generation
