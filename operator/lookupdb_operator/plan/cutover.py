"""The way from one routing table to the next, and the condition RolledOut. A table is written (``routing_tables``),
routers confirm it, lookups that began on an older one end, and servers that only older tables reference are retired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import Trouble, add_seconds, format_moment, parse_moment, seconds_until
from lookupdb_operator.names import ROUTER
from lookupdb_operator.plan import generations, reasons, rollouts, routing_tables, turns, windows
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.rollouts import PassTarget
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import (
    ALL,
    CandidateStatus,
    DatasetStatus,
    RolloutStatus,
    TableStatus,
    Truth,
    parse_shards,
    replace,
    shorten_shards,
)

# The previous rollout is the one that routers answered from before, of another generation than the active one. With
# ``spec.rollout.keepPrevious`` its servers stay for a while after they have drained, so that a rollback needs only a
# new routing table. At most one is kept at a time. No routing table references it, so deleting it never harms a lookup.
# It keeps its pod template, and has as many servers as the spec asks for.
#
# It is released when its time has passed, when it is pinned and serves again, when another rollout of its generation
# serves, when another rollout has drained, or when a desired rollout finds no room. Its own failures are reported, and
# do not make the dataset Degraded.


def release_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` without a kept rollout that is no longer needed, unless it is the desired one."""
    table = status.table
    if find_kept(status) is None:
        return status
    target = rollouts.find_target(status, situation).rollout
    kept = [rollout for rollout in status.rollouts if rollout.kept_since and rollout != target]
    newest = max(kept, key=lambda rollout: (rollout.kept_since, names.read_number(rollout.rollout)), default=None)
    stalls = (rollout.stall for rollout in status.rollouts)
    lacks_room = any(stall is not None and stall.reason in reasons.PLACEMENT_REASONS for stall in stalls)
    keep_seconds = situation.desired.keep_previous_seconds
    has_purpose = (
        newest is not None
        and table is not None
        and table.generation != newest.generation
        and not lacks_room
        and seconds_until(newest.kept_since, keep_seconds, situation.now) > 0
    )
    staying = (rollout for rollout in status.rollouts if rollout not in kept or (has_purpose and rollout == newest))
    return replace(status, rollouts=tuple(staying))


def find_kept(status: DatasetStatus) -> RolloutStatus | None:
    """The rollout that is kept."""
    return next((rollout for rollout in status.rollouts if rollout.kept_since), None)


# A table is written only when enough of the servers that it adds are ready (``rollouts``). Servers that fail later stay
# in it: routers ask another replica meanwhile, and Kubernetes restarts them under the same name.


POLL_SECONDS: Final = 0.5
"""Seconds between two polls of routers during a cutover, which takes about a second."""
SLOW_POLL_SECONDS: Final = 5.0
"""Seconds between two polls once a router is overdue."""


def confirm_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` with its routing table confirmed if every router that may answer reports its version, and none
    has other content under that version. Its generation is then active, unless another one still serves some shards. In
    that case the active one stays; if there is none, the oldest serving generation is active."""
    table, observed = status.table, situation.observed
    if table is not None and table.confirmed_at:
        return _note_served(status, table)  # what an older operator has confirmed, or somebody has edited
    if table is None or not routing_tables.list_answering_routers(observed) or find_late_routers(status, situation):
        return status
    confirmed = replace(table, confirmed_at=format_moment(situation.now))
    status = replace(status, table=confirmed)
    if table.is_mixed and has_served(status):
        return status
    name = min((table.generation, *(part.generation for part in table.parts)), key=names.read_number)
    generation = status.find_generation(name)
    assert generation is not None, f"{name} was trimmed, and a routing table references it"
    status = replace(status, generation=generation.generation, records=generation.records, bytes=generation.bytes)
    return _note_served(status, confirmed)


def _note_served(status: DatasetStatus, table: TableStatus) -> DatasetStatus:
    """Return ``status`` with a note that every router has served the whole generation of ``table``."""
    generation = status.find_generation(table.generation)
    if table.is_mixed or generation is None or generation.served_by == table.version:
        return status
    return generations.add_generation(status, replace(generation, served_by=table.version))


def reopen_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with its routing table unconfirmed again, so that routers report it again, in three cases: a router
    answers from an older table whose servers are kept (its lookups must drain too); a router has other content under
    this version; or the status's active generation was edited."""
    table = status.table
    if table is None:
        return status
    # If several generations serve, an edit of the active one is noticed only if it is empty.
    is_edited = not status.generation if table.is_mixed else status.generation != table.generation
    if not (
        (table.confirmed_at and (is_edited or routing_tables.is_contradicted(table, status, situation)))
        or (windows.is_draining(status) and routing_tables.is_router_behind(situation.observed, table))
    ):
        return status
    return replace(status, table=replace(table, written_at=format_moment(situation.now), confirmed_at=""))


def remaining_drain(table: TableStatus, situation: Situation) -> float:
    """Seconds until the drain time of a confirmed ``table`` has passed. It is longer while a router is stopping or
    down. A second counts only if this operator has seen it pass, whatever clock wrote ``confirmed_at``."""
    desired, observed = situation.desired, situation.observed
    seconds = desired.drain_seconds
    if any(pod.component == ROUTER and pod.deleting for pod in observed.pods):
        seconds = max(seconds, desired.router_drain_seconds)
    # A started router that does not answer may read an older table after its restart, until its kubelet syncs the file.
    answering = {pod.uid for pod in routing_tables.list_answering_routers(observed)}
    if any(pod.phase == "Running" and pod.uid not in answering for pod in routing_tables.list_live_routers(observed)):
        seconds = max(seconds, windows.STALE_MOUNT_SECONDS)
    seen = observed.dataset.status.table
    is_seen = seen is not None and (seen.version, seen.confirmed_at) == (table.version, table.confirmed_at)
    return max(0.0, seconds - (observed.seconds_confirmed if is_seen else 0.0))


def has_served(status: DatasetStatus) -> bool:
    """Return whether a routing table was ever in effect everywhere: from then on something serves."""
    return bool(status.generation)


def needs_reports(status: DatasetStatus) -> bool:
    """Return whether to ask routers for their table. Ask until the newest is in effect everywhere, and while servers
    exist that only older ones reference."""
    table = status.table
    return table is not None and (not table.confirmed_at or windows.is_draining(status))


def next_poll_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the next poll of the routers; None if no decision depends on their answers."""
    table = status.table
    if table is None or not needs_reports(status):
        return None
    if not table.confirmed_at:
        return SLOW_POLL_SECONDS if windows.is_confirmation_overdue(status, situation) else POLL_SECONDS
    # A router may still be behind although the drain time has passed.
    slowest = SLOW_POLL_SECONDS if windows.is_retirement_overdue(table, situation) else POLL_SECONDS
    return max(slowest, remaining_drain(table, situation))


def find_late_routers(status: DatasetStatus, situation: Situation) -> Mapping[str, str]:
    """Return, by pod, why routers that may be answering do not use the routing table of ``status`` yet."""
    table = status.table
    assert table is not None, "there is no routing table to answer from"
    digest = routing_tables.find_digest(table, status, situation)
    return routing_tables.diagnose_late_routers(situation.observed, table, digest)


def assess(status: DatasetStatus, target: PassTarget, situation: Situation) -> Assessment:
    """Judge RolledOut, find what delays servers or routers, and say when to look again."""
    last_window, kept, release_in = _find_last_window(status, target, situation), find_kept(status), None
    if kept is not None:
        release_in = seconds_until(kept.kept_since, situation.desired.keep_previous_seconds, situation.now)
    return Assessment(
        reasons.judge(ROLLED_OUT_CHECKS, status, target, situation),
        (
            generations.diagnose_pin(status, situation.desired),
            rollouts.diagnose_candidate(status, target, situation),
            diagnose_table(status, situation),
            None if last_window is None else windows.diagnose_leftovers(status, last_window, situation),
        ),
        (
            next_poll_in(status, situation),
            rollouts.next_progress_in(status, target, situation),
            release_in,
            None if last_window is None else windows.next_overdue_in(status, last_window, situation),
        ),
    )


def _check_pin_missing(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    missing = generations.diagnose_pin(status, situation.desired)
    if missing is None:
        return None
    serves = f" {windows.describe_serving(status, 'keep')} serving." if has_served(status) else ""
    return Verdict("False", missing.reason, f"{reasons.write_sentence(missing.reason, missing.message)}{serves}")


def _check_queued(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if target.rollout is not None and target.rollout.is_starting:
        return None
    return rollouts.judge_waiting(status, target, situation) if turns.is_waiting(status.rollout_ticket) else None


def _check_suspended(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if not situation.desired.is_suspended or needs_reports(status):
        return None
    return rollouts.judge_serving(status.table, status, situation)


def _check_held_back(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if target.rollout is not None or status.table is not None:
        return None
    reason, why = generations.explain_target(status, situation.desired)
    if reason not in (reasons.ROLLED_BACK, reasons.REJECTED):
        return None
    return Verdict("False", reason, f"Nothing is rolled out or replaced.{why}")


def _check_last_window(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if status.table is None or not _waits_for_last_window(status, target, situation):
        return None
    table = status.table
    progress = windows.describe_progress(status)
    if not table.confirmed_at:
        verdict = _judge_confirming(table, status, situation)
        return replace(verdict, message=f"{progress}{verdict.message}")
    if windows.is_draining(status):
        return Verdict("False", reasons.DRAINING, f"{progress}{_describe_draining(table, status, situation)}")
    overdue = windows.diagnose_leftovers(status, table, situation)
    if overdue is not None:
        return Verdict("False", overdue.reason, f"{progress}{reasons.write_sentence(overdue.reason, overdue.message)}")
    going = windows.list_leftovers(status, situation.observed)
    what = f"{going[0].name}, which was replaced, is not gone yet" if going else "the next servers are about to start"
    return Verdict("False", reasons.DRAINING, f"{progress}{what}.")


def _check_not_built(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if target.rollout is not None and not generations.is_pin_missing(status, situation.desired):
        return None
    serves = f" Until then {windows.describe_serving(status, 'keep')} serving." if has_served(status) else ""
    return Verdict("False", reasons.WAITING_FOR_BUILD, f"The desired generation is not built yet.{serves}")


def _check_candidate_waiting(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    waiting, table = _find_waiting(status, situation), status.table
    if waiting is None or (table is not None and not table.confirmed_at):
        return None
    return routing_tables.judge_waiting(status, waiting, situation)


def _check_starting(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    rollout, table = target.rollout, status.table
    if rollout is None or _find_waiting(status, situation) is not None:
        return None
    if table is not None and not rollouts.is_starting(rollout, table, status, situation):
        return None
    return rollouts.judge_starting(rollout, status, target, situation)


def _check_confirming(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    table = status.table
    return None if table is None or table.confirmed_at else _judge_confirming(table, status, situation)


def _check_draining(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    rollout, table = target.rollout, status.table
    if rollout is None or table is None or not windows.is_draining(status):
        return None
    where = rollouts.describe_rollout(situation.dataset, rollout)
    drains = _describe_draining(table, status, situation)
    _, why = generations.explain_target(status, situation.desired)
    idle = generations.describe_idle_annotations(status, situation.desired)
    truth: Truth = "False" if generations.is_of_other_spec(status, situation.desired) else "True"
    return Verdict(truth, reasons.DRAINING, f"Routers answer from {where}; {drains}{why}{idle}")


def _check_serving(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    rollout, table = target.rollout, status.table
    if rollout is None or table is None:
        return None
    where = rollouts.describe_rollout(situation.dataset, rollout)
    servers = f"{format_count(table.replicas, 'server')} a shard"
    reason, why = generations.explain_target(status, situation.desired)
    idle = generations.describe_idle_annotations(status, situation.desired)
    stays, kept = "", find_kept(status)
    if kept is not None:
        previous = rollouts.describe_rollout(situation.dataset, kept)
        until = add_seconds(parse_moment(kept.kept_since), situation.desired.keep_previous_seconds)
        trouble = rollouts.diagnose_obstacle(kept, situation.observed)
        what = "" if trouble is None else f"; its servers are not all ready ({trouble.reason})"
        stays = f" {previous} is kept until {until} for a rollback{what}."
    truth: Truth = "False" if generations.is_of_other_spec(status, situation.desired) else "True"
    return Verdict(truth, reason, f"Routers answer from {where}, {servers}.{why}{idle}{stays}")


ROLLED_OUT_CHECKS: Final = (
    _check_pin_missing,  # spec.generation names a generation that is not there
    _check_queued,  # the rollout waits for a rollout slot, or its next window does
    _check_suspended,  # nothing is under way, and nothing begins
    _check_held_back,  # nothing is known to serve, and the newest generation was rolled back from or rejected
    _check_last_window,  # the next window waits until what the last one replaced is gone
    _check_not_built,
    _check_candidate_waiting,  # routers can reach it, and nobody has promoted it
    _check_starting,  # servers start, or do not get ready
    _check_confirming,  # routers take up the routing table, or do not
    _check_draining,  # lookups that began on an older table end
    _check_serving,
)
"""The checks of RolledOut, in order: the first that applies gives the verdict."""


def _find_waiting(status: DatasetStatus, situation: Situation) -> CandidateStatus | None:
    """Return the candidate that waits for promotion; None if there is none, or it is promoted."""
    return None if generations.promoted_candidate(status, situation.desired) else status.candidate


def _waits_for_last_window(status: DatasetStatus, target: PassTarget, situation: Situation) -> bool:
    """Return whether shards of the desired rollout wait until the servers that the last window replaced are gone."""
    if situation.desired.is_suspended:
        return False
    if target.rollout is None:
        return target.generation is not None and not generations.is_pin_missing(status, situation.desired)
    table = status.table
    is_whole = table is not None and table.rollout == target.rollout.rollout and not table.parts
    return not is_whole and not windows.pending_shards(target.rollout, status)


def _find_last_window(status: DatasetStatus, target: PassTarget, situation: Situation) -> TableStatus | None:
    """Return the routing table of the last window, while the next one waits only for the servers that it replaced."""
    table = status.table
    if situation.desired.strategy != windows.PER_SHARD or table is None or needs_reports(status):
        return None
    if not _waits_for_last_window(status, target, situation):
        return None
    rollout = target.rollout
    generation = target.generation if rollout is None else status.find_generation(rollout.generation)
    if generation is None or windows.window_size(generation, status, situation) == generation.shards:
        return None
    return table


def _judge_confirming(table: TableStatus, status: DatasetStatus, situation: Situation) -> Verdict:
    overdue = diagnose_table(status, situation)
    if overdue is not None:
        return Verdict("False", overdue.reason, reasons.write_sentence(overdue.reason, overdue.message))
    return Verdict(
        "False", reasons.CONFIRMING, f"Routers take up routing table {table.version}, written {table.written_at}."
    )


def _describe_draining(table: TableStatus, status: DatasetStatus, situation: Situation) -> str:
    if remaining_drain(table, situation) > 0:
        return f"the previous servers have been draining since {table.confirmed_at}."
    late = find_late_routers(status, situation)
    late_names = ", ".join(sorted(late)[:3])
    return (
        f"the previous servers stay until {late_names} confirm routing table {table.version}."
        if late_names
        else "done."
    )


def diagnose_table(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """The routers that take too long to take up the routing table."""
    table = status.table
    if table is None or not windows.is_confirmation_overdue(status, situation):
        return None
    late = find_late_routers(status, situation)
    late_names = ", ".join(f"{pod} ({why})" for pod, why in sorted(late.items())[:3]) or "no router is running"
    return Trouble(
        reasons.NOT_CONFIRMED,
        f"Routing table {table.version} is not in effect everywhere: {late_names}. The previous table's servers stay",
    )


def retire_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without the rollouts, shards and servers that only older routing tables reference, once the drain time
    has passed; the previous one may be kept. Every router must still report the newest table: a router started
    meanwhile may have come up with an older one."""
    table = status.table
    if table is None or not windows.is_draining(status) or remaining_drain(table, situation) > 0:
        return status
    if find_late_routers(status, situation):
        return status
    target = rollouts.find_target(status, situation).rollout
    staying = tuple(
        _without_drained_servers(rollout, table, status)
        for rollout in status.rollouts
        if windows.is_in_table(rollout.rollout, table) or rollout == target or windows.count_offered(status, rollout)
    )
    drained = (
        rollout
        for rollout in status.rollouts
        if rollout.referenced_replicas
        and rollout != target
        and rollout.template
        and rollout.generation != table.generation
        and rollout.shard_ranges == ALL  # a rollout replaced shard by shard is no longer whole
        and not windows.is_in_table(rollout.rollout, table)
    )
    kept = find_kept(status)
    previous = max(drained, key=lambda rollout: names.read_number(rollout.rollout), default=None)
    if previous is not None and situation.desired.keep_previous_seconds:
        kept = replace(previous, referenced_replicas=0, kept_since=format_moment(situation.now))
    if kept is None or (target is not None and kept.rollout == target.rollout):
        return replace(status, rollouts=staying)
    ordered = sorted((*staying, kept), key=lambda rollout: names.read_number(rollout.rollout))
    return replace(status, rollouts=tuple(ordered))


def _without_drained_servers(rollout: RolloutStatus, table: TableStatus, status: DatasetStatus) -> RolloutStatus:
    """Return ``rollout`` with only the servers that ``table`` references, those of its window, and those that are
    offered."""
    offered = windows.count_offered(status, rollout)
    if not windows.is_in_table(rollout.rollout, table):
        return replace(rollout, referenced_replicas=0, offered_replicas=offered, window="")
    shards = windows.routed_shards(rollout, status) | parse_shards(rollout.window)
    return replace(
        rollout,
        referenced_replicas=table.replicas,
        offered_replicas=offered,
        shard_ranges=shorten_shards(shards, generations.count_shards(status, rollout)),
    )
