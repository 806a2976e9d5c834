"""Slots of all datasets: limited in number, the oldest request first, and nobody holds one without using it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from operator_support.plan_world import BEGIN

from lookupdb_operator.model import Turn, add_seconds
from lookupdb_operator.plan import turns
from lookupdb_operator.plan.turns import Key, TurnQueues
from lookupdb_operator.status import BuildFailure, BuildStatus, DatasetStatus, RolloutStatus, Stall, Ticket

A, B, C, D, E = (("shop", name) for name in "abcde")


def moment(seconds: float) -> str:
    return add_seconds(BEGIN, seconds)


def building(since: float = 0, stalled: float | None = None, reason: str = "Unschedulable") -> DatasetStatus:
    stall = None if stalled is None else Stall(reason, moment(stalled))
    return DatasetStatus(generation="g1", build=BuildStatus("g2", "c", "", "d", moment(since), stall=stall))


def waiting(since: float, given_up: int = 0, serves: bool = True) -> DatasetStatus:
    return DatasetStatus(generation="g1" if serves else "", build_ticket=Ticket(moment(since), given_up))


SETTLED = DatasetStatus(generation="g1")


def queues(limit: int = 2, **statuses: DatasetStatus) -> TurnQueues:
    """Queues as after a restart, noted from ``statuses``."""
    made = TurnQueues(builds=limit, rollouts=1)
    for name, status in statuses.items():
        made.note(("shop", name), status, BEGIN)
    return made


def turn(made: TurnQueues, key: Key, status: DatasetStatus, at: float = 0) -> Turn:
    return made.find_turns(key, status, BEGIN + timedelta(seconds=at)).build


def list_granted(made: TurnQueues, at: float = 0) -> frozenset[Key]:
    return made.list_granted(BEGIN + timedelta(seconds=at))


class TestATurn:
    def test_is_everybodys_as_long_as_there_are_enough(self) -> None:
        assert turn(queues(a=building()), B, SETTLED) == Turn(True, 0)

    def test_is_kept_by_who_has_it(self) -> None:
        made = queues(limit=1, a=building(), b=building())
        assert turn(made, A, building()).is_granted
        assert turn(made, B, building()).is_granted, "the limit was lowered: nothing that runs is ended"

    def test_is_not_there_when_as_many_as_may_have_one(self) -> None:
        assert turn(queues(a=building(), b=building()), C, SETTLED) == Turn(False, 0)

    def test_comes_to_the_oldest_wish_first(self) -> None:
        made = queues(a=building(), b=building(), e=waiting(1), d=waiting(3), c=waiting(2))
        assert [turn(made, key, waiting(0), 9).ahead for key in (E, C, D)] == [0, 1, 2]
        made.note(A, SETTLED, BEGIN)
        assert list_granted(made, 9) == {E}
        assert [turn(made, key, waiting(0), 9).is_granted for key in (E, C, D)] == [True, False, False]

    def test_comes_to_newcomers_behind_all_who_wait(self) -> None:
        made = queues(a=building(), c=waiting(-2), d=waiting(-1))
        assert turn(made, B, SETTLED) == Turn(False, 2)

    def test_comes_to_those_that_serve_nothing_before_all_that_do(self) -> None:
        made = queues(limit=1, c=waiting(-2), d=waiting(-1, serves=False))
        assert list_granted(made) == {D}
        assert turn(made, C, waiting(-2)) == Turn(False, 1)
        assert turn(made, B, DatasetStatus()) == Turn(False, 1), "a newcomer that serves nothing"

    def test_is_freed_when_its_holder_is_gone(self) -> None:
        made = queues(limit=1, a=building(), b=waiting(-1))
        assert list_granted(made) == frozenset()
        made.forget(A)
        assert list_granted(made) == {B}

    def test_of_builds_and_of_rollouts_are_apart(self) -> None:
        rollout = DatasetStatus(
            generation="g1", rollouts=(RolloutStatus("r1", "g1", "t", moment(0), 2), RolloutStatus("r2", "g2", "t", ""))
        )
        made = queues(limit=1, a=rollout)
        both = made.find_turns(B, SETTLED, BEGIN)
        assert (both.build.is_granted, both.rollout.is_granted) == (True, False)

    def test_is_not_held_by_a_rollout_that_a_routing_table_references(self) -> None:
        rollout = DatasetStatus(generation="g1", rollouts=(RolloutStatus("r1", "g1", "t", moment(0), 2),))
        assert queues(a=rollout).find_turns(B, SETTLED, BEGIN).rollout.is_granted

    def test_that_could_not_be_taken_passes_to_the_next(self) -> None:
        made = queues(limit=1, b=waiting(-2), c=waiting(-1))
        assert list_granted(made) == {B}
        made.postpone(B, BEGIN)
        assert list_granted(made) == {C}
        made.note(B, waiting(-2), BEGIN)
        assert list_granted(made) == {C}, "what is noted again meanwhile is no better"
        made.note(B, waiting(-9000), BEGIN - timedelta(seconds=7200))
        assert B in list_granted(made, turns.POSTPONEMENT_SECONDS - 7200 + 1), "the clock was set back"

    def test_of_a_dataset_that_cannot_be_written_keeps_nobody_from_theirs(self) -> None:
        """Its status is refused: it can neither end its build nor give the slot up."""
        made = queues(limit=2, a=building(since=5, stalled=0), b=building(since=1, stalled=0), c=waiting(-1))
        at = turns.PATIENCE + 1
        assert (list_granted(made, at), turn(made, B, building(), at).must_yield) == (frozenset(), False)
        made.postpone(A, BEGIN + timedelta(seconds=at))
        assert turn(made, B, building(), at).must_yield
        made.note(B, SETTLED, BEGIN + timedelta(seconds=at))
        assert list_granted(made, at) == {C}


class TestATurnThatDoesNotGetOn:
    LONG = 181.0
    """Seconds: three minutes, and one more."""

    def test_is_kept_as_long_as_nobody_else_wants_one(self) -> None:
        made = queues(limit=1, a=building(stalled=0))
        assert not turn(made, A, building(), self.LONG).must_yield

    def test_is_kept_for_a_while(self) -> None:
        made = queues(limit=1, a=building(stalled=0), b=waiting(0))
        assert not turn(made, A, building(), self.LONG - 2).must_yield

    def test_is_given_up_when_others_wait(self) -> None:
        made = queues(limit=1, a=building(stalled=0), b=waiting(0))
        assert turn(made, A, building(), self.LONG).must_yield

    def test_is_given_up_by_the_youngest_of_them_and_by_one_at_a_time(self) -> None:
        statuses = {"a": building(1, 0), "b": building(3, 0), "c": building(2, 0)}
        made = queues(limit=3, **statuses)
        assert [turn(made, key, building(), self.LONG).must_yield for key in (A, B, C)] == [False, True, False]
        made.note(B, waiting(self.LONG + 600, given_up=1), BEGIN + timedelta(seconds=self.LONG))
        assert not turn(made, C, building(), self.LONG + 1).must_yield, "it may be placed where the other was"
        assert turn(made, C, building(), self.LONG + turns.YIELD_EVERY + 1).must_yield
        made.note(C, waiting(self.LONG + 600, given_up=1), BEGIN + timedelta(seconds=self.LONG + 31))
        assert not turn(made, A, building(), self.LONG + 63).must_yield, "it is alone, and nobody waits"

    def test_is_given_up_though_the_clock_was_set_back_since_the_last_one_was(self) -> None:
        made = queues(limit=2, a=building(1, 0), b=building(0, 0), c=waiting(0))
        made.note(A, waiting(self.LONG + 60, given_up=1), BEGIN + timedelta(seconds=self.LONG))
        for key, status in ((B, building(0, -9000)), (C, waiting(-9000))):
            made.note(key, status, BEGIN - timedelta(seconds=7200))
        assert turn(made, B, building(), -7200 + turns.YIELD_EVERY + 2).must_yield

    def test_keeps_new_ones_from_beginning_when_it_lacks_room(self) -> None:
        made = queues(limit=2, a=building(stalled=0))
        assert turn(made, B, SETTLED, self.LONG - 2).is_granted
        assert not turn(made, B, SETTLED, self.LONG).is_granted

    def test_does_not_keep_new_ones_from_beginning_for_another_reason(self) -> None:
        made = queues(limit=2, a=building(stalled=0, reason="ImagePullFailed"))
        assert turn(made, B, SETTLED, self.LONG).is_granted

    def test_comes_again_after_its_backoff_behind_those_that_wait(self) -> None:
        made = queues(limit=1, a=waiting(60, given_up=1), b=waiting(30), c=waiting(61))
        assert list_granted(made, 40) == {B}
        made.note(B, SETTLED, BEGIN)
        assert list_granted(made, 59) == frozenset()
        assert not turn(made, A, waiting(60), 59).is_granted
        assert list_granted(made, 62) == {A}

    def test_is_kept_longer_while_the_store_does_not_answer(self) -> None:
        made = queues(limit=1, a=building(stalled=0, reason="StoreUnavailable"), b=waiting(0))
        assert not turn(made, A, building(), turns.STORE_PATIENCE - 1).must_yield
        assert turn(made, A, building(), turns.STORE_PATIENCE + 1).must_yield

    def test_that_was_given_up_comes_again_before_nobody_who_has_waited_longer(self) -> None:
        """Even if it serves nothing yet: many of these would take every slot."""
        broken = waiting(2, given_up=3, serves=False)
        made = queues(limit=1, a=broken, b=waiting(1))
        assert list_granted(made, 3) == {B}
        assert turn(made, A, broken, 3) == Turn(False, 1)

    def test_to_build_again_comes_before_nobody_who_has_waited_longer(self) -> None:
        failed = replace(waiting(2, serves=False), failure=BuildFailure("BadSource", "", "g1", "c", "", 9, moment(1)))
        assert list_granted(queues(limit=1, a=failed, b=waiting(1)), 3) == {B}

    @pytest.mark.parametrize(("given_up", "seconds"), [(1, 60), (2, 120), (6, 1800), (1_000_000, 1800)])
    def test_comes_later_each_time(self, given_up: int, seconds: float) -> None:
        assert turns.backoff_seconds(given_up) == seconds


def test_what_a_look_costs_does_not_grow_with_the_datasets_that_wait() -> None:
    def seconds(count: int) -> float:
        made = queues(limit=4, **{f"x{index}": building() for index in range(4)})
        for index in range(count):
            made.note(("shop", f"d{index}"), waiting(-index), BEGIN)
        status = replace(waiting(-7), observed_generation=1)
        best = 1e9
        for _ in range(5):
            began = time.process_time()
            for _ in range(200):
                made.note(("shop", "d7"), status, BEGIN)
                made.find_turns(("shop", "d7"), status, BEGIN)
                made.list_granted(BEGIN)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(5000) < 10 * seconds(50)
