"""plan(): the observed state of one dataset goes in, and what to do about it comes out. The decisions are made in this
order, and each sees the results of those before it.

    conditions     is the dataset ours to act on?
    lifecycle      times in the status that a clock set back has left in the future
    conditions     is the spec usable? are all objects of an earlier dataset of this name gone?
    lifecycle      every transition of a generation and of a rollout: recover, build, claim, retire, cut over, trim
    builds         what delays the build that has a build slot
    rollouts       what delays the rollout that has a rollout slot, and which pushes of images have ended
    rollouts       the target: the desired generation and its rollout, found once and handed to everything below
    objects        is the Secret of the store, or of the shard servers' password key, to be written?
    objects        which objects should exist and differ, and which should not exist
    conditions     Ready; then Built (builds), RolledOut (cutover), Degraded
    deadlines      when to look again: the earliest one of all of these

A crash between any two writes is safe. Everything that leads from one pass to the next is in the status, and the status
is written before anything else, under the version that was observed. A number is claimed there before an object carries
it. What a transition removes is gone from the status before its objects are deleted. So an operator may end at any
point: the next pass plans again from the status and from what exists, and comes to the same objects.

The one exception is the Secrets, which the operator may not read. The status notes that one is written before it is. If
the operator ends in between, the store's Secret stays stale until a build or a rollout begins, the credentials change
again, or a pod is in trouble because of the store. The Secret of the password key is made again when a router reports
that it lacks the key.
"""

from __future__ import annotations

from datetime import datetime

from lookupdb_operator.config import Config
from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan import builds, conditions, cutover, lifecycle, objects, reasons, rollouts, turns
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import replace


def plan(observed: Observed, config: Config, now: datetime) -> Plan:
    """Return what to do about ``observed`` at ``now``, which is aware. Planned again at once, it asks for nothing
    more."""
    dataset = observed.dataset
    idle_reason = conditions.why_idle(dataset, config)
    if idle_reason:  # the status is not ours: nothing in it is read
        return Plan(status=dataset.status, idle_reason=idle_reason)
    status = lifecycle.clamp_moments(dataset.status, now)
    waiting = conditions.plan_standstill(status, observed, config, now)
    if waiting is not None:
        return waiting
    situation = Situation.from_observed(observed, config, now)
    status = replace(status, operator=config.identity, endpoint=conditions.find_endpoint(dataset))
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
    changes = objects.plan_changes(status, target, (*store_secret, *key_secret), situation)
    reported_situation = replace(situation, observed=objects.with_pending_refusals(changes.apply, observed))
    deadlines.append(objects.next_look_in(changes.apply, reported_situation.observed))
    deadlines.append(rollouts.next_push_in(rollouts.with_current_alone(status, situation), observed, now))
    status = conditions.note_refresh(conditions.with_serving_status(status, observed))
    lost_pods = conditions.find_lost_pods(observed)
    ready = conditions.assess(status, reported_situation)
    built = builds.assess(status, target, reported_situation)
    rolled_out = cutover.assess(status, target, reported_situation)
    deadlines += [ready.next_look_in, built.next_look_in, rolled_out.next_look_in]
    deadlines.append(conditions.remaining_freshness(status, situation) or None)
    return Plan(
        ask_routers=cutover.needs_reports(status),
        status=conditions.set_conditions(status, reported_situation, serving=ready, build=built, rollout=rolled_out),
        apply=changes.apply,
        delete=(*changes.delete, *lost_pods),
        next_look_in=reasons.find_earliest(deadlines),
        announce=objects.find_due(status, situation),
    )
