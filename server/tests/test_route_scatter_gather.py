"""Slices of a list of keys: how they come together, what is counted of them, and when the request ends early."""

from __future__ import annotations

from typing import Any

import pytest
from hiredis import ReplyError
from support.batches import list_values, make_keys

from lookupdb.router.batch_keys import UNAVAILABLE
from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import INDEX, NAMES
from lookupdb.router.lookups import (
    LARGE_SLICE_KEYS,
    OVERLOADED,
    Problem,
    ScatterGather,
    ShardSlice,
)

LOST = Problem("Unreachable", "lost")
DAMAGED = Problem("Damaged", "damaged")
NONE: Any = None


class Replicas:
    """Notes which slices are to be tried again."""

    number = 0
    unavailable_counter = INDEX["keys_unavailable"]
    client_deadline_counter = INDEX["client_deadline_keys_unavailable"]

    def __init__(self) -> None:
        self.counters = memoryview(bytearray(8 * len(NAMES))).cast("Q")
        self.retried: list[ShardSlice] = []

    def retry(self, lookup: ShardSlice, problem: Problem) -> None:
        self.retried.append(lookup)


class Request:
    """Four keys in two slices; its waiter is called once, or this fails."""

    def __init__(self, budget_bytes: int = 1 << 20) -> None:
        self.answer: Any = None
        self.budget = RouterBudget(budget_bytes)
        self.replicas = Replicas()
        keys = make_keys(["a", "b", "c", "d"])
        self.gather = ScatterGather(keys, self, NONE, self.budget)
        [group] = keys.group(str.encode, (), 1)
        self.slices = [
            ShardSlice(group.select(chosen), self.gather, self.replicas, 0.0)  # type: ignore[arg-type]
            for chosen in ([True, False, True, False], [False, True, False, True])
        ]
        self.gather.await_slices(self.slices)
        for shard_slice in self.slices:
            shard_slice.open_tries = 1

    def _tell(self, answer: Any) -> None:
        assert self.answer is None, "told twice"
        self.answer = answer

    def done(self, generation: Any, values: Any, size: int, problem: Problem | None) -> None:
        self._tell((list_values(values), size, problem))

    def too_large(self, limit: int) -> None:
        self._tell(limit)

    def unavailable(self, problem: Problem) -> None:
        self._tell(problem)

    def unknown_generation(self, name: str, active: object) -> None:
        raise AssertionError

    def unavailable_keys(self) -> int:
        return self.replicas.counters[INDEX["keys_unavailable"]]


@pytest.fixture
def request_() -> Request:
    return Request()


def test_values_come_together_in_the_order_of_the_keys(request_: Request) -> None:
    first, second = request_.slices
    second.deliver([b"x", b"22", None], 1)
    assert request_.answer is None
    assert request_.budget.used == 2, "what waits for the others is counted"
    first.deliver([b"1", b"333"], 0)
    assert request_.answer == ([b"1", b"22", b"333", None], 6, None)
    assert request_.budget.used == 0
    assert not any(len(shard_slice.keys) for shard_slice in request_.slices)


def test_keys_of_which_nothing_can_be_said_are_marked(request_: Request) -> None:
    request_.slices[0].give_up(LOST)
    request_.slices[1].deliver([b"2", None], 0)
    assert request_.answer == ([UNAVAILABLE, b"2", UNAVAILABLE, None], 1, LOST)
    assert request_.unavailable_keys() == 2


def test_values_that_were_known_to_come_and_do_not_are_counted_no_more(request_: Request) -> None:
    assert request_.slices[0].may_receive(100_000, RouterBudget(1 << 20))
    request_.slices[0].give_up(LOST)
    request_.slices[1].deliver([b"2", None], 0)
    assert request_.answer == ([UNAVAILABLE, b"2", UNAVAILABLE, None], 1, LOST)


def test_if_nothing_can_be_said_of_any_the_request_is_unavailable(request_: Request) -> None:
    for shard_slice in request_.slices:
        shard_slice.give_up(LOST)
    assert request_.answer == LOST


def test_values_over_the_limit_end_the_request_at_once() -> None:
    request = Request(budget_bytes=10)
    request.slices[0].deliver([b"123", b"456"], 0)
    assert request.answer == 5
    assert all(shard_slice.is_done for shard_slice in request.slices)
    assert request.budget.used == 0


def test_where_memory_is_short_the_whole_request_makes_room(request_: Request) -> None:
    request_.slices[0].deliver([b"1", b"3"], 0)
    request_.slices[1].give_up(OVERLOADED)
    assert (request_.answer, request_.budget.used, request_.unavailable_keys()) == (OVERLOADED, 0, 4)


def test_an_abandoned_request_tells_nobody_and_holds_nothing(request_: Request) -> None:
    request_.slices[0].deliver([b"1", b"3"], 0)
    request_.gather.abandon()
    assert request_.budget.used == 0
    assert all(shard_slice.is_done for shard_slice in request_.slices)
    assert request_.answer is None


class TestDamagedValues:
    def test_what_could_be_read_is_kept_and_the_rest_is_tried_alone(self, request_: Request) -> None:
        first, second = request_.slices
        first.deliver_readable([b"1", ReplyError("damaged")], 0, DAMAGED)
        assert request_.replicas.retried == [first]
        assert (first.packed, first.key_count) == (b"$1\r\nc\r\n", 1)
        second.deliver([None, None], 0)
        first.deliver([b"333"], 0)
        assert request_.answer == ([b"1", None, b"333", None], 4, None)

    def test_what_another_endpoint_has_as_well_is_left_to_it(self, request_: Request) -> None:
        first = request_.slices[0]
        first.open_tries = 2
        first.deliver_readable([b"1", ReplyError("damaged")], 0, DAMAGED)
        assert (first.packed, first.open_tries) == (b"$1\r\na\r\n$1\r\nc\r\n", 1)


class TestTries:
    def test_the_first_that_fails_is_tried_again_and_the_second_is_not(self, request_: Request) -> None:
        first = request_.slices[0]
        first.fail_try(LOST)
        assert request_.replicas.retried == [first]
        first.open_tries = 1
        first.fail_try(LOST)
        assert first.is_done

    def test_one_that_fails_while_another_goes_on_is_forgotten(self, request_: Request) -> None:
        first = request_.slices[0]
        first.open_tries = 2
        first.fail_try(LOST)
        assert (request_.replicas.retried, first.is_done) == ([], False)


@pytest.mark.parametrize(("keys", "is_large"), [(2 * LARGE_SLICE_KEYS, False), (2 * LARGE_SLICE_KEYS + 1, True)])
def test_slices_are_large_work_by_their_mean(keys: int, is_large: bool) -> None:
    request = Request()
    gather = ScatterGather(make_keys(["k"] * keys), request, NONE, request.budget)
    gather.await_slices(request.slices)
    assert gather.is_large is is_large
