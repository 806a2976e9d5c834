"""A generation that was rolled back from does not return by itself. Which generation a rollback goes to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_support.plan_samples import serving, unconfirmed
from operator_support.plan_world import World

from lookupdb_operator.plan import generations as rollback
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolledBack, TablePart, TableStatus

NOW = "2030-01-01T00:00:00Z"


def _generation(number: int, source: str = "", content: str = "spec 1", *, served_by: int = 0) -> GenerationStatus:
    name = f"g{number}"
    built = GenerationStatus(name, content, source or f"source of {name}", 10, 1000, 500, 2, (), "json", NOW)
    return replace(built, served_by=served_by)


def _mark(number: int, source: str = "", content: str = "spec 1") -> RolledBack:
    return RolledBack(f"g{number}", source or f"source of g{number}", content)


def _status(*generations: GenerationStatus, serves: int, **members: Any) -> DatasetStatus:
    table = TableStatus(5, "r5", f"g{serves}", 2, 1, NOW, NOW)
    return DatasetStatus(generations=generations, generation=f"g{serves}", table=table, **members)


def test_a_newer_generation_that_routers_leave_for_a_pinned_one_is_marked() -> None:
    status = _status(_generation(11), _generation(12), serves=12)
    assert rollback.with_marks(status, _generation(11)) == (_mark(12),)


def test_while_routers_leave_the_active_generation_for_a_newer_one_both_are_marked() -> None:
    status = replace(_status(_generation(11), _generation(12), _generation(13), serves=13), generation="g12")
    assert rollback.with_marks(status, _generation(11)) == (_mark(12), _mark(13))
    assert rollback.with_marks(status, _generation(12)) == (_mark(13),)


def test_of_a_table_of_several_generations_each_newer_one_is_marked() -> None:
    """A shard-by-shard rollout from g12 to g13 was overtaken by one to g14, and people go back to g12."""
    status = _status(_generation(12), _generation(13), _generation(14), serves=14)
    assert status.table is not None
    parts = (TablePart("r12", "g12", 1, "2"), TablePart("r13", "g13", 1, "1"))
    status = replace(status, generation="g12", table=replace(status.table, parts=parts))
    assert rollback.with_marks(status, _generation(12)) == (_mark(13), _mark(14))


def test_to_pin_a_newer_generation_is_no_rollback() -> None:
    status = _status(_generation(11), _generation(12), serves=11)
    assert rollback.with_marks(status, _generation(12)) == ()


def test_nothing_is_marked_while_nothing_serves() -> None:
    status = replace(_status(_generation(11), serves=11), table=None, generation="")
    assert rollback.with_marks(status, _generation(11)) == ()


def test_a_generation_that_is_pinned_and_served_again_loses_its_mark() -> None:
    status = _status(_generation(11), _generation(12), serves=11, rolled_back=(_mark(9), _mark(12)))
    assert rollback.with_marks(status, _generation(12)) == (_mark(9),)


def test_after_a_second_rollback_both_are_marked() -> None:
    status = _status(_generation(11), _generation(12), _generation(13), serves=13, rolled_back=(_mark(12),))
    assert rollback.with_marks(status, _generation(11)) == (_mark(12), _mark(13))


@pytest.mark.parametrize(
    ("generation", "is_held"),
    [
        (_generation(12), True),
        (_generation(13, source="source of g12"), True),
        (_generation(13, source="source of g12", content="spec 2"), False),
        (_generation(13), False),
    ],
    ids=["the same", "of the same source and spec", "of another spec", "of another source"],
)
def test_a_mark_holds_back(generation: GenerationStatus, is_held: bool) -> None:
    status = _status(_generation(11), generation, serves=11, rolled_back=(_mark(12),))
    assert rollback.is_held_back(generation, status) == is_held


def test_at_the_bound_the_oldest_mark_is_dropped() -> None:
    marks = tuple(_mark(number) for number in range(1, rollback.MOST_MARKS + 1))
    status = _status(_generation(20), _generation(40), serves=40, rolled_back=marks)
    assert rollback.with_marks(status, _generation(20)) == (*marks[1:], _mark(40))


def test_at_the_bound_what_holds_back_the_newest_generation_stays() -> None:
    """Going down step by step, and one of a source that was rolled back from long ago."""
    oldest = _mark(1, source="bad")
    marks = (oldest, *(_mark(number) for number in range(2, rollback.MOST_MARKS + 1)))
    newest = _generation(50, source="bad")
    status = _status(_generation(20), _generation(40), newest, serves=40, rolled_back=marks)
    kept = rollback.with_marks(status, _generation(20))
    assert kept == (oldest, *marks[2:], _mark(40))
    assert rollback.is_held_back(newest, replace(status, rolled_back=kept))


class TestPrevious:
    """The generation to go back to."""

    @pytest.mark.parametrize(
        ("served_by", "members", "previous"),
        [
            pytest.param({11: 2, 12: 3}, {}, 11, id="the one that served before"),
            pytest.param({10: 2, 11: 0, 12: 3}, {}, 10, id="not one that never took effect"),
            pytest.param(
                {10: 2, 11: 3, 12: 5}, {"rolled_back": (_mark(11),)}, 10, id="not one that was rolled back from"
            ),
            pytest.param({10: 2, 11: 3, 12: 5}, {"rejected": (_mark(11),)}, 10, id="not one that was rejected"),
            pytest.param(
                {10: 4, 11: 3, 12: 5}, {}, 10, id="the last one, whatever its number: it was pinned meanwhile"
            ),
            pytest.param({12: 5, 13: 4}, {}, 13, id="a newer one that was left without a mark"),
            pytest.param({12: 5}, {}, None, id="none but the active one"),
            pytest.param({10: 0, 11: 0, 12: 0}, {}, None, id="none that is known to have served: status was edited"),
        ],
    )
    def test_is(self, served_by: dict[int, int], members: dict[str, Any], previous: int | None) -> None:
        kept = [_generation(number, served_by=version) for number, version in served_by.items()]
        found = rollback.previous_generation(_status(*kept, serves=12, **members))
        assert (found and found.generation) == (previous and f"g{previous}")

    def test_is_none_while_nothing_serves(self) -> None:
        assert rollback.previous_generation(DatasetStatus(generations=(_generation(11, served_by=2),))) is None


class TestWhatHasServed:
    """Each generation that served is known by the version of its routing table."""

    def test_is_known_when_every_router_has_confirmed_it(self) -> None:
        world = serving()
        assert _served(world) == ["g1"]
        world = unconfirmed(world)
        assert (world.status.table is not None and world.status.table.generation, _served(world)) == ("g2", ["g1"])

    def test_a_candidate_that_something_newer_has_superseded_never_served(self) -> None:
        world = serving(rollout={"promotion": "Manual", "drainSeconds": 5})
        for data, waits in (("two", "g2"), ("three", "g3")):
            _refreshed(world, data)
            _settle_waiting(world, waits)
        world.annotate_decision(promote="g3")
        world.settle()
        assert (world.status.generation, _served(world)) == ("g3", ["g1", "g3"])
        assert world.status.find_generation("g2") is not None, "it is kept, and could be named"
        assert rollback.previous_generation(world.status) == world.status.find_generation("g1")

    def test_grows_with_each_time_so_that_the_last_one_is_known(self) -> None:
        world = serving(rollout={"drainSeconds": 5})
        _refreshed(world, "two")
        world.settle()
        world.edit(generation="g1")
        world.settle()
        world.edit(generation="g2")
        world.settle()
        assert [generation.served_by for generation in world.status.generations] == [3, 4]

    def test_is_known_again_of_what_serves_when_somebody_has_taken_it_away(self) -> None:
        """A rollback to another one must name it."""
        world = serving(rollout={"drainSeconds": 5})
        _refreshed(world, "two")
        world.settle()
        forgotten = tuple(replace(generation, served_by=0) for generation in world.status.generations)
        world.status = replace(world.status, generations=forgotten)
        world.settle()
        assert _served(world) == ["g2"]
        assert rollback.previous_generation(world.status) is None

    def test_of_a_lost_status_nothing_is_known_until_something_serves_again(self) -> None:
        world = serving(rollout={"drainSeconds": 5})
        world.status = DatasetStatus()
        world.reconcile()
        assert rollback.previous_generation(world.status) is None
        world.settle()
        assert _served(world) == [world.status.generation]


def _served(world: World) -> list[str]:
    return [generation.generation for generation in world.status.generations if generation.served_by]


def _settle_waiting(world: World, generation: str) -> None:
    def is_waiting() -> bool:
        return world.status.candidate is not None and world.status.candidate.generation == generation

    world.settle(until=is_waiting)


def _refreshed(world: World, data: str) -> None:
    """Build new data."""
    world.content_of_source = lambda source: f"{source} {data}"
    world.annotate(data)
