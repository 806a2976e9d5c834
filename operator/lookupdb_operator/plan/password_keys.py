"""The key from which the passwords of a dataset's shard servers are derived. This module says which keys routers need,
and when the Secret of the present one is made in the dataset's namespace.

The operator has no right to look whether it is there. Status remembers that it was made (``note_secret``), and is
itself written before the Secret is. Should it be lost after that, or be deleted later, it is made again when a rollout
is claimed, or when a router says that it lacks the key. To make what is there changes nothing: of one name, there is
one content. A Secret of that name that somebody else has made stays, and routers say that its key is another one.

Which key the servers of a rollout were started with never changes. Status has it of each rollout, and so have their
StatefulSets, for a status that was lost. The key before can no longer be made when the release's has changed: its
Secret stays in the namespace, and is mounted, as long as a rollout is there that needs it.
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator import manifests, names
from lookupdb_operator.model import Manifest, Observed
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, RolloutStatus

MAKE_AGAIN_AFTER: Final = 60.0
"""Seconds between two attempts on account of routers that lack the key: a kubelet mounts a new Secret within them."""


def list_needed(status: DatasetStatus, situation: Situation) -> tuple[str, ...]:
    """The fingerprints of the keys that routers need, or are about to need."""
    present = manifests.password_key(situation.dataset, situation.config)
    return tuple(sorted({present, *(rollout.password_key for rollout in status.rollouts)} - {""}))


def render_due_secret(status: DatasetStatus, situation: Situation) -> tuple[Manifest, ...]:
    """The Secret of the present key, if it is to be made now."""
    if not is_due(status, situation):
        return ()
    return (manifests.render_key_secret(situation.dataset, situation.config),)


def is_due(status: DatasetStatus, situation: Situation) -> bool:
    """Whether the Secret of the present key is to be made now."""
    present = manifests.password_key(situation.dataset, situation.config)
    if not present:
        return False
    if status.password_key != present or status.last_rollout != situation.dataset.status.last_rollout:
        return True
    # What was refused is tried again at each look, or nobody would know any more that it was.
    name = names.password_key_secret(situation.dataset.name, present)
    is_refused = ("Secret", name) in situation.observed.refusals
    return is_refused or (_is_lacking(present, situation.observed) and _remaining_wait(status, situation) == 0)


def note_secret(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` when the Secret of the present key is made now."""
    present = manifests.password_key(situation.dataset, situation.config)
    return replace(status, password_key=present, password_key_written_at=clock.format_moment(situation.now))


def forget_secret(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` while servers are to ask for no password."""
    if manifests.password_key(situation.dataset, situation.config):
        return status
    return replace(status, password_key="", password_key_written_at="")


def next_attempt_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the Secret is made again, if nothing changes; None for never."""
    present = manifests.password_key(situation.dataset, situation.config)
    if not present or not _is_lacking(present, situation.observed):
        return None
    return _remaining_wait(status, situation)


def recover_key(rollout: RolloutStatus, observed: Observed) -> RolloutStatus:
    """``rollout`` with the key that its StatefulSets say, if it says none."""
    if rollout.password_key:
        return rollout
    shard_sets = (shard_set for shard_set in observed.shard_sets if shard_set.rollout == rollout.rollout)
    marks = (shard_set.password_key for shard_set in shard_sets)
    return replace(rollout, password_key=max(marks, default=""))


def _is_lacking(present: str, observed: Observed) -> bool:
    """Whether a router says that it lacks the present key."""
    return any(present in report.missing_keys for report in observed.routers.values())


def _remaining_wait(status: DatasetStatus, situation: Situation) -> float:
    if not status.password_key_written_at:
        return 0.0
    return clock.seconds_until(status.password_key_written_at, MAKE_AGAIN_AFTER, situation.now)
