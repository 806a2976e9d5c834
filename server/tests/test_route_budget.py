"""The memory budget of a router worker, and the order in which it refuses clients."""

from __future__ import annotations

import pytest

from lookupdb.router.budget import CONNECTION_BYTES, MIN_BUDGET_BYTES, RouterBudget, share_memory

MIB = 1 << 20


class TestBudget:
    def test_the_defaults_fit_into_the_default_pod(self) -> None:
        connections, budget = share_memory(512 * MIB, 1, 10_000, MIB)
        assert connections == 10_000
        assert 190 * MIB < budget < 200 * MIB
        assert RouterBudget(budget).answer_bytes == 64 * MIB

    def test_where_no_limit_is_known_each_worker_has_as_much(self) -> None:
        assert share_memory(None, 1, 10_000, MIB) == share_memory(None, 8, 10_000, MIB)

    def test_workers_share_the_limit_and_connections_are_cut_to_half_of_what_is_left(self) -> None:
        count, budget = share_memory(512 * MIB, 4, 10_000, MIB)
        assert 2000 < count < 3000
        assert budget + count * CONNECTION_BYTES < (512 - 56) * MIB // 4
        assert RouterBudget(budget).answer_bytes == budget // 2

    def test_even_a_limit_that_is_too_small_leaves_something(self) -> None:
        assert share_memory(64 * MIB, 8, 10_000, MIB) == (64, MIN_BUDGET_BYTES)
        assert share_memory(64 * MIB, 8, 10, MIB) == (10, MIN_BUDGET_BYTES)

    @pytest.mark.parametrize(("used", "has_room"), [(0, True), (75, True), (76, False)])
    def test_large_work_stops_before_small_work_does(self, used: int, has_room: bool) -> None:
        budget = RouterBudget(100)
        budget.take(used)
        assert budget.has_room(0) is has_room
        assert budget.batch_mark < budget.large_mark < budget.limit
