"""What was rolled back from does not come back by itself, and which generation to go back to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lookupdb_operator.plan import rollback
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolledBack, TableStatus

NOW = "2030-01-01T00:00:00Z"


def _generation(number: int, source: str = "", content: str = "spec 1") -> GenerationStatus:
    name = f"g{number}"
    return GenerationStatus(name, content, source or f"source of {name}", 10, 1000, 500, 2, (), "json", NOW)


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
    assert (rollback.find_mark(generation, status) is not None) == is_held


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
    assert rollback.find_mark(newest, replace(status, rolled_back=kept)) is not None


def test_previous_is_the_newest_older_one_that_was_not_rolled_back_from() -> None:
    kept = (_generation(10), _generation(11), _generation(12), _generation(13), _generation(14))
    status = _status(*kept, serves=13, rolled_back=(_mark(12),))
    assert rollback.previous_generation(status) == _generation(11)


def test_previous_is_never_one_that_was_rejected() -> None:
    status = _status(_generation(11), _generation(12), _generation(13), serves=13, rejected=(_mark(12),))
    assert rollback.previous_generation(status) == _generation(11)


def test_there_is_no_previous_generation_without_an_older_one_or_while_nothing_serves() -> None:
    assert rollback.previous_generation(_status(_generation(11), _generation(12), serves=11)) is None
    assert rollback.previous_generation(DatasetStatus(generations=(_generation(11),))) is None
