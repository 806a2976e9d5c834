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
from lookupdb_operator.model import Manifest, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus

WRITE_AGAIN_AFTER: Final = 30.0
"""Seconds between two writes on account of pods in trouble."""
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


def render_due_secret(status: DatasetStatus, situation: Situation) -> tuple[Manifest, ...]:
    """The Secret, if it is to be written now."""
    if not is_due(status, situation):
        return ()
    return (manifests.render_store_secret(situation.dataset, situation.observed.store),)


def is_due(status: DatasetStatus, situation: Situation) -> bool:
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
    return _seems_missing(situation) and _remaining_wait(status, situation) == 0


def note_secret(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` when the Secret is written now; where there is none, nothing was ever written."""
    if not situation.has_store_secret:
        return replace(status, store_digest="", store_written_at="")
    digest = situation.observed.store.digest
    return replace(status, store_digest=digest, store_written_at=clock.format_moment(situation.now))


def next_write_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the Secret is written again, if nothing changes; None for never."""
    if not situation.has_store_secret or situation.observed.store.problem is not None or not _seems_missing(situation):
        return None
    return _remaining_wait(status, situation)


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


def _remaining_wait(status: DatasetStatus, situation: Situation) -> float:
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
