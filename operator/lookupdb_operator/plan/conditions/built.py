"""Built: whether the store holds what is asked for, and what keeps the build from getting on."""

from __future__ import annotations

from lookupdb.wording import format_count
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import build, outcomes, reasons
from lookupdb_operator.plan.conditions.verdict import Verdict, sentence
from lookupdb_operator.plan.conditions.waiting import describe_wait, diagnose_ticket, is_waiting
from lookupdb_operator.plan.generations import deployable_generation
from lookupdb_operator.plan.rollouts import describe_rollout, target_rollout
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Generation, Status


def judge_built(status: Status, situation: Situation) -> Verdict:
    """Whether the store holds what is asked for."""
    under_way = status.build
    trouble = diagnose_build(status, situation)
    if trouble is not None:
        text = sentence(trouble.reason, trouble.message)
        return Verdict("False", trouble.reason, f"{text}{describe_next_attempt(status, situation)}")
    if is_waiting(status.build_ticket):
        message = f"The build{describe_wait(status.build_ticket, situation.observed.turns.build)}"
        return Verdict("False", reasons.WAITING_FOR_TURN, message)
    if under_way is not None:
        message = f"{under_way.generation} is being built since {under_way.started_at}."
        return Verdict("False", reasons.BUILDING, message)
    if build.waits_for_rollout(status, situation):
        return _judge_waiting(status, situation)
    generation = deployable_generation(status, situation.desired)
    if generation is None or build.is_needed(status, situation.desired):
        return Verdict("False", reasons.BUILDING, "A build is about to begin.")
    damage = build.diagnose_damage(generation, status, situation)
    if damage is not None:
        message = f"{generation.generation} was built, and the store cannot give it any more: {damage.message}"
        return Verdict("False", damage.reason, sentence(damage.reason, message))
    message = f"{generation.generation} holds {_contents(generation)}."
    return Verdict("True", reasons.GENERATION_BUILT, message)


def _judge_waiting(status: Status, situation: Situation) -> Verdict:
    """Of what is built, the newest waits for the rollout of what was built before it."""
    generation, target = deployable_generation(status, situation.desired), target_rollout(status, situation)
    assert generation is not None
    assert target is not None
    message = (
        f"{generation.generation} holds {_contents(generation)}; it is rolled out"
        f" when {describe_rollout(situation.dataset, target)} is in effect."
    )
    if not build.is_needed(status, situation.desired):
        return Verdict("True", reasons.GENERATION_BUILT, message)
    return Verdict("False", reasons.WAITING_FOR_ROLLOUT, f"{message} The refresh is built after that.")


def _contents(generation: Generation) -> str:
    return f"{format_count(generation.records, 'record')} in {format_count(generation.shards, 'shard')}"


def diagnose_build(status: Status, situation: Situation) -> Trouble | None:
    """What keeps the build under way from getting on, else how the last one failed."""
    under_way, failure = status.build, status.failure
    if under_way is not None:
        trouble = outcomes.diagnose_stall(under_way, situation)
        if trouble is not None:
            return trouble
    given_up = diagnose_ticket(status.build_ticket)
    if given_up is not None:
        return given_up
    return None if failure is None else Trouble(failure.reason, failure.message)


def describe_next_attempt(status: Status, situation: Situation) -> str:
    """After a failure, when the next attempt is or was begun; empty without one."""
    under_way, failure, ticket = status.build, status.failure, status.build_ticket
    if is_waiting(ticket):
        return f" The next attempt{describe_wait(ticket, situation.observed.turns.build)}"
    if failure is None:
        return ""
    if under_way is not None:
        return f" Attempt {failure.count + 1} is {under_way.generation}, since {under_way.started_at}."
    return f" The next attempt is at {failure.retry_at}, or as soon as the spec changes."
