"""``replace`` returns the same record if nothing changes."""

from __future__ import annotations

import pytest

from lookupdb_operator.status import DatasetStatus, RolledBack, replace


def test_a_record_stays_the_same_one_when_every_member_is_as_it_was() -> None:
    status = DatasetStatus(last_generation=3, rolled_back=(RolledBack("g2", "sha256:1", "content"),))
    assert replace(status, last_generation=3, rolled_back=(RolledBack("g2", "sha256:1", "content"),)) is status


@pytest.mark.parametrize("position", range(3))
def test_one_that_differs_in_any_member_is_another_one_and_leaves_the_first_as_it_was(position: int) -> None:
    members = {"last_generation": 3, "last_rollout": 4, "last_table": 5}
    before = DatasetStatus(**members)  # type: ignore[arg-type]
    changed = members | {list(members)[position]: 9}
    after = replace(before, **changed)  # type: ignore[arg-type]
    assert after == DatasetStatus(**changed)  # type: ignore[arg-type]
    assert before == DatasetStatus(**members)  # type: ignore[arg-type]


def test_a_member_that_there_is_not_is_refused() -> None:
    with pytest.raises((AttributeError, TypeError)):
        replace(DatasetStatus(), no_such_member=1)  # type: ignore[call-arg]
