"""A shard-by-shard rollout: the next shards, their time, and its reaction to a newer spec or a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import applied, condition, deleted, serving, trouble
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import ObjectRef, Turn, Turns
from lookupdb_operator.plan import generations, reasons, windows
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import DatasetStatus

pytestmark = pytest.mark.long  # whole lives

PER_SHARD = {"strategy": "PerShard", "drainSeconds": 5}
V2 = {"url": "s3://data/v2.csv"}
V3 = {"url": "s3://data/v3.csv"}


def _serving(surge: int = 1, **spec: Any) -> World:
    return serving(shards=4, rollout={**PER_SHARD, "maxSurgeShards": surge}, **spec)


def _halfway(surge: int = 1) -> World:
    """g2 serves shard 0, and its servers of shard 1 never get ready."""
    world = _serving(surge)
    world.edit(source=V2)
    world.settle(until=lambda: _routed(world).get("r2") == set(range(surge)))
    world.takes.start = NEVER
    world.settle(until=lambda: any(_is_starting(name) for name in world.pods))
    for pod in world.pods.values():
        if _is_starting(pod.name):
            pod.trouble = trouble("ImagePull")
    return world


def _is_starting(pod: str) -> bool:
    return pod.startswith("airports-r2") and not pod.startswith("airports-r2-s0")


def _routed(world: World) -> dict[str, set[int]]:
    """Rollout → the shards that the newest table routes to it."""
    return {
        rollout.rollout: set(windows.routed_shards(rollout, world.status))
        for rollout in windows.serving_rollouts(world.status)
    }


def _windows(world: World) -> dict[str, str]:
    return {rollout.rollout: rollout.window for rollout in world.status.rollouts}


def _sets(world: World) -> set[str]:
    return {name.removeprefix("airports-") for kind, name in world.things if kind == "StatefulSet"}


def _rolled_out(world: World) -> tuple[str, str, str]:
    found = condition(world.reconcile(), "RolledOut")
    return found.status, found.reason, found.message


def test_a_rollout_begins_with_as_many_shards_as_may_be_beside_those_that_serve() -> None:
    world = _serving(surge=2)
    world.edit(source=V2)
    world.settle(until=lambda: world.status.last_rollout == 2)
    assert _sets(world) == {"r1-s0", "r1-s1", "r1-s2", "r1-s3", "r2-s0", "r2-s1"}
    budgets = {name for kind, name in world.things if kind == "PodDisruptionBudget" and "-r2-" in name}
    assert budgets == {"airports-r2-s0", "airports-r2-s1"}


def test_the_next_shards_begin_when_those_that_were_replaced_are_gone_their_pods_too() -> None:
    world = _serving()
    world.takes.stop = 30
    world.edit(source=V2)
    world.settle(until=lambda: "r1-s0" not in _sets(world))
    assert _windows(world)["r2"] == ""
    assert _rolled_out(world) == (
        "False",
        reasons.DRAINING,
        "1 of 4 shards answer from g2, the others from g1; airports-r1-s0-0, which was replaced, is not gone yet.",
    )
    world.settle(until=lambda: _windows(world)["r2"] == "1")
    assert not any(
        pod.labels.get(names.ROLLOUT) == "r1" and pod.name.startswith("airports-r1-s0") for pod in world.pods.values()
    )


@pytest.mark.parametrize(("surge", "servers"), [(1, 10), (3, 14), (9, 16)])
def test_there_are_never_more_servers_than_those_of_all_shards_and_the_surge(surge: int, servers: int) -> None:
    world = _serving(surge)
    world.most_servers = servers
    world.edit(source=V2)
    world.settle()
    assert _routed(world) == {"r2": {0, 1, 2, 3}}
    assert _sets(world) == {"r2-s0", "r2-s1", "r2-s2", "r2-s3"}


def test_what_serves_is_reported_by_shard_and_what_is_active_is_what_last_served_whole() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _windows(world).get("r2") == "1")
    planned = world.reconcile()
    assert (planned.status.generation, planned.status.shards, planned.status.phase) == ("g1", "4/4", "RollingOut")
    assert [generation.served_by for generation in planned.status.generations] == [1, 0], "g2 has not served whole"
    assert condition(planned, "Ready").message.startswith("g1 and g2 serve, shard by shard, at http")
    assert _rolled_out(world)[2].startswith(
        "1 of 4 shards answer from g2, the others from g1; 0 of 1 shard (1) of airports-r2 (generation g2) has its"
    )


def test_refreshed_data_wait_for_the_rollout_under_way_so_that_the_last_shard_is_not_left_behind() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _windows(world).get("r2") == "1")
    world.content_of_source = lambda source: f"{source} newer"
    world.annotate("now")
    world.settle(until=lambda: world.status.last_rollout == 3)
    assert world.status.generation == "g2", "r2 was whole before r3 began"
    world.settle()
    assert _routed(world) == {"r3": {0, 1, 2, 3}}


def test_a_changed_spec_does_not_wait_and_what_no_table_references_goes_at_once() -> None:
    world = _halfway()
    world.takes.start = 2
    world.edit(source=V3)
    planned = world.reconcile()
    assert "StatefulSet/airports-r2-s1" in deleted(planned)
    assert not any(name.startswith("StatefulSet/airports-r2-s0") for name in deleted(planned))
    world.settle(until=lambda: "r3" in _routed(world))
    assert _routed(world) == {"r3": {0}, "r1": {1, 2, 3}}
    world.settle()
    assert _routed(world) == {"r3": {0, 1, 2, 3}}


def test_the_third_rollout_replaces_shard_by_shard_what_the_first_two_serve() -> None:
    world = _serving()
    world.most_servers = 10
    world.edit(source=V2)
    world.settle(until=lambda: _routed(world).get("r2") == {0, 1})
    world.edit(source=V3)
    world.settle(until=lambda: "r3" in _routed(world))
    assert _routed(world) == {"r3": {0}, "r2": {1}, "r1": {2, 3}}
    world.settle()
    assert _routed(world) == {"r3": {0, 1, 2, 3}}


def test_what_is_pinned_midway_is_gone_back_to_with_servers_that_stand_at_once_and_the_others_shard_by_shard() -> None:
    world = _serving()
    world.most_servers = 10
    world.edit(source=V2)
    world.settle(until=lambda: _routed(world).get("r2") == {0, 1})
    world.edit(generation="g1")
    planned = world.reconcile()
    assert planned.status.table is not None
    assert (planned.status.table.rollout, planned.status.table.parts[0].shard_ranges) == ("r1", "0")
    world.settle()
    assert _routed(world) == {"r1": {0, 1, 2, 3}}
    assert [mark.generation for mark in world.status.rolled_back] == ["g2"]


def test_one_goes_back_from_what_is_being_rolled_out_to_what_it_replaces() -> None:
    previous = generations.previous_generation(_halfway().status)
    assert previous is not None
    assert previous.generation == "g1"


def test_a_changed_pod_template_is_rolled_out_so_too_and_no_table_mixes_generations() -> None:
    world = _serving()
    world.most_servers = 10
    world.edit(serving={"workers": 2})
    world.settle(until=lambda: _routed(world).get("r2") == {0, 1})
    assert world.status.table is not None
    assert not world.status.table.is_mixed
    assert _rolled_out(world)[2].startswith("2 of 4 shards answer from r2, the others from r1; ")
    world.settle()
    assert _routed(world) == {"r2": {0, 1, 2, 3}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({"shards": 3}, "another number of shards", id="shards"),
        pytest.param({"value": {"format": "raw", "column": "v"}}, "another number of shards", id="value format"),
        pytest.param({"key": {"columns": ["id"], "normalize": ["strip"]}}, "another number of shards", id="normalize"),
        pytest.param({"key": {"columns": ["id", "code"]}}, "another number of shards", id="key columns"),
    ],
)
def test_what_cannot_stand_beside_what_serves_replaces_all_shards_at_once(change: dict[str, Any], why: str) -> None:
    world = _serving()
    world.takes.start = 20
    world.edit(**change)
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.step()
    assert why in _rolled_out(world)[2]
    assert {rollout.shard_ranges for rollout in world.status.rollouts} == {""}
    world.settle()
    assert world.status.table is not None
    assert (world.status.table.rollout, world.status.generation) == ("r2", "g2")


def test_the_first_rollout_is_of_all_shards() -> None:
    world = World()
    world.edit(shards=4, rollout=PER_SHARD)
    world.settle(until=lambda: world.status.last_rollout == 1)
    assert _rolled_out(world)[2].endswith(
        "together: no serving generation is known that could be replaced shard by shard."
    )
    assert len(_sets(world)) == 4


def test_with_atomic_midway_all_other_shards_are_made_and_then_one_table_is_written() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _windows(world).get("r2") == "1")
    assert world.status.table is not None
    version = world.status.table.version
    world.edit(rollout={"strategy": "Atomic", "drainSeconds": 5})
    world.reconcile()
    assert _windows(world)["r2"] == "1-3"
    world.settle()
    assert world.status.table.version == version + 1
    assert _routed(world) == {"r2": {0, 1, 2, 3}}


def test_with_per_shard_midway_the_servers_that_are_too_many_go_unless_a_table_references_them() -> None:
    world = serving(shards=4)
    world.takes.start = 20
    world.edit(source=V2)
    world.settle(until=lambda: world.status.last_rollout == 2)
    assert len(_sets(world)) == 8
    world.edit(rollout={**PER_SHARD, "maxSurgeShards": 2})
    world.reconcile()
    assert _sets(world) == {"r1-s0", "r1-s1", "r1-s2", "r1-s3", "r2-s0", "r2-s1"}
    world.settle()
    assert _routed(world) == {"r2": {0, 1, 2, 3}}


@pytest.mark.parametrize("replicas", [1, 3])
def test_another_number_of_servers_midway_is_that_of_all_shards_in_the_end(replicas: int) -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _windows(world).get("r2") == "1")
    world.edit(replicas=replicas)
    world.settle()
    assert world.status.table is not None
    assert (world.status.table.replicas, _routed(world)) == (replicas, {"r2": {0, 1, 2, 3}})
    assert {pod.name[-1] for pod in world.pods.values() if pod.component == names.SHARDS} == set(
        map(str, range(replicas))
    )


def test_while_suspended_midway_nothing_begins_and_each_shard_stays_as_it_is() -> None:
    world = _halfway()
    world.edit(suspend=True)
    world.settle(until=lambda: "r2-s1" not in _sets(world))
    assert _routed(world) == {"r2": {0}, "r1": {1, 2, 3}}
    assert _sets(world) == {"r2-s0", "r1-s1", "r1-s2", "r1-s3"}
    assert _rolled_out(world)[:2] == ("False", reasons.SUSPENDED)
    world.takes.start = 2
    world.edit(suspend=False)
    world.settle()
    assert _routed(world) == {"r2": {0, 1, 2, 3}}


def test_a_window_that_does_not_get_on_gives_its_turn_up_and_what_serves_stays() -> None:
    world = _halfway()
    world.settle(400, until=lambda: world.status.rollouts[-1].stall is not None)
    world.turns = Turns(rollout=Turn(is_granted=False, ahead=1, must_yield=True))
    planned = world.reconcile()
    assert "StatefulSet/airports-r2-s1" in deleted(planned)
    assert world.status.rollout_ticket is not None
    assert world.status.rollout_ticket.given_up == 1
    assert _routed(world) == {"r2": {0}, "r1": {1, 2, 3}}


def test_each_window_takes_a_turn_and_waits_for_it_behind_others() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _routed(world).get("r2") == {0})
    world.turns = Turns(rollout=Turn(is_granted=False, ahead=3))
    world.settle(until=lambda: world.status.rollout_ticket is not None)
    world.step(5)
    status, reason, message = _rolled_out(world)
    assert (status, reason) == ("False", reasons.WAITING_FOR_TURN)
    assert message.startswith(
        "1 of 4 shards answer from g2, the others from g1; the rollout has waited for a slot since"
    )
    assert applied(world.look()) == set()


def test_a_server_that_is_lost_midway_comes_back_and_its_shard_is_not_begun_again() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _windows(world).get("r2") == "1")
    world.stop(world.pods["airports-r2-s0-1"])
    world.stop(world.pods["airports-r1-s3-0"])
    world.settle()
    assert (_routed(world), world.status.last_rollout) == ({"r2": {0, 1, 2, 3}}, 2)


@pytest.mark.parametrize("steps", range(6))
def test_an_operator_that_dies_after_any_write_is_followed_by_one_that_goes_on(steps: int) -> None:
    world = _serving()
    world.most_servers = 10
    world.edit(source=V2)
    for _ in range(200):
        planned = world.look()
        world.carry_out(planned, world.dataset, steps)
        if world.status.generation == "g2":
            break
        world.step()
    world.settle()
    assert _routed(world) == {"r2": {0, 1, 2, 3}}


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda status: DatasetStatus(), id="wiped"),
        pytest.param(lambda status: _without(status, "r1"), id="a rollout is missing"),
    ],
)
def test_a_status_that_was_lost_midway_keeps_every_server_until_a_whole_rollout_serves(
    lose: Callable[[DatasetStatus], DatasetStatus],
) -> None:
    world = _halfway()
    before = _sets(world)
    world.takes.start = 20
    world.status = lose(world.status)
    world.invariants.forget(set(), set())
    world.version += 1
    world.settle(until=lambda: world.status.table is None or world.status.table.rollout != "r2")
    world.settle(until=lambda: world.status.last_rollout == 3)
    assert before <= _sets(world)
    assert world.status.rollouts[-1].shard_ranges == ""
    world.takes.start = 2
    world.settle()
    assert _routed(world) == {"r3": {0, 1, 2, 3}}


def _without(status: DatasetStatus, rollout: str) -> DatasetStatus:
    return replace(status, rollouts=tuple(other for other in status.rollouts if other.rollout != rollout))


def test_a_clock_that_is_set_back_midway_delays_and_ends_nothing() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: _windows(world).get("r2") == "1")
    world.now -= timedelta(hours=1)
    for pod in world.pods.values():
        pod.born -= timedelta(hours=1)
    world.settle(400)
    assert _routed(world) == {"r2": {0, 1, 2, 3}}


def _settle_until_routed(world: World, rollout: str, count: int) -> None:
    world.settle(800, until=lambda: len(_routed(world).get(rollout, ())) == count)


def test_many_wishes_midway_end_in_one_rollout_of_all_shards_at_once() -> None:
    world = _serving(surge=1)
    world.edit(shards=12)
    world.settle()
    for version in range(windows.MOST_SERVING - 1):
        world.edit(source={"url": f"s3://data/w{version}.csv"})
        _settle_until_routed(world, f"r{world.status.last_rollout + 1}", windows.MOST_SERVING - version)
    world.edit(source=V3)
    last = world.status.last_rollout + 1
    world.settle(until=lambda: world.status.last_rollout == last)
    assert world.status.rollouts[-1].shard_ranges == "", _routed(world)
    world.settle()
    assert _routed(world) == {f"r{last}": set(range(12))}


def test_the_window_is_as_large_as_the_surge_and_never_larger_than_all() -> None:
    world = _serving(surge=9)
    generation = world.status.generations[-1]
    situation = Situation.from_observed(world.observe(), world.config, world.now)
    assert windows.window_size(generation, world.status, situation) == 4


def test_of_a_first_rollout_that_no_router_has_taken_up_nothing_is_forgotten_when_another_begins_beside_it() -> None:
    world = World(most_servers=10)
    world.edit(shards=4, rollout=PER_SHARD)
    world.takes.table = world.takes.slow_table = NEVER
    world.settle(until=lambda: world.status.table is not None)
    world.step(90)
    world.edit(source=V2)
    world.settle(until=lambda: _routed(world) == {"r1": {1, 2, 3}, "r2": {0}})
    for _ in range(20):
        world.reconcile()
        world.step(5)
    assert _routed(world) == {"r1": {1, 2, 3}, "r2": {0}}
    world.takes.table = world.takes.slow_table = 1
    world.settle(until=lambda: world.status.table is not None and bool(world.status.table.confirmed_at))
    assert world.status.generation == "g1"
    world.settle()
    assert (world.status.generation, _routed(world)) == ("g2", {"r2": {0, 1, 2, 3}})


def test_what_is_active_is_reported_again_when_it_was_edited_away_while_several_generations_serve() -> None:
    world = _halfway()
    world.status, world.version = replace(world.status, generation=""), world.version + 1
    world.settle(until=lambda: world.status.generation == "g1")
    assert _routed(world) == {"r1": {1, 2, 3}, "r2": {0}}


EDITS: dict[str, Callable[[DatasetStatus], DatasetStatus]] = {
    "its shards": lambda status: _with_member(status, "r1", shard_ranges="2-3"),
    "its window": lambda status: _with_member(status, "r2", window="0-1"),
    "its replicas": lambda status: _with_member(status, "r1", referenced_replicas=0),
    "that it is kept": lambda status: _with_member(status, "r1", kept_since="2026-01-01T12:00:00Z"),
    "the table's parts": lambda status: replace(status, table=status.table and replace(status.table, parts=())),
}


def _with_member(status: DatasetStatus, name: str, **members: Any) -> DatasetStatus:
    rollouts = (replace(one, **members) if one.rollout == name else one for one in status.rollouts)
    return replace(status, rollouts=tuple(rollouts))


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_no_server_goes_when_a_status_was_edited_so_that_its_table_routes_shards_to_none(
    edit: Callable[[DatasetStatus], DatasetStatus],
) -> None:
    world = _halfway()
    world.status, world.version = edit(world.status), world.version + 1
    world.invariants.has_forgotten = True
    planned = world.look()
    assert condition(planned, "Ready").reason == reasons.STATUS_LOST
    assert not any(name.startswith("StatefulSet/") for name in deleted(planned))
    world.takes.start = 1
    world.settle()
    assert _routed(world) == {"r3": {0, 1, 2, 3}}


def test_newer_data_come_before_a_window_that_is_stuck_which_is_not_made_again() -> None:
    world = _serving()
    world.content_of_source = lambda source: f"{source} newer"
    world.annotate("newer")
    world.settle(until=lambda: _routed(world).get("r2") == {0})
    world.takes.start = NEVER
    world.settle(until=lambda: any(_is_starting(name) for name in world.pods))
    for pod in world.pods.values():
        if _is_starting(pod.name):
            pod.trouble = trouble("ImagePull")
    world.content_of_source = lambda source: f"{source} newest"
    world.annotate("newest")
    world.most_servers = 10
    world.settle(until=lambda: world.status.last_rollout == 3)
    assert _windows(world) == {"r1": "", "r2": "", "r3": ""}
    world.check = lambda: None  # type: ignore[method-assign]  # somebody deletes what a routing table names
    for name in ("airports-r1-s3", "airports-r2-s0"):
        world.delete(ObjectRef("StatefulSet", name, world.things["StatefulSet", name].uid))
    made = {("StatefulSet", "airports-r1-s3"), ("StatefulSet", "airports-r2-s0")}
    assert made <= {(one["kind"], one["metadata"]["name"]) for one in world.reconcile().apply}, "and it is made again"
    del world.check
    world.takes.start = 1
    world.settle()
    assert _routed(world) == {"r3": {0, 1, 2, 3}}
