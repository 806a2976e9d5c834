"""plan(): from what is observed of one dataset to what should be done about it. Every decision, in the order in which
each sees what those before it have decided.

    standstill     is it ours to act on?
    recovery       moments that a clock set back has left in the future
    standstill     is the spec usable? is all of an earlier dataset of this name gone?
    lifecycle      every transition of a generation and of a rollout: recover, build, claim, cut over, retire, trim;
                   when the source is looked at, by schedule
    builds         what keeps the build that has its turn from getting on
    rollouts       the same of the rollout that has its turn
    pushes         which push of images has ended, and how many in a row were to no effect
    store          is the store's Secret to be written?
    password_keys  is the Secret of the key of shard servers' passwords to be made?
    announcement   what is active, and the store was not told yet: for those who ask no router
    objects        which objects should exist, and differ; which ones should not exist
    serving        Ready: which servers and routers are there; pods that nobody is there to end
    builds         Built
    cutover        RolledOut
    freshness      how old the data are that serve
    conditions     Degraded, and all four conditions as they are written
    deadlines      when to look again: the first one of any of these

Why a crash between any two writes is safe: all that leads from one pass to the next is in status, and status is
written before anything else is done, under the version that was observed. A number is claimed there before an object
carries it; what a transition lets go of is gone from status before an object of it is deleted. So every pass may be
the last one of an operator, at any point: the next one plans again from status and from what is there, and comes to
the same objects, but for one.

The store's Secret may be missed: nobody reads it, so the next pass knows of it what status says, and status notes it
before it is written (``store.note_secret``). When the operator ends in between, or the write gets no answer, a rotated
credential stays stale until a build or a rollout begins, the credentials change again, or a pod is in trouble because
of the store (``store.is_due``). With a gateway before the store, or a store of the dataset's own, there is no such
Secret. That of the key of passwords is as blind, but never stale: it is made again when a router says that it lacks it
(``password_keys.is_due``).
"""

from __future__ import annotations

from datetime import datetime

from lookupdb_operator.config import Config
from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan import (
    builds,
    conditions,
    cutover,
    lifecycle,
    objects,
    pushes,
    reasons,
    recovery,
    refreshes,
    rollouts,
    secrets,
    turns,
)
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace


def plan(observed: Observed, config: Config, now: datetime) -> Plan:
    """What to do about ``observed`` at ``now``, which is aware. Pure; done again at once, it asks for nothing more."""
    dataset = observed.dataset
    idle = conditions.plan_idle(observed, config)
    if idle is not None:  # of a status that is not ours, nothing is read
        return idle
    status = recovery.clamp_moments(dataset.status, now)
    waiting = conditions.plan_standstill(status, observed, config, now)
    if waiting is not None:
        return waiting
    situation = Situation.from_observed(observed, config, now)
    status = replace(status, operator=config.identity, endpoint=conditions.find_endpoint(dataset))
    status = lifecycle.advance(status, situation)
    status = builds.note_stall(status, situation)
    status = rollouts.note_stalls(status, situation)
    status = pushes.note_ends(status, observed, now)
    deadlines = [turns.next_turn_in(status, now), refreshes.next_check_in(status, now)]
    secret = secrets.render_store_secret(status, situation)
    if secret or not situation.has_store_secret:
        status = secrets.note_store_secret(status, situation)
    deadlines.append(secrets.next_store_write_in(status, situation))
    key_secret = secrets.render_key(status, situation)
    note_key = secrets.note_key if key_secret else secrets.forget_key
    status = note_key(status, situation)
    deadlines.append(secrets.next_key_attempt_in(status, situation))
    status = objects.note_announced(status, situation)
    changes = objects.plan_changes(status, (*secret, *key_secret), situation)
    reported_situation = replace(situation, observed=objects.with_pending_refusals(changes.apply, observed))
    deadlines.append(objects.next_look_in(changes.apply, reported_situation))
    deadlines.append(pushes.next_attempt_in(rollouts.with_current_alone(status, situation), observed, now))
    status = refreshes.note_refresh(conditions.with_serving_status(status, observed))
    lost_pods = conditions.find_lost_pods(observed)
    ready = conditions.assess(status, reported_situation)
    built = builds.assess(status, reported_situation)
    rolled_out = cutover.assess(status, reported_situation)
    deadlines += [ready.next_look_in, built.next_look_in, rolled_out.next_look_in]
    deadlines.append(refreshes.next_stale_in(status, situation))
    return Plan(
        ask_routers=cutover.needs_reports(status),
        status=conditions.set_conditions(status, reported_situation, serving=ready, build=built, rollout=rolled_out),
        apply=changes.apply,
        delete=(*changes.delete, *lost_pods),
        next_look_in=reasons.find_earliest(deadlines),
        announce=objects.find_due(status, situation),
    )
