"""plan(): from what is observed of one dataset to what should be done about it. Every decision, in the order in which
each sees what those before it have decided.

    standstill     is it ours to act on? is the spec usable? is all of an earlier dataset of this name gone?
    recovery       moments that a clock set back has left in the future
    lifecycle      every transition of a generation and of a rollout: recover, build, claim, cut over, retire, trim
    tickets        what keeps those that have a turn from getting on
    applying       which objects should be, and differ
    garbage        which ones should not be
    lost_nodes     pods that nobody is there to end
    conditions     what people are told
    deadlines      when to look again

All that leads from one pass to the next is in status, and status is written before anything else is done. So every
pass may be the last one of an operator, at any point: the next one goes on from what it finds.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lookupdb_operator import manifests, names
from lookupdb_operator.config import Config
from lookupdb_operator.model import Manifest, Observed, Plan
from lookupdb_operator.plan import (
    applying,
    conditions,
    deadlines,
    garbage,
    lifecycle,
    lost_nodes,
    outcomes,
    recovery,
    rollouts,
    serving,
    standstill,
    store,
    tickets,
    turns,
)
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.status import Status


def plan(observed: Observed, config: Config, now: datetime) -> Plan:
    """What to do about ``observed`` at ``now``, which is aware. Pure; done again at once, it asks for nothing more."""
    dataset = observed.dataset
    idle = standstill.why_idle(dataset, config)
    if idle:
        return Plan(status=dataset.status, idle=idle)
    status = replace(
        recovery.clamp_moments(dataset.status, now),
        operator=config.identity,
        endpoint=names.endpoint(dataset.name, dataset.namespace),
    )
    if dataset.parsed is None:
        return standstill.plan_invalid(status, observed, now)
    if standstill.waits_for_predecessor(status, observed):
        return standstill.plan_waiting(status, observed, now)
    situation = Situation(observed, config, now, Desired.from_spec(dataset, dataset.parsed, config))
    status = lifecycle.advance(status, situation)
    status = _with_stalls(status, situation)
    secret = _secret(status, situation)
    if secret:
        status = store.note_secret(status, situation)
    objects = applying.desired_objects(status, situation)
    repairs = (*applying.differing(objects, observed), *applying.unscaled(status, situation))
    apply = (*secret, *applying.without_held(repairs, observed), *applying.unsynced(status, observed))
    situation = replace(situation, observed=applying.with_refusals_of(apply, observed))
    status = conditions.set_conditions(serving.with_serving_status(status, observed), situation)
    return Plan(
        status=status,
        apply=apply,
        delete=(*garbage.find_garbage(status, observed, objects), *lost_nodes.find_lost_pods(observed, now)),
        ask_routers=deadlines.asks_routers(status),
        again=deadlines.next_look(status, situation, apply),
    )


def _with_stalls(status: Status, situation: Situation) -> Status:
    """``status`` with what keeps the build and the rollout that have a turn from getting on."""
    build, now = status.build, situation.now
    if build is not None:
        build = replace(build, stall=tickets.noted_stall(build.stall, outcomes.diagnose_stall(build, situation), now))
    candidate = turns.candidate(status)
    stalled = tuple(
        replace(
            rollout,
            stall=tickets.noted_stall(rollout.stall, rollouts.diagnose_stall(rollout, status, situation), now)
            if rollout is candidate
            else None,
        )
        for rollout in status.rollouts
    )
    return replace(status, build=build, rollouts=stalled)


def _secret(status: Status, situation: Situation) -> tuple[Manifest, ...]:
    if not store.is_due(status, situation):
        return ()
    return (manifests.render_store_secret(situation.dataset, situation.observed.store),)
