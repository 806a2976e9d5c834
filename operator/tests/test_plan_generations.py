"""Generations: the desired one, whether another one is needed, and those that the store keeps."""

from __future__ import annotations

import orjson
from operator_support.plan_samples import says, serving
from operator_support.plan_world import World

from lookupdb_operator.model import Observed
from lookupdb_operator.plan import generations
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import DatasetStatus, RolledBack


def _three_generations(**spec: object) -> World:
    """A world that serves g3, with g1 and g2 of older data in the store."""
    world = serving(**spec)
    for data in ("two", "three"):
        world.content_of_source = lambda source, data=data: f"{source} {data}"  # type: ignore[misc]
        world.annotate(data)
        world.settle()
    assert [generation.generation for generation in world.status.generations] == ["g1", "g2", "g3"]
    return world


def _situation(world: World) -> Situation:
    observed: Observed = world.observe()
    return Situation.from_observed(observed, world.config, world.now)


def _asked_for(world: World, status: DatasetStatus | None = None) -> str:
    generation = generations.target_generation(status or world.status, _situation(world).desired)
    return "" if generation is None else generation.generation


def _mark(world: World, name: str) -> RolledBack:
    generation = world.status.find_generation(name)
    assert generation is not None
    return RolledBack(name, generation.fingerprint, generation.content)


def test_the_newest_generation_of_the_present_spec_is_asked_for() -> None:
    world = _three_generations()
    assert _asked_for(world) == "g3"
    world.edit(source={"url": "s3://data/other.csv"})
    assert _asked_for(world) == ""


def test_a_pinned_generation_is_asked_for_whatever_the_spec_says_by_now() -> None:
    world = _three_generations()
    world.edit(generation="g1", source={"url": "s3://data/other.csv"}, shards=1)
    assert _asked_for(world) == "g1"


def test_what_serves_is_asked_for_while_the_pinned_generation_is_not_there() -> None:
    world = _three_generations()
    world.edit(generation="g77")
    assert generations.is_pin_missing(world.status, _situation(world).desired)
    assert _asked_for(world) == "g3"


def test_what_serves_is_asked_for_while_the_newest_one_is_held_back() -> None:
    world = _three_generations()
    world.edit(generation="g2")
    world.reconcile()
    world.settle(until=lambda: world.status.generation == "g2")
    world.edit(generation=None)
    assert _asked_for(world) == "g2"
    assert world.status.rolled_back == (_mark(world, "g3"),)


def test_a_pin_that_is_taken_away_before_its_servers_start_does_not_bring_back_what_was_rolled_back_from() -> None:
    world = _three_generations()
    world.edit(generation="g2")
    world.settle()
    world.content_of_source = lambda source: f"{source} four"
    world.annotate("four")
    world.settle()
    world.edit(generation="g3")  # rolled back from
    world.settle(until=lambda: world.status.rollouts[-1].generation == "g3")
    world.edit(generation=None)
    world.settle()
    assert world.status.generation == "g4"
    assert [content["active"] for content in map(orjson.loads, world.invariants.tables.values())][-2:] == ["g2", "g4"]


def test_another_spec_is_not_held_back_by_what_was_rolled_back_from() -> None:
    world = _three_generations()
    world.settle()
    world.edit(generation="g2")
    world.settle(until=lambda: world.status.generation == "g2")
    world.edit(generation=None, shards=1)
    world.settle(until=lambda: world.status.generation == "g4")


def test_a_held_back_generation_answers_the_refresh_so_that_nothing_is_built_again_and_again() -> None:
    world = _three_generations()
    world.edit(generation="g2")
    world.settle(until=lambda: world.status.generation == "g2")
    world.edit(generation=None)
    world.annotate("once more, and the source is still that of g3")
    world.live(60)
    assert world.status.last_generation == 4, "one build, which found the source unchanged"
    assert world.status.build is None
    assert world.status.generation == "g2"


def test_a_pinned_generation_is_never_trimmed() -> None:
    world = _three_generations(keepGenerations=2, generation="g1")
    assert world.status.find_generation("g1") is not None


def test_the_generation_to_go_back_to_is_not_trimmed_for_newer_ones_that_never_served() -> None:
    world = serving(keepGenerations=2, rollout={"promotion": "Manual", "drainSeconds": 5})
    for generation in ("g2", "g3", "g4"):
        world.content_of_source = lambda source, data=generation: f"{source} {data}"  # type: ignore[misc]
        world.annotate(generation)
        world.settle(until=lambda named=generation: f"generation='{named}'" in repr(world.status.candidate))  # type: ignore[misc]
    world.annotate_decision(promote="g4")
    world.settle(until=lambda: world.status.generation == "g4")
    world.settle()
    assert [generation.generation for generation in world.status.generations] == ["g1", "g3", "g4"]


def test_that_what_serves_is_of_another_spec_is_said_while_the_newest_of_this_one_is_held_back() -> None:
    world = _three_generations()
    for edit in ({"generation": "g2"}, {"generation": None}, {"shards": 1}, {"shards": 2}):
        world.edit(**edit)
        world.settle()
    assert world.status.generation == "g4"
    rolled_out = world.status.condition("RolledOut")
    assert rolled_out is not None
    assert "not of this spec: the newest of this spec is g3, but its data were rolled back" in (rolled_out.message)
    assert (rolled_out.status, rolled_out.reason, world.status.phase) == ("False", "RolledBack", "RolledBack"), (
        "the spec as it is does not serve"
    )
    assert says(world.look())["Degraded"] == "False Healthy", "somebody has wanted it so"
    world.edit(generation="g4")
    world.settle()
    assert says(world.look())["RolledOut"] == "True Pinned", "now the spec asks for it"
