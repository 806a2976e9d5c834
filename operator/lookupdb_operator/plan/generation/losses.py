"""What the store has lost, and what is built again because of it.

A server that starts fetches its shard, and says when the generation is not in the store any more, or when a file of it
is not what its checksum says. Of the newest generation of the present spec that is noted in status (``note_loss``),
and it asks for a build as a refresh does (``generations.is_build_needed``), which answers it by being another
generation. So there is one build for each loss, whenever an operator ends.

What serves is not touched: its servers have their files. It is replaced when the new generation's servers are ready.

With promotion Manual, what serves is rolled out anew from a new pod template before anything else waits for promotion.
Lost, it cannot be, and what waits would never be offered. So its rollout notes that template
(``RolloutStatus.lost_template``), and keeps the servers that it has; another pod template has it tried again.

What is lost and not built again: ``loss_advice`` says why, and what to do.

The build waits: 30 s after the first loss, and twice as long after each further one in a row, up to 30 min. A store
that loses whatever it is given would else be given it all the time. What was there for longer than that was not lost
in a row. A build that something else asks for waits for nothing. Until a build has begun, the loss is forgotten when
all servers of the generation are ready: that none reports it means no more than that none looks just now.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import clock, reasons, retries
from lookupdb_operator.plan.generation import generations, promotion
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, GenerationStatus, LostGeneration, RolloutStatus

LASTING_SECONDS: Final = 3600.0
"""A generation as old as that was not lost as soon as it was built."""
_MOST_IN_STATUS: Final = 999_999_999
"""As the CRD has it."""


def note_loss(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the loss of the newest generation of the present spec, if servers report one; without the one
    that none reports any more; and with that of what serves, if something else waits for promotion beside it."""
    desired = situation.desired
    newest = generations.up_to_date_generation(status, desired)
    if newest is None or desired.is_suspended or desired.pinned_generation or generations.is_held_back(newest, status):
        return status
    status = _with_lost_template(status, newest, situation)
    damage = generations.find_reported_damage(newest, status, situation)
    is_noted = generations.is_lost(newest, status, desired)
    if damage is not None and not is_noted:
        return replace(status, lost=_describe_loss(newest, damage, status.lost, situation))
    if damage is None and is_noted and status.build is None and status.failure is None:
        return _with_found_generation(status) if _is_served(newest, situation) else status
    return status


def _with_lost_template(status: DatasetStatus, newest: GenerationStatus, situation: Situation) -> DatasetStatus:
    """``status`` in which what serves is not rolled out anew from the present pod template, if the store has lost it
    and ``newest`` waits for promotion."""
    served = None if status.table is None else status.find_rollout(status.table.rollout)
    generation = None if served is None else status.find_generation(served.generation)
    if served is None or generation is None or promotion.may_take_effect(newest.generation, status, situation.desired):
        return status
    template = situation.template_for(generation)
    if template in (served.template, served.lost_template):
        return status
    if generations.find_reported_damage(generation, status, situation) is None:
        return status
    noted = replace(served, lost_template=template)
    return replace(status, rollouts=tuple(noted if rollout is served else rollout for rollout in status.rollouts))


def is_renewal_lost(served: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``served`` cannot be replaced by a rollout of its generation from the present pod template, because the
    store has lost that generation."""
    generation = status.find_generation(served.generation)
    if generation is None or served.lost_template in ("", served.template):
        return False
    return served.lost_template == situation.template_for(generation)


def _describe_loss(
    generation: GenerationStatus, damage: Trouble, before: LostGeneration | None, situation: Situation
) -> LostGeneration:
    is_in_a_row = before is not None and not _has_lasted(generation, situation)
    count = min(before.count + 1, _MOST_IN_STATUS) if before and is_in_a_row else 1
    return LostGeneration(
        generation=generation.generation,
        reason=damage.reason,
        message=reasons.shorten(damage.message, retries.MAX_MESSAGE_CHARACTERS),
        count=count,
        retry_at=clock.format_moment(situation.now + timedelta(seconds=retries.retry_delay(count))),
    )


def _has_lasted(generation: GenerationStatus, situation: Situation) -> bool:
    return (situation.now - clock.parse_moment(generation.built_at)).total_seconds() > LASTING_SECONDS


def _is_served(generation: GenerationStatus, situation: Situation) -> bool:
    """Whether there are servers of ``generation``, and all of them have its files."""
    observed, name = situation.observed, generation.generation
    sets = [shard_set for shard_set in observed.shard_sets if shard_set.generation == name]
    are_ready = all(0 < shard_set.replicas <= shard_set.ready for shard_set in sets)
    return bool(sets) and are_ready and all(pod.ready for pod in observed.pods if pod.generation == name)


def _with_found_generation(status: DatasetStatus) -> DatasetStatus:
    """``status`` when the store has what it seemed to have lost."""
    assert status.lost is not None
    count = max(status.lost.count - 1, 0)
    return replace(status, lost=replace(status.lost, count=count, retry_at="") if count else None)


def must_wait(status: DatasetStatus, situation: Situation) -> bool:
    """Whether nothing but a loss asks for a build, and its time has not come."""
    return remaining_wait(status, situation) > 0 and not generations.is_build_requested(status, situation.desired)


def remaining_wait(status: DatasetStatus, situation: Situation) -> float:
    """Seconds until what was lost is built again; 0 when nothing was, or its time has come."""
    lost, newest = status.lost, generations.up_to_date_generation(status, situation.desired)
    if lost is None or newest is None or not generations.is_lost(newest, status, situation.desired):
        return 0.0
    return retries.remaining_backoff(lost.retry_at, situation.now)


def next_replacement_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until what was lost is built again; None when nothing waits for that alone."""
    return remaining_wait(status, situation) if status.build is None and must_wait(status, situation) else None


def describe_replacement(status: DatasetStatus, situation: Situation) -> str:
    """What becomes of a damaged generation of the present spec: a sentence to add."""
    if situation.desired.pinned_generation:
        return " Nothing is built in its place while a generation is pinned: take spec.generation away."
    if status.lost is None or not must_wait(status, situation):
        return ""
    return f" It is built again at {status.lost.retry_at}."
