"""Many datasets in a cluster with little room: limited concurrency, no deadlock, and in the end all serve."""

from __future__ import annotations

import pytest
from operator_support.fleet import LACK_OF_ROOM, SERVERS, Fleet
from operator_support.plan_samples import broken

from lookupdb_operator.model import Trouble

pytestmark = pytest.mark.long


def serving(count: int, spare: int, rollouts: int = 4, seed: int = 0) -> Fleet:
    """``count`` datasets that serve, and room for ``spare`` servers more."""
    fleet = Fleet(count, room=1000, rollouts=rollouts, seed=seed)
    fleet.settle(600)
    fleet.room = count * SERVERS + spare
    return fleet


def test_no_more_build_and_roll_out_at_a_time_than_may() -> None:
    fleet = Fleet(12, room=1000, builds=3, rollouts=2)
    fleet.settle(900)
    assert (fleet.most_builds, fleet.most_candidates) == (3, 2)


def test_an_upgrade_rolls_so_many_at_a_time_and_all_converge() -> None:
    fleet = serving(12, spare=4 * SERVERS)
    fleet.most_candidates = 0
    fleet.upgrade("lookupdb:2")
    fleet.settle(900)
    assert fleet.most_candidates == 4


@pytest.mark.parametrize("seed", range(2))
def test_an_upgrade_converges_with_room_for_one_candidate_and_a_half(seed: int) -> None:
    """The four datasets with a slot are half placed at first."""
    fleet = serving(8, spare=SERVERS + SERVERS // 2, seed=seed)
    fleet.upgrade("lookupdb:2")
    fleet.settle(6000, step=20)
    assert fleet.most_candidates == 4


def test_without_turns_that_are_given_up_it_would_not() -> None:
    fleet = serving(8, spare=SERVERS + SERVERS // 2)
    fleet.upgrade("lookupdb:2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lookupdb_operator.plan.turns.PATIENCE", 1e9)
        with pytest.raises(AssertionError, match="not all is settled"):
            fleet.settle(3000, step=20)


def test_what_can_never_be_placed_does_not_keep_the_others_from_their_turn() -> None:
    fleet = serving(7, spare=4 * SERVERS, rollouts=2)
    for world in fleet.worlds[:3]:
        world.edit(shards=17)
    for world in fleet.worlds[3:]:
        world.edit(serving={"workers": 2})
    for _ in range(600):
        fleet.step(5)
        if all(world.is_settled() for world in fleet.worlds[3:]):
            break
    assert all(world.is_settled() for world in fleet.worlds[3:])
    assert not any(world.is_settled() for world in fleet.worlds[:3])
    told = [world.status.condition("Degraded") for world in fleet.worlds[:3]]
    assert "Unschedulable" in {condition.reason for condition in told if condition}


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_what_the_api_server_refuses_for_ever_does_not_keep_the_others_from_their_turn(kind: str) -> None:
    fleet = Fleet(7, room=1000)
    for world in fleet.worlds[:4]:
        world.refuses = lambda manifest: "denied by policy" if manifest["kind"] == kind else ""
    fleet.settle(2500, step=5, only=fleet.worlds[4:])
    assert not any(world.is_settled() for world in fleet.worlds[:4])


def test_namespaces_that_do_not_reach_the_store_do_not_keep_the_others_from_their_turn() -> None:
    fleet = serving(5, spare=100)
    fleet.cut_off(fleet.worlds[:4], Trouble("StoreUnavailable", "no route to host"))
    for world in fleet.worlds[:4]:
        world.edit(serving={"workers": 2})
    fleet.step()
    fleet.worlds[4].edit(serving={"workers": 2})
    fleet.settle(1500, step=5, only=fleet.worlds[4:])
    fleet.cut_off([], LACK_OF_ROOM)
    fleet.settle(1500, step=5)


def test_after_an_upgrade_one_that_can_never_be_placed_is_tried_again_and_all_others_converge() -> None:
    fleet = serving(8, spare=2 * SERVERS)
    fleet.upgrade("lookupdb:2")
    fleet.cut_off(fleet.worlds[3:4], LACK_OF_ROOM)
    others = fleet.worlds[:3] + fleet.worlds[4:]
    fleet.settle(1500, step=5, only=others)
    bad = fleet.worlds[3]
    attempts = bad.status.last_rollout
    assert attempts > 2, "its turn was given up, and came again"
    assert bad.status.condition("Ready").status == "True", "what served serves"  # type: ignore[union-attr]
    fleet.cut_off([], LACK_OF_ROOM)
    fleet.settle(600, step=5)


def test_builds_that_fail_for_ever_do_not_keep_the_others_from_theirs() -> None:
    fleet = Fleet(10, room=1000, builds=2)
    for world in fleet.worlds[:6]:
        world.fails = lambda spec: broken()
    fleet.settle(200, only=fleet.worlds[6:])
    for _ in range(100):
        fleet.step()
    assert fleet.most_builds == 2


def test_a_restart_keeps_turns_and_places() -> None:
    fleet = serving(10, spare=100)
    fleet.upgrade("lookupdb:2")
    fleet.most_candidates = 0
    for _ in range(400):
        fleet.step()
        fleet.restart()
    assert all(world.is_settled() for world in fleet.worlds)
    assert fleet.most_candidates == 4
