"""Every reason that a condition may have, with a sentence for people and a remedy.

Pods in trouble and failed builds use the same reasons, so a fault has one name from pod to condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, ParamSpec

from lookupdb.backoff import delay_after
from lookupdb_operator import names
from lookupdb_operator.model import Observed, Trouble
from lookupdb_operator.status import Truth

P = ParamSpec("P")

# Ready
SERVING: Final = "Serving"
"""Every router answers from the routing table in effect, and every shard has a ready server."""
NO_ROUTING_TABLE: Final = "NoRoutingTable"
"""Nothing has been rolled out yet: there is nothing to answer from."""
NO_ROUTER_READY: Final = "NoRouterReady"
"""No router is ready to take a request."""
STATUS_LOST: Final = "StatusLost"
"""The status was wiped or set back: lookups are still answered, but the status does not say from which generation."""
SHARDS_UNAVAILABLE: Final = "ShardsUnavailable"
"""Shards have no ready server (in Ready), or too few (in Degraded)."""

# Ready, Built and RolledOut
WAITING_FOR_PREDECESSOR: Final = "WaitingForPredecessor"
"""Kubernetes still removes objects of an earlier dataset of the same name. This one begins when none is left."""
PREDECESSOR_ORPHANED: Final = "PredecessorOrphaned"
"""An earlier dataset of the same name has left objects that Kubernetes does not collect."""

# Built
BUILDING: Final = "Building"
"""A build is under way."""
WAITING_FOR_ROLLOUT: Final = "WaitingForRollout"
"""The next refresh is built when the rollout of the last built generation is complete."""
WAITING_FOR_SOURCE: Final = "WaitingForSource"
"""The writer of the source has not written the success file yet, or nothing was pushed yet."""
GENERATION_BUILT: Final = "GenerationBuilt"
"""The store holds a whole generation of this spec."""
BUILD_FAILED: Final = "BuildFailed"
"""The build failed in a way that no other reason describes."""
WAITING_FOR_TURN: Final = "WaitingForTurn"
"""The dataset is queued: all build slots, or rollout slots, are in use."""

SPARK_IMAGE_MISSING: Final = "SparkImageMissing"
"""The build needs Spark, but no image with Spark is set."""

# RolledOut
UP_TO_DATE: Final = "UpToDate"
"""The newest generation of the spec serves, and nothing remains to do."""
WAITING_FOR_BUILD: Final = "WaitingForBuild"
"""There is no generation of this spec yet."""
STARTING_SERVERS: Final = "StartingServers"
"""Shard servers fetch, verify and warm their shards."""
CONFIRMING: Final = "Confirming"
"""A new routing table is written; not every router uses it yet."""
NOT_CONFIRMED: Final = "NotConfirmed"
"""A router took too long to use the new routing table; the servers of the previous one stay."""
CANDIDATE_WAITING: Final = "CandidateWaiting"
"""The servers of a generation are ready, and it waits for promotion."""
PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
"""Servers took longer than rollout.progressDeadlineSeconds to get ready."""
SUSPENDED: Final = "Suspended"
"""spec.suspend is true: nothing is built, rolled out or changed."""
PINNED: Final = "Pinned"
"""The generation that spec.generation names serves; newer ones are built and wait."""
PINNED_GENERATION_MISSING: Final = "PinnedGenerationMissing"
"""The generation that spec.generation names is not in the store; the present one keeps serving."""
ROLLED_BACK: Final = "RolledBack"
"""An older generation keeps serving after a rollback, and the source has not changed since."""
REJECTED: Final = "Rejected"
"""An older generation keeps serving: the newer one was rejected, and the source has not changed since."""
DELETION_OVERDUE: Final = "DeletionOverdue"
"""Servers that a window has replaced still exist after rollout.progressDeadlineSeconds, and delay the next window."""
DRAINING: Final = "Draining"
"""The new rollout serves; the previous one finishes lookups in flight."""

# Degraded
HEALTHY: Final = "Healthy"
"""Nothing is wrong."""
INVALID_SPEC: Final = "InvalidSpec"
"""The spec cannot be used."""
APPLY_REFUSED: Final = "ApplyRefused"
"""The API server refused an object."""
CONTESTED: Final = "Contested"
"""Another writer changes an object back, or deletes it, whenever the operator corrects it."""
STALE: Final = "Stale"
"""The served data are older than refresh.staleAfterSeconds."""
ANNOUNCEMENT_FAILED: Final = "AnnouncementFailed"
"""Announcing the active generation in the store has failed for long; lookups are not affected."""
STORE_CREDENTIALS_MISSING: Final = "StoreCredentialsMissing"
"""The operator has no credentials for the store."""

# Events only: the operator writes no conditions for datasets that it leaves alone
OTHER_OPERATOR: Final = "OtherOperator"
"""The dataset belongs to an operator of another name."""
STATUS_UNREADABLE: Final = "StatusUnreadable"
"""The dataset's status is not what an operator of this version writes."""

# Events only: nothing waits
TABLE_RENEWED: Final = "RoutingTableRenewed"
"""The routing table is written again under the next version, because routers would not take it up otherwise."""
CHECK_SKIPPED: Final = "CheckSkipped"
"""A check of the schedule was missed by more than refresh.startingDeadlineSeconds."""

# Reported by the builder
BAD_SOURCE: Final = "BadSource"
"""The source is missing, cannot be read, or holds a row that cannot be stored."""
CATALOG_UNREACHABLE: Final = "CatalogUnreachable"
"""The source table's catalog or store does not answer, or refuses the credentials."""
TABLE_MISSING: Final = "TableMissing"
"""The source's table does not exist."""
SNAPSHOT_MISSING: Final = "SnapshotMissing"
"""The source's table does not have the snapshot or version that the spec names: it has expired, or never existed."""
DATA_FILE_MISSING: Final = "DataFileMissing"
"""A file of the table's snapshot is missing."""
UNSUPPORTED_TABLE: Final = "UnsupportedTable"
"""The table uses a feature that lookupdb cannot read, such as equality deletes."""
EXTRA_MISSING: Final = "ExtraMissing"
"""The builder's image lacks the package that reads the table's format."""
GATE_CLOSED: Final = "GateClosed"
"""The generation was built and did not pass a gate."""
STORE_UNAVAILABLE: Final = "StoreUnavailable"
"""The store does not answer."""
STORE_DENIED: Final = "StoreDenied"
"""The store refuses the credentials."""
GENERATION_EXISTS: Final = "GenerationExists"
"""The store already holds another generation with this number."""
ADOPTION_FAILED: Final = "AdoptionFailed"
"""The store has nothing of the dataset that spec.adopt names, or nothing that this spec would build."""
PUSH_REJECTED: Final = "PushRejected"
"""The newest generation that was pushed is damaged, or was made for another spec."""
GENERATION_MISSING: Final = "GenerationMissing"
"""The store has lost a generation that is to be served, or compared with."""
OUT_OF_MEMORY: Final = "OutOfMemory"
"""Killed for using more memory than its limit."""
NOT_ENOUGH_ROOM: Final = "NotEnoughRoom"
"""The builder saw in time that memory or disk does not suffice."""
OUT_OF_DISK: Final = "OutOfDisk"
"""The scratch volume or the node's disk is too small."""
CORRUPT_FILE: Final = "CorruptFile"
"""A file in the store does not match its checksum."""
INVALID_MANIFEST: Final = "InvalidManifest"
"""The builder cannot use the spec."""
ENGINE_MISSING: Final = "EngineMissing"
"""The builder's image has no Spark or Java, or Spark does not start."""
SPARK_FAILED: Final = "SparkFailed"
"""Spark could not finish the build: it lost executors, or a task failed too often."""
RIGHTS_MISSING: Final = "RightsMissing"
"""The ServiceAccount of Spark's driver lacks rights that Spark needs on pods."""
EXECUTORS_REFUSED: Final = "ExecutorsRefused"
"""A quota, a limit range or a policy of the namespace does not admit Spark's executors."""
INTERRUPTED: Final = "Interrupted"
"""The builder was stopped, or the build has no running pod."""

# Reported by Kubernetes
EVICTED: Final = "Evicted"
"""The node ran short of memory or disk, or was drained or lost."""
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
"""The build took longer than build.deadlineSeconds."""
IMAGE_PULL_FAILED: Final = "ImagePullFailed"
"""The image cannot be pulled."""
IMAGE_NOT_FOUND: Final = "ImageNotFound"
"""The image of a shard is not in the registry to which it was pushed."""
VOLUME_MISSING: Final = "VolumeMissing"
"""A volume, or the claim or ConfigMap behind it, cannot be mounted."""
SECRET_MISSING: Final = "SecretMissing"  # noqa: S105 - a reason, not a secret
"""A Secret that the pod needs does not exist."""
QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""A quota or limit of the namespace does not admit the pod."""
UNSCHEDULABLE: Final = "Unschedulable"
"""No node has room for the pod, or fits its scheduling constraints."""
CRASH_LOOPING: Final = "CrashLooping"
"""The container keeps exiting."""
NOT_ON_VOLUME: Final = "NotOnVolume"
"""The volume of spec.serving.delivery lacks the generation to serve, or cannot be read."""
IMAGE_VOLUMES_MISSING: Final = "ImageVolumesMissing"
"""Servers need image volumes for their shards, and the cluster has none."""
REGISTRY_UNAVAILABLE: Final = "RegistryUnavailable"
"""The registry to which images are pushed does not answer, or does not answer as a registry should."""
REGISTRY_DENIED: Final = "RegistryDenied"
"""The registry refuses the credentials with which images are pushed."""
PUSH_FAILED: Final = "PushFailed"
"""Images could not be pushed for another reason."""
FETCH_FAILED: Final = "FetchFailed"
"""A shard could not be fetched from the store or did not verify."""
DAMAGE_REASONS: Final = frozenset({CORRUPT_FILE, GENERATION_MISSING})
"""The store does not have what was published, and waiting does not help."""
PLACEMENT_REASONS: Final = frozenset({UNSCHEDULABLE, QUOTA_EXCEEDED})
"""Pods cannot be placed: pods of other programs may be in their way."""
SHARED_REASONS: Final = frozenset({STORE_UNAVAILABLE, STORE_DENIED})
"""Troubles that affect all datasets, except those with a store of their own."""
STORE_REASONS: Final = frozenset({STORE_UNAVAILABLE, STORE_DENIED, SECRET_MISSING, FETCH_FAILED, PUSH_FAILED})
"""Troubles that may end when the dataset's copy of the store's Secret is written again."""
BUILDER_REASONS: Final = frozenset(
    {
        BAD_SOURCE,
        CATALOG_UNREACHABLE,
        TABLE_MISSING,
        SNAPSHOT_MISSING,
        DATA_FILE_MISSING,
        UNSUPPORTED_TABLE,
        EXTRA_MISSING,
        GATE_CLOSED,
        STORE_UNAVAILABLE,
        STORE_DENIED,
        GENERATION_EXISTS,
        ADOPTION_FAILED,
        PUSH_REJECTED,
        GENERATION_MISSING,
        OUT_OF_MEMORY,
        NOT_ENOUGH_ROOM,
        OUT_OF_DISK,
        CORRUPT_FILE,
        INVALID_MANIFEST,
        ENGINE_MISSING,
        SPARK_FAILED,
        RIGHTS_MISSING,
        EXECUTORS_REFUSED,
        INTERRUPTED,
    }
)
"""The reasons that a builder's result may give; any other is a BuildFailed."""
HEALTHY_REASONS: Final = frozenset(
    {
        SERVING,
        NO_ROUTING_TABLE,
        WAITING_FOR_PREDECESSOR,
        BUILDING,
        WAITING_FOR_ROLLOUT,
        WAITING_FOR_SOURCE,
        GENERATION_BUILT,
        UP_TO_DATE,
        SUSPENDED,
        PINNED,
        ROLLED_BACK,
        REJECTED,
        WAITING_FOR_BUILD,
        WAITING_FOR_TURN,
        STARTING_SERVERS,
        CONFIRMING,
        CANDIDATE_WAITING,
        DRAINING,
        HEALTHY,
    }
)
"""The reasons that report no failure."""
_REFRESH: Final = (
    "The newest generation is built again automatically, unless it is held back or a generation is pinned. To build"
    f" at once, set the annotation {names.REFRESH} to another value."
)
REMEDIES: Final[Mapping[str, str]] = {
    ADOPTION_FAILED: "Correct spec.adopt, or remove it to build from the source.",
    BAD_SOURCE: "Correct the source, or the spec.",
    CATALOG_UNREACHABLE: "Check that the catalog can be reached from this cluster, and correct the credentials in the"
    " Secret of source.secretName.",
    TABLE_MISSING: "Correct spec.source.",
    SNAPSHOT_MISSING: "Name another snapshot in spec.source.table, or remove it to read the newest.",
    DATA_FILE_MISSING: "Name another snapshot in spec.source.table, or repair the table.",
    UNSUPPORTED_TABLE: "Rewrite the table without that feature, or export it as Parquet files.",
    EXTRA_MISSING: "Build the image with `make image EXTRA=delta`.",
    PUSH_REJECTED: "Push again.",
    GATE_CLOSED: "If the new generation is correct, change spec.gates.",
    STORE_UNAVAILABLE: "Check that the store can be reached from this cluster.",
    STORE_DENIED: "Correct the store's Secret: the one that spec.store names, else the one in the namespace of"
    " lookupdb's release.",
    STORE_CREDENTIALS_MISSING: "Create the operator's store Secret.",
    GENERATION_MISSING: _REFRESH,
    CORRUPT_FILE: _REFRESH,
    ANNOUNCEMENT_FAILED: "Check that the gateway answers, and that its --announcer is this operator.",
    STALE: "Built and RolledOut say what keeps newer data away.",
    NOT_ENOUGH_ROOM: "Raise spec.build.resources.limits.memory or spec.build.scratchSize.",
    OUT_OF_DISK: "Raise spec.build.scratchSize, or make room on the nodes.",
    CONTESTED: "Stop that writer, and change the dataset instead.",
    IMAGE_VOLUMES_MISSING: "Choose another spec.serving.delivery, or turn on the cluster's feature ImageVolume"
    " (Kubernetes 1.33 or newer).",
    DEADLINE_EXCEEDED: "Raise spec.build.deadlineSeconds.",
    INVALID_SPEC: "Correct the spec.",
    SPARK_IMAGE_MISSING: "Name one in spec.build.spark.image, or in the chart's spark.image.",
    ENGINE_MISSING: "Name an image that `make image-spark` built, with the operator's version.",
    SPARK_FAILED: "Look at the builder's log.",
    EXECUTORS_REFUSED: "Raise the namespace's quota, or lower executorCores or executorMemory of spec.build.spark.",
    RIGHTS_MISSING: "List the namespace in the chart's spark.namespaces, or bind a Role with these rights there.",
    PROGRESS_DEADLINE_EXCEEDED: "Look at its pods; if they only need longer, raise"
    " spec.rollout.progressDeadlineSeconds.",
}
"""Remedies for what builders and the operator report. The troubles of pods come with theirs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one condition: a truth, a reason for machines, a sentence for people. No decision uses it."""

    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """The assessment of one part of a dataset's life: its condition, its faults, and when to look again."""

    verdict: Verdict
    troubles: tuple[Trouble | None, ...]
    """The faults, in the order in which Degraded lists them."""
    deadlines: tuple[float | None, ...]
    """Seconds until the assessment changes because time has passed; None for never."""
    outlook: str = ""
    """The last sentence of Degraded: when the faults may end."""


def judge(checks: Sequence[Callable[P, Verdict | None]], *args: P.args, **kwargs: P.kwargs) -> Verdict:
    """Return the verdict of the first of ``checks`` that applies; the last one always does."""
    for check in checks:
        verdict = check(*args, **kwargs)
        if verdict is not None:
            return verdict
    raise AssertionError("no check applies")


def find_earliest(deadlines: Iterable[float | None]) -> float | None:
    """The earliest of ``deadlines`` that is still ahead; None if there is none."""
    return min((seconds for seconds in deadlines if seconds and seconds > 0), default=None)


def write_sentence(reason: str, message: str) -> str:
    """``message`` on one line, as a sentence. The remedy of ``reason`` follows, unless further lines of the message
    give advice."""
    text = join_lines(message) or "No message was given"
    text = text if text.endswith((".", "!", "?", "…")) else f"{text}."
    remedy = REMEDIES.get(reason) if len(message.strip().splitlines()) <= 1 else None
    return f"{text} {remedy}" if remedy and remedy not in text else text


def join_lines(message: str) -> str:
    """``message`` on one line: lines are joined after a colon, else by a semicolon."""
    text = ""
    for line in filter(None, (" ".join(line.split()) for line in message.splitlines())):
        separator = " " if text.endswith((":", ";", ",")) else "; "
        text = f"{text}{separator}{line}" if text else line
    return text


def shorten(text: str, max_characters: int) -> str:
    """``text``, cut so that the CRD accepts it."""
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def list_refusals(observed: Observed, kind: str = "", prefix: str = "") -> Iterator[Trouble]:
    """Why objects of ``kind`` whose names begin with ``prefix`` cannot be written."""
    for (refused_kind, name), why in observed.refusals.items():
        if kind not in ("", refused_kind) or not name.startswith(prefix):
            continue
        reason = QUOTA_EXCEEDED if "exceeded quota" in why else APPLY_REFUSED
        yield Trouble(reason, f"{refused_kind} {name} cannot be written: {why}")


# Backoff after a failed build or push, or a lost generation.


FIRST_RETRY_DELAY: Final = 30.0
"""Seconds. By then a source that is being uploaded is probably complete."""
LONGEST_RETRY_DELAY: Final = 1800.0
"""Seconds. A source that has been broken for days is not read every minute. A new spec or refresh is built at once."""
LONGEST_WAIT: Final = 300.0
"""Seconds between two checks for a missing success file, or for a push after a rejected one. Both are expected soon,
and the data is late until the check sees them.
"""
MAX_MESSAGE_CHARACTERS: Final = 4000
"""Characters: a little less than the CRD allows."""


def retry_delay(count: int, reason: str = "") -> float:
    """Seconds between the ``count``-th failure in a row, for ``reason``, and the next attempt."""
    longest = LONGEST_WAIT if reason in (WAITING_FOR_SOURCE, PUSH_REJECTED) else LONGEST_RETRY_DELAY
    return delay_after(count, FIRST_RETRY_DELAY, longest)
