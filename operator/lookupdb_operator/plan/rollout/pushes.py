"""The push of a rollout whose servers have their shards from images: they are made when the images are pushed. A
kubelet that looks for an image too early would look again after minutes. In a cluster without image volumes neither is
made.

A push never gives up by itself. Where a rule of somebody else's fails its Job for good, that is deleted after a while,
and so made again: after as long as it has been tried for until then, so that attempts become rarer. So is one that
has ended well, when a server does not find its image any more: the next one sends what the registry has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import ExistingObject, Manifest, ObjectRef, Observed, Trouble
from lookupdb_operator.plan import clock, reasons, retries
from lookupdb_operator.status import DatasetStatus, RolloutStatus

BELIEVED_SECONDS: Final = 360.0
"""For which what was pushed counts as there: kubelets that do not find an image look again within five minutes."""


def without_early_servers(
    rendered: Iterable[Manifest], rollout: RolloutStatus, observed: Observed, *, is_serving: bool
) -> tuple[Manifest, ...]:
    """``rendered``, the objects of ``rollout``, without StatefulSets that are to wait for its push, and without that
    in a cluster without image volumes. What is there stays as it should be, whatever becomes of the Job; and of a
    rollout that ``is_serving`` all images were pushed once, so that a set that is lost with the Job waits for none."""
    manifests = tuple(rendered)
    push = "Job", names.push(observed.dataset.name, rollout.rollout)
    if not any((manifest["kind"], manifest["metadata"]["name"]) == push for manifest in manifests):
        return manifests
    waiting = {"StatefulSet", "Job"} if observed.lacks_image_volumes else {"StatefulSet"}
    if (is_serving or is_pushed(rollout, observed)) and not observed.lacks_image_volumes:
        return manifests
    present = {shard_set.ref.name for shard_set in observed.shard_sets}
    return tuple(
        manifest for manifest in manifests if manifest["kind"] not in waiting or manifest["metadata"]["name"] in present
    )


def diagnose_cluster(rollout: RolloutStatus, observed: Observed) -> Trouble | None:
    """That the cluster has no image volumes, from which the servers of ``rollout``, of which there are none yet, are to
    have their shards."""
    if not observed.lacks_image_volumes or any(found.rollout == rollout.rollout for found in observed.shard_sets):
        return None
    return Trouble(
        reasons.IMAGE_VOLUMES_MISSING,
        "the cluster has no image volumes: its API server leaves them out; turn its feature ImageVolume on (Kubernetes"
        " 1.33 or newer), or take another spec.serving.delivery",
    )


def is_pushed(rollout: RolloutStatus, observed: Observed) -> bool:
    """Whether the Job that pushes the images of ``rollout`` has ended well."""
    return any(other.rollout == rollout.rollout and other.done_at for other in observed.other_objects)


def list_overdue(status: DatasetStatus, observed: Observed, now: datetime) -> Iterator[ObjectRef]:
    """The Jobs of pushes that are to be made again now: those that were failed for good, and those of which servers
    miss images."""
    for push, retry_at in chain(_list_failed(status, observed), _list_lost(status, observed)):
        if retry_at <= now:
            yield push.ref


def next_attempt_in(status: DatasetStatus, observed: Observed, now: datetime) -> float | None:
    """Seconds until such a push is made again; None for none, and for what is overdue."""
    made_again = chain(_list_failed(status, observed), _list_lost(status, observed))
    waits = ((retry_at - now).total_seconds() for _, retry_at in made_again)
    return reasons.find_earliest(wait for wait in waits if wait > 0)


def describe_next_attempt(rollout: RolloutStatus, status: DatasetStatus, observed: Observed) -> str:
    """When the push of ``rollout`` that was failed for good is made again; empty when it was not."""
    moments = (at for push, at in _list_failed(status, observed) if push.rollout == rollout.rollout)
    return next((f"; the next attempt is at {clock.format_moment(at)}" for at in moments), "")


def _list_failed(status: DatasetStatus, observed: Observed) -> Iterator[tuple[ExistingObject, datetime]]:
    """Pushes of rollouts that are known, and when each is made again."""
    for push in observed.other_objects:
        rollout = status.find_rollout(push.rollout) if push.rollout else None
        if rollout is None or push.failed_at is None or push.deleting:
            continue
        tried = (push.failed_at - clock.parse_moment(rollout.started_at)).total_seconds()
        pause = min(max(tried, retries.FIRST_RETRY_DELAY), retries.LONGEST_RETRY_DELAY)
        yield push, push.failed_at + timedelta(seconds=pause)


def _list_lost(status: DatasetStatus, observed: Observed) -> Iterator[tuple[ExistingObject, datetime]]:
    """Pushes that have ended well, of rollouts that are known and whose servers miss an image, and when each is made
    again."""
    missing = {
        pod.rollout
        for pod in observed.pods
        if pod.trouble is not None and pod.trouble.reason == reasons.IMAGE_NOT_FOUND and not pod.deleting
    }
    for push in observed.other_objects:
        if push.done_at is None or push.deleting or push.rollout not in missing:
            continue
        if status.find_rollout(push.rollout) is not None:
            yield push, push.done_at + timedelta(seconds=BELIEVED_SECONDS)
