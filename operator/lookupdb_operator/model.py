"""What is observed and what is planned: the vocabulary of ``plan()``. Frozen dataclasses, no decisions, no I/O.

Observed is one dataset with all that belongs to it, as the informers hold it now; Plan is what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from lookupdb.dataset.spec import DatasetSpec
from lookupdb.store.announcement import Announcement
from lookupdb_operator.config import StoreAccess
from lookupdb_operator.status import DatasetStatus

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
    """metadata.generation: grows with every change of the spec."""
    spec: Mapping[str, Any]
    """The completed spec, as JSON: what only pods are made from is read from here."""
    parsed: DatasetSpec | None
    """The same for builder, server and router; None when it cannot be used."""
    problem: str | None = None
    """Why ``parsed`` is None, as a sentence."""
    status: DatasetStatus = field(default_factory=DatasetStatus)
    status_problem: str | None = None
    """Why the status cannot be read: then nothing is done, so that nothing is claimed twice."""
    refresh: str = ""
    """The value of the refresh annotation, or its hash when it is long."""
    override_gates: str = ""
    """The value of the annotation that overrides gates: a generation's name; empty for none."""
    promote: str = ""
    """The value of the promote annotation: the generation that may take effect."""
    reject: str = ""
    """The value of the reject annotation: the generation that is not to be served."""
    assigned: str = ""
    """The value of the operator annotation: the identity that may act; empty for whoever comes first."""
    deleting: bool = False
    renderings: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What ``plan.situation`` has made of the spec: a cache, shared by all versions of the dataset with that spec."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def own_store(self) -> Mapping[str, Any] | None:
        """``spec.store``; None when its generations are in the store of the release."""
        return self.spec.get("store")


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object that exists. Deleted only if it still has this uid."""

    kind: str
    name: str
    uid: str
    by_force: bool = False
    """Of a pod: not even its kubelet is waited for."""


@dataclass(frozen=True, slots=True)
class ExistingObject:
    """One object of the dataset's, of a kind whose content matters only in that it is as we wrote it."""

    ref: ObjectRef
    digest: str
    """The digest annotation; empty when there is none."""
    rollout: str = ""
    """The rollout label, where there is one."""
    generation: str = ""
    """The generation label, where there is one."""
    table_version: int = 0
    """The table-version annotation: of the routing table."""
    text_version: int = 0
    """Of the routing table: the version that its text says, which routers read."""
    content: str = ""
    """What tells contents apart that routers read of the routing table (``manifests.content_mark``)."""
    replicas: int = 0
    """Of a Deployment: how many pods its spec asks for, whoever has written that."""
    nodes: int = 0
    """Of a DaemonSet: on how many nodes it is to run."""
    ready_nodes: int = 0
    """Of a DaemonSet: on how many it is ready."""
    changed: str = ""
    """What our fields of it hash to when somebody else has changed one since; empty when nobody has."""
    changed_by: str = ""
    """Which other manager has set its number of pods, or changed it last; empty when nobody has."""
    deleting: bool = False
    trouble: Trouble | None = None
    """Of a Deployment, or of a rollout's push: why its pods cannot be made (quota), or why the push has failed."""
    push_state: JobState | None = None
    """Of a rollout's push: whether it has ended. Not when: that would be the moment of another machine's clock."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod, or what should make pods, does not get on. ``reason`` is one of ``plan.reasons``."""

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
    seconds: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    success_file: str = ""
    """The identity of the success file, if the spec names one."""
    adopted_from: str = ""
    """``uid/gN`` of the earlier dataset whose generation was copied; empty when none was."""
    next_free: str = ""
    """With the reason GenerationExists: the generation to build instead."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion of an object, which has begun."""

    due: datetime
    """When its grace is over."""
    finalizers: tuple[str, ...] = ()
    """What keeps it beyond that: the first ones, cut."""


@dataclass(frozen=True, slots=True)
class Absence:
    """For how many seconds a pod is not ready, and is being deleted."""

    unready: float = 0.0
    deleting: float = 0.0


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the dataset's."""

    name: str
    uid: str
    component: str
    ip: str = ""
    rollout: str = ""
    shard: int = -1
    generation: str = ""
    """The generation label: of builders and shard servers."""
    table_version: str = ""
    """The table-version annotation: of routers."""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    unready_since: str = ""
    """While it is not ready: since when, as another machine's clock says, which is compared with nothing but itself."""
    lost_after: Absence | None = None
    """While it is being deleted and is not ready: how long the operator must have seen that, until it does not wait any
    more for its kubelet to end it."""
    trouble: Trouble | None = None
    """What keeps it from getting on, from its own status or from Warning events about it."""
    result: BuildResult | None = None
    """Of a builder that has ended and could tell."""
    deletion: Deletion | None = None
    """While it is being deleted."""


@dataclass(frozen=True, slots=True)
class BuildJob:
    """A build's Job."""

    ref: ObjectRef
    generation: str
    digest: str
    state: JobState
    failure: Trouble | None = None
    """Why Kubernetes gave it up (deadline), or cannot start its pod (quota)."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ShardSet:
    """A shard's StatefulSet."""

    ref: ObjectRef
    rollout: str
    generation: str
    shard: int
    digest: str
    replicas: int
    """Wanted, by its spec."""
    ready: int
    """Ready pods, as of its status; 0 while its controller has not seen the newest spec."""
    changed: str = ""
    """What our fields of it hash to when somebody else has changed one since; empty when nobody has."""
    changed_by: str = ""
    """Which other manager has set its number of pods, or changed it last; empty when nobody has."""
    trouble: Trouble | None = None
    """Why its pods cannot be made (quota)."""
    deleting: bool = False
    password_key: str = ""
    """The password-key label."""
    deletion: Deletion | None = None
    """While it is being deleted."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """What a router's admin port reports."""

    table_version: int | None
    """The lowest that any of its workers answers from; None when one has none, or nothing was reported."""
    problem: str = ""
    """Why the table that it is given is not in effect, or why the admin port could not be asked."""
    newest: int = 0
    """The highest that any of its workers answers from; 0 when none reports one."""
    is_empty: bool = False
    """Whether it reports that none of its workers has a table: it answers nobody."""
    generations: frozenset[str] = frozenset()
    """The active generations of the tables that its workers answer from."""
    digests: frozenset[str] = frozenset()
    """Those of the texts of the tables that its workers answer from (``digest_table``); older routers report none."""
    missing_keys: frozenset[str] = frozenset()
    """Fingerprints of keys that it needs, and that are not mounted or are not what they are called."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """An object of an earlier dataset of the same name, which Kubernetes has not collected yet. Pods are none: by
    their labels nothing of ours finds them."""

    kind: str
    name: str
    uid: str
    """Of that dataset."""
    orphaned: bool = False
    """Whether it stays until somebody deletes it: it has no owner any more whose end would be its own."""


@dataclass(frozen=True, slots=True)
class Unattended:
    """Why this operator does nothing about a dataset that asks for something, and what to do when nobody else does."""

    reason: str
    """One of ``plan.reasons``."""
    message: str
    operator: str = ""
    """The identity of the one that should; empty when no other one could."""


@dataclass(frozen=True, slots=True)
class Contest:
    """An object that somebody changes back, or deletes, whenever it is written."""

    kind: str
    name: str
    mark: str
    """Of what was written (``manifests.write_mark``)."""
    is_held: bool
    """Whether the same is not to be written now."""
    by: str = ""
    """Which manager changes it; empty when it is deleted, or nobody says."""


@dataclass(frozen=True, slots=True)
class AnnouncementReport:
    """What has become of what was to be announced in the store."""

    written: Announcement | None = None
    """What the store was seen to have."""
    problem: str = ""
    """Why it does not have what is due, when that has lasted; empty before, and when nothing is due."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether a dataset may build, or roll out, now: ``plan.turn.turn_queues`` says so, which knows all datasets."""

    is_granted: bool = True
    ahead: int = 0
    """How many others come before it."""
    must_yield: bool = False
    """Whether it has its turn and is to give it up, because it does not get on and others wait."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A dataset's turns."""

    build: Turn = Turn()
    rollout: Turn = Turn()


@dataclass(frozen=True, slots=True)
class Observed:
    """One dataset and all that belongs to it (by its uid: what another owner has is not here)."""

    dataset: ObservedDataset
    jobs: tuple[BuildJob, ...] = ()
    shard_sets: tuple[ShardSet, ...] = ()
    pods: tuple[Pod, ...] = ()
    other_objects: tuple[ExistingObject, ...] = ()
    """Service, ConfigMap, Deployment, DaemonSet, PodDisruptionBudget, HorizontalPodAutoscaler, NetworkPolicy."""
    routers: Mapping[str, RouterReport] = field(default_factory=dict)
    """By pod uid; empty when they were not asked for this look."""
    predecessors: tuple[Predecessor, ...] = ()
    """What an earlier dataset of this name has left: nothing of it is this one's, least of all what it serves."""
    refusals: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(kind, name) → why the API server refused our last write of it."""
    store: StoreAccess = field(default_factory=StoreAccess)
    account_keys: str = ""
    """The public keys of the cluster's service accounts, as routers read them; empty while they are not known."""
    turns: Turns = field(default_factory=Turns)
    contests: tuple[Contest, ...] = ()
    lacks_image_volumes: bool = False
    """Whether servers are to have their shards from images, and the API server keeps no such volume."""
    announcement: AnnouncementReport = field(default_factory=AnnouncementReport)
    seconds_confirmed: float = 0.0
    """For how long this operator has seen the dataset's routing table confirmed, by a clock that nobody sets
    (``loop.confirmations``)."""
    absences: Mapping[str, Absence] = field(default_factory=dict)
    """By the uid of each pod that is not ready: for how long this operator has seen that, by the same clock
    (``loop.absences``)."""

    @property
    def object_names(self) -> frozenset[tuple[str, str]]:
        """Kind and name of all that belongs to the dataset."""
        objects: tuple[BuildJob | ShardSet | ExistingObject, ...] = (*self.jobs, *self.shard_sets, *self.other_objects)
        return frozenset(
            {(item.ref.kind, item.ref.name) for item in objects} | {("Pod", pod.name) for pod in self.pods}
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. ``status`` is written first (under the resourceVersion observed), then objects are applied in
    order, then others deleted; each step may be the last that is done.

    That first write is also the fence: when there is anything to apply or delete, it is done even if the status is as
    observed, so that nothing is ever decided from a dataset that has changed since."""

    status: DatasetStatus
    apply: tuple[Manifest, ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    ask_routers: bool = False
    """Whether the routers' admin ports need to be asked at the next look."""
    next_look_in: float | None = None
    """Seconds until the next look, if nothing happens before; None: when something happens."""
    announce: Announcement | None = None
    """What is to be announced in the store, once ``status`` is written; None: nothing."""
    idle_reason: str = ""
    """Why nothing is done at all (another operator's, being deleted, unreadable status); empty otherwise."""
