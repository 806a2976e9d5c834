"""The input and output of ``plan()``: frozen dataclasses, no decisions, no I/O.

Observed is one dataset with everything that belongs to it, as the informers hold it now. Plan is what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from lookupdb.dataset.spec import DatasetSpec
from lookupdb.manifest import Announcement
from lookupdb_operator.status import DatasetStatus

# The operator's settings that are the same for all datasets, from its command line.


DEFAULT_IDENTITY: Final = "lookupdb/lookupdb"
POD_SECURITY: Final[Mapping[str, int]] = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
"""User and groups of every process, as in the image. OpenShift assigns its own and accepts no others; leave them out
there."""
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - a pod's own addresses
SPARK_SERVICE_ACCOUNT: Final = "lookupdb-spark"
LISTEN_ADDRESSES: Final = (ANY_ADDRESS, "::")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one operator."""

    image: str
    """The image of builders, shard servers and routers, unless a dataset names another."""
    store: str
    """URL of the store: s3://, gs://, az://."""
    cluster: str
    """This cluster's prefix in the store; the uid of the kube-system namespace by default."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    identity: str = DEFAULT_IDENTITY
    """``namespace/name`` of this installation; only one acts on a dataset."""
    network_policies: bool = True
    """True to write NetworkPolicies."""
    router_resp: bool = True
    """True if routers also speak the Redis protocol, on a separate port."""
    router_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may send lookups to routers; empty: anyone."""
    admin_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may read admin ports: the operator and metric scrapers."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Additional labels of every pod."""
    tracing_env: tuple[Mapping[str, Any], ...] = ()
    """Environment variables of routers and builders with the endpoint of traces, and the routers' sampler; empty: no
    traces."""
    pod_security: Mapping[str, int] = field(default_factory=lambda: POD_SECURITY)
    """runAsUser, runAsGroup and fsGroup of every pod; the cluster chooses missing ones."""
    pod_host: str = ANY_ADDRESS
    """Listen address of shard servers and routers; ``::`` for pods with IPv6 addresses."""
    shard_key: bytes = field(default=b"", repr=False)
    """The release's key, which shard passwords are derived from; empty: no passwords. It is secret and never shown."""
    spark_image: str = ""
    """The image of Spark's drivers and executors, unless a dataset names another; empty: none."""
    spark_service_account: str = SPARK_SERVICE_ACCOUNT
    """The ServiceAccount of Spark's drivers, unless a dataset names another."""
    gateway: str = ""
    """URL of the gateway, which accepts namespace tokens of builders and fetchers. Empty: they reach the store
    directly, with its credentials."""
    announces: bool = False
    """True if the operator can announce active generations through the gateway."""
    watches_sources: bool = False
    """True if a changed source is built at once."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The environment for reaching the store, as it is now. Empty behind a gateway."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables such as AWS_ACCESS_KEY_ID, without prefix."""
    digest: str = ""
    """Digest of the environment; empty if there is no access."""
    problem: str | None = None
    """Why there is no access, as a sentence."""


class NotAnnounced(Exception):
    """The store does not have the announcement, or its state is unknown; a retry may succeed."""


Manifest = dict[str, Any]
"""A Kubernetes object, as JSON."""
JobState = Literal["Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class ObservedDataset:
    """A LookupDataset as the API server holds it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    """``metadata.generation``, which grows with every change of the spec."""
    spec: Mapping[str, Any]
    """The completed spec, as JSON; fields that only pods use are read from here."""
    parsed: DatasetSpec | None
    """The part of the spec for builder, server and router; None if it cannot be used."""
    problem: str | None = None
    """Why the spec cannot be used; None if it can."""
    status: DatasetStatus = field(default_factory=DatasetStatus)
    status_problem: str | None = None
    """Why the status cannot be read. Then the operator does nothing, so that no number is claimed twice."""
    refresh: str = ""
    """The value of the refresh annotation, or its hash if it is long."""
    override_gates: str = ""
    """The value of the override-gates annotation: a generation's name, or empty."""
    promote: str = ""
    """The value of the promote annotation: the generation that may take effect."""
    reject: str = ""
    """The value of the reject annotation: the generation that must not be served."""
    assigned: str = ""
    """The value of the operator annotation: the identity that may act; empty: any operator."""
    deleting: bool = False
    renderings: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """A cache of what ``plan.turns`` derives from the spec, shared by all versions of the dataset that have this
    spec.
    """

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def own_store(self) -> Mapping[str, Any] | None:
        """``spec.store``; None if the generations are in the release's store."""
        return self.spec.get("store")


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One existing object. It is deleted only if it still has this uid."""

    kind: str
    name: str
    uid: str
    by_force: bool = False
    """For a pod: delete without waiting for its kubelet."""


@dataclass(frozen=True, slots=True)
class ExistingObject:
    """An object of the dataset. Decisions only ask whether it is still as the operator wrote it."""

    ref: ObjectRef
    digest: str
    """The digest annotation; empty if absent."""
    rollout: str = ""
    """The rollout label, if any."""
    generation: str = ""
    """The generation label, if any."""
    table_version: int = 0
    """The table-version annotation of the routing table."""
    text_version: int = 0
    """For the routing table: the version in its text, which routers read."""
    content: str = ""
    """For the routing table: a mark that identifies the content that routers read (``manifests.content_mark``)."""
    replicas: int = 0
    """For a Deployment: the number of pods in its spec, set by the operator or by an autoscaler."""
    nodes: int = 0
    """For a DaemonSet: the number of nodes it should run on."""
    ready_nodes: int = 0
    """For a DaemonSet: the number of nodes on which it is ready."""
    changed: str = ""
    """Hash of the operator's fields after somebody else changed one; empty if nobody did."""
    changed_by: str = ""
    """The other manager that set the number of pods or last changed the object; empty if none."""
    deleting: bool = False
    trouble: Trouble | None = None
    """The obstacle, from its status or from Warning events."""
    push_state: JobState | None = None
    """For a rollout's push: whether it ended. The time is left out, because it is from another clock."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod, or an object that should create pods, is stuck. ``reason`` is one of ``plan.reasons``."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A builder's termination message: the JSON line of ``lookupdb build``."""

    outcome: Literal["built", "adopted", "unchanged", "waiting", "failed"]
    generation: str = ""
    fingerprint: str = ""
    records: int = 0
    file_bytes: int = 0
    largest_shard_bytes: int = 0
    built_at: str = ""
    source_modified_at: str = ""
    seconds: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    success_file: str = ""
    """The identity of the success file, if the spec names one."""
    adopted_from: str = ""
    """``uid/gN`` of the earlier dataset whose generation was copied; empty if none."""
    next_free: str = ""
    """With reason GenerationExists: the generation to build instead."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion of an object, which has begun."""

    due: datetime
    """End of its grace period."""
    finalizers: tuple[str, ...] = ()
    """The first finalizers that delay it further, shortened."""


@dataclass(frozen=True, slots=True)
class Absence:
    """How long a pod has been unready, and how long its deletion has lasted, in seconds."""

    unready: float = 0.0
    deleting: float = 0.0


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the dataset."""

    name: str
    uid: str
    component: str
    ip: str = ""
    rollout: str = ""
    shard: int = -1
    generation: str = ""
    """The generation label of builders and shard servers."""
    table_version: str = ""
    """The table-version annotation of routers."""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    unready_since: str = ""
    """When the pod became unready, by another machine's clock, so it is only compared for equality. Empty: ready."""
    lost_after: Absence | None = None
    """For an unready pod that is being deleted: how long the operator must see both before it stops waiting for the
    kubelet."""
    trouble: Trouble | None = None
    """The obstacle, from its status or from Warning events."""
    result: BuildResult | None = None
    """The result of a builder that has ended and reported one."""
    deletion: Deletion | None = None
    """Its deletion, if under way."""


@dataclass(frozen=True, slots=True)
class BuildJob:
    """The Job of a build."""

    ref: ObjectRef
    generation: str
    digest: str
    state: JobState
    failure: Trouble | None = None
    """Why Kubernetes gave up (deadline), or cannot start its pod (quota)."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ShardSet:
    """The StatefulSet of a shard."""

    ref: ObjectRef
    rollout: str
    generation: str
    shard: int
    digest: str
    replicas: int
    """The number in its spec."""
    ready: int
    """Ready pods in its status; 0 until its controller has seen the newest spec."""
    changed: str = ""
    """Hash of the operator's fields after somebody else changed one; empty if nobody did."""
    changed_by: str = ""
    """The other manager that set the number of pods or last changed the object; empty if none."""
    trouble: Trouble | None = None
    """The obstacle, from its status or from Warning events."""
    deleting: bool = False
    password_key: str = ""
    """The password-key label."""
    deletion: Deletion | None = None
    """Its deletion, if under way."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """The report of a router's admin port."""

    table_version: int | None
    """The lowest version that any worker uses; None if a worker has no table or nothing was reported."""
    problem: str = ""
    """Why its report is unusable, or what it reports as wrong; empty if nothing."""
    newest: int = 0
    """The highest version that any worker uses; 0 if none reports one."""
    is_empty: bool = False
    """True if no worker has a table: the router answers nobody."""
    generations: frozenset[str] = frozenset()
    """The active generations in its workers' tables."""
    digests: frozenset[str] = frozenset()
    """Digests of its workers' tables (``digest_table``); older routers report none."""
    missing_keys: frozenset[str] = frozenset()
    """Fingerprints of required keys that are not mounted or do not match their name."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """An object of an earlier dataset of the same name that Kubernetes has not collected yet. It is never a pod: the
    labels of pods tell the datasets apart.
    """

    kind: str
    name: str
    uid: str
    """The uid of the earlier dataset."""
    orphaned: bool = False
    """True if it stays until somebody deletes it, because it has no owner left."""


@dataclass(frozen=True, slots=True)
class Unattended:
    """Why this operator leaves a dataset alone, and what to do if no other operator takes it."""

    reason: str
    """One of ``plan.reasons``."""
    message: str
    operator: str = ""
    """The identity of the operator that should act; empty if there is no other."""


@dataclass(frozen=True, slots=True)
class Contest:
    """An object that somebody changes back or deletes whenever it is written."""

    kind: str
    name: str
    mark: str
    """Mark of the written manifest (``manifests.write_mark``)."""
    is_held: bool
    """True if the same manifest must not be written now."""
    by: str = ""
    """The manager that changes it; empty if it is deleted or unknown."""


@dataclass(frozen=True, slots=True)
class AnnouncementReport:
    """The result of an announcement."""

    written: Announcement | None = None
    """The announcement that the store has."""
    problem: str = ""
    """Why retries have failed for a while; empty if they have not."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether a dataset has a build or rollout slot now. The decision takes all datasets into account."""

    is_granted: bool = True
    ahead: int = 0
    """The number of datasets ahead of it."""
    must_yield: bool = False
    """True if it must give up its slot, because it is stuck and others wait."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A dataset's build and rollout slots."""

    build: Turn = Turn()
    rollout: Turn = Turn()


@dataclass(frozen=True, slots=True)
class Observed:
    """One dataset and everything that belongs to it, by its uid."""

    dataset: ObservedDataset
    jobs: tuple[BuildJob, ...] = ()
    shard_sets: tuple[ShardSet, ...] = ()
    pods: tuple[Pod, ...] = ()
    other_objects: tuple[ExistingObject, ...] = ()
    """Service, ConfigMap, Deployment, DaemonSet, PodDisruptionBudget, HorizontalPodAutoscaler, NetworkPolicy."""
    routers: Mapping[str, RouterReport] = field(default_factory=dict)
    """Reports by pod uid; empty if routers were not asked in this pass."""
    predecessors: tuple[Predecessor, ...] = ()
    """Objects of an earlier dataset of this name. They do not belong to this one."""
    refusals: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(kind, name) → why the API server refused the last write."""
    store: StoreAccess = field(default_factory=StoreAccess)
    account_keys: str = ""
    """The public keys of the cluster's service accounts, as routers read them; empty if unknown."""
    turns: Turns = field(default_factory=Turns)
    contests: tuple[Contest, ...] = ()
    lacks_image_volumes: bool = False
    """True if servers need shards from images, but the API server does not keep image volumes."""
    announcement: AnnouncementReport = field(default_factory=AnnouncementReport)
    seconds_confirmed: float = 0.0
    """Time for which this operator has seen the routing table confirmed, by a monotonic clock (``loop.observe``)."""
    absences: Mapping[str, Absence] = field(default_factory=dict)
    """How long this operator has seen each pod unready, by pod uid, on the same clock."""

    @property
    def objects(self) -> tuple[BuildJob | ShardSet | ExistingObject, ...]:
        """Everything that the operator has written for the dataset."""
        return (*self.jobs, *self.shard_sets, *self.other_objects)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next steps: first write ``status``, under the observed resourceVersion, then apply objects in order, then
    delete others. Work may stop after any step.

    The write of the status is also the fence. It happens before any apply or delete even if the status is unchanged, so
    that nothing is done for a dataset that has changed since."""

    status: DatasetStatus
    apply: tuple[Manifest, ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    ask_routers: bool = False
    """True if the next pass must ask the routers."""
    next_look_in: float | None = None
    """Seconds until the next pass if nothing happens before; None: wait for a change."""
    announce: Announcement | None = None
    """The announcement for the store once ``status`` is written; None: nothing."""
    idle_reason: str = ""
    """Why nothing is done (another operator's dataset, being deleted, unreadable status); else empty."""


# Times in the status: ISO 8601 in UTC, whole seconds.
#
# The status never changes because time passes, only at transitions. Everything that is to happen later is compared with
# ``now``.


def format_moment(moment: datetime) -> str:
    """Format ``moment`` for the status: ``2026-01-31T12:00:00Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_moment(text: str) -> datetime:
    """Parse what ``format_moment`` wrote. Raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def add_seconds(moment: datetime, seconds: float) -> str:
    """Format the time ``seconds`` after ``moment``."""
    return format_moment(moment + timedelta(seconds=seconds))


def clamp_moment(moment: str, latest: datetime) -> str:
    """Return ``moment``, or ``latest`` if ``moment`` is over a second later: two clocks are never quite equal."""
    return format_moment(latest) if parse_moment(moment) > latest + timedelta(seconds=1) else moment


def clamp_to_now(moment: str, now: datetime) -> str:
    """Return ``moment`` clamped to ``now`` by ``clamp_moment``; empty if ``moment`` is empty."""
    return clamp_moment(moment, now) if moment else moment


def seconds_until(since: str, seconds: float, now: datetime) -> float:
    """Return how long it is until ``seconds`` have passed since ``since``; 0 when they have. The result is never too
    short, although ``since`` was cut to whole seconds.
    """
    due = parse_moment(since) + timedelta(seconds=seconds + 1)
    return max(0.0, (due - now).total_seconds())


def parse_duration(text: str) -> float:
    """Return the seconds in ``text``: 1800 for ``30m``."""
    return float(int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]])


def remaining_seconds(moment: str, now: datetime) -> float:
    """Return the seconds until ``moment``; 0 when it has passed."""
    return max(0.0, (parse_moment(moment) - now).total_seconds())
