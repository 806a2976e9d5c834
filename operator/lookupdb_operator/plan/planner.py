"""plan(): from the observed state of one dataset to the actions for it. The decisions are made in this order, and
each sees the results of those before it.

    planner        is the dataset ours to act on?
    lifecycle      times in the status that lie in the future because a clock was set back
    planner        is the spec usable? are all objects of an earlier dataset of this name gone?
    lifecycle      every transition of a generation and of a rollout: recover, build, claim, retire, cut over, trim
    builds         what delays the build that has a build slot
    rollouts       what delays the rollout that has a rollout slot, and which pushes of images have ended
    rollouts       the target: the desired generation and its rollout, found once and handed to everything below
    objects        is the Secret of the store, or of the shard servers' password key, to be written?
    objects        which objects should exist and differ, and which should not exist
    planner        Ready; then Built (builds), RolledOut (cutover), Degraded
    deadlines      when to look again: the earliest one of all of these

A crash between any two writes is safe. The status has everything that the next pass needs. It is written before
anything else, under the version that was observed. A number is claimed there before an object carries it. What a
transition removes is gone from the status before its objects are deleted. So an operator may end at any point. The
next pass plans again from the status and the existing objects, with the same result.

The one exception is Secrets, which the operator cannot read. The status notes each write of one in advance. If
the operator ends in between, the store's Secret stays stale until a build or a rollout begins, the credentials change
again, or a pod is in trouble because of the store. The Secret of the password key is recreated when a router reports
that it lacks the key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from lookupdb.wording import format_count, format_some
from lookupdb_operator import names
from lookupdb_operator.model import (
    Absence,
    Config,
    ObjectRef,
    Observed,
    ObservedDataset,
    Plan,
    Pod,
    Predecessor,
    Trouble,
    Unattended,
    format_moment,
    parse_moment,
    seconds_until,
)
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import (
    builds,
    cutover,
    generations,
    lifecycle,
    objects,
    reasons,
    rollouts,
    routing_tables,
    turns,
    windows,
)
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import (
    BUILT,
    CONDITIONS,
    DEGRADED,
    READY,
    ROLLED_OUT,
    Condition,
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    replace,
)


def plan(observed: Observed, config: Config, now: datetime) -> Plan:
    """Return what to do about ``observed`` at ``now``, with a time zone. A second call asks for nothing more."""
    dataset = observed.dataset
    idle_reason = why_idle(dataset, config)
    if idle_reason:  # the status is not ours: nothing in it is read
        return Plan(status=dataset.status, idle_reason=idle_reason)
    status = lifecycle.clamp_moments(dataset.status, now)
    status = replace(status, operator=config.identity, endpoint=find_endpoint(dataset))
    if dataset.parsed is None:
        return plan_invalid(status, observed, now)
    if observed.predecessors and not (status.last_generation or status.last_rollout or status.table):
        return plan_waiting(status, observed, now)
    situation = Situation.from_observed(observed, config, now)
    status = lifecycle.advance(status, situation)
    status = builds.note_stall(status, situation)
    status = rollouts.note_stalls(status, situation)
    status = rollouts.note_push_ends(status, observed, now)
    target = rollouts.find_target(status, situation)
    deadlines = [turns.next_turn_in(status, now), turns.next_check_in(status, now)]
    status, store_secret, next_store_write_in = objects.plan_store_secret(status, situation)
    status, key_secret, next_key_write_in = objects.plan_key_secret(status, situation)
    deadlines += [next_store_write_in, next_key_write_in]
    status = objects.note_announced(status, situation)
    apply, delete = objects.plan_changes(status, target, (*store_secret, *key_secret), situation)
    reported_situation = replace(situation, observed=objects.with_pending_refusals(apply, observed))
    deadlines.append(objects.next_look_in(apply, reported_situation.observed))
    deadlines.append(rollouts.next_push_in(status, situation))
    status = with_serving_status(status, observed)
    oldest = _find_oldest(status)
    status = replace(status, last_refreshed="" if oldest is None else oldest.refreshed_at)
    ready = assess(status, reported_situation)
    built = builds.assess(status, target, reported_situation)
    rolled_out = cutover.assess(status, target, reported_situation)
    deadlines += [*ready.deadlines, *built.deadlines, *rolled_out.deadlines]
    deadlines.append(remaining_freshness(status, situation))
    return Plan(
        ask_routers=cutover.needs_reports(status),
        status=set_conditions(status, reported_situation, serving=ready, build=built, rollout=rolled_out),
        apply=apply,
        delete=(*delete, *find_lost_pods(observed)),
        next_look_in=reasons.find_earliest(deadlines),
        announce=objects.find_due(status, situation),
    )


# The four conditions of a dataset. This module judges Ready and Degraded, and dates and bounds all four; ``builds``
# judges Built, ``cutover`` RolledOut. No decision reads a condition.
#
# Ready, Built and RolledOut are each a list of checks in order. The first check that applies gives the verdict.
#
# Degraded takes its reason from the first fault, and lists the first three, in this order:
#
#     fault                                                  found by
#     the routers' pods cannot be made; servers of a         diagnose_serving
#     rollout in effect, or routers, are not ready
#     no store credentials; a write that the API server      _diagnose_writes
#     refuses; an object that another writer changes back
#     the active generation is not announced in the store    _diagnose_writes
#     an earlier dataset has left objects for good           diagnose_orphans
#     the build makes no progress, gave its slot up,         builds.diagnose_build
#     or has failed
#     a candidate's servers do not get ready, or it          rollouts.diagnose_candidate
#     gave its slot up
#     routers do not take up the routing table               cutover.diagnose_table
#     replaced servers are not deleted, and shards wait      windows.diagnose_leftovers
#     the served data are too old                            diagnose_staleness
#
# The sentences about pods and Jobs come from ``cluster.workloads``. ``reasons.write_sentence`` adds the remedy, from
# ``reasons.REMEDIES``. The message ends with what keeps serving, and with the next attempt at a build
# (``builds.describe_next_attempt``). For datasets that the operator leaves alone, see the end of this module.


# Ready: the servers and routers that should be ready, and pods on lost nodes.
#
# A StatefulSet makes no second pod of a name while the first one exists, so a shard would lack a server for as long as
# its node is away. A shard server always serves the same data, and a router keeps nothing: two of one name do no harm
# if the node comes back. So the operator has Kubernetes forget the old one. A builder writes, so its end is awaited.
#
# A pod that is deleted by force does not drain. So a second counts only if this operator has seen it pass
# (``loop.observe.Absences``). After a restart it counts from zero.


READY_WITHIN: Final = 15.0
"""Seconds, after a routing table was confirmed, in which routers may become ready: several of their probes."""
_FORCE_AGAIN_AFTER: Final = 300.0
"""Seconds until the deletion by force of a pod is repeated if the pod is still there, held by a finalizer."""
_UNSEEN: Final = Absence()
_MAX_SHARDS: Final = 10
"""Maximum number of shards named in one message."""


def assess(status: DatasetStatus, situation: Situation) -> Assessment:
    """Judge Ready, find missing servers and routers, and say when routers should be ready or a pod counts as lost."""
    observed = situation.observed
    settled_in = None if count_ready_routers(observed) else remaining_settling(status, situation.now)
    return Assessment(
        judge_ready(status, observed),
        tuple(diagnose_serving(status, situation)),
        (settled_in, next_lost_pod_in(observed)),
    )


def with_serving_status(status: DatasetStatus, observed: Observed) -> DatasetStatus:
    """Return ``status`` with its fields for people and the scale subresource, about the active generation and its
    rollout."""
    dataset, table = observed.dataset, status.table
    active = status.find_generation(status.generation)
    daemons = (item for item in observed.other_objects if item.ref.kind == "DaemonSet" and not item.deleting)
    status = replace(
        status,
        built_at="" if active is None else active.built_at,
        synced_nodes=next((f"{item.ready_nodes}/{item.nodes}" for item in daemons if item.nodes), ""),
    )
    serving = windows.serving_rollouts(status)
    rollout = next((rollout for rollout in serving if 0 in windows.routed_shards(rollout, status)), None)
    if table is None or rollout is None:
        return replace(status, shards="", replicas=0, selector="")
    shards = generations.count_shards(status, rollout)
    lacking = sum(
        len(count_lacking_servers(other, windows.routed_shards(other, status), 1, observed)) for other in serving
    )
    # It selects one shard's pods: an autoscaler of the scale subresource divides what they use by ``replicas``.
    chosen = names.selector(dataset.name, dataset.uid, SHARDS, rollout.rollout, shard=0)
    return replace(
        status,
        shards=f"{shards - lacking}/{shards}",
        replicas=windows.count_replicas(rollout.rollout, observed),
        selector=",".join(f"{label}={value}" for label, value in chosen.items()),
    )


def shards_in_effect(status: DatasetStatus) -> tuple[tuple[RolloutStatus, frozenset[int]], ...]:
    """The rollouts that routers may now answer from, each with its shards."""
    table = status.table
    if table is None:
        return ()
    if table.confirmed_at:
        serving = windows.serving_rollouts(status)
        return tuple((rollout, windows.routed_shards(rollout, status)) for rollout in serving)
    referenced = (rollout for rollout in status.rollouts if rollout.referenced_replicas)
    return tuple((rollout, windows.referenced_shards(rollout, status)) for rollout in referenced)


def count_lacking_servers(
    rollout: RolloutStatus, shards: Collection[int], needed_servers: int, observed: Observed
) -> dict[int, int]:
    """Shard → number of ready servers that tables reference, for those of ``shards`` with fewer than
    ``needed_servers``."""
    ready = dict.fromkeys(sorted(shards), 0)
    for pod in observed.pods:
        if pod.component != SHARDS or pod.rollout != rollout.rollout or not pod.ready or pod.deleting:
            continue
        if windows.read_ordinal(pod) in range(rollout.referenced_replicas) and pod.shard in ready:
            ready[pod.shard] += 1
    return {shard: count for shard, count in ready.items() if count < needed_servers}


def count_ready_routers(observed: Observed) -> int:
    """Number of routers that take requests."""
    return sum(pod.ready for pod in routing_tables.list_live_routers(observed))


def judge_ready(status: DatasetStatus, observed: Observed) -> Verdict:
    """Judge Ready: are lookups answered, for every shard, by servers that routers use now?"""
    return reasons.judge(READY_CHECKS, status, observed)


def _check_status_lost(status: DatasetStatus, observed: Observed) -> Verdict | None:
    lost = [rollout.rollout for rollout in status.rollouts if rollout.referenced_replicas]
    if status.table is not None or not lost:
        return None
    kept = ", ".join(names.rollout(observed.dataset.name, rollout) for rollout in lost)
    return Verdict(
        "Unknown",
        reasons.STATUS_LOST,
        f"The status was lost or set back, so the active generation is unknown. {kept} stays until a new"
        " generation serves.",
    )


def _check_nothing_served(status: DatasetStatus, observed: Observed) -> Verdict | None:
    if cutover.has_served(status):
        return None
    return Verdict("False", reasons.NO_ROUTING_TABLE, "Nothing is rolled out yet; lookups are answered 503.")


def _check_shards(status: DatasetStatus, observed: Observed) -> Verdict | None:
    for rollout, shards in shards_in_effect(status):
        lacking = [str(shard) for shard in count_lacking_servers(rollout, shards, 1, observed)]
        if lacking:
            which = f"shard {lacking[0]}" if len(lacking) == 1 else f"shards {format_some(lacking, _MAX_SHARDS)}"
            where = names.rollout(observed.dataset.name, rollout.rollout)
            return Verdict(
                "False",
                reasons.SHARDS_UNAVAILABLE,
                f"No server of {where} is ready for {which}: lookups of keys there are answered 503.",
            )
    return None


def _check_routers(status: DatasetStatus, observed: Observed) -> Verdict | None:
    if count_ready_routers(observed):
        return None
    return Verdict("False", reasons.NO_ROUTER_READY, "No router is ready: requests are not answered.")


def _check_serving(status: DatasetStatus, observed: Observed) -> Verdict:
    if status.table is not None and status.table.is_mixed:
        which = windows.describe_serving(status)
        return Verdict("True", reasons.SERVING, f"{which}, shard by shard, at {status.endpoint}.")
    return Verdict(
        "True",
        reasons.SERVING,
        f"{status.generation} serves {format_count(status.records, 'record')} at {status.endpoint}.",
    )


READY_CHECKS: Final = (
    _check_status_lost,  # something serves, and the status does not know what
    _check_nothing_served,
    _check_shards,  # a shard has no ready server
    _check_routers,  # no router is ready
    _check_serving,
)
"""The checks of Ready, in order: the first that applies gives the verdict."""


def diagnose_serving(status: DatasetStatus, situation: Situation) -> Iterator[Trouble]:
    """Servers and routers that should be ready and are not."""
    observed = situation.observed
    yield from (other.trouble for other in observed.other_objects if other.trouble is not None and not other.deleting)
    for rollout, shards in shards_in_effect(status):
        lacking = count_lacking_servers(rollout, shards, rollout.referenced_replicas, observed)
        if lacking:
            shard, ready = next(iter(lacking.items()))
            shard_set = names.shard_set(observed.dataset.name, rollout.rollout, shard)
            others = format_count(len(lacking) - 1, "other shard")
            more = f", and servers of {others} are not ready either" if len(lacking) > 1 else ""
            what = f"{shard_set} has {ready} of {format_count(rollout.referenced_replicas, 'server')} ready{more}"
            pods = (pod for pod in observed.pods if pod.rollout == rollout.rollout and not pod.ready)
            trouble = _with_pod_trouble(reasons.SHARDS_UNAVAILABLE, what, pods)
            trouble = generations.with_loss_advice(trouble, rollout.generation, status, situation)
            yield rollouts.with_next_push(trouble, rollout, status, situation)
    live = routing_tables.list_live_routers(observed)
    is_settling = remaining_settling(status, situation.now) > 0 and all(pod.trouble is None for pod in live)
    if cutover.has_served(status) and not count_ready_routers(observed) and not is_settling:
        yield _with_pod_trouble(reasons.NO_ROUTER_READY, "No router is ready", live)
        return
    for pod in live:
        if pod.trouble is not None and not pod.ready:
            yield Trouble(pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
            return


def _with_pod_trouble(reason: str, what: str, pods: Iterable[Pod]) -> Trouble:
    """Return the trouble ``what``, with the message of the first of ``pods`` that is in trouble."""
    for pod in pods:
        if pod.trouble is not None:
            return Trouble(pod.trouble.reason, f"{what}; {pod.name}: {pod.trouble.message}")
    return Trouble(reason, what)


def remaining_settling(status: DatasetStatus, now: datetime) -> float:
    """Seconds for which routers with a new table may still be unready, because their probes notice late."""
    table = status.table
    if table is None or not table.confirmed_at:
        return 0.0
    return seconds_until(table.confirmed_at, READY_WITHIN, now)


def find_lost_pods(observed: Observed) -> tuple[ObjectRef, ...]:
    """The pods that are to be deleted by force."""
    return tuple(ObjectRef("Pod", pod.name, pod.uid, by_force=True) for pod, wait in _list_waits(observed) if wait <= 0)


def next_lost_pod_in(observed: Observed) -> float | None:
    """Seconds until the next deletion by force, first or repeated; None if no pod may be lost."""
    return min((wait if wait > 0 else _FORCE_AGAIN_AFTER for _, wait in _list_waits(observed)), default=None)


def _list_waits(observed: Observed) -> Iterator[tuple[Pod, float]]:
    """The servers and routers that may be lost, each with the seconds until it counts as lost."""
    for pod in observed.pods:
        if pod.component in (names.SHARDS, names.ROUTER) and pod.lost_after is not None:
            seen = observed.absences.get(pod.uid, _UNSEEN)
            yield pod, max(pod.lost_after.unready - seen.unready, pod.lost_after.deleting - seen.deleting)


# The age of the served data counts from the start of the build that last read their source, or found it unchanged. A
# generation that is built and not served yet does not count. If several serve, shard by shard or while routers change
# from one to the other, the oldest counts.


def _find_oldest(status: DatasetStatus) -> GenerationStatus | None:
    """Return the serving generation whose source was checked the longest ago."""
    if not status.generation:
        return None
    table = status.table
    # The active generation counts until every router has left it.
    names = [status.generation] if table is None or not table.confirmed_at else []
    if table is not None:
        names += [table.generation, *(part.generation for part in table.parts)]
    known = map(status.find_generation, names)
    serving = [generation for generation in known if generation is not None and generation.refreshed_at]
    return min(serving, key=lambda generation: parse_moment(generation.refreshed_at), default=None)


def diagnose_staleness(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Return why the served data are too old; None while they are not."""
    oldest = _find_oldest(status)
    if oldest is None or remaining_freshness(status, situation) != 0.0:
        return None
    limit = situation.desired.spec.refresh.stale_after_seconds
    return Trouble(
        reasons.STALE,
        f"{oldest.generation} holds the source as it was at {status.last_refreshed}, which is more than"
        f" refresh.staleAfterSeconds ({limit}) ago",
    )


def remaining_freshness(status: DatasetStatus, situation: Situation) -> float | None:
    """Return the seconds until the served data are too old; None if there is no limit."""
    limit = situation.desired.spec.refresh.stale_after_seconds
    if limit is None or not status.last_refreshed:
        return None
    return seconds_until(status.last_refreshed, limit, situation.now)


# The one word that ``kubectl get`` shows of a dataset: a summary for people. No decision reads it.
#
# Several phases may hold at once, for example a refresh that is built while a generation is pinned. The word is the
# first that holds: problems that need a person come before states that end by themselves.


PHASES: Final = {
    "Invalid": "the spec is unusable; the active generation keeps serving",
    "Waiting": "an earlier dataset of this name is not gone yet",
    "Recovering": "the status was lost; existing servers are kept until a new generation serves",
    "Unavailable": "lookups are not answered, though a generation was rolled out",
    "Suspended": "`spec.suspend`: nothing is built or rolled out",
    "GateClosed": "the newest generation did not pass a gate",
    "Stuck": "a build or a rollout failed, or makes no progress",
    "Degraded": "something else is wrong; lookups are answered",
    "RollingOut": "the servers of a rollout start, take over or end",
    "Queued": "it waits for a build slot or a rollout slot",
    "CandidateWaiting": "a generation waits for promotion, beside the active one",
    "Pinned": "`spec.generation` serves, whatever is built",
    "RolledBack": "the newest generation was replaced by a rollback, and waits for another source",
    "Rejected": "the newest generation was rejected, and waits for another source",
    "WaitingForSource": "the success file of the source is not there yet",
    "Building": "a build is under way, or about to begin",
    "Ready": "the desired generation serves",
    "Pending": "none of these; something begins",
}
"""Phase → what it means, in the order of ``find_phase``."""
_NO_CONDITION: Final = Condition("", "Unknown", "", "")


def find_phase(status: DatasetStatus, spec: Mapping[str, Any]) -> str:
    """Return the word for ``status``, whose conditions must be up to date, and ``spec``, which may be unusable."""
    found = {condition.type: condition for condition in status.conditions}
    ready, built, rolled_out, degraded = (found.get(kind, _NO_CONDITION) for kind in CONDITIONS)
    if built.reason == reasons.INVALID_SPEC:
        return "Invalid"
    if built.reason in (reasons.WAITING_FOR_PREDECESSOR, reasons.PREDECESSOR_ORPHANED):
        return "Waiting"
    if ready.reason == reasons.STATUS_LOST:
        return "Recovering"
    if ready.status == "False" and status.table is not None:
        return "Unavailable"
    if spec.get("suspend"):
        return "Suspended"
    if status.failure is not None and status.failure.reason == reasons.GATE_CLOSED:
        return "GateClosed"
    if {built.reason, rolled_out.reason} - reasons.HEALTHY_REASONS - {""}:
        return "Stuck"
    if degraded.status == "True":
        return "Degraded"
    if rolled_out.reason in (reasons.STARTING_SERVERS, reasons.CONFIRMING, reasons.DRAINING):
        return "RollingOut"
    if reasons.WAITING_FOR_TURN in (built.reason, rolled_out.reason):
        return "Queued"
    if rolled_out.reason == reasons.CANDIDATE_WAITING:
        return "CandidateWaiting"
    if spec.get("generation"):
        return "Pinned"
    if rolled_out.reason == reasons.ROLLED_BACK:
        return "RolledBack"
    if rolled_out.reason == reasons.REJECTED:
        return "Rejected"
    if built.reason == reasons.WAITING_FOR_SOURCE:
        return "WaitingForSource"
    if built.reason == reasons.BUILDING:
        return "Building"
    return "Ready" if rolled_out.reason == reasons.UP_TO_DATE else "Pending"


_MAX_MESSAGE_CHARACTERS: Final = 4000
_MAX_TROUBLES: Final = 3
"""Maximum number of faults in one message."""
_MAX_OBJECTS: Final = 3


def set_conditions(
    status: DatasetStatus, situation: Situation, *, serving: Assessment, build: Assessment, rollout: Assessment
) -> DatasetStatus:
    """``status`` with all conditions as they are now."""
    observed = situation.observed
    found = (*serving.troubles, *_diagnose_writes(observed), diagnose_orphans(observed), *build.troubles)
    troubles = filter(None, (*found, *rollout.troubles, diagnose_staleness(status, situation)))
    verdicts = {
        READY: serving.verdict,
        BUILT: build.verdict,
        ROLLED_OUT: rollout.verdict,
        DEGRADED: judge_degraded(
            status, tuple(dict.fromkeys(troubles)), serves=serving.verdict.status == "True", outlook=build.outlook
        ),
    }
    return date_conditions(status, verdicts, situation.dataset, situation.now)


def date_conditions(
    status: DatasetStatus, verdicts: dict[str, Verdict], dataset: ObservedDataset, now: datetime
) -> DatasetStatus:
    """``status`` with these conditions and their phase. The time of a condition changes when its status does."""
    conditions = []
    for kind, verdict in verdicts.items():
        before, moment = status.condition(kind), format_moment(now)
        if before is not None and before.status == verdict.status:
            moment = before.last_transition_time or moment
        message = reasons.shorten(verdict.message, _MAX_MESSAGE_CHARACTERS)
        conditions.append(Condition(kind, verdict.status, verdict.reason, message, dataset.generation, moment))
    status = replace(status, conditions=tuple(conditions), observed_generation=dataset.generation)
    return replace(status, phase=find_phase(status, dataset.spec))


def judge_degraded(status: DatasetStatus, troubles: tuple[Trouble, ...], *, serves: bool, outlook: str = "") -> Verdict:
    """Degraded: ``serves`` says whether lookups are answered, ``outlook`` when it may get better."""
    if not troubles:
        return Verdict("False", reasons.HEALTHY, "Nothing is wrong.")
    sentences = " ".join(
        reasons.write_sentence(trouble.reason, trouble.message) for trouble in troubles[:_MAX_TROUBLES]
    )
    more = f" And {len(troubles) - _MAX_TROUBLES} more." if len(troubles) > _MAX_TROUBLES else ""
    keeps = f" {status.generation} keeps serving." if serves else ""
    return Verdict("True", troubles[0].reason, f"{sentences}{more}{keeps}{outlook}")


def _diagnose_writes(observed: Observed) -> Iterator[Trouble]:
    """Objects that cannot be written, or that another writer changes."""
    problem = observed.store.problem
    if problem is not None and observed.dataset.own_store is None:
        yield Trouble(reasons.STORE_CREDENTIALS_MISSING, problem)
    yield from reasons.list_refusals(observed)
    for contest in observed.contests:
        what = f"is changed by the field manager {contest.by!r}" if contest.by else "is changed or deleted by somebody"
        yield Trouble(
            reasons.CONTESTED,
            f"{contest.kind} {contest.name} {what} again and again; it is restored at most every five minutes",
        )
    if observed.announcement.problem:
        what = "The generation that routers serve is not announced in the store, so `lookupdb sync` lags behind"
        yield Trouble(reasons.ANNOUNCEMENT_FAILED, f"{what}: {observed.announcement.problem}")


def diagnose_orphans(observed: Observed) -> Trouble | None:
    """Objects that stay until somebody deletes them, with the command that does."""
    orphans = [predecessor for predecessor in observed.predecessors if predecessor.orphaned]
    if not orphans:
        return None
    plurals = ",".join(sorted({names.find_kind(orphan.kind).plural for orphan in orphans}))
    labels = [f"{names.DATASET_UID}={uid}" for uid in sorted({orphan.uid for orphan in orphans})]
    commands = " and ".join(f"kubectl delete -n {observed.dataset.namespace} {plurals} -l {label}" for label in labels)
    return Trouble(
        reasons.PREDECESSOR_ORPHANED,
        f"An earlier dataset of this name has left {_list_names(orphans)}, which Kubernetes does not collect; delete"
        f" them: {commands}",
    )


def _list_names(predecessors: Iterable[Predecessor]) -> str:
    objects = [f"{predecessor.kind} {predecessor.name}" for predecessor in predecessors]
    more = f" and {len(objects) - _MAX_OBJECTS} more" if len(objects) > _MAX_OBJECTS else ""
    return ", ".join(objects[:_MAX_OBJECTS]) + more


# Datasets that the operator leaves alone. It does nothing about a dataset that is being deleted, belongs to another
# operator, or has an unreadable status or an unusable spec, or while an earlier dataset of its name is collected.
#
# Kubernetes collects the objects of a dataset a while after it is gone. Until then its servers and its routing table
# hold the old data, under names that its successor needs.


_MAX_PROBLEM_CHARACTERS: Final = 300


def why_idle(dataset: ObservedDataset, config: Config) -> str:
    """Why this operator leaves ``dataset`` alone, as a sentence; empty if it is ours. Two operators would undo each
    other's work forever. The annotation decides; without it, the operator that came first."""
    if dataset.deleting:
        return "it is being deleted: Kubernetes collects what belongs to it"
    unattended = diagnose_unattended(dataset, config)
    return "" if unattended is None else unattended.message


def find_endpoint(dataset: ObservedDataset) -> str:
    """The URL for lookups. An unusable spec changes no Service: the previous spec still applies."""
    if dataset.parsed is None and dataset.status.endpoint:
        return dataset.status.endpoint
    port = names.HTTP_PORT if dataset.parsed is None else int(dataset.spec["router"]["service"]["port"])
    is_encrypted = dataset.parsed is not None and "tls" in dataset.spec["router"]
    return names.endpoint(dataset.name, dataset.namespace, port, is_encrypted=is_encrypted)


def diagnose_unattended(dataset: ObservedDataset, config: Config) -> Unattended | None:
    """Return why the operator ignores ``dataset``, and the command that changes this. None if it is not ignored."""
    where = f"{dataset.name} -n {dataset.namespace}"
    owner = dataset.assigned or dataset.status.operator
    if owner not in ("", config.identity):
        annotation = f"{names.OPERATOR}={config.identity} --overwrite"
        return Unattended(
            reasons.OTHER_OPERATOR,
            f"It belongs to the operator {owner}; this one, {config.identity}, does nothing about it. If that one is"
            f" gone for good, take the dataset over: kubectl annotate lds {where} {annotation}; or all datasets of the"
            f" cluster: kubectl annotate lds --all --all-namespaces {annotation}",
            owner,
        )
    if dataset.status_problem:
        return Unattended(
            reasons.STATUS_UNREADABLE,
            f"Nothing is done: {reasons.shorten(dataset.status_problem, _MAX_PROBLEM_CHARACTERS)}; active data keeps"
            " serving. Install the operator version that wrote the status, or remove the status so that the data is"
            f" built again: kubectl patch lds {where} --subresource=status --type=json"
            """ -p '[{"op": "remove", "path": "/status"}]'""",
        )
    return None


def plan_invalid(status: DatasetStatus, observed: Observed, now: datetime) -> Plan:
    """The plan for a spec that cannot be used: everything stays, and conditions say why."""
    problem = reasons.write_sentence(reasons.INVALID_SPEC, observed.dataset.problem or "The spec cannot be used")
    verdict = judge_ready(status, observed)
    keeps = f" {status.generation} keeps serving." if verdict.status == "True" else ""
    broken = Verdict("False", reasons.INVALID_SPEC, problem)
    verdicts = {
        READY: verdict,
        BUILT: broken,
        ROLLED_OUT: broken,
        DEGRADED: Verdict("True", reasons.INVALID_SPEC, problem + keeps),
    }
    status = with_serving_status(status, observed)
    return Plan(
        status=date_conditions(status, verdicts, observed.dataset, now),
        delete=find_lost_pods(observed),
        next_look_in=next_lost_pod_in(observed),
    )


def plan_waiting(status: DatasetStatus, observed: Observed, now: datetime) -> Plan:
    """The plan while objects of an earlier dataset exist: conditions only."""
    trouble = diagnose_orphans(observed)
    if trouble is not None:
        waiting = Verdict("False", trouble.reason, trouble.message)
        degraded = Verdict("True", trouble.reason, trouble.message)
    else:
        waiting = Verdict(
            "False",
            reasons.WAITING_FOR_PREDECESSOR,
            f"Kubernetes still collects {_list_names(observed.predecessors)} of an earlier dataset of this name. This"
            " one begins after that.",
        )
        degraded = judge_degraded(status, (), serves=False)
    verdicts = {READY: waiting, BUILT: waiting, ROLLED_OUT: waiting, DEGRADED: degraded}
    status = replace(status, build_ticket=None, rollout_ticket=None)  # it could not use a slot
    return Plan(status=date_conditions(status, verdicts, observed.dataset, now))
