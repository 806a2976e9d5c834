"""A model of one cluster with one dataset, against which ``plan()`` is tested.

It keeps the objects that a plan writes, and does slowly and simply what Kubernetes, builders, servers and routers do:
Jobs run a pod, StatefulSets keep theirs, routers take up the routing table that their kubelet has synced. It checks the
invariants at every step. Each duration is in ``World.takes``; ``NEVER`` stops a thing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from lookupdb_operator import names
from lookupdb_operator.loop.observe import Absences, Confirmation
from lookupdb_operator.manifests import is_made_once, uses_images
from lookupdb_operator.model import (
    BuildResult,
    Config,
    Manifest,
    ObjectRef,
    Observed,
    ObservedDataset,
    Plan,
    Predecessor,
    StoreAccess,
    Trouble,
    Turns,
)
from lookupdb_operator.plan import plan, reasons
from lookupdb_operator.status import DatasetStatus
from operator_support.plan_builder import lacks_secret, need_files, refers_to_secret, run_job, run_push
from operator_support.plan_invariants import Broken, Invariants
from operator_support.plan_objects import (
    NAME,
    NAMESPACE,
    UID,
    Process,
    Takes,
    Thing,
    completed,
    existing,
    is_push,
    label,
)
from operator_support.plan_observed import observe_job, observe_pod, observe_report, observe_set
from operator_support.plan_routers import keep_routers, run_router

NEVER: Final = 1e9
BEGIN: Final = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
CONFIG: Final = Config(image="lookupdb:1", store="s3://lookupdb", cluster="c1")
SPEC: Final[dict[str, Any]] = {
    "source": {"url": "s3://data/v1.csv"},
    "key": {"columns": ["id"]},
    "shards": 2,
    "replicas": 2,
}

Planner = Callable[[Observed, Config, datetime], Plan]
Key = tuple[str, str]


class Conflict(Exception):
    """The dataset was written since it was observed."""


class Refused(Exception):
    """The API server refuses an object."""


@dataclass
class World:
    """The cluster and its clock."""

    planner: Planner = plan
    config: Config = CONFIG
    now: datetime = BEGIN
    takes: Takes = field(default_factory=Takes)
    spec: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(SPEC))
    metadata_generation: int = 1
    refresh: str = ""
    override_gates: str = ""
    promote: str = ""
    reject: str = ""
    assigned: str = ""
    deleting: bool = False
    problem: str | None = None
    version: int = 1
    status: DatasetStatus = field(default_factory=DatasetStatus)
    things: dict[Key, Thing] = field(default_factory=dict)
    pods: dict[str, Process] = field(default_factory=dict)
    store: StoreAccess = field(default_factory=lambda: StoreAccess({"AWS_ACCESS_KEY_ID": "a"}, "d1"))
    secret: Manifest | None = None
    keys: dict[str, Manifest] = field(default_factory=dict)
    """The Secrets of password keys, by name."""
    account_keys: str = ""
    predecessors: tuple[Predecessor, ...] = ()
    refusals: dict[Key, str] = field(default_factory=dict)
    refuses: Callable[[Manifest], str] = lambda manifest: ""
    published: dict[str, str] = field(default_factory=dict)
    """Generation → content, in the store."""
    built_by: dict[str, str] = field(default_factory=dict)
    """Generation → the operator's name for its build."""
    lost: set[str] = field(default_factory=set)
    """Generations that the store has lost: their servers have their files already, or never get them."""
    content_of_source: Callable[[str], str] = lambda url: url
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Generation → what it was judged by, in the store: source, gates, active generation."""
    closes_gate: Callable[[str], bool] = lambda content: False
    """Returns whether a gate rejects a build from this content."""
    has_image_volumes: bool = True
    """True: the API server says that it keeps image volumes."""
    fails_to_push: Trouble | None = None
    """Why no image can be pushed."""
    fails_push_jobs: Trouble | None = None
    """Why a rule of somebody else fails the Job of a push for good."""
    fails: Callable[[dict[str, Any]], BuildResult | Trouble | None] = lambda spec: None
    """The outcome of builds of a spec, if not success."""
    turns: Turns = field(default_factory=Turns)
    loses_nudge: Callable[[], bool] = lambda: False
    """Returns whether kubelets ignore a pod's annotation and do not sync its volumes."""
    reports_digest: Callable[[Process], bool] = lambda pod: True
    """True: routers report the digest of their table; older ones do not."""
    most_servers: int | None = None
    """The most shard pods; None: any number."""
    also_steps: Callable[[float], None] = lambda seconds: None
    """Other events while so many seconds pass here."""
    proves_servers: bool = False
    """True: routers take a table up only when each shard with new servers has one that is ready."""
    fenced: bool = True
    """True: even an unchanged status is written before anything else."""
    writes: int = 0
    asked: bool = False
    invariants: Invariants = field(default_factory=Invariants)
    clock_error: timedelta = timedelta()
    """By how much the clock of the operator's machine is ahead."""
    confirmation: Confirmation = field(init=False)
    absences: Absences = field(init=False)
    made: int = 0
    """Number of objects and pods so far."""
    _completed: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.start_operator()

    def start_operator(self) -> None:
        """Restart the operator's process, which forgets what it has only in memory."""
        self.confirmation, self.absences = Confirmation(self._seconds), Absences(self._seconds)
        self.refusals.clear()

    def _seconds(self) -> float:
        return self.now.timestamp()

    # The desired state.

    def edit(self, **members: Any) -> None:
        """Change members of the spec; None removes one."""
        self.spec |= members
        self.spec = {name: value for name, value in self.spec.items() if value is not None}
        self.metadata_generation += 1
        self.version += 1

    def annotate(self, refresh: str) -> None:
        self.refresh = refresh
        self.version += 1

    def override(self, generation: str) -> None:
        """Set or remove the annotation that overrides gates."""
        self.override_gates = generation
        self.invariants.overridden(generation, self.status)
        self.version += 1

    def annotate_decision(self, *, promote: str | None = None, reject: str | None = None) -> None:
        """Promote or reject a generation; None leaves an annotation unchanged."""
        self.promote = self.promote if promote is None else promote
        self.reject = self.reject if reject is None else reject
        self.version += 1

    @property
    def dataset(self) -> ObservedDataset:
        if not self._completed or self._completed[0] != self.metadata_generation:
            self._completed = (
                self.metadata_generation,
                *completed(orjson.dumps(self.spec, option=orjson.OPT_SORT_KEYS)),
            )
        return ObservedDataset(
            NAMESPACE,
            NAME,
            UID,
            str(self.version),
            self.metadata_generation,
            self._completed[1],
            None if self.problem else self._completed[2],
            self.problem,
            self.status,
            refresh=self.refresh,
            override_gates=self.override_gates,
            promote=self.promote,
            reject=self.reject,
            assigned=self.assigned,
            deleting=self.deleting,
            renderings=self._completed[3],
        )

    # Observations.

    def observe(self) -> Observed:
        """Observe everything as it is now, with the memory of the operator's process."""
        return self.with_memory(self.snapshot())

    def with_memory(self, seen: Observed) -> Observed:
        """Add the memory of the operator's process, and let it remember what it sees."""
        seconds_confirmed = self.confirmation.measure(seen)
        return replace(seen, seconds_confirmed=seconds_confirmed, absences=self.absences.measure(seen))

    def snapshot(self) -> Observed:
        """Observe everything as it is now."""
        reports = {pod.uid: observe_report(self, pod) for pod in self.pods.values() if pod.component == names.ROUTER}
        things = self.things.values()
        return Observed(
            dataset=self.dataset,
            jobs=tuple(
                observe_job(thing) for thing in things if thing.manifest["kind"] == "Job" and not is_push(thing)
            ),
            shard_sets=tuple(observe_set(self, thing) for thing in things if thing.manifest["kind"] == "StatefulSet"),
            pods=tuple(observe_pod(self, pod) for pod in self.pods.values()),
            other_objects=tuple(
                existing(thing)
                for thing in things
                if thing.manifest["kind"] not in ("Job", "StatefulSet") or is_push(thing)
            ),
            routers=reports if self.asked else {},
            predecessors=self.predecessors,
            refusals=dict(self.refusals),
            store=self.store,
            account_keys=self.account_keys,
            turns=self.turns,
            lacks_image_volumes=uses_images(self.dataset) and not self.has_image_volumes,
        )

    def password_of(self, name: str) -> str | None:
        """Return the hash of the password that the servers of the StatefulSet ``name`` ask for; empty for none. None if
        there is no such set."""
        thing = self.things.get(("StatefulSet", name))
        if thing is None:
            return None
        words = thing.manifest["spec"]["template"]["spec"]["containers"][0]["args"]
        return str(words[words.index("--password-sha256") + 1]) if "--password-sha256" in words else ""

    # Writes.

    def look(self, snapshot: Observed | None = None) -> Plan:
        """Return the plan for now without carrying it out. ``snapshot`` is what is there now, if it is known."""
        seen = self.with_memory(snapshot or self.snapshot())
        planned = self.planner(seen, self.config, self.now + self.clock_error)
        changes = planned.apply or planned.delete or planned.status != self.status
        assert changes or planned.next_look_in is None or planned.next_look_in > 0, f"it spins:\n{self.describe()}"
        return planned

    def reconcile(self, snapshot: Observed | None = None) -> Plan:
        """Plan, and carry it out."""
        planned = self.look(snapshot)
        self.carry_out(planned, self.dataset)
        return planned

    def carry_out(self, planned: Plan, seen: ObservedDataset, steps: float = NEVER) -> None:
        """Carry out ``planned``, which was decided from ``seen``, or only its first ``steps``."""
        self.asked = planned.ask_routers
        if planned.status == seen.status and not planned.apply and not planned.delete:
            return
        if self.fenced or planned.status != seen.status:
            self.write_status(planned.status, int(seen.resource_version))
        todo: list[Manifest | ObjectRef] = [*planned.apply, *planned.delete]
        for step in todo:
            steps -= 1
            if steps < 0:
                return
            if isinstance(step, ObjectRef):
                if step.kind == "StatefulSet" and (step.kind, step.name) in self.things:
                    self.invariants.deleted(self.things[step.kind, step.name].manifest, self.status)
                self.delete(step)
            else:
                self.apply(step)

    def write_status(self, status: DatasetStatus, seen: int) -> None:
        if seen != self.version:
            raise Conflict
        if status != self.status:
            self.invariants.lost |= self.lost
            self.invariants.decides(self.status, status, self.dataset)
            self.invariants.claims(self.status, status, self.spec)
            self.status = status
            self.version += 1
            self.writes += 1

    def apply(self, manifest: Manifest) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        self.writes += 1
        why = self.refuses(manifest) or self._refuses_change(key, manifest)
        if key[0] == "StatefulSet":
            self.invariants.scaled(key[1], is_refused=bool(why))
        if why:
            self.refusals[key] = why
            return
        self.refusals.pop(key, None)
        if key[0] == "Secret" and is_made_once(manifest):
            self.keys.setdefault(key[1], manifest)
        elif key[0] == "Secret":
            self.secret = manifest
        elif key[0] == "Pod":
            self._nudge(manifest)
        else:
            self._apply(key, manifest)
        self.check()

    def _refuses_change(self, key: Key, manifest: Manifest) -> str:
        """Return whether a change is refused because a Job is immutable. The operator tries that only after losing its
        status and its view of the cluster at once."""
        before = self.things.get(key)
        if key[0] != "Job" or before is None or not self.invariants.has_forgotten:
            return ""
        return "" if manifest["spec"] == before.manifest["spec"] else "spec.template: field is immutable"

    def _apply(self, key: Key, manifest: Manifest) -> None:
        before = self.things.get(key)
        if key[0] == "StatefulSet" and "template" not in manifest["spec"]:
            if before is not None:
                scaled = {**before.manifest["spec"], "replicas": manifest["spec"]["replicas"]}
                before.manifest = {**before.manifest, "spec": scaled}
            return
        self.invariants.written(manifest, None if before is None else before.manifest)
        if before is None:
            self.made += 1
            self.things[key] = Thing(manifest, f"{key[0]}-{self.made}", self.now, self.now)
        else:
            before.manifest, before.changed = manifest, self.now

    def _nudge(self, manifest: Manifest) -> None:
        pod = self.pods.get(manifest["metadata"]["name"])
        if pod is not None and pod.uid == manifest["metadata"]["uid"]:
            pod.annotation = manifest["metadata"]["annotations"][names.TABLE_VERSION]
            pod.nudged = None if self.loses_nudge() else self.now

    def delete(self, ref: ObjectRef) -> None:
        self.writes += 1
        if ref.kind == "Pod":
            self._end_by_force(ref)
            return
        thing = self.things.get((ref.kind, ref.name))
        if thing is not None and thing.uid == ref.uid:
            del self.things[ref.kind, ref.name]
            for pod in self.pods.values():
                if pod.owner == ref.uid:
                    self.stop(pod)
        self.check()

    def _end_by_force(self, ref: ObjectRef) -> None:
        pod = self.pods.get(ref.name)
        if pod is not None and pod.uid == ref.uid:
            if not pod.is_lost:
                raise Broken(f"{ref.name} is ended by force, and its node is there")
            del self.pods[ref.name]

    def lose(self, pod: Process) -> None:
        """Lose the node of ``pod``: Kubernetes deletes the pod, and nobody there ends it. A Job's pod is collected a
        minute later; the operator must end servers."""
        if pod.component in (names.BUILDER, names.PUSHER):
            pod.dies_at = pod.dies_at or self.now + timedelta(seconds=60)
        elif not pod.is_lost:
            pod.is_lost = True
            pod.dies_at = self.now + timedelta(seconds=NEVER)
            pod.ready, pod.table = False, None

    def stop(self, pod: Process) -> None:
        """Ask a pod to end."""
        pod.deleted_at = pod.deleted_at or self.now
        pod.dies_at = pod.dies_at or self.now + timedelta(seconds=self.takes.stop)

    # Changes by themselves.

    def step(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        for thing in list(self.things.values()):
            if is_push(thing):
                run_push(self, thing)
            elif thing.manifest["kind"] == "Job":
                run_job(self, thing)
            elif thing.manifest["kind"] == "StatefulSet":
                self._keep_servers(thing)
            elif thing.manifest["kind"] == "Deployment":
                keep_routers(self, thing)
        for pod in list(self.pods.values()):
            need_files(self, pod)
            if pod.component == names.ROUTER:
                run_router(self, pod)
            elif pod.component == names.SHARDS and self.age(pod) >= self.takes.start and not lacks_secret(self, pod):
                pod.ready = pod.trouble is None and not pod.is_lost
            if pod.dies_at is not None and self.now >= pod.dies_at and not pod.finalizers:
                del self.pods[pod.name]
        self.check()
        self.also_steps(seconds)

    def when_due(self) -> Callable[[], Plan]:
        """Return what reconciles after a change and when a pass is due, as in a cluster, and returns the plan.

        A planner that remembers something reconciles each time."""
        seen: Observed | None = None
        planned, due = Plan(self.status), self.now

        def reconcile() -> Plan:
            nonlocal seen, planned, due
            snapshot = self.snapshot()
            if snapshot == seen and self.now < due and self.planner is plan:
                rest = None if planned.next_look_in is None else (due - self.now).total_seconds()
                return replace(planned, apply=(), delete=(), next_look_in=rest)
            planned, seen = self.reconcile(snapshot), snapshot
            due = self.now + timedelta(seconds=min(planned.next_look_in or NEVER, NEVER))
            return planned

        return reconcile

    def live(self, seconds: int) -> None:
        """Reconcile and let ``seconds`` pass, one by one."""
        reconcile = self.when_due()
        for _ in range(seconds):
            reconcile()
            self.step()

    def settle(self, seconds: float = 200.0, *, until: Callable[[], bool] | None = None) -> None:
        """Reconcile and let time pass until nothing is left to do, or ``until``."""
        end, reconcile = self.now + timedelta(seconds=seconds), self.when_due()
        while self.now < end:
            planned = reconcile()
            if until is not None and until():
                return
            idle = not planned.apply and not planned.delete and self.is_quiet()
            if until is None and idle and not planned.ask_routers and self.is_settled():
                return
            self.step(max(1.0, min(planned.next_look_in or 1.0, 100.0)) if idle else 1.0)
        assert until is None, f"it has not come to that in {seconds} s:\n{self.describe()}"
        raise AssertionError(f"not all is settled after {seconds} s:\n{self.describe()}")

    def is_settled(self) -> bool:
        """Return whether everything that was asked for serves, and nothing is left to do."""
        truths = {condition.type: (condition.status, condition.reason) for condition in self.status.conditions}
        is_held_back = self.status.table is not None and truths["RolledOut"][1] in (
            reasons.ROLLED_BACK,
            reasons.REJECTED,
        )
        return truths == {
            "Ready": ("True", reasons.SERVING),
            "Built": ("True", reasons.GENERATION_BUILT),
            "RolledOut": (truths["RolledOut"][0] if is_held_back else "True", truths["RolledOut"][1]),
            "Degraded": ("False", reasons.HEALTHY),
        } and truths["RolledOut"][1] in (
            reasons.UP_TO_DATE,
            reasons.PINNED,
            reasons.ROLLED_BACK,
            reasons.REJECTED,
            reasons.SUSPENDED,
        )

    def is_quiet(self) -> bool:
        """Return whether nothing happens by itself."""
        running = (thing.manifest.get("state", "Running") for key, thing in self.things.items() if key[0] == "Job")
        return "Running" not in running and all(
            (pod.ready or pod.ended) and pod.dies_at is None for pod in self.pods.values()
        )

    def describe(self) -> str:
        """Describe what a person would look at."""
        lines = [
            f"{condition.type}={condition.status} {condition.reason}: {condition.message}"
            for condition in self.status.conditions
        ]
        lines += ["/".join(key) for key in self.things]
        lines += [
            f"{pod.name} ready={pod.ready} dies={pod.dies_at} table={pod.table and pod.table['version']} {pod.trouble}"
            for pod in self.pods.values()
        ]
        return "\n".join([*lines, str(replace(self.status, conditions=()))])

    def check(self) -> None:
        """Check the invariants."""
        tables = [pod.table for pod in self.pods.values() if pod.component == names.ROUTER and pod.table]
        sets = {
            (label(thing, names.ROLLOUT), int(label(thing, names.SHARD))): thing.manifest["spec"]["replicas"]
            for thing in self.things.values()
            if thing.manifest["kind"] == "StatefulSet"
        }
        self.invariants.serving(tables, sets, self.now)
        servers = sum(pod.component == names.SHARDS for pod in self.pods.values())
        if self.most_servers is not None and servers > self.most_servers:
            raise Broken(f"there are {servers} servers, and {self.most_servers} are asked for:\n{self.describe()}")

    def age(self, pod: Process) -> float:
        return (self.now - pod.born).total_seconds()

    def _keep_servers(self, thing: Thing) -> None:
        name = thing.manifest["metadata"]["name"]
        wanted = {f"{name}-{ordinal}" for ordinal in range(thing.manifest["spec"]["replicas"])}
        for pod in self.pods.values():
            if pod.owner == thing.uid and pod.name not in wanted:
                self.stop(pod)
        for missing in sorted(wanted - self.pods.keys()):
            self.add(missing, thing, names.SHARDS, thing.manifest)

    def crash(self, pod: Process, seconds: float) -> None:
        """End a router's container, which restarts a while later."""
        pod.down_until = self.now + timedelta(seconds=min(seconds, NEVER))
        pod.ready, pod.table = False, None
        pod.keys.clear()
        pod.trouble = Trouble(reasons.OUT_OF_MEMORY, "container router was killed")

    def add(self, name: str, owner: Thing, component: str, manifest: Manifest) -> None:
        self.made += 1
        labels = manifest["metadata"]["labels"]
        template = orjson.dumps(manifest["spec"]["template"]).decode() if component == names.ROUTER else ""
        pod = Process(name, f"pod-{self.made}", owner.uid, component, labels, self.now, template=template)
        self.pods[name] = replace(pod, needs_secret=refers_to_secret(manifest))
