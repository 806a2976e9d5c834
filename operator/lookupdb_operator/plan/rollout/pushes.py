"""The push of a rollout whose servers have their shards from images: they are made when the images are pushed. A
kubelet that looks for an image too early would look again after minutes. In a cluster without image volumes neither is
made.
"""

from __future__ import annotations

from collections.abc import Iterable

from lookupdb_operator import names
from lookupdb_operator.model import Manifest, Observed, Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import RolloutStatus


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
    return any(other.rollout == rollout.rollout and other.is_done for other in observed.other_objects)
