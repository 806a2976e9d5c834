"""The push of a rollout whose servers have their shards from images: they are made when the images are pushed. A
kubelet that looks for an image too early would look again after minutes. In a cluster without image volumes neither is
made.

A push never gives up by itself. Where a rule of somebody else's fails its Job for good, that is deleted after a pause,
and so made again. So is one that has ended well, when a server does not find its image: the next one sends what the
registry has lost. The pause doubles with each push in a row that was to no effect; it begins anew when all servers of
the rollout that have a node are ready, which have their images then, and with another rollout.

The pause runs from when the end of a push was seen, which the status says: its Job says when it ended by the clock of
another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import ExistingObject, Manifest, ObjectRef, Observed, Pod, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, PushStatus, RolloutStatus

BELIEVED_SECONDS: Final = 360.0
"""For which what was pushed counts as there: kubelets that do not find an image look again within five minutes."""
_MOST_IN_STATUS: Final = 999_999_999
"""As the CRD has it."""


def without_early_servers(
    rendered: Iterable[Manifest], rollout: RolloutStatus, observed: Observed
) -> tuple[Manifest, ...]:
    """``rendered``, the objects of ``rollout``, without StatefulSets that are to wait for its push, and without that
    in a cluster without image volumes. What is there stays as it should be, whatever becomes of the Job; and of a
    rollout that a routing table has referenced all images were pushed once, so that a set that is lost waits for no
    other push."""
    manifests = tuple(rendered)
    push = "Job", names.push(observed.dataset.name, rollout.rollout)
    if not any((manifest["kind"], manifest["metadata"]["name"]) == push for manifest in manifests):
        return manifests
    waiting = {"StatefulSet", "Job"} if observed.lacks_image_volumes else {"StatefulSet"}
    was_pushed = not rollout.is_candidate or is_pushed(rollout, observed)
    if was_pushed and not observed.lacks_image_volumes:
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
    return any(other.rollout == rollout.rollout and other.push_state == "Succeeded" for other in observed.other_objects)


def note_ends(status: DatasetStatus, observed: Observed, now: datetime) -> DatasetStatus:
    """``status`` with each push that is seen to have ended, and with how many in a row were to no effect."""
    ended = {push.rollout: push for push in observed.other_objects if _has_ended(push)}
    noted = tuple(
        replace(rollout, push=_note_end(ended[rollout.rollout], rollout, observed, now))
        if rollout.rollout in ended
        else rollout
        for rollout in status.rollouts
    )
    return replace(status, rollouts=noted)


def _has_ended(push: ExistingObject) -> bool:
    return push.push_state in ("Succeeded", "Failed") and not push.deleting


def _note_end(push: ExistingObject, rollout: RolloutStatus, observed: Observed, now: datetime) -> PushStatus:
    before, count = rollout.push, _count_vain(push, rollout, observed)
    if before is not None and before.job == push.ref.uid:
        return replace(before, count=count)
    return PushStatus(push.ref.uid, clock.format_moment(now), count)


def _count_vain(push: ExistingObject, rollout: RolloutStatus, observed: Observed) -> int:
    """How many pushes in a row, up to ``push``, were to no effect."""
    before, has_failed = rollout.push, push.push_state == "Failed"
    if before is None:
        return int(has_failed)
    is_new = before.job != push.ref.uid
    if not is_new and not before.count:
        return 0
    if not has_failed and _have_images(rollout, observed, were_made=not is_new):
        return 0
    return min(before.count + is_new, _MOST_IN_STATUS)


def _have_images(rollout: RolloutStatus, observed: Observed, *, were_made: bool) -> bool:
    """Whether all servers of ``rollout`` that there are to be by now have their images, but for those that no node has
    room for: of those nobody knows, and a push too many costs less than one too late. ``were_made``: there are some,
    unless they are lost just now."""
    sets = [found for found in observed.shard_sets if found.rollout == rollout.rollout]
    pods = [pod for pod in observed.pods if pod.rollout == rollout.rollout and pod.component == names.SHARDS]
    unschedulable = Counter(pod.shard for pod in pods if not pod.ready and _is_unschedulable(pod))
    return (
        bool(sets or not were_made)
        and all(0 < found.replicas <= found.ready + unschedulable[found.shard] for found in sets)
        and all(pod.ready or _is_unschedulable(pod) for pod in pods)
    )


def _is_unschedulable(pod: Pod) -> bool:
    return pod.trouble is not None and pod.trouble.reason == reasons.UNSCHEDULABLE


def clamp_push(push: PushStatus | None, now: datetime) -> PushStatus | None:
    """``push``, not seen to have ended after ``now``: the clock was set back."""
    return None if push is None else replace(push, finished_at=clock.clamp_to_now(push.finished_at, now))


def list_overdue(status: DatasetStatus, observed: Observed, now: datetime) -> Iterator[ObjectRef]:
    """The Jobs of pushes that are to be made again now: those that were failed for good, and those of which servers
    miss images."""
    return (push.ref for push, retry_at in _list_made_again(status, observed) if retry_at <= now)


def next_attempt_in(status: DatasetStatus, observed: Observed, now: datetime) -> float | None:
    """Seconds until such a push is made again; None for none, and for what is overdue."""
    waits = ((retry_at - now).total_seconds() for _, retry_at in _list_made_again(status, observed))
    return reasons.find_earliest(wait for wait in waits if wait > 0)


def describe_next_attempt(rollout: RolloutStatus, status: DatasetStatus, observed: Observed) -> str:
    """When the push of ``rollout`` that was failed for good is made again; empty when it was not."""
    failed = (at for push, at in _list_made_again(status, observed, rollout) if push.push_state == "Failed")
    return next((f"; the next attempt is at {clock.format_moment(at)}" for at in failed), "")


def with_next_push(trouble: Trouble, rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble:
    """``trouble`` of servers of ``rollout``; if they miss an image that is pushed again after a while, with when that
    is."""
    if trouble.reason != reasons.IMAGE_NOT_FOUND:
        return trouble
    pushes = _list_made_again(status, situation.observed, rollout)
    moments = (clock.format_moment(retry_at) for _, retry_at in pushes if retry_at > situation.now)
    return next((Trouble(trouble.reason, f"{trouble.message}; the next push is at {at}") for at in moments), trouble)


def _list_made_again(
    status: DatasetStatus, observed: Observed, rollout: RolloutStatus | None = None
) -> Iterator[tuple[ExistingObject, datetime]]:
    """Pushes that are made again, of ``rollout`` or of all that ``status`` knows, and when each is: those that have
    failed, and those whose rollout's servers miss an image. None in a cluster without image volumes, where no push is
    made."""
    if observed.lacks_image_volumes:
        return
    missing = {
        pod.rollout
        for pod in observed.pods
        if pod.trouble is not None and pod.trouble.reason == reasons.IMAGE_NOT_FOUND and not pod.deleting
    }
    for push in filter(_has_ended, observed.other_objects):
        known = status.find_rollout(push.rollout)
        if known is None or known.push is None or (rollout is not None and rollout.rollout != known.rollout):
            continue
        if push.push_state == "Failed" or push.rollout in missing:
            pause = timedelta(seconds=_pause_seconds(push, known.push))
            yield push, clock.parse_moment(known.push.finished_at) + pause


def _pause_seconds(push: ExistingObject, end: PushStatus) -> float:
    count = max(end.count, 1)
    if push.push_state == "Failed":
        return clock.retry_delay(count)
    return clock.doubling_delay(count, BELIEVED_SECONDS, clock.LONGEST_RETRY_DELAY)
