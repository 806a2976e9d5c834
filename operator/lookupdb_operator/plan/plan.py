"""plan(): from what is observed of one dataset to what should be done about it. Every decision, in the order in which
each sees what those before it have decided.

    standstill     is it ours to act on? is the spec usable? is all of an earlier dataset of this name gone?
    recovery       moments that a clock set back has left in the future
    lifecycle      every transition of a generation and of a rollout: recover, build, claim, cut over, retire, trim
    builds         what keeps the build that has its turn from getting on
    rollouts       the same of the rollout that has its turn
    store          is the store's Secret to be written?
    objects        which objects should exist, and differ; which ones should not exist
    serving        what serves; pods that nobody is there to end
    conditions     what people are told
    next look      the first deadline of any of these

Why a crash between any two writes is safe: all that leads from one pass to the next is in status, and status is
written before anything else is done, under the version that was observed. A number is claimed there before an object
carries it; what a transition lets go of is gone from status before an object of it is deleted. So every pass may be
the last one of an operator, at any point: the next one plans again from status and from what is there, and comes to
the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.model import Manifest, Observed, Plan
from lookupdb_operator.plan import (
    builds,
    conditions,
    cutover,
    lifecycle,
    objects,
    recovery,
    rollouts,
    serving,
    standstill,
    store,
    turns,
)
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.status import DatasetStatus


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
    status = rollouts.note_stalls(builds.note_stall(status, situation), situation)
    secret = store.render_due_secret(status, situation)
    if secret:
        status = store.note_secret(status, situation)
    desired = objects.desired_objects(status, situation)
    repairs = (*objects.find_differing(desired, observed), *objects.find_unscaled(status, situation))
    apply = (*secret, *objects.without_contested(repairs, observed), *objects.find_unsynced(status, observed))
    situation = replace(situation, observed=objects.with_refusals_of(apply, observed))
    status = conditions.set_conditions(serving.with_serving_status(status, observed), situation)
    return Plan(
        status=status,
        apply=apply,
        delete=(*objects.find_garbage(status, observed, desired), *serving.find_lost_pods(observed, now)),
        ask_routers=cutover.needs_reports(status),
        again=_next_look_in(status, situation, apply),
    )


def _next_look_in(status: DatasetStatus, situation: Situation, apply: Iterable[Manifest]) -> float | None:
    """Seconds until the first of all deadlines, when ``apply`` is written now; None when there is none."""
    deadlines = (
        builds.next_attempt_in(status, situation),
        cutover.next_poll_in(status, situation),
        store.next_write_in(status, situation),
        objects.next_retry_in(situation),
        objects.next_look_at_silent_in(situation.observed, apply),
        serving.next_settled_in(status, situation),
        serving.next_lost_pod_in(situation.observed, situation.now),
        rollouts.next_progress_in(status, situation),
        turns.next_turn_in(status, situation.now),
    )
    return min((seconds for seconds in deadlines if seconds is not None), default=None)
