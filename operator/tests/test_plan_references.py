"""References of routing tables: which shards of which rollout the newest one names, and any that may be in effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookupdb_operator.plan import windows
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolloutStatus, TablePart, TableStatus

NOW = "2026-01-01T00:00:00Z"


def _generation(name: str) -> GenerationStatus:
    return GenerationStatus(name, "c", "f", 1, 1, 1, 4, (), "json", NOW)


def _rollout(name: str, generation: str, shards: str = "", window: str = "", replicas: int = 2) -> RolloutStatus:
    return RolloutStatus(name, generation, "t", NOW, replicas, shard_ranges=shards, window=window)


def _status(*rollouts: RolloutStatus, parts: tuple[TablePart, ...] = (), confirmed: str = NOW) -> DatasetStatus:
    table = TableStatus(7, "r2", "g2", 2, 1, NOW, confirmed, parts=parts)
    return DatasetStatus(generations=(_generation("g1"), _generation("g2")), rollouts=rollouts, table=table)


PART = TablePart("r1", "g1", 1, "2-3")
OLD, NEW = _rollout("r1", "g1"), _rollout("r2", "g2", "0-2", window="2")
MIXED = _status(OLD, NEW, parts=(PART,))


def test_a_table_routes_to_its_rollout_what_it_does_not_route_to_another_one() -> None:
    assert windows.routed_shards(OLD, MIXED) == {2, 3}
    assert windows.routed_shards(NEW, MIXED) == {0, 1}
    assert windows.routed_shards(_rollout("r3", "g2"), MIXED) == frozenset()
    assert windows.routed_shards(OLD, replace(MIXED, table=None)) == frozenset()
    assert windows.serving_rollouts(MIXED) == (OLD, NEW)


def test_what_starts_is_held_and_awaited_and_no_table_references_it() -> None:
    assert windows.held_shards(NEW, MIXED) == {0, 1, 2}
    assert windows.pending_shards(NEW, MIXED) == {2}
    assert windows.referenced_shards(NEW, MIXED) == {0, 1}
    assert windows.referenced_shards(_rollout("r3", "g2", replicas=0), MIXED) == frozenset()


@pytest.mark.parametrize(
    ("status", "drains"),
    [
        pytest.param(MIXED, True, id="shards that were replaced"),
        pytest.param(
            _status(_rollout("r1", "g1", "2-3"), NEW, parts=(PART,)), False, id="all that is held is routed to"
        ),
        pytest.param(_status(OLD, NEW, parts=(PART,), confirmed=""), False, id="not before routers have confirmed"),
        pytest.param(_status(OLD, _rollout("r2", "g2")), True, id="a whole rollout"),
        pytest.param(_status(_rollout("r2", "g2", replicas=3)), True, id="more servers than the table names"),
        pytest.param(_status(_rollout("r2", "g2")), False, id="what serves"),
        pytest.param(_status(_rollout("r9", "g9"), _rollout("r2", "g2")), True, id="one whose generation is not known"),
    ],
)
def test_what_drains_is_referenced_by_older_tables_alone(status: DatasetStatus, drains: bool) -> None:
    assert windows.is_draining(status) == drains


def test_an_edited_table_that_references_more_than_there_is_makes_no_shard_up() -> None:
    edited = _status(OLD, NEW, parts=(replace(PART, shard_ranges="2-900"),))
    assert windows.pending_shards(NEW, edited) == {2}
