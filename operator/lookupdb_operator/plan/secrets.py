"""The Secret with the store's address and credentials. This module says when it is written into the dataset's
namespace, and names the store in troubles that are about it.

The operator has no right to read Secrets in that namespace. Status remembers what was written (``note_secret``), and
is itself written before the Secret is. Should the Secret's write be lost after that, ``is_due`` has it written again
when a build or a rollout begins, the credentials change again, or a pod is in trouble because of the store.

With a gateway before the store there is no such Secret, and status forgets what was written: should the gateway go
again, the Secret is written at first. Those of before are a person's to delete: the operator has
no right on Secrets there then.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from lookupdb_operator import manifests, names
from lookupdb_operator.model import Manifest, Observed, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, RolloutStatus

# The key from which the passwords of a dataset's shard servers are derived. This module says which keys routers need,
# and when the Secret of the present one is made in the dataset's namespace.
#
# The operator has no right to look whether it is there. Status remembers that it was made (``note_secret``), and is
# itself written before the Secret is. Should it be lost after that, or be deleted later, it is made again when a
# rollout is claimed, or when a router says that it lacks the key. To make what is there changes nothing: of one name,
# there is one content. A Secret of that name that somebody else has made stays, and routers say that its key is another
# one.
#
# Which key the servers of a rollout were started with never changes. Status has it of each rollout, and so have their
# StatefulSets, for a status that was lost. The key before can no longer be made when the release's has changed: its
# Secret stays in the namespace, and is mounted, as long as a rollout is there that needs it.


MAKE_AGAIN_AFTER: Final = 60.0
"""Seconds between two attempts on account of routers that lack the key: a kubelet mounts a new Secret within them."""


def list_needed_keys(status: DatasetStatus, situation: Situation) -> tuple[str, ...]:
    """The fingerprints of the keys that routers need, or are about to need."""
    present = manifests.password_key(situation.dataset, situation.config)
    return tuple(sorted({present, *(rollout.password_key for rollout in status.rollouts)} - {""}))


def render_key(status: DatasetStatus, situation: Situation) -> tuple[Manifest, ...]:
    """The Secret of the present key, if it is to be made now."""
    if not is_key_due(status, situation):
        return ()
    return (manifests.render_key_secret(situation.dataset, situation.config),)


def is_key_due(status: DatasetStatus, situation: Situation) -> bool:
    """Whether the Secret of the present key is to be made now."""
    present = manifests.password_key(situation.dataset, situation.config)
    if not present:
        return False
    if status.password_key != present or status.last_rollout != situation.dataset.status.last_rollout:
        return True
    # What was refused is tried again at each look, or nobody would know any more that it was.
    name = names.password_key_secret(situation.dataset.name, present)
    is_refused = ("Secret", name) in situation.observed.refusals
    return is_refused or (_is_lacking(present, situation.observed) and _remaining_key_wait(status, situation) == 0)


def note_key(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` when the Secret of the present key is made now."""
    present = manifests.password_key(situation.dataset, situation.config)
    return replace(status, password_key=present, password_key_written_at=clock.format_moment(situation.now))


def forget_key(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` while servers are to ask for no password."""
    if manifests.password_key(situation.dataset, situation.config):
        return status
    return replace(status, password_key="", password_key_written_at="")


def next_key_attempt_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the Secret is made again, if nothing changes; None for never."""
    present = manifests.password_key(situation.dataset, situation.config)
    if not present or not _is_lacking(present, situation.observed):
        return None
    return _remaining_key_wait(status, situation)


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


def _remaining_key_wait(status: DatasetStatus, situation: Situation) -> float:
    if not status.password_key_written_at:
        return 0.0
    return clock.seconds_until(status.password_key_written_at, MAKE_AGAIN_AFTER, situation.now)


WRITE_AGAIN_AFTER: Final = 30.0
"""Seconds between two writes on account of pods in trouble."""
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


def render_store_secret(status: DatasetStatus, situation: Situation) -> tuple[Manifest, ...]:
    """The Secret, if it is to be written now."""
    if not is_store_secret_due(status, situation):
        return ()
    return (manifests.render_store_secret(situation.dataset, situation.observed.store),)


def is_store_secret_due(status: DatasetStatus, situation: Situation) -> bool:
    """Whether the Secret is to be written now: at first, when it is to hold something else, when a build or a rollout
    begins, and now and then while pods lack it."""
    if not situation.has_store_secret or situation.observed.store.problem is not None:
        return False
    if (
        not status.store_written_at
        or _is_new(status, situation)
        or _has_claimed_number(situation.dataset.status, status)
    ):
        return True
    return _seems_missing(situation) and _remaining_store_wait(status, situation) == 0


def note_store_secret(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` when the Secret is written now; where there is none, nothing was ever written."""
    if not situation.has_store_secret:
        return replace(status, store_digest="", store_written_at="")
    digest = situation.observed.store.digest
    return replace(status, store_digest=digest, store_written_at=clock.format_moment(situation.now))


def next_store_write_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the Secret is written again, if nothing changes; None for never."""
    if not situation.has_store_secret or situation.observed.store.problem is not None or not _seems_missing(situation):
        return None
    return _remaining_store_wait(status, situation)


def may_end_failure(reason: str, status: DatasetStatus, situation: Situation) -> bool:
    """Whether what failed for ``reason`` may succeed with what the store's Secret is about to become."""
    return reason in reasons.STORE_REASONS and _is_new(status, situation)


def _is_new(status: DatasetStatus, situation: Situation) -> bool:
    access = situation.observed.store
    return situation.shares_store and access.problem is None and access.digest != status.store_digest


def _has_claimed_number(before: DatasetStatus, after: DatasetStatus) -> bool:
    return (before.last_generation, before.last_rollout) != (after.last_generation, after.last_rollout)


def _seems_missing(situation: Situation) -> bool:
    observed = situation.observed
    dataset = observed.dataset
    if ("Secret", names.store_secret(dataset.name, dataset.uid)) in observed.refusals:
        return True
    troubles = (pod.trouble for pod in observed.pods if not pod.deleting)
    return any(trouble is not None and trouble.reason in reasons.STORE_REASONS for trouble in troubles)


def _remaining_store_wait(status: DatasetStatus, situation: Situation) -> float:
    if not status.store_written_at:
        return 0.0
    return clock.seconds_until(status.store_written_at, WRITE_AGAIN_AFTER, situation.now)


def name_store(trouble: Trouble | None, situation: Situation) -> Trouble | None:
    """``trouble``, and of which store it is when it is a store's and does not say so."""
    if trouble is None or trouble.reason not in reasons.STORE_REASONS - {reasons.SECRET_MISSING}:
        return trouble
    own = situation.dataset.own_store
    if own is None:
        known = [("", situation.config.store), ("at ", _find_host(situation)), ("behind ", situation.config.gateway)]
    else:
        known = [("", own["url"])]
    named = [before + part for before, part in known if part and part not in trouble.message]
    return Trouble(trouble.reason, f"{trouble.message}; the store is {' '.join(named)}") if named else trouble


def _find_host(situation: Situation) -> str:
    """Host and port of the endpoint, without what a URL may hold of a secret: user, password, query."""
    environment = situation.observed.store.environment
    endpoint = next((environment[name] for name in _ENDPOINT_VARIABLES if environment.get(name)), "")
    return urlsplit(endpoint).netloc.rpartition("@")[2]
