"""A generation that a gate rejected is reported, kept and not rolled out, unless somebody overrides the gate for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from operator_support.plan_objects import Takes
from operator_support.plan_samples import broken, condition, copy_of, says, serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import Plan, Trouble
from lookupdb_operator.plan import builds as losses
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import DatasetStatus


def refused(world: World | None = None) -> World:
    """g1 serves; a gate has rejected g2, of new data."""
    return _refuse(world) if world else copy_of(_first_refused())


@cache
def _first_refused() -> World:
    return _refuse(serving())


def _refuse(world: World) -> World:
    world.closes_gate = lambda content: "bad" in content
    world.edit(source={"url": "s3://data/bad.csv"})
    world.settle(until=lambda: world.status.refused is not None)
    return world


def overridden_during_build(found: str = "good", **spec: Any) -> World:
    """g1 served, a gate had rejected g2, and the source was g1's again, or as ``found``. That is the result of g3,
    which compared with both; meanwhile the gate was overridden for g2."""
    data = ["good"]
    world = World(takes=Takes(build=20))
    world.edit(**spec)
    world.closes_gate = lambda content: "bad" in content
    world.content_of_source = lambda source: f"{source} {data[0]}"
    world.settle()
    data[0] = "bad"
    world.annotate("broken")
    world.settle(until=lambda: world.status.refused is not None)
    data[0] = found
    world.now += timedelta(hours=2)
    world.annotate("repaired")
    world.settle(until=lambda: world.status.build is not None and world.status.build.generation == "g3")
    world.override("g2")
    world.settle(until=lambda: world.status.build is None or world.status.build.generation != "g3")
    return world


def shown(planned: Plan, kind: str = "Built") -> str:
    return condition(planned, kind).message


def builder_words(world: World, generation: str) -> list[str]:
    job = world.things["Job", f"airports-{generation}-build"].manifest
    words: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return words


def test_it_is_reported_and_not_rolled_out() -> None:
    world = refused()
    planned = world.look()
    assert says(planned) == {
        "Ready": "True Serving",
        "Built": "False GateClosed",
        "RolledOut": "False WaitingForBuild",
        "Degraded": "True GateClosed",
    }
    assert (planned.apply, planned.delete) == ((), ())
    assert world.status.refused is not None
    assert (world.status.refused.generation, world.status.refused.records) == ("g2", 10)
    assert world.status.refused.message == (
        "maxShrinkPercent: expected at most 20 % fewer records, found 10 where g1 has 100 (-90.0 %); "
        "maxRejectedRows: expected at most 0 excluded rows, found 1"
    )
    assert [generation.generation for generation in world.status.generations] == ["g1"]
    assert "maxShrinkPercent: expected" in shown(planned)
    assert shown(planned).count("lookupdb.dev/override-gates") == 1, "its builder has said how to let it through"
    assert "kubectl annotate lds airports -n default lookupdb.dev/override-gates=g2 --overwrite" in shown(planned)
    assert "g1 keeps serving" in shown(planned, "Degraded")


def test_how_to_let_it_through_is_said_where_its_builder_has_not() -> None:
    """The builder is of an older image, or its message was too long."""
    world = refused()
    assert world.status.failure is not None
    world.status = replace(world.status, failure=replace(world.status.failure, message="too few"))
    told = "too few; to accept g2 as it is, set the annotation lookupdb.dev/override-gates to g2"
    assert shown(world.look()).startswith(f"{told}. ")
    world.override("g9")
    assert shown(world.look()).startswith(f"{told}; it names g9, which is not the rejected generation. ")


def test_the_sweep_spares_it() -> None:
    assert refused().status.protected_generations() == {"g1", "g2"}


def test_the_next_attempts_find_it_and_build_no_other() -> None:
    world = refused()
    world.settle(until=lambda: world.status.failure is not None and world.status.failure.count == 3)
    assert world.status.refused is not None
    assert (world.status.refused.generation, world.status.refused.verified_by) == ("g2", 4)
    assert set(world.published) == {"g1", "g2"}
    assert "override-gates=g2 --overwrite" in shown(world.look())


def test_a_build_knows_what_its_gates_compare_with_when_the_store_has_lost_it() -> None:
    world = refused()
    world.takes.build = NEVER
    world.now += timedelta(seconds=31)
    world.reconcile()
    words = builder_words(world, "g3")
    assert words[words.index("--active-records") + 1] == "10"
    assert words[words.index("--unless-refused") + 1] == "g2"


@pytest.mark.parametrize("url", ["s3://data/good.csv", "s3://data/v1.csv"], ids=["new data", "what serves"])
def test_a_corrected_source_is_built_and_the_refused_generation_is_gone(url: str) -> None:
    world = refused()
    world.edit(source={"url": url})
    world.settle()
    assert says(world.look())["Built"] == "True GenerationBuilt"
    if url.endswith("good.csv"):
        assert world.status.refused is None
        assert "g2" not in world.status.protected_generations()
    assert world.status.table is not None
    assert world.status.table.generation != "g2"


def test_a_source_that_is_as_before_leaves_nothing_to_override() -> None:
    world = serving()
    good, world.closes_gate = world.content_of_source, lambda content: content == "bad"
    world.content_of_source = lambda source: "bad"
    world.annotate("broken")
    world.settle(until=lambda: world.status.refused is not None)
    world.content_of_source = good
    world.annotate("repaired")
    world.settle()
    assert (world.status.builds[-1].outcome, world.status.refused) == ("unchanged", None)


def test_corrected_gates_build_again_at_once() -> None:
    world = refused()
    world.closes_gate = lambda content: False
    world.edit(gates={"maxShrinkPercent": 100})
    world.settle()
    assert (world.status.generation, world.status.refused) == ("g3", None)


def test_another_refused_one_takes_its_place() -> None:
    world = refused()
    world.edit(source={"url": "s3://data/bad2.csv"})
    world.settle(until=lambda: world.status.refused is not None and world.status.refused.generation == "g3")
    assert world.status.protected_generations() == {"g1", "g3"}


def test_an_empty_one_is_a_failure_and_nothing_else() -> None:
    world = serving()
    world.edit(source={"url": "s3://data/empty.csv"})
    world.fails = lambda spec: broken("GateClosed", "minRecords: expected at least 1 record, found 0")
    world.settle(until=lambda: world.status.failure is not None)
    assert world.status.refused is None
    assert "override-gates" not in shown(world.look())


def test_a_later_one_that_is_empty_does_not_advise_to_accept_it() -> None:
    world = refused()
    world.fails = lambda spec: broken("GateClosed", "an empty generation is not published")
    world.settle(until=lambda: world.status.failure is not None and world.status.failure.generation == "g3")
    assert world.status.refused is not None
    assert shown(world.look()).startswith("an empty generation is not published. ")


class TestOverride:
    def test_lets_it_through_without_a_build(self) -> None:
        world = refused()
        world.override("g2")
        world.settle()
        assert (world.status.generation, world.status.refused, world.status.failure) == ("g2", None, None)
        assert world.status.last_generation == 2
        assert set(world.published) == {"g1", "g2"}

    def test_remains_to_be_seen(self) -> None:
        world = refused()
        world.override("g2")
        world.settle()
        generation = world.status.find_generation("g2")
        assert generation is not None
        assert generation.overridden.startswith("maxShrinkPercent: expected")
        assert f"though a gate failed and was overridden ({generation.overridden})" in shown(world.look())
        assert DatasetStatus.from_json(world.status.to_json()) == world.status

    def test_answers_the_refresh_that_it_was_built_for(self) -> None:
        world = serving()
        world.closes_gate = lambda content: True
        world.content_of_source = lambda source: f"{source} of today"
        world.annotate("today")
        world.settle(until=lambda: world.status.refused is not None)
        world.override("g2")
        world.settle()
        assert (world.status.generation, world.status.refreshed) == ("g2", "today")
        assert says(world.look())["Built"] == "True GenerationBuilt"

    def test_answers_the_check_of_the_schedule_that_it_was_built_for(self) -> None:
        world = serving()
        world.closes_gate = lambda content: True
        world.content_of_source = lambda source: f"{source} of tonight"
        world.edit(refresh={"schedule": "0 * * * *"})
        world.reconcile()
        world.now += timedelta(hours=2)
        world.settle(until=lambda: world.status.refused is not None)
        assert world.status.schedule is not None
        assert world.status.schedule.due != ""
        world.override("g2")
        planned = world.reconcile()
        assert planned.status.schedule is not None
        assert (planned.status.schedule.due, planned.status.failure) == ("", None)
        assert planned.status.refreshed_by >= 2

    def test_left_standing_lets_no_later_one_through(self) -> None:
        world = refused()
        world.override("g2")
        world.settle()
        world.edit(source={"url": "s3://data/bad2.csv"})
        world.settle(until=lambda: world.status.refused is not None)
        world.step()
        assert world.status.table is not None
        assert world.status.table.generation == "g2"
        assert "override-gates names g2" not in shown(world.look()), "it may stay"

    @pytest.mark.parametrize("name", ["g3", "g99", "G2", "2", "yes", "g2 ", "g" * 32])
    def test_of_another_name_does_nothing_and_is_reported(self, name: str) -> None:
        world = refused()
        world.override(name)
        planned = world.reconcile()
        assert planned.status.refused is not None
        assert f"override-gates names {name}, which is not the rejected generation" in shown(planned)

    def test_that_is_there_before_it_was_refused_does_nothing_until_it_is_set_again(self) -> None:
        world = serving()
        world.override("g2")
        refused(world)
        planned = world.reconcile()
        assert planned.status.refused is not None
        assert "named g2 before it was rejected, and has no effect" in shown(planned)
        world.now += timedelta(hours=1)
        assert world.reconcile().status.refused is not None
        world.override("")
        planned = world.reconcile()
        assert planned.status.refused is not None
        assert "has no effect" not in shown(planned)
        assert "override-gates=g2 --overwrite" in shown(planned)
        world.override("g2")
        world.settle()
        assert world.status.generation == "g2"

    def test_of_a_generation_of_another_spec_does_nothing(self) -> None:
        world = refused()
        world.edit(source={"url": "s3://data/v1.csv"})
        world.override("g2")
        world.settle()
        assert world.status.generation == "g1"
        assert "names g2, which cannot be accepted" in shown(world.look())

    def test_while_it_is_tried_again_ends_that_attempt(self) -> None:
        world = refused()
        world.takes.build = NEVER
        world.settle(until=lambda: world.status.build is not None)
        world.override("g2")
        planned = world.reconcile()
        assert (planned.status.build, planned.status.failure, planned.status.refused) == (None, None, None)
        world.settle()
        assert world.status.generation == "g2"

    def test_while_a_build_compares_with_what_was_there_before_credits_nothing_to_what_is_let_through(self) -> None:
        world = overridden_during_build()
        assert world.status.builds[-1].outcome == "unchanged"
        credited = {one.generation: (one.refresh, one.verified_by) for one in world.status.generations}
        assert credited == {"g1": ("repaired", 3), "g2": ("broken", 0)}
        assert world.status.refreshed == "broken", "what is rolled out does not answer the other one"
        world.settle()
        assert (world.status.generation, world.status.refreshed) == ("g4", "repaired")
        assert world.published["g4"] == world.published["g1"] != world.published["g2"]

    def test_while_a_build_finds_that_very_source_is_verified_by_it(self) -> None:
        world = overridden_during_build(found="bad")
        assert (world.status.builds[-1].outcome, world.status.failure) == ("unchanged", None)
        credited = {one.generation: (one.refresh, one.verified_by) for one in world.status.generations}
        assert credited == {"g1": ("", 0), "g2": ("repaired", 3)}
        assert world.status.refreshed == "repaired"
        planned = world.look()
        assert (says(planned)["Built"], says(planned)["Degraded"]) == ("True GenerationBuilt", "False Healthy")
        world.settle()
        assert (world.status.generation, world.status.last_generation) == ("g2", 3)

    def test_while_a_check_finds_that_very_source_answers_it(self) -> None:
        world = overridden_during_build(found="bad", refresh={"schedule": "0 * * * *"})
        assert world.status.builds[-1].outcome == "unchanged"
        assert world.status.schedule is not None
        assert world.status.schedule.due == ""

    def test_while_a_check_compares_with_what_was_there_before_leaves_it_to_be_made(self) -> None:
        world = overridden_during_build(refresh={"schedule": "0 * * * *"})
        assert world.status.builds[-1].outcome == "unchanged"
        assert world.status.schedule is not None
        assert world.status.schedule.due != ""
        world.settle()
        assert world.status.generation == "g4"
        assert world.status.schedule.due == ""

    def test_of_what_was_overridden_long_ago_is_not_reported(self) -> None:
        world = refused()
        world.override("g2")
        world.settle()
        world.edit(source={"url": "s3://data/v5.csv"})
        world.settle()
        assert "override-gates" not in shown(world.look())

    def test_of_what_never_was_is_reported_though_nothing_was_refused(self) -> None:
        world = serving()
        world.override("g7")
        assert "names g7, which no gate has rejected" in shown(world.reconcile())

    def test_of_a_pinned_dataset_lets_it_in_and_rolls_it_out_when_the_pin_is_gone(self) -> None:
        world = refused()
        world.edit(generation="g1")
        world.override("g2")
        world.settle()
        assert (world.status.generation, world.status.refused) == ("g1", None)
        world.edit(generation=None)
        world.settle()
        assert world.status.generation == "g2"

    def test_is_what_it_takes_to_pin_a_refused_generation(self) -> None:
        world = refused()
        world.edit(generation="g2")
        world.step()
        assert "spec.generation is g2, and a gate has rejected it" in shown(world.reconcile(), "Degraded")
        assert world.status.generation == "g1"
        world.override("g2")
        world.settle()
        assert world.status.generation == "g2"

    def test_of_one_that_the_store_has_lost_leaves_the_active_one_serving_and_a_refresh_builds_again(self) -> None:
        world = refused()
        world.override("g2")
        world.takes.start = NEVER
        world.settle(until=lambda: world.status.last_rollout == 2)
        world.step()
        for pod in world.pods.values():
            if pod.labels.get(names.GENERATION) == "g2":
                pod.trouble = Trouble(reasons.GENERATION_MISSING, "the store has no generation g2")
        planned = world.reconcile()
        assert says(planned)["Built"] == "False GenerationMissing"
        assert planned.status.table is not None
        assert planned.status.table.generation == "g1"
        world.closes_gate, world.takes.start = lambda content: False, 1
        world.annotate("again")
        world.settle()
        assert world.status.generation == "g3"

    def test_is_one_write_before_which_an_operator_may_end_and_after_which_it_may(self) -> None:
        world = refused()
        world.override("g2")
        planned = world.look()
        world.carry_out(planned, world.dataset, steps=0)
        assert world.status.find_generation("g2") is not None
        world.settle()
        assert world.status.generation == "g2"


def test_a_status_that_was_lost_lets_nothing_through_though_the_annotation_still_stands() -> None:
    world = refused()
    world.override("g2")
    world.settle()
    world.edit(source={"url": "s3://data/bad2.csv"})
    world.settle(until=lambda: world.status.refused is not None)
    world.override("g3")
    world.status = replace(world.status, refused=None)
    world.settle(until=lambda: world.status.failure is not None and world.status.failure.count > 1)
    assert world.status.table is not None
    assert world.status.table.generation == "g2"


def test_what_is_remembered_and_shown_of_a_message_is_bounded() -> None:
    world = refused()
    assert world.status.failure is not None
    failure = replace(world.status.failure, message="k" * 4000)
    world.status = replace(world.status, failure=failure)
    situation = Situation.from_observed(world.observe(), world.config, world.now)
    trouble = losses.with_refusal_advice(failure, world.status, situation)
    assert len(trouble.message) < 3500
    assert "to accept g2" in shown(world.look(), "Degraded")
