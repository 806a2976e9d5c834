"""The candidate: a rollout whose servers are ready and that waits for promotion. Routing tables reference it beside the
active generation, so that it can be asked for by name.

It waits for as long as nobody decides: no deadline runs, and it has no turn. It ends, and its servers are retired as
those of any other rollout, when it is rejected, or not asked for any more: a newer generation's rollout is claimed, the
spec or the pod template changes, a generation is pinned. One that is promoted stays what it is until a routing table
routes to it: that it was promoted is known by it alone, and a newer generation would else be asked for.
"""

from __future__ import annotations

from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import manifests, names
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.generation import generations, losses, promotion
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.rollout import rollouts
from lookupdb_operator.plan.rollout.shard_servers import count_ready_shards
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import CandidateStatus, DatasetStatus, RolloutStatus, TableCandidate, TableStatus

_HEADER: Final = "Lookupdb-Generation"


def with_candidate(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the rollout that waits for promotion, if one does. While the dataset is suspended it goes on
    waiting."""
    if situation.desired.is_suspended and status.candidate is not None:
        is_there = status.find_rollout(status.candidate.rollout) is not None
        return status if is_there else replace(status, candidate=None)
    return replace(status, candidate=_find_candidate(status, situation))


def without_routed_candidate(status: DatasetStatus) -> DatasetStatus:
    """``status`` without a candidate that its routing table routes to: it was promoted, and waits for nothing more."""
    candidate, table = status.candidate, status.table
    is_routed = candidate is not None and table is not None and candidate.generation == table.generation
    return replace(status, candidate=None) if is_routed else status


def _is_taking_effect(status: DatasetStatus, situation: Situation) -> bool:
    """Whether the candidate is promoted and goes on to take effect, at once or when its servers are ready again."""
    candidate, desired = status.candidate, situation.desired
    promoted = None if desired.pinned_generation else promotion.promoted_candidate(status, desired)
    if candidate is None or promoted is None or status.find_rollout(candidate.rollout) is None:
        return False
    is_asked_for = promoted == rollouts.target_generation(status, situation)
    return is_asked_for and promoted != generations.served_generation(status)


def _find_candidate(status: DatasetStatus, situation: Situation) -> CandidateStatus | None:
    if _is_taking_effect(status, situation):
        return status.candidate
    target, waiting = rollouts.target_rollout(status, situation), status.candidate
    if target is None:  # what comes next waits for its turn
        return waiting if _is_asked_for(status, situation) else None
    if promotion.may_take_effect(target.generation, status, situation.desired):
        return None
    if waiting is not None and waiting.rollout == target.rollout:
        return waiting
    if not rollouts.is_servable(target, situation.desired.replicas, status, situation):
        return None
    return CandidateStatus(target.generation, target.rollout, clock.format_moment(situation.now))


def _is_asked_for(status: DatasetStatus, situation: Situation) -> bool:
    """Whether the candidate would be asked for if nothing newer were there."""
    candidate, desired = status.candidate, situation.desired
    if candidate is None or desired.pinned_generation or status.find_rollout(candidate.rollout) is None:
        return False
    is_next_known = rollouts.target_generation(status, situation) is not None
    return is_next_known and promotion.waiting_generation(status, desired) is not None


def table_candidate(status: DatasetStatus, active: TableStatus, situation: Situation) -> TableCandidate | None:
    """What a routing table with ``active`` should reference beside it. Of a candidate that it references already, fewer
    servers are referenced first and stopped later, more are started first and referenced later."""
    rollout = None if status.candidate is None else status.find_rollout(status.candidate.rollout)
    if rollout is None or rollout.generation == active.generation or active.is_mixed:
        return None
    desired, referenced = situation.desired, None if status.table is None else status.table.candidate
    if referenced is None or referenced.rollout != rollout.rollout:
        wanted = TableCandidate(
            rollout.rollout,
            rollout.generation,
            desired.replicas,
            rollout.workers or desired.workers,
            password_key=rollout.password_key,
        )
    elif desired.is_suspended:
        wanted = referenced
    elif desired.replicas < referenced.replicas or _has_servers(rollout, status, situation):
        wanted = replace(referenced, replicas=desired.replicas)
    else:
        wanted = referenced
    return wanted if _has_room(status, active, wanted, situation) else None


def with_offered_replicas(status: DatasetStatus, table: TableStatus | None, situation: Situation) -> DatasetStatus:
    """``status`` in which the servers of the candidate stay, whether or not ``table`` has room for it. While no table
    is known, none references another one."""
    waiting, offered = status.candidate, None if table is None else table.candidate
    replicas = situation.desired.replicas if offered is None else offered.replicas

    def with_replicas(rollout: RolloutStatus) -> RolloutStatus:
        if waiting is not None and rollout.rollout == waiting.rollout:
            return replace(rollout, offered_replicas=max(rollout.offered_replicas, replicas), kept_since="")
        return replace(rollout, offered_replicas=0) if table is None else rollout

    return replace(status, rollouts=tuple(map(with_replicas, status.rollouts)))


def _has_servers(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    return rollouts.is_servable(rollout, situation.desired.replicas, status, situation)


def _has_room(status: DatasetStatus, active: TableStatus, candidate: TableCandidate, situation: Situation) -> bool:
    """Whether one table can name the servers of both. The active ones come first: they are never left out."""
    generation, other = status.find_generation(active.generation), status.find_generation(candidate.generation)
    if generation is None or other is None:
        return False
    return manifests.has_room_for_both(situation.dataset, (active, generation.shards), (candidate, other.shards))


def judge_waiting(status: DatasetStatus, candidate: CandidateStatus, situation: Situation) -> Verdict:
    """Which generation waits for promotion, how it is asked for, and how it is decided."""
    dataset, rollout = situation.dataset, status.find_rollout(candidate.rollout)
    assert rollout is not None, f"{candidate.rollout} is gone, and waits for promotion"
    name, replicas = candidate.generation, situation.desired.replicas
    annotate = f"kubectl annotate lds {dataset.name} -n {dataset.namespace} --overwrite"
    lacking = _describe_lacking(rollout, replicas, status, situation)
    return Verdict(
        "False",
        reasons.CANDIDATE_WAITING,
        f"{rollouts.describe_rollout(dataset, rollout)} waits for promotion since {candidate.since}{lacking};"
        f" {_describe_asking(name, status)}. It serves after {annotate} {names.PROMOTE}={name}, and ends after"
        f" {names.REJECT}={name}, or when something newer is rolled out."
        f"{_describe_lost_renewal(status, situation)}"
        f"{promotion.describe_idle_annotations(status, situation.desired)}",
    )


def _describe_lost_renewal(status: DatasetStatus, situation: Situation) -> str:
    """A sentence about what serves, if a new pod template cannot reach it."""
    served = None if status.table is None else status.find_rollout(status.table.rollout)
    if served is None or not losses.is_renewal_lost(served, status, situation):
        return ""
    return f" {served.generation} keeps its servers, of an earlier pod template, because the store has lost it."


def _describe_lacking(rollout: RolloutStatus, replicas: int, status: DatasetStatus, situation: Situation) -> str:
    shards = generations.count_shards(status, rollout)
    ready = count_ready_shards(rollout, replicas, range(shards), situation.observed)
    return "" if ready == shards else f", with {ready} of {format_count(shards, 'shard')} ready"


def _describe_asking(generation: str, status: DatasetStatus) -> str:
    table = status.table
    if table is None:
        return "it cannot be asked, because what serves is not known"
    if table.is_mixed:
        return "it cannot be asked, because several generations serve, shard by shard"
    if table.candidate is None:
        return "it cannot be asked, because a routing table has no room for the servers of two generations"
    return f"lookups with the header {_HEADER}: {generation} ask it, and all others {table.generation}"
