"""A rollout shard by shard (``rollout.strategy: PerShard``): which shards of the rollout that is asked for are made
next, how many at a time, and when. Each such set of shards is a *window*:

    the StatefulSets of the next ``maxSurgeShards`` shards are made
    their servers are ready: a routing table routes these shards to them            table_content
    routers confirm it, the drain time passes, the replaced StatefulSets go         cutover, retirement, objects
    they are seen to be gone, their pods too: the next window

So there are never more than ``maxSurgeShards`` shards' servers beyond those of one whole rollout. A window takes a turn
of its own: between two of them other datasets may have theirs. One thing comes before the bound: while routers do not
take a table up for long, or do not leave one, another rollout that is asked for may begin; what was wrong may be what
keeps them.

All shards are made at once, in one window, when nothing is known to serve, or what serves has another number of shards,
other normalisation or another value format: a lookup could not tell whose rules hold. Also when ``MOST_SERVING``
rollouts serve shards already, each interrupted by the next.
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator import names
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.generation import generations
from lookupdb_operator.plan.rollout import leftovers, references
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.shard_ranges import format_shards, parse_shards, shorten_shards
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolloutStatus

PER_SHARD: Final = "PerShard"
MOST_SERVING: Final = 6
"""Rollouts that one routing table routes shards to."""


def explain_at_once(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> str:
    """Why all shards of a rollout of ``generation`` are made at once though the spec says PerShard; empty when they are
    not, or it does not."""
    desired, table = situation.desired, status.table
    if desired.strategy != PER_SHARD:
        return ""
    if desired.promotion != "Auto" or desired.keep_previous_seconds:
        return "PerShard goes neither with promotion: Manual nor with keepPrevious"
    if table is None:
        return "nothing is known to serve that could be replaced shard by shard"
    serving = [status.find_generation(rollout.generation) for rollout in references.serving_rollouts(status)]
    if any(other is None or _layout(other) != _layout(generation) for other in serving):
        return "what serves has another number of shards, normalize or value format"
    template = situation.template_for(generation)
    others = sum(rollout.template != template for rollout in references.serving_rollouts(status))
    return f"{others} rollouts serve shards already" if others >= MOST_SERVING else ""


def _layout(generation: GenerationStatus) -> tuple[object, ...]:
    return generation.shards, generation.normalize, generation.value_format


def window_size(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> int:
    """How many shards of a rollout of ``generation`` are made at a time."""
    desired = situation.desired
    if desired.strategy != PER_SHARD or explain_at_once(generation, status, situation):
        return generation.shards
    return min(desired.max_surge_shards, generation.shards)


def first_window(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> frozenset[int]:
    """The shards with which a rollout of ``generation`` begins."""
    return frozenset(range(window_size(generation, status, situation)))


def next_window(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> frozenset[int]:
    """The shards of ``target``, which is asked for, that are to be made next: none while some of it wait to be routed
    to, unless all are made at once."""
    generation = status.find_generation(target.generation)
    if generation is None or situation.desired.is_suspended:
        return frozenset()
    missing = sorted(frozenset(range(generation.shards)) - references.held_shards(target, status))
    size = window_size(generation, status, situation)
    if size < generation.shards and references.pending_shards(target, status):
        return frozenset()
    return frozenset(missing[:size])


def may_begin(status: DatasetStatus, situation: Situation, *, is_first: bool) -> bool:
    """Whether the next window may be made, of shards that replace others one by one: what the last one has replaced is
    gone. The first one of a rollout may be made, too, when routers keep that from going for long."""
    table = status.table
    if table is None:
        return True
    if _are_servers_given_up(status, situation):  # they may be on their way, and be seen later than that
        return False
    if table.confirmed_at and not references.is_draining(status):
        return not leftovers.list_leftovers(status, situation.observed)
    if not is_first:
        return False
    is_late = table.confirmed_at and references.is_retirement_overdue(table, situation)
    return bool(is_late) or references.is_confirmation_overdue(status, situation)


def _are_servers_given_up(status: DatasetStatus, situation: Situation) -> bool:
    """Whether there were servers until this pass of which ``status`` has none any more."""
    before = situation.observed.dataset.status
    held = {rollout.rollout: references.held_shards(rollout, status) for rollout in status.rollouts}
    return any(
        not references.held_shards(rollout, before) <= held.get(rollout.rollout, frozenset())
        for rollout in before.rollouts
    )


def with_next_window(
    target: RolloutStatus, window: frozenset[int], status: DatasetStatus, situation: Situation
) -> RolloutStatus:
    """``target`` with the servers of ``window``, too, which are to start now."""
    held = references.held_shards(target, status) | window
    starting = parse_shards(target.window) | window
    return replace(
        target,
        shard_ranges=shorten_shards(held, generations.count_shards(status, target)),
        window="" if target.is_candidate else format_shards(starting),
        started_at=clock.format_moment(situation.now),
        stall=None,
    )


def without_window(rollout: RolloutStatus, status: DatasetStatus) -> RolloutStatus:
    """``rollout``, which some table references, without servers that none does."""
    if not rollout.window:
        return rollout
    held = references.held_shards(rollout, status) - parse_shards(rollout.window)
    count = generations.count_shards(status, rollout)
    return replace(rollout, shard_ranges=shorten_shards(held, count), window="", stall=None)


def with_due_window(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> RolloutStatus:
    """``target``, which is asked for, with the window under way as large as it is to be now: ``maxSurgeShards`` or the
    strategy may have changed. What no table references may go at once."""
    generation = status.find_generation(target.generation)
    if generation is None or not target.is_starting:
        return target
    if situation.desired.is_suspended:
        return target if target.is_candidate else without_window(target, status)
    held = references.held_shards(target, status)
    starting = held if target.is_candidate else parse_shards(target.window)
    size = window_size(generation, status, situation)
    if size == generation.shards:
        missing = frozenset(range(generation.shards)) - held
        return with_next_window(target, missing, status, situation) if missing else target
    kept = frozenset(sorted(starting)[:size])
    if kept == starting:
        return target
    left = held - starting | kept
    return replace(
        target,
        shard_ranges=shorten_shards(left, generation.shards),
        window="" if target.is_candidate else format_shards(kept),
    )


def describe_progress(status: DatasetStatus) -> str:
    """How far the rollout shard by shard is, as the beginning of a sentence; empty while all shards are of one
    rollout."""
    table = status.table
    if table is None or not table.parts:
        return ""
    counts: dict[str, int] = {}
    for rollout in references.serving_rollouts(status):
        name = rollout.generation if table.is_mixed else rollout.rollout
        counts[name] = counts.get(name, 0) + len(references.routed_shards(rollout, status))
    ours = table.generation if table.is_mixed else table.rollout
    others = [name for name in counts if name != ours]
    ordered = " and ".join(sorted(others, key=names.read_number))
    return f"{counts.get(ours, 0)} of {sum(counts.values())} shards answer from {ours}, the others from {ordered}; "


def describe_serving(status: DatasetStatus, verb: str = "serve") -> str:
    """Which generations serve, with a verb: ``g12 serves``, ``g12 and g13 serve``."""
    serving = {rollout.generation for rollout in references.serving_rollouts(status)}
    ordered = sorted(serving, key=names.read_number)
    if status.table is None or not status.table.is_mixed:
        return f"{status.generation} {verb}s"
    return f"{', '.join(ordered[:-1])} and {ordered[-1]} {verb}"
