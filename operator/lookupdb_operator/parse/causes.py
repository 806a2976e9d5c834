"""Every cause that keeps something from getting on, with the sentence that people read: the one table of them.

A sentence says what was found, where, and what to do. It holds nothing that changes by itself (back-off times, counts,
random names of pods that were never made), because each new sentence is a write of the status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons

RESOURCE_FIELDS: Final = {
    names.BUILDER: "spec.build.resources",
    names.SHARDS: "spec.serving.resources",
    names.ROUTER: "spec.router.resources",
    names.PUSHER: "spec.serving.resources",  # but for its memory
    names.DIFF: "spec.serving.resources",  # its Job is made from a shard server's template
    names.LOAD: "--processes",
}
"""By component, the field, or the option, that says what its pods need."""
VOLUME_FIELDS: Final = {
    names.BUILDER: "spec.source.volume",
    names.SHARDS: "spec.serving.storageClassName or spec.serving.delivery.volume",
}
"""By component, the field that says which volumes its pods have."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: its reason, and its sentence with places for the facts."""

    reason: str
    sentence: str

    def trouble(self, **facts: str) -> Trouble:
        """The cause as it was found, with its ``facts`` in place."""
        return Trouble(self.reason, self.sentence.format(**facts))


# A workload may not make its pods.
QUOTA_EXCEEDED: Final = Cause(reasons.QUOTA_EXCEEDED, "{workload} may not make its pods: {why}; {remedy}")
PODS_REFUSED: Final = Cause(
    reasons.APPLY_REFUSED, "{workload} may not make its pods: {why}; see what the namespace's policies allow"
)
PODS_LACK: Final = Cause(
    reasons.APPLY_REFUSED, "{workload} may not make its pods: {why}; create what is missing, or correct what names it"
)

# A pod is not placed.
UNSCHEDULABLE: Final = Cause(
    reasons.UNSCHEDULABLE,
    "no node takes pod {pod}: {why}; add nodes, or change resources, spec.scheduling or what takes its place",
)
CLAIM_UNBOUND: Final = Cause(
    reasons.VOLUME_MISSING,
    "pod {pod} waits for its volume: {why}; create what it names, or correct {field}",
)

# A pod is placed, and lacks something to start with.
SECRET_MISSING: Final = Cause(reasons.SECRET_MISSING, "pod {pod} needs {missing}; create it")
VOLUME_MISSING: Final = Cause(
    reasons.VOLUME_MISSING,
    "pod {pod} needs {missing}; create it, or correct what names it, spec.source.volume, spec.serving.delivery.volume"
    " or extraEnv",
)
MOUNT_FAILED: Final = Cause(
    reasons.VOLUME_MISSING,
    "a volume of pod {pod} cannot be mounted: {why}; see spec.source.volume, spec.serving.storageClassName or"
    " spec.serving.delivery.volume",
)
IMAGE_PULL_FAILED: Final = Cause(
    reasons.IMAGE_PULL_FAILED, "image {image} of pod {pod} cannot be pulled{why}; correct the image or imagePullSecrets"
)
IMAGE_NOT_FOUND: Final = Cause(
    reasons.IMAGE_NOT_FOUND,
    "image {image}, which pod {pod} is to mount, is not in its registry{why}; it is pushed again, ever more"
    " seldom while that does not help, unless the spec asks for other pods by now",
)
SANDBOX_FAILED: Final = Cause(reasons.CRASH_LOOPING, "pod {pod} cannot be started on its node: {why}; look at the node")
START_FAILED: Final = Cause(
    reasons.CRASH_LOOPING, "container {container} of pod {pod} cannot be started: {why}; correct the image"
)

IMAGE_VOLUME_DROPPED: Final = Cause(
    reasons.IMAGE_VOLUMES_MISSING,
    "the cluster has no image volumes: its API server has left that of StatefulSet {name} out; turn its feature"
    " ImageVolume on (Kubernetes 1.33 or newer), or take another spec.serving.delivery",
)

# Kubernetes ended it.
JOB_TOO_LONG: Final = Cause(
    reasons.DEADLINE_EXCEEDED,
    "the build took longer than {seconds} seconds and was ended; raise spec.build.deadlineSeconds",
)
POD_TOO_LONG: Final = Cause(
    reasons.DEADLINE_EXCEEDED, "pod {pod} took too long and was ended; raise spec.build.deadlineSeconds"
)
DISK_EXCEEDED: Final = Cause(reasons.OUT_OF_DISK, "pod {pod} was evicted: {why}; raise {field}")
EVICTED: Final = Cause(reasons.EVICTED, "pod {pod} was ended by its cluster: {why}; another one takes its place")
CONTAINER_LOST: Final = Cause(reasons.EVICTED, "container {container} of pod {pod} was lost by its node")
OUT_OF_MEMORY: Final = Cause(
    reasons.OUT_OF_MEMORY,
    "container {container} of pod {pod} was killed{how} for using more memory than its limit{limit};"
    " raise {field}.limits.memory",
)

# It ended by itself.
BUILD_FAILED: Final = Cause(reasons.BUILD_FAILED, "pod {pod} ended without a result ({how}); look at its log")
CRASH_LOOPING: Final = Cause(reasons.CRASH_LOOPING, "container {container} of pod {pod} ended ({how}); look at its log")
FETCH_FAILED: Final = Cause(reasons.FETCH_FAILED, "pod {pod} cannot fetch its shard ({how}); it tries again")
FETCH_FAILURES: Final = {
    reason: Cause(reason, FETCH_FAILED.sentence)
    for reason in (
        reasons.STORE_DENIED,
        reasons.STORE_UNAVAILABLE,
        reasons.OUT_OF_DISK,
        reasons.NOT_ENOUGH_ROOM,
        reasons.GENERATION_MISSING,
        reasons.CORRUPT_FILE,
    )
}
"""By the reason that the fetcher gives itself."""
_NOT_SERVED: Final = "pod {pod} cannot serve its shard from its volume ({how}); it tries again"
SERVING_FAILURES: Final = {
    reasons.NOT_ON_VOLUME: Cause(reasons.NOT_ON_VOLUME, _NOT_SERVED),
    reasons.STORE_UNAVAILABLE: Cause(reasons.NOT_ON_VOLUME, _NOT_SERVED),
    reasons.CORRUPT_FILE: Cause(reasons.CORRUPT_FILE, _NOT_SERVED),
}
"""By the reason that a server gives itself that serves from a volume which somebody else fills. What cannot be read
there is no fault of the store's, which other datasets share."""
PUSH_FAILED: Final = Cause(
    reasons.PUSH_FAILED, "pod {pod} cannot push the images of its rollout ({how}); it tries again"
)
PUSH_ENDED: Final = Cause(
    reasons.PUSH_FAILED,
    "Job {name}, which pushes the images of its rollout and tries again by itself, was failed for good ({why}); it will"
    " be made again. Let no policy set its activeDeadlineSeconds, backoffLimit or podFailurePolicy",
)
PUSH_SUSPENDED: Final = Cause(
    reasons.PUSH_FAILED,
    "Job {name}, which pushes the images of its rollout, is suspended (its spec.suspend is true); whoever has done that"
    " must let it go on, or delete it: it will be made again",
)
PUSH_FAILURES: Final = {
    reason: Cause(reason, PUSH_FAILED.sentence)
    for reason in (*FETCH_FAILURES, reasons.REGISTRY_UNAVAILABLE, reasons.REGISTRY_DENIED)
}
"""By the reason that what pushes gives itself."""
