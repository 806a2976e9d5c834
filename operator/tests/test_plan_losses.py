"""A generation that serves or is desired, and that the store has lost, is built again: once, after a while, and only if
another generation would serve."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from operator_support.losing_simulation import LosingSimulation
from operator_support.plan_samples import condition, says, serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import Trouble, Turn, Turns, remaining_seconds
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import DatasetStatus, replace

pytestmark = pytest.mark.long  # whole lives


def losing(generation: str = "g1") -> World:
    """``generation`` serves, the store has lost it, and a server must fetch it again."""
    world = serving()
    lose(world, generation)
    return world


def lose(world: World, generation: str) -> None:
    world.lost.add(generation)
    server = next(pod for pod in world.pods.values() if pod.labels.get(names.GENERATION) == generation)
    del world.pods[server.name]
    world.step()


def generations(world: World) -> list[str]:
    return [found.generation for found in world.status.generations]


def test_what_serves_and_is_lost_is_built_again_and_replaced_though_the_source_is_the_same() -> None:
    world = losing()
    world.settle(until=lambda: world.status.build is not None)
    assert world.status.build is not None
    assert (world.status.build.generation, world.status.build.unless_fingerprint) == ("g2", "")
    assert world.status.table is not None
    assert world.status.table.generation == "g1", "what serves goes on"
    world.settle()
    assert world.status.generation == "g2"
    assert world.status.generations[0].fingerprint == world.status.generations[1].fingerprint


def test_what_is_to_be_rolled_out_and_is_lost_is_built_again() -> None:
    world = serving()
    world.takes.start = NEVER
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: len(world.status.generations) == 2)
    world.lost.add("g2")
    world.takes.start = 1
    world.settle(until=lambda: world.status.lost is not None)
    world.settle()
    assert world.status.generation == "g3"


@pytest.mark.parametrize("reason", sorted(reasons.DAMAGE_REASONS))
def test_says_what_was_lost_and_when_it_is_built_again(reason: str) -> None:
    world = serving()
    pod = next(pod for pod in world.pods.values() if pod.component == names.SHARDS)
    pod.ready, pod.trouble = False, Trouble(reason, "the store gives no g1")
    planned = world.reconcile()
    assert planned.status.build is None
    assert planned.status.lost is not None
    assert (planned.status.lost.generation, planned.status.lost.reason, planned.status.lost.count) == ("g1", reason, 1)
    assert says(planned)["Built"] == f"False {reason}"
    assert f"It is built again at {planned.status.lost.retry_at}." in condition(planned, "Built").message
    assert planned.next_look_in is not None
    assert planned.next_look_in <= reasons.FIRST_RETRY_DELAY
    assert remaining_seconds(planned.status.lost.retry_at, world.now) == reasons.FIRST_RETRY_DELAY


def test_one_loss_asks_for_one_build_whichever_write_an_operator_ends_after() -> None:
    for steps in range(4):
        world = losing()
        for _ in range(200):
            planned = world.look()
            world.carry_out(planned, world.dataset, steps)
            world.start_operator()
            world.carry_out(world.look(), world.dataset)
            world.step()
        assert generations(world) == ["g1", "g2"], f"it ends after {steps} writes"
        assert world.status.last_generation == 2


def test_a_build_that_fails_is_tried_again_as_any_other_though_no_server_is_left_to_report_the_loss() -> None:
    world = losing()
    world.fails = lambda spec: Trouble(reasons.OUT_OF_MEMORY, "killed")
    world.settle(until=lambda: world.status.failure is not None)
    world.lost.clear()
    world.step()
    world.fails = lambda spec: None
    world.settle()
    assert world.status.generation in ("g3", "g4")


def test_the_ticket_of_what_was_lost_says_nothing_of_what_replaces_it() -> None:
    """Others are queued, so the rollout of g2 gives its slot up; the servers of g3 take their time."""
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: len(world.status.generations) == 2)
    world.lost.add("g2")
    world.takes.build, world.takes.start = 45, 600
    lost = set()
    for _ in range(1500):
        ticket = world.status.rollout_ticket
        has_given_up = ticket is not None and ticket.given_up
        world.turns = Turns(Turn(), Turn(must_yield=world.status.last_rollout == 2 and not has_given_up))
        world.reconcile()
        lost |= {world.status.lost.generation} if world.status.lost else set()
        world.step()
    assert lost == {"g2"}
    assert (world.status.last_generation, world.status.generation) == (3, "g3")


def test_losses_are_not_in_a_row_when_the_spec_has_asked_for_a_build_between_them() -> None:
    world = losing()
    world.settle()
    assert world.status.lost is not None
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    assert world.status.generation == "g3"
    assert world.status.lost is None


def test_an_edited_count_stays_within_what_the_crd_takes() -> None:
    world = losing()
    world.reconcile()
    lost = world.status.lost
    assert lost is not None
    world.status = replace(world.status, lost=replace(lost, generation="g7", count=999_999_999))
    assert (noted := world.reconcile().status.lost) is not None
    assert (noted.generation, noted.count) == ("g1", 999_999_999)
    world.status = replace(world.status, lost=replace(lost, count=0))
    world.lost.clear()
    world.settle()
    assert world.status.lost is None


def test_a_store_that_loses_all_it_is_given_is_given_less_and_less() -> None:
    world = serving()
    delays = []
    for number in range(1, 5):
        lose(world, f"g{number}")
        world.reconcile()
        assert world.status.lost is not None
        assert (world.status.lost.generation, world.status.lost.count) == (f"g{number}", number)
        delays.append(remaining_seconds(world.status.lost.retry_at, world.now))
        world.settle(600)
    assert delays == pytest.approx([30, 60, 120, 240], abs=2)
    world.annotate("monday")
    world.settle()
    assert world.status.lost is None, "another request for a build starts again"


def test_what_was_there_for_hours_was_not_lost_in_a_row() -> None:
    world = losing()
    world.settle()
    assert world.status.lost is not None
    world.now += timedelta(hours=2)
    lose(world, "g2")
    world.reconcile()
    assert (world.status.lost.generation, world.status.lost.count) == ("g2", 1)


def test_servers_that_are_replaced_all_the_time_do_not_put_the_build_off() -> None:
    """A drained node or scarce memory may cause it: in many passes nobody reports the loss."""
    world = losing()
    world.reconcile()
    assert world.status.lost is not None
    retry_at = world.status.lost.retry_at
    for _ in range(25):
        for server in [pod for pod in world.pods.values() if pod.component == names.SHARDS and not pod.ready]:
            del world.pods[server.name]
        world.reconcile()
        assert world.status.lost.retry_at == retry_at
        world.step()
        world.reconcile()
    world.settle(until=lambda: world.status.build is not None)
    world.settle()
    assert world.status.generation == "g2"


def test_a_refresh_waits_for_nothing() -> None:
    world = losing()
    world.reconcile()
    world.annotate("now")
    planned = world.reconcile()
    assert planned.status.build is not None
    assert planned.status.build.unless_fingerprint == ""


def test_what_the_store_has_again_before_its_time_is_not_built_again() -> None:
    world = losing()
    world.reconcile()
    assert world.status.lost is not None
    world.lost.clear()
    world.settle()
    assert (world.status.last_generation, world.status.generation) == (1, "g1")
    assert world.status.lost is None


def _pin(world: World) -> None:
    world.edit(generation="g1")


def _suspend(world: World) -> None:
    world.edit(suspend=True)


@pytest.mark.parametrize(("holds", "member"), [(_pin, "generation"), (_suspend, "suspend")])
def test_nothing_is_built_while_it_is_pinned_or_suspended_and_afterwards_it_is(
    holds: Callable[[World], None], member: str
) -> None:
    world = serving()
    holds(world)
    lose(world, "g1")
    world.live(100)
    assert (world.status.last_generation, world.status.lost) == (1, None)
    world.edit(**{member: None if member == "generation" else False})
    world.settle()
    assert world.status.generation == "g2"


def test_while_it_is_pinned_it_says_why_nothing_is_built() -> None:
    world = serving()
    _pin(world)
    lose(world, "g1")
    planned = world.reconcile()
    assert says(planned)["Built"] == "False GenerationMissing"
    assert "while a generation is pinned: remove spec.generation" in condition(planned, "Built").message


def test_a_pin_that_comes_later_ends_what_was_begun() -> None:
    world = losing()
    world.settle(until=lambda: world.status.build is not None)
    _pin(world)
    assert world.reconcile().status.build is None


def test_a_clock_that_is_set_back_keeps_nobody_waiting() -> None:
    world = losing()
    world.reconcile()
    world.now -= timedelta(hours=5)
    world.settle(until=lambda: world.status.build is not None)
    assert generations(world) == ["g1"]


def test_the_note_is_read_as_it_was_written() -> None:
    world = losing()
    world.reconcile()
    assert world.status.lost is not None
    assert DatasetStatus.from_json(world.status.to_json()).lost == world.status.lost


def test_an_older_generation_that_an_edit_of_the_spec_has_gone_back_to_is_built_again() -> None:
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    world.lost.add("g1")
    world.edit(source={"url": "s3://data/v1.csv"})
    world.settle()
    assert (world.status.generation, world.status.last_generation) == ("g3", 3)


@pytest.mark.parametrize("seed", [2000033, 3000149])
def test_lives_in_which_what_is_pinned_is_lost_until_somebody_brings_it_back(seed: int) -> None:
    LosingSimulation(seed).live(100)


def test_with_manual_promotion_the_next_one_is_built_and_serves_once_it_is_promoted() -> None:
    """The bucket is emptied, and the operator upgraded."""
    world = serving()
    world.edit(rollout={"drainSeconds": 5, "promotion": "Manual"})
    world.settle()
    world.lost.add("g1")
    world.edit(serving={"workers": 3})
    world.settle(until=lambda: world.status.find_generation("g2") is not None)
    assert world.status.generation == "g1"
    assert "g2, which is built, replaces it when it is promoted" in condition(world.reconcile(), "RolledOut").message
    world.annotate_decision(promote="g2")
    world.settle()
    assert world.status.generation == "g2"
