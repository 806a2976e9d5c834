"""Routing tables. A table references the target rollout, the rollouts that it replaces shard by shard, and perhaps a
candidate. A new table is written when any of these or its number of servers changes. The same table is written under
the next version if routers would not take it up otherwise.

A table waits until enough of the servers that it adds are ready (``rollouts``). Nothing waits for a candidate once a
table references it: routers answer from the active generation whatever becomes of it.

The ConfigMap stays as long as the dataset, whatever the status remembers: routers that start answer from it.
``objects.find_garbage`` never lists it; Kubernetes deletes it with the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lookupdb.router.routing_table import describe_contradiction
from lookupdb.wording import format_count
from lookupdb_operator import manifests, names
from lookupdb_operator.model import ExistingObject, Observed, Pod, RouterReport, ShardSet, format_moment
from lookupdb_operator.names import ROUTER
from lookupdb_operator.plan import generations, reasons, rollouts, windows
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.rollouts import PassTarget
from lookupdb_operator.plan.turns import Situation, render_table
from lookupdb_operator.status import (
    ALL,
    CandidateStatus,
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    TableCandidate,
    TablePart,
    TableStatus,
    format_shards,
    replace,
)

# Versions of routing tables: claimed in the status, written to the ConfigMap, taken up by routers.


_HIGHEST_BELIEVED: Final = 10**14 - 1
"""A version written by hand counts only up to this (14 digits); the next table exceeds it. There is room for more
tables than there will ever be, below the limits of objects (15 digits) and of the status (2**53).
"""


def known_table_version(status: DatasetStatus) -> int:
    """The highest version of a routing table that ``status`` knows, even if it has lost the table itself."""
    return max(status.last_table, 0 if status.table is None else status.table.version)


def newest_table_version(observed: Observed) -> int:
    """The highest version of a routing table that the status, the ConfigMap or a router has; 0 for none."""
    texts = (existing.text_version for existing in observed.other_objects)
    return max(written_table_version(observed), find_highest(texts), newest_read_version(observed))


def newest_read_version(observed: Observed) -> int:
    """The highest version that a router reports; 0 for none. That router refuses all lower ones until it restarts."""
    return find_highest(report.newest for report in observed.routers.values())


def written_table_version(observed: Observed) -> int:
    """The version of the routing table in the ConfigMap; 0 for none. Unless edited, it is ours, however high."""
    objects = observed.other_objects
    own = max((existing.table_version for existing in objects if not existing.changed), default=0)
    return max(own, find_highest(existing.table_version for existing in objects if existing.changed))


def is_newer_written(status: DatasetStatus, observed: Observed) -> bool:
    """Return whether the written routing table is newer than ``status``, which was wiped or set back. The version in an
    edited ConfigMap may be edited too, and proves nothing alone."""
    if written_table_version(observed) <= known_table_version(status):
        return False
    if status.table is None or not is_edited(observed):
        return True
    # An object of a rollout or a build with a number beyond those in ``status`` proves it.
    rollout_objects: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *observed.other_objects)
    last_rollout = max((names.recover_number(item.rollout) for item in rollout_objects), default=0)
    last_generation = max((names.recover_number(item.generation) for item in observed.objects), default=0)
    return last_rollout > status.last_rollout or last_generation > status.last_generation


def is_edited(observed: Observed) -> bool:
    """Return whether somebody has edited the ConfigMap of the routing table since it was written."""
    return any(existing.changed for existing in observed.other_objects if existing.table_version)


def find_highest(versions: Iterable[int]) -> int:
    """Return the highest plausible one of ``versions``, or 0. The next table exceeds it, even if somebody has written
    it by hand."""
    return max((version for version in versions if version <= _HIGHEST_BELIEVED), default=0)


# Reports of routers, and which of them count. A router has confirmed a routing table when all its workers answer from
# that version, with the text that the operator wrote.
#
# The version alone is not enough. Somebody may have given an edited table the version of the operator's next one, and
# routers may have taken it up. If the edit is undone before the next pass, only the digest of what routers have read
# reveals it. An older router reports no digest, and is believed without one.


def list_live_routers(observed: Observed) -> tuple[Pod, ...]:
    """Routers that have not ended and are not being deleted."""
    return tuple(
        pod
        for pod in observed.pods
        if pod.component == ROUTER and not pod.deleting and pod.phase not in ("Succeeded", "Failed")
    )


def list_answering_routers(observed: Observed) -> tuple[Pod, ...]:
    """Routers that may be answering from some table. A router that takes requests counts, whatever is wrong with it.
    One that has not started, or that keeps crashing, does not count: it reads the table when it starts."""
    return tuple(pod for pod in list_live_routers(observed) if _may_answer(pod, observed.routers.get(pod.uid)))


def _may_answer(pod: Pod, report: RouterReport | None) -> bool:
    if pod.ready or pod.phase != "Running":
        return pod.ready
    if report is None or report.newest:
        return True
    # A pod's status keeps the cause of a container's death long after it runs again. So trouble counts only if the
    # router does not answer the operator either.
    return pod.trouble is None and not report.is_empty


def is_router_behind(observed: Observed, table: TableStatus) -> bool:
    """Return whether a router answers from an older table than ``table``."""
    reports = (observed.routers.get(pod.uid) for pod in list_answering_routers(observed))
    return any(report is not None and 0 < (report.table_version or 0) < table.version for report in reports)


def is_contradicted_by_reports(observed: Observed, table: TableStatus, digest: str) -> bool:
    """Return whether a router answers from a table with the version of ``table`` but other content, and so refuses
    ``table``. ``digest`` is the digest of ``table``'s text; an empty one is not compared."""
    if not observed.routers:  # most passes do not ask the routers
        return False
    reports = (observed.routers.get(pod.uid) for pod in list_answering_routers(observed))
    return any(report is not None and _contradicts(report, table, digest) for report in reports)


def _contradicts(report: RouterReport, table: TableStatus, digest: str) -> bool:
    """Return whether ``report`` has the table's version with another text or generation, or reports a contradiction."""
    if describe_contradiction(table.version) in report.problem:
        return True
    if not _answers_from_version(report, table):
        return False
    return not report.generations <= {table.generation} or bool(digest and report.digests - {digest})


def _answers_from_version(report: RouterReport, table: TableStatus) -> bool:
    """Return whether all workers of the router answer from the version of ``table``."""
    return report.table_version == report.newest == table.version


def diagnose_late_routers(observed: Observed, table: TableStatus, digest: str) -> Mapping[str, str]:
    """Return pod → why it does not answer from ``table``, for routers that may answer. ``digest`` is the table's."""
    late: dict[str, str] = {}
    for pod in list_answering_routers(observed):
        report = observed.routers.get(pod.uid)
        if report is None:
            late[pod.name] = "it was not asked yet"
        elif report.table_version is None:
            late[pod.name] = report.problem or "it has no routing table"
        elif not _answers_from_version(report, table) or _contradicts(report, table, digest):
            late[pod.name] = report.problem or _describe_answers(report, table)
    return late


def _describe_answers(report: RouterReport, table: TableStatus) -> str:
    if _answers_from_version(report, table) and report.generations <= {table.generation}:
        return f"it answers from table {table.version} with other content than was written"
    to = f" to {report.newest}" if report.newest > (report.table_version or 0) else ""
    of = f", of {', '.join(sorted(report.generations))}" if report.generations else ""
    return f"it answers from table {report.table_version}{to}{of}"


# The version of the routing table is taken if other content was written under it, or if a router reports that it
# answers from such content: somebody has edited the ConfigMap, or the status that it is rendered from.
#
# A router never takes up other content under the same version, and one that has just started may have read the wrong
# content. So the right content gets the next version. An edit uses up one version: until the next table is written, the
# ConfigMap's version differs from the status's, and counts no more. A writer who edits again and again is left alone
# for longer each time, as with any other object (``loop.reconcile.Repairs``), and no table is written until then.
# The edit is noted at once all the same, because it may be undone meanwhile.


def is_contradicted(table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Return whether a router answers from a different table with the version of ``table``."""
    return is_contradicted_by_reports(situation.observed, table, find_digest(table, status, situation))


def find_digest(table: TableStatus, status: DatasetStatus, situation: Situation) -> str:
    """The digest that routers report once they have read ``table``; empty if no router was asked, or if the status
    lacks a generation of the table."""
    generations = find_generations(table, status) if situation.observed.routers else None
    return "" if generations is None else render_table(situation, table, generations)[1]


def find_generations(table: TableStatus, status: DatasetStatus) -> Mapping[str, GenerationStatus] | None:
    """All generations in ``status``, by name; None if it lacks one that ``table`` routes to."""
    known = {generation.generation: generation for generation in status.generations}
    return known if {table.generation, *(part.generation for part in table.parts)} <= known.keys() else None


def _is_written_otherwise(
    table: TableStatus, generations: Mapping[str, GenerationStatus], situation: Situation
) -> bool:
    """Return whether the ConfigMap has other content under the version of ``table``, and routers may have read it. An
    edit may also have changed the ConfigMap's version. After an edit, routers may have read ``table`` if they confirmed
    it, or if the ConfigMap's version is at least that of ``table``. Only what routers read is compared."""
    name = names.routing_table(situation.dataset.name)
    objects = situation.observed.other_objects
    live = next((item for item in objects if (item.ref.kind, item.ref.name) == ("ConfigMap", name)), None)
    if live is None:
        return False
    newest = find_highest((live.table_version, live.text_version))
    is_edited = live.changed and (table.confirmed_at or newest >= table.version)
    if not is_edited and live.table_version != table.version:
        return False
    stamp, content = render_table(situation, table, generations)
    if not live.changed and ("ConfigMap", name, live.digest) == stamp:
        return False
    return live.content != content


def _is_left_alone(table: TableStatus, generations: Mapping[str, GenerationStatus], situation: Situation) -> bool:
    """Return whether somebody else keeps changing the ConfigMap, and it is not to be written now."""
    name = names.routing_table(situation.dataset.name)
    held = {
        contest.mark
        for contest in situation.observed.contests
        if contest.is_held and (contest.kind, contest.name) == ("ConfigMap", name)
    }
    if not held:
        return False
    return manifests.write_mark(manifests.render_routing_table(situation.dataset, table, generations)) in held


# The candidate: a rollout whose servers are ready and that waits for promotion. Routing tables reference it beside the
# active generation, so that clients can ask for it by name.
#
# It waits without a deadline and without a slot. It ends, and its servers are retired as those of any other rollout,
# when it is rejected or not desired any more: a newer generation's rollout is claimed, the spec or the pod template
# changes, or a generation is pinned. A promoted candidate stays one until a routing table routes to it: nothing
# else shows that it was promoted, and a newer generation would be desired instead.


_HEADER: Final = "Lookupdb-Generation"


def _find_candidate(status: DatasetStatus, target: PassTarget, situation: Situation) -> CandidateStatus | None:
    """Return the rollout that waits for promotion, if any."""
    desired, rollout, waiting = situation.desired, target.rollout, status.candidate
    if desired.is_suspended and waiting is not None:  # it keeps waiting
        return waiting if status.find_rollout(waiting.rollout) is not None else None
    if waiting is not None and status.find_rollout(waiting.rollout) is not None and not desired.pinned_generation:
        promoted = generations.promoted_candidate(status, desired)
        if promoted is not None and target.generation == promoted != generations.served_generation(status):
            return waiting  # it takes effect, at once or when its servers are ready again
        if rollout is None and target.generation is not None and generations.waiting_generation(status, desired):
            return waiting  # what comes next is queued
    if rollout is None or generations.may_take_effect(rollout.generation, status, desired):
        return None
    if waiting is not None and waiting.rollout == rollout.rollout:
        return waiting
    if not rollouts.is_servable(rollout, desired.replicas, status, situation):
        return None
    return CandidateStatus(rollout.generation, rollout.rollout, format_moment(situation.now))


def table_candidate(status: DatasetStatus, active: TableStatus, situation: Situation) -> TableCandidate | None:
    """The candidate that a routing table with ``active`` should reference. To scale down, the table drops servers
    before they stop; to scale up, servers start before the table references them."""
    rollout = None if status.candidate is None else status.find_rollout(status.candidate.rollout)
    if rollout is None or rollout.generation == active.generation or active.is_mixed:
        return None
    desired, referenced = situation.desired, None if status.table is None else status.table.candidate
    if referenced is None or referenced.rollout != rollout.rollout:
        wanted = TableCandidate(
            rollout.rollout,
            rollout.generation,
            desired.replicas,
            rollout.workers or desired.spec.serving_workers,
            password_key=rollout.password_key,
        )
    elif not desired.is_suspended and (
        desired.replicas < referenced.replicas or rollouts.is_servable(rollout, desired.replicas, status, situation)
    ):
        wanted = replace(referenced, replicas=desired.replicas)
    else:
        wanted = referenced
    # One table must be able to name the servers of both. The active ones come first: they are never left out.
    generation, other = status.find_generation(active.generation), status.find_generation(wanted.generation)
    if generation is None or other is None:
        return None
    both = (active, generation.shards), (wanted, other.shards)
    return wanted if manifests.has_room_for_both(situation.dataset, *both) else None


def with_offered_replicas(status: DatasetStatus, table: TableStatus | None, situation: Situation) -> DatasetStatus:
    """``status`` in which the servers of the candidate stay, whether or not ``table`` has room for it."""
    waiting, offered = status.candidate, None if table is None else table.candidate
    replicas = situation.desired.replicas if offered is None else offered.replicas

    def with_replicas(rollout: RolloutStatus) -> RolloutStatus:
        if waiting is not None and rollout.rollout == waiting.rollout:
            return replace(rollout, offered_replicas=max(rollout.offered_replicas, replicas), kept_since="")
        return replace(rollout, offered_replicas=0) if table is None else rollout

    return replace(status, rollouts=tuple(map(with_replicas, status.rollouts)))


def judge_waiting(status: DatasetStatus, candidate: CandidateStatus, situation: Situation) -> Verdict:
    """Report the generation that waits for promotion, how to ask for it, and how to promote or reject it."""
    dataset, rollout = situation.dataset, status.find_rollout(candidate.rollout)
    assert rollout is not None, f"{candidate.rollout} is gone, and waits for promotion"
    name, replicas = candidate.generation, situation.desired.replicas
    annotate = f"kubectl annotate lds {dataset.name} -n {dataset.namespace} --overwrite"
    shards = generations.count_shards(status, rollout)
    ready = windows.count_ready_shards(rollout, replicas, range(shards), situation)
    lacking = "" if ready == shards else f", with {ready} of {format_count(shards, 'shard')} ready"
    return Verdict(
        "False",
        reasons.CANDIDATE_WAITING,
        f"{rollouts.describe_rollout(dataset, rollout)} has waited for promotion since {candidate.since}{lacking};"
        f" {_describe_asking(name, status)}. It serves after {annotate} {names.PROMOTE}={name}, and ends after"
        f" {names.REJECT}={name}, or when something newer is rolled out."
        f"{generations.describe_idle_annotations(status, situation.desired)}",
    )


def _describe_asking(generation: str, status: DatasetStatus) -> str:
    table = status.table
    if table is None:
        return "it cannot be asked, because the active generation is unknown"
    if table.is_mixed:
        return "it cannot be asked, because several generations serve, shard by shard"
    if table.candidate is None:
        return "it cannot be asked, because a routing table has no room for the servers of two generations"
    return f"lookups with the header {_HEADER}: {generation} ask it, and all others ask {table.generation}"


def decide_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the routing table that should be written by now, its version claimed, and with the candidate."""
    target = rollouts.find_target(status, situation)
    offering = replace(status, candidate=_find_candidate(status, target, situation))
    if offering.candidate != status.candidate:
        target = rollouts.find_target(offering, situation)
    status = _with_next_version(_with_desired_table(offering, target, situation), situation)
    # A candidate that the routing table routes to was promoted, and waits for nothing more.
    candidate, table = status.candidate, status.table
    is_routed = candidate is not None and table is not None and candidate.generation == table.generation
    return replace(status, candidate=None) if is_routed else status


def _with_desired_table(status: DatasetStatus, target: PassTarget, situation: Situation) -> DatasetStatus:
    table = status.table
    active = None if target.rollout is None else _following_table(target.rollout, status, situation)
    if active is None and table is not None:
        # To scale down, the table drops servers before they stop; to scale up, new ones start before it names them.
        active = replace(table, replicas=_reachable_replicas(table, situation.desired.replicas, status, situation))
    if active is None:
        return with_offered_replicas(status, None, situation)
    desired = replace(active, candidate=table_candidate(status, active, situation))
    status = with_offered_replicas(status, desired, situation)
    return status if desired == table else _with_table(status, desired, situation)


def _following_table(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> TableStatus | None:
    """Return the table in which ``target`` serves every shard for which it has servers; None while routers must not use
    them."""
    desired, generation = situation.desired, status.find_generation(target.generation)
    if generation is None or desired.is_suspended or not windows.pending_shards(target, status):
        return None
    if not generations.may_take_effect(target.generation, status, desired):
        return None
    if windows.window_size(generation, status, situation) == generation.shards and target.shard_ranges != ALL:
        return None  # all shards are due at once, and it does not have all yet
    parts = tuple(_list_parts(target, status))
    stays = parts or windows.routed_shards(target, status)
    replicas = desired.replicas
    if status.table is not None and stays:
        replicas = _reachable_replicas(status.table, replicas, status, situation)
    if not rollouts.is_servable(target, replicas, status, situation):
        return None
    workers = target.workers or desired.spec.serving_workers
    return TableStatus(
        0, target.rollout, target.generation, replicas, workers, "", parts=parts, password_key=target.password_key
    )


def _list_parts(target: RolloutStatus, status: DatasetStatus) -> Iterator[TablePart]:
    """The parts of the current table that stay beside ``target``."""
    table, held = status.table, windows.held_shards(target, status)
    if table is None or target.shard_ranges == ALL:
        return
    workers = {part.rollout: part.workers for part in table.parts} | {table.rollout: table.workers}
    for rollout in windows.serving_rollouts(status):
        shards = windows.routed_shards(rollout, status) - held
        if rollout.rollout != target.rollout and shards:
            yield TablePart(
                rollout.rollout,
                rollout.generation,
                workers[rollout.rollout],
                format_shards(shards),
                password_key=rollout.password_key,
            )


def _reachable_replicas(table: TableStatus, replicas: int, status: DatasetStatus, situation: Situation) -> int:
    """Return ``replicas`` if ``table`` has as many or each routed shard that many ready servers, else the table's."""
    if replicas <= table.replicas or _is_servable(replicas, status, situation):
        return replicas
    return table.replicas


def _is_servable(replicas: int, status: DatasetStatus, situation: Situation) -> bool:
    """Return whether routers may be sent to ``replicas`` servers of each shard that the current table references."""
    serving = windows.serving_rollouts(status)
    return bool(serving) and all(
        rollouts.is_servable(rollout, replicas, status, situation, windows.routed_shards(rollout, status))
        for rollout in serving
    )


def _with_next_version(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with its routing table under a higher version if routers would not take it up otherwise: after a
    restore of the cluster, or if another party changed the table's content."""
    table, observed = status.table, situation.observed
    if table is None:
        return status
    known = find_generations(table, status)
    # An edited ConfigMap may have any version: only versions that routers report count.
    find_newest = newest_read_version if is_edited(observed) else newest_table_version
    if find_newest(observed) <= table.version or not _is_servable(table.replicas, status, situation):
        # If routers have a newer table, they may keep it: it may have other servers, since the status was set back.
        if known is None:
            return status
        is_written_otherwise = _is_written_otherwise(table, known, situation)
        if _is_left_alone(table, known, situation):
            # ``last_table`` above the table's version says that it needs another: routers may have read the edit.
            newest = max(status.last_table, table.version + 1, newest_table_version(observed))
            return replace(status, last_table=newest) if is_written_otherwise else status
        is_noted = known_table_version(status) > table.version
        if not is_noted and not is_written_otherwise and not is_contradicted(table, status, situation):
            return status
    return _with_new_version(status, table, situation)


def _with_new_version(status: DatasetStatus, table: TableStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` with ``table`` under a version that is higher than any existing one."""
    newest = max(known_table_version(status), newest_table_version(situation.observed))
    version = newest + 1
    if not newest and any(rollout.referenced_replicas for rollout in status.rollouts):
        # The status and the ConfigMap are lost, and routers were not polled. A router that had the chosen version
        # already would seem to confirm a table that it ignores. The time exceeds every version, because there were
        # fewer tables than seconds since 1970.
        version = int(situation.now.timestamp())
    written = replace(table, version=version, written_at=format_moment(situation.now), confirmed_at="")
    return replace(status, table=written, last_table=version)


def _with_table(status: DatasetStatus, desired: TableStatus, situation: Situation) -> DatasetStatus:
    pinned = status.find_generation(situation.desired.pinned_generation)
    if pinned is not None and pinned.generation == desired.generation:
        rejected = tuple(mark for mark in status.rejected if not generations.holds_back(mark, pinned))
        status = replace(status, rejected=rejected, rolled_back=generations.with_marks(status, pinned))
    rollouts_after = []
    for rollout in status.rollouts:
        if windows.is_in_table(rollout.rollout, desired):
            # Older tables reference a promoted rollout as their candidate.
            replicas = max(rollout.minimum_replicas, desired.replicas)
            window = "" if rollout.rollout == desired.rollout else rollout.window
            referenced = replace(
                rollout, referenced_replicas=replicas, offered_replicas=0, kept_since="", window=window
            )
            rollouts_after.append(referenced)
        else:
            rollouts_after.append(rollout)
    return replace(_with_new_version(status, desired, situation), rollouts=tuple(rollouts_after))
