"""plan(): from what is observed of one dataset to what should be done about it. Every decision, in the order in which
each sees what those before it have decided.

    ownership      is it ours to act on?
    succession     is all of an earlier dataset of this name gone?
    mending        moments that a clock set back has left in the future
    recovery       what status has forgotten, though it is there
    outcomes       how the build under way ended
    build          what is to be built; numbers of generations are claimed
    rollout        which rollouts should exist; their numbers are claimed
    cutover        is the routing table in effect? which one should be written?
    draining       what no table names any more may go
    generations    which ones stay in the store
    conditions     what people are told

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
    build,
    conditions,
    cutover,
    deadlines,
    draining,
    garbage,
    generations,
    invalid,
    mending,
    outcomes,
    ownership,
    recovery,
    rollout,
    serving,
    store,
    succession,
)
from lookupdb_operator.plan.situation import Situation, Wish
from lookupdb_operator.status import Status


def plan(observed: Observed, config: Config, now: datetime) -> Plan:
    """What to do about ``observed`` at ``now``, which is aware. Pure; done again at once, it asks for nothing more."""
    dataset = observed.dataset
    idle = ownership.not_ours(dataset, config)
    if idle:
        return Plan(status=dataset.status, idle=idle)
    status = replace(
        mending.mended(dataset.status, now),
        operator=config.identity,
        endpoint=names.endpoint(dataset.name, dataset.namespace),
    )
    if dataset.parsed is None:
        return invalid.planned(status, observed, now)
    if succession.has_to_wait(status, observed):
        return succession.planned(status, observed, now)
    situation = Situation(observed, config, now, Wish.of(dataset, dataset.parsed, config))
    status = _decided(recovery.recovered(status, observed, now), situation)
    secret = _secret(status, situation)
    if secret:
        status = store.noted(status, situation)
    desired = applying.desired(status, situation)
    apply = (
        *secret,
        *applying.differing(desired, observed),
        *applying.unscaled(status, situation),
        *applying.unsynced(status, observed),
    )
    situation = replace(situation, observed=applying.with_refusals_of(apply, observed))
    status = conditions.told(serving.told(status, observed), situation)
    return Plan(
        status=status,
        apply=apply,
        delete=garbage.of(status, observed, desired),
        ask_routers=deadlines.asks_routers(status),
        again=deadlines.next_look(status, situation),
    )


def _decided(status: Status, situation: Situation) -> Status:
    """What should be: built, rolled out, named by the routing table."""
    status = outcomes.recorded(status, situation)
    status = build.decided(status, situation)
    status = rollout.decided(status, situation)
    status = cutover.confirmed(status, situation)
    status = draining.retired(status, situation)
    status = cutover.decided(status, situation)
    return generations.trimmed(status, situation.wish)


def _secret(status: Status, situation: Situation) -> tuple[Manifest, ...]:
    if not store.is_due(status, situation):
        return ()
    return (manifests.store_secret(situation.dataset, situation.observed.store),)
