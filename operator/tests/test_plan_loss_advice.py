"""Conditions about a generation that the store has lost: whether it is built again, why not, and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from operator_support.plan_samples import condition, serving, trouble
from operator_support.plan_world import World

from lookupdb_operator import names
from lookupdb_operator.model import Turn, Turns
from lookupdb_operator.plan import generations as losses
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.turns import Situation

_REFRESH = "set the annotation lookupdb.dev/refresh to another value; or set spec.generation to g2"


def _refreshed(world: World, data: str) -> None:
    world.content_of_source = lambda source: f"{source} {data}"
    world.annotate(data)


def _two_generations(**rollout: str) -> World:
    """g2 serves, g1 has served."""
    world = serving()
    world.edit(rollout={"drainSeconds": 5, **rollout})
    _refreshed(world, "two")
    world.settle()
    return world


def _pinned() -> World:
    world = _two_generations()
    world.edit(generation="g1")
    return world


def _pinned_to_another() -> World:
    world = _two_generations()
    world.edit(generation="g2")
    return world


def _pinned_to_nothing() -> World:
    world = serving()
    world.edit(generation="g7")
    return world


def _suspended() -> World:
    world = _two_generations()
    world.edit(suspend=True)
    return world


def _rolled_back() -> World:
    world = _pinned()
    world.settle()
    world.edit(generation=None)
    world.settle()
    return world


def _rejected() -> World:
    world = _waiting()
    world.annotate_decision(reject="g2")
    world.reconcile()
    return world


def _waiting() -> World:
    """g1 serves, g2 waits for promotion."""
    world = serving()
    world.edit(rollout={"drainSeconds": 5, "promotion": "Manual"})
    _refreshed(world, "two")
    world.settle(until=lambda: world.status.candidate is not None)
    return world


def _edited() -> World:
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    return world


@pytest.mark.parametrize(
    ("make_world", "advice"),
    [
        (
            _pinned,
            "spec.generation pins g1, so no build can replace it: restore it in the store,"
            " name another generation, or remove spec.generation",
        ),
        (_pinned_to_another, "g2, which spec.generation pins, replaces it"),
        (_pinned_to_nothing, "no other generation is built while one is pinned: remove spec.generation"),
        (_suspended, "nothing is built while spec.suspend is true"),
        (
            _rolled_back,
            "nothing is built in its place automatically, because g2, the newest of this spec, was rolled back from:"
            f" when the source is correct, {_REFRESH}",
        ),
        (
            _rejected,
            "nothing is built in its place automatically, because g2, the newest of this spec, was rejected: when the"
            f" source is correct, {_REFRESH}",
        ),
        (_waiting, "g2, which is built, replaces it when it is promoted"),
        (_two_generations, "g2, which is built, replaces it"),
        (_edited, "a generation of the current spec is built, and replaces it"),
        (
            serving,
            "it is built again automatically; to build now, set the annotation lookupdb.dev/refresh to another value",
        ),
    ],
)
def test_of_each_generation_that_is_lost(make_world: Callable[[], World], advice: str) -> None:
    world = make_world()
    situation = Situation.from_observed(world.observe(), world.config, world.now)
    told = losses.with_loss_advice(trouble(reasons.CORRUPT_FILE, "it is cut."), "g1", world.status, situation)
    assert reasons.write_sentence(told.reason, told.message) == f"it is cut; {advice}."


def test_of_one_that_waits_to_be_built_again_since_when() -> None:
    world = serving()
    _lose(world, "g1")
    planned = world.reconcile()
    assert planned.status.lost is not None
    assert (
        f"the store has no such generation; it is built again automatically at {planned.status.lost.retry_at};"
    ) in condition(planned, "Degraded").message


def test_of_another_trouble_nothing() -> None:
    world = serving()
    situation = Situation.from_observed(world.observe(), world.config, world.now)
    other = trouble(reasons.UNSCHEDULABLE)
    assert losses.with_loss_advice(other, "g1", world.status, situation) == other


def test_a_long_message_leaves_room_for_it() -> None:
    world = _pinned()
    situation = Situation.from_observed(world.observe(), world.config, world.now)
    long = trouble(reasons.CORRUPT_FILE, "x" * 10_000)
    assert len(losses.with_loss_advice(long, "g1", world.status, situation).message) < 1300


def _lose(world: World, generation: str) -> None:
    world.lost.add(generation)
    for pod in list(world.pods.values()):
        if pod.labels.get(names.GENERATION) == generation:
            del world.pods[pod.name]
    world.step()


def test_a_pinned_generation_that_nobody_can_fetch_waits_and_says_so_and_is_left_by_taking_the_pin_away() -> None:
    world = _pinned()
    world.lost.add("g1")
    for _ in range(300):
        planned = world.reconcile()
        world.step(3)
    assert (world.status.generation, world.status.last_generation) == ("g2", 2)
    for kind in ("RolledOut", "Degraded"):
        assert condition(planned, kind).reason == "GenerationMissing"
        assert "spec.generation pins g1, so no build can" in condition(planned, kind).message
        assert "is built again" not in condition(planned, kind).message
    world.edit(generation=None)
    world.settle()
    assert (world.status.generation, world.status.last_generation) == ("g2", 2)


def test_a_turn_that_was_given_up_says_it_too() -> None:
    world = _pinned()
    world.lost.add("g1")
    world.settle(until=lambda: world.status.last_rollout == 3)
    world.step()
    world.turns = Turns(Turn(), Turn(must_yield=True))
    planned = world.reconcile()
    assert planned.status.rollout_ticket is not None
    assert planned.status.rollout_ticket.given_up
    assert "spec.generation pins g1, so no build can" in condition(planned, "RolledOut").message
    assert "spec.generation pins g1, so no build can" in condition(planned, "Degraded").message


def test_what_was_gone_back_to_and_is_lost_waits_for_a_source_that_somebody_vouches_for() -> None:
    """The source may now be the data that was rolled back from, or worse."""
    world = _rolled_back()
    world.edit(source=world.spec["source"])
    world.content_of_source = lambda source: f"{source} worse"
    _lose(world, "g1")
    for _ in range(300):
        planned = world.reconcile()
        world.step()
    assert world.status.last_generation == 2
    assert "because g2, the newest of this spec, was rolled back from" in condition(planned, "Degraded").message
    _refreshed(world, "mended")
    world.settle()
    assert world.status.generation == "g3"
