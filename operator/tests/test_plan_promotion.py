"""Promotion: which generation may take effect, annotations that name another one, and what a rejection holds back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from operator_support.plan_samples import serving
from operator_support.plan_world import World

from lookupdb_operator.plan import generations
from lookupdb_operator.plan.turns import Desired, Situation
from lookupdb_operator.status import CandidateStatus, DatasetStatus, RolledBack

MANUAL = {"promotion": "Manual", "drainSeconds": 5}


def _desired(world: World, **members: Any) -> Desired:
    return replace(_situation(world).desired, promotion="Manual", **members)


def _situation(world: World) -> Situation:
    return Situation.from_observed(world.observe(), world.config, world.now)


def _refreshed(world: World, data: str) -> None:
    """Build new data."""
    world.content_of_source = lambda source: f"{source} {data}"
    world.annotate(data)


class TestMayTakeEffect:
    def test_the_first_generation_of_a_dataset_does_without_anybody(self) -> None:
        world = World()
        assert generations.may_take_effect("g1", DatasetStatus(), _desired(world))

    def test_a_new_one_does_when_it_is_promoted_and_no_other_one_does(self) -> None:
        world = serving()
        assert not generations.may_take_effect("g2", world.status, _desired(world))
        assert generations.may_take_effect("g2", world.status, _desired(world, promote="g2"))
        assert not generations.may_take_effect("g3", world.status, _desired(world, promote="g2"))

    def test_one_that_is_pinned_does(self) -> None:
        world = serving()
        assert generations.may_take_effect("g2", world.status, _desired(world, pinned_generation="g2"))

    def test_what_is_in_effect_does_again_from_another_pod_template(self) -> None:
        world = serving()
        assert generations.may_take_effect("g1", world.status, _desired(world))

    def test_any_does_with_promotion_auto(self) -> None:
        world = serving()
        assert generations.may_take_effect("g2", world.status, replace(_desired(world), promotion="Auto"))

    def test_nothing_does_unasked_while_it_is_not_known_what_serves(self) -> None:
        """The status was lost: waiting is better than continuing with unchecked data."""
        world = serving()
        lost = replace(world.status, table=None, generation="")
        assert not generations.may_take_effect("g2", lost, _desired(world))
        assert generations.may_take_effect("g2", lost, _desired(world, promote="g2"))


class TestPromotedTooEarly:
    """Before its generation is built, an annotation promotes unseen data."""

    def _promoted(self) -> World:
        world = serving(rollout=MANUAL)
        world.annotate_decision(promote="g2")
        _refreshed(world, "two")
        world.settle(until=lambda: world.status.candidate is not None)
        return world

    def test_it_waits_all_the_same_and_says_so(self) -> None:
        world = self._promoted()
        world.live(30)
        assert (world.status.generation, world.status.phase) == ("g1", "CandidateWaiting")
        assert "promote named g2 before it was built, and has no effect: inspect g2" in _rolled_out(world)

    def test_it_takes_effect_when_the_annotation_is_taken_away_and_set_again(self) -> None:
        world = self._promoted()
        world.annotate_decision(promote="")
        world.reconcile()
        generation = world.status.find_generation("g2")
        assert generation is not None
        assert generation.premature_promotion == ""
        world.annotate_decision(promote="g2")
        world.settle()
        assert world.status.generation == "g2"

    def test_what_a_gate_had_refused_waits_too_when_its_gates_are_overridden(self) -> None:
        world = serving(rollout=MANUAL)
        world.annotate_decision(promote="g2")
        world.closes_gate = lambda content: "two" in content
        _refreshed(world, "two")
        world.settle(until=lambda: world.status.refused is not None)
        world.override("g2")
        world.settle(until=lambda: world.status.phase == "CandidateWaiting")
        world.live(30)
        assert (world.status.generation, world.status.phase) == ("g1", "CandidateWaiting")

    def test_once_it_is_built_it_may_be_promoted_before_its_servers_are_ready(self) -> None:
        world = serving(rollout=MANUAL)
        world.takes.start = 60
        _refreshed(world, "two")
        world.settle(until=lambda: world.status.last_rollout == 2)
        world.annotate_decision(promote="g2")
        world.settle()
        assert world.status.generation == "g2"

    def test_by_a_pin_it_is_served_at_once(self) -> None:
        world = self._promoted()
        world.edit(generation="g2")
        world.settle()
        assert world.status.generation == "g2"


class TestPromotedCandidate:
    def test_comes_before_a_newer_generation(self) -> None:
        world = serving()
        _refreshed(world, "two")
        world.settle()
        status = replace(world.status, candidate=CandidateStatus("g1", "r1", "2026-01-01T00:00:00Z"))
        asked = generations.target_generation(status, _desired(world, promote="g1"))
        assert asked is not None
        assert asked.generation == "g1"
        asked = generations.target_generation(status, _desired(world, promote="g7"))
        assert asked is not None
        assert asked.generation == "g2"

    def test_does_not_come_before_a_spec_that_has_changed(self) -> None:
        world = serving()
        status = replace(world.status, candidate=CandidateStatus("g1", "r1", "2026-01-01T00:00:00Z"))
        world.edit(source={"url": "s3://data/other.csv"})
        assert generations.promoted_candidate(status, _desired(world, promote="g1")) is None


class TestRejecting:
    def test_remembers_source_and_spec(self) -> None:
        world = serving(rollout=MANUAL)
        _refreshed(world, "two")
        world.settle(until=lambda: world.status.candidate is not None)
        world.annotate_decision(reject="g2")
        world.reconcile()
        (mark,) = world.status.rejected
        generation = world.status.find_generation("g2")
        assert generation is not None
        assert mark == RolledBack("g2", generation.fingerprint, generation.content)

    @pytest.mark.parametrize("promotion_mode", ["Auto", "Manual"])
    def test_of_what_serves_does_nothing_and_says_so(self, promotion_mode: str) -> None:
        world = serving(rollout={"promotion": promotion_mode})
        world.annotate_decision(reject="g1")
        world.settle()
        assert (world.status.generation, world.status.rejected) == ("g1", ())
        assert "names g1, which serves: to go back, set spec.generation" in _rolled_out(world)

    def test_of_what_is_not_there_does_nothing_and_says_so(self) -> None:
        world = serving()
        world.annotate_decision(reject="g" * 5000)
        world.settle()
        assert world.status.rejected == ()
        assert "which does not exist" in _rolled_out(world)
        assert len(_rolled_out(world)) < 400

    def test_of_what_is_pinned_does_nothing(self) -> None:
        world = serving(rollout=MANUAL)
        _refreshed(world, "two")
        world.settle(until=lambda: world.status.candidate is not None)
        world.edit(generation="g2")
        world.annotate_decision(reject="g2")
        world.settle()
        assert (world.status.generation, world.status.rejected) == ("g2", ())

    def test_before_it_is_rolled_out_starts_no_server_of_it_with_promotion_auto_too(self) -> None:
        world = serving()
        world.annotate_decision(reject="g2")
        _refreshed(world, "two")
        world.settle()
        assert (world.status.generation, world.status.last_rollout) == ("g1", 1)
        assert [mark.generation for mark in world.status.rejected] == ["g2"]

    def test_holds_the_same_data_back_when_it_is_built_again_and_lets_other_data_through(self) -> None:
        world = serving()
        world.annotate_decision(reject="g2")
        for data, serves in (("bad", "g1"), ("good", "g3"), ("bad", "g3"), ("better", "g5")):
            _refreshed(world, data)
            world.annotate(f"{data} {serves}")
            world.settle()
            assert world.status.generation == serves, data

    def test_while_its_servers_start_gives_way_to_what_is_newer_with_promotion_auto_too(self) -> None:
        world = serving()
        _refreshed(world, "two")
        world.takes.start = 60
        world.settle(until=lambda: world.status.last_rollout == 2)
        _refreshed(world, "three")
        world.settle(until=lambda: world.status.find_generation("g3") is not None)
        world.annotate_decision(reject="g2")
        world.settle()
        assert world.status.generation == "g3"
        assert {orjson.loads(table)["active"] for table in world.invariants.tables.values()} == {"g1", "g3"}

    def test_is_undone_by_a_pin(self) -> None:
        world = serving()
        world.annotate_decision(reject="g2")
        _refreshed(world, "two")
        world.settle()
        world.edit(generation="g2")
        world.settle()
        assert (world.status.generation, world.status.rejected) == ("g2", ())
        world.edit(generation=None)
        world.settle()
        assert world.status.generation == "g2"


@pytest.mark.parametrize("promotion_mode", ["Auto", "Manual"])
def test_a_rejection_that_a_status_set_back_has_lost_is_made_again_by_its_annotation(promotion_mode: str) -> None:
    """Everything it knows is built again, from the rejected source."""
    world = serving(rollout=MANUAL)
    _refreshed(world, "two")
    world.settle(until=lambda: world.status.candidate is not None)
    before = world.status
    world.annotate_decision(reject="g2")
    world.settle()
    world.status = before
    world.edit(rollout={**MANUAL, "promotion": promotion_mode})
    world.settle(until=lambda: world.status.find_generation("g3") is not None)
    for _ in range(100):
        world.step()
        world.reconcile()
    assert [mark.generation for mark in world.status.rejected] == ["g2"]
    assert world.status.candidate is None
    assert {orjson.loads(table)["active"] for table in world.invariants.tables.values()} == {"g1"}
    _refreshed(world, "three")
    world.settle(until=lambda: world.status.find_generation("g4") is not None)
    assert generations.target_generation(world.status, _situation(world).desired) == world.status.find_generation("g4")


def _rolled_out(world: World) -> str:
    condition = world.status.condition("RolledOut")
    assert condition is not None
    return condition.message
