"""A batch in flight: how its reply is shared out, what is counted, and which lookups a failure affects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hiredis import ReplyError

from lookupdb import native
from lookupdb.router.batch_keys import ReplyValues
from lookupdb.router.budget import RouterBudget
from lookupdb.router.lane import ShardBatch
from lookupdb.router.lookups import PendingLookup, Problem, fail_tries
from lookupdb.router.server_connection import ServerConnection

PROBLEM = Problem("Unreachable", "gone")


class Lookup(PendingLookup):
    """Records its callbacks."""

    def __init__(self, key_count: int, *, is_done: bool = False) -> None:
        self.key_count = key_count
        self.is_done = is_done
        self.told: list[Any] = []
        self.most = 1 << 30

    def deliver(self, values: ReplyValues, at: int) -> None:
        self.told.append(values[at : at + self.key_count])

    def deliver_readable(self, values: list[Any], at: int, problem: Problem) -> None:
        self.told.append(problem.detail)

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        return size <= self.most

    def fail_try(self, problem: Problem) -> None:
        self.told.append(problem)


class Broken(Lookup):
    """Fails in every callback."""

    def deliver(self, values: ReplyValues, at: int) -> None:
        raise RuntimeError


def batch_of(*lookups: Lookup) -> ShardBatch:
    return ShardBatch(list(lookups), sum(lookup.key_count for lookup in lookups), 0.0)


class Sink:
    """A sink that asked for this many keys."""

    def __init__(self, key_count: int) -> None:
        self.key_count = key_count

    def expected_keys(self) -> int:
        return self.key_count

    def accept(self, index: int, size: int) -> bool:
        return True


MakeReply = Callable[[list[bytes | None]], ReplyValues]


@pytest.fixture
def reply() -> MakeReply:
    """Makes a connection read values as the installed kernels do, as a list or a ``ShardReply``."""

    def read(values: list[bytes | None]) -> ReplyValues:
        replies: list[Any] = []
        connection = ServerConnection(replies.append, replies.append, RouterBudget(1 << 20))
        connection.use(replies.append, Sink(len(values)))
        bulks = [b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
        connection.data_received(b"*%d\r\n%b" % (len(values), b"".join(bulks)))
        modules = native.kernels()
        assert type(replies[0]) is (list if modules is None else modules.ShardReply)
        found: ReplyValues = replies[0]
        return found

    return read


class TestDeliver:
    def test_each_lookup_gets_its_own_values(self, reply: MakeReply) -> None:
        lookups = [Lookup(1), Lookup(3), Lookup(1)]
        assert batch_of(*lookups).deliver(reply([b"a", b"b", None, b"c", None])) == (3, 2)
        assert [lookup.told for lookup in lookups] == [[[b"a"]], [[b"b", None, b"c"]], [[None]]]

    def test_one_that_is_done_gets_nothing_and_does_not_count(self, reply: MakeReply) -> None:
        lookups = [Lookup(1), Lookup(2, is_done=True), Lookup(1)]
        assert batch_of(*lookups).deliver(reply([b"a", None, b"x", b"b"])) == (2, 0)
        assert lookups[1].told == []

    def test_one_that_fails_costs_the_others_nothing(self, reply: MakeReply) -> None:
        lookups = [Lookup(1), Broken(1), Lookup(1)]
        batch_of(*lookups).deliver(reply([b"a", b"b", b"c"]))
        assert [lookups[0].told, lookups[2].told] == [[[b"a"]], [[b"c"]]]


class TestDeliverReadable:
    def test_only_lookups_with_a_damaged_value_are_told_of_it(self) -> None:
        lookups = [Lookup(2), Lookup(2), Lookup(1, is_done=True)]
        values = [b"a", None, b"b", ReplyError("damaged"), ReplyError("damaged")]
        found = batch_of(*lookups).deliver_readable(values, lambda error: Problem("Damaged", error))
        assert found == (2, 1)
        assert [lookup.told for lookup in lookups] == [[[b"a", None]], ["damaged"], []]


class TestAccept:
    def test_values_of_a_large_reply_are_counted_until_it_is_released(self) -> None:
        budget, batch = RouterBudget(1 << 30), batch_of(Lookup(1), Lookup(2))
        assert [batch.accept(index, 100, budget) for index in range(3)] == [True, True, True]
        assert budget.used == 300
        batch.release(budget)
        batch.release(budget)
        assert budget.used == 0

    def test_what_its_lookup_may_not_receive_is_skipped(self) -> None:
        budget, lookups = RouterBudget(1 << 30), [Lookup(1), Lookup(2), Lookup(1, is_done=True)]
        lookups[1].most = 150
        batch = batch_of(*lookups)
        assert [batch.accept(index, 100, budget) for index in range(4)] == [True, True, False, False]
        assert budget.used == 200


def test_a_failure_is_that_of_every_lookup() -> None:
    lookups = [Lookup(1), Lookup(3)]
    fail_tries(batch_of(*lookups).lookups, PROBLEM)
    assert [lookup.told for lookup in lookups] == [[PROBLEM], [PROBLEM]]
