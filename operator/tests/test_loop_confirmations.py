"""A drain is measured by one process, whatever the clock that dated its start says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookupdb_operator import names
from lookupdb_operator.loop.observe import Confirmation
from lookupdb_operator.model import Observed, ObservedDataset, Pod, RouterReport
from lookupdb_operator.status import DatasetStatus, TableStatus

NOON = "2026-01-01T12:00:00Z"


class Bench:
    """A clock, and the confirmation seen by one process."""

    def __init__(self) -> None:
        self.now = 100.0
        self.confirmation = Confirmation(lambda: self.now)

    def look(
        self, confirmed_at: str = NOON, *, version: int = 2, uid: str = "u1", routers: tuple[int | None, ...] = (2, 2)
    ) -> float:
        """Observe ``routers``: the table version of each; None is one that is down."""
        table = TableStatus(version, "r1", "g1", 2, 1, "2026-01-01T11:59:00Z", confirmed_at)
        dataset = ObservedDataset("shop", "airports", uid, "1", 1, {}, None)
        pods = [
            Pod(f"router-{number}", str(number), names.ROUTER, phase="Running", ready=answers is not None)
            for number, answers in enumerate(routers)
        ]
        reports = {
            str(number): RouterReport(answers, newest=answers or 0, is_empty=answers is None)
            for number, answers in enumerate(routers)
        }
        observed = Observed(replace(dataset, status=DatasetStatus(table=table)), pods=tuple(pods), routers=reports)
        return self.confirmation.measure(observed)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_the_seconds_since_the_first_look_count(bench: Bench) -> None:
    assert bench.look("2020-01-01T00:00:00Z") == 0, "whatever was written, and by which clock"
    bench.now += 7.5
    assert bench.look("2020-01-01T00:00:00Z") == 7.5


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"version": 3, "routers": (3, 3)}, id="another table"),
        pytest.param({"confirmed_at": "2026-01-01T12:00:01Z"}, id="confirmed at another moment"),
        pytest.param({"uid": "u2"}, id="another dataset of the same name"),
    ],
)
def test_another_confirmation_begins_again(bench: Bench, change: dict[str, object]) -> None:
    bench.look()
    bench.now += 60
    assert bench.look(**change) == 0  # type: ignore[arg-type]


def test_a_table_that_is_opened_again_begins_again_though_it_is_confirmed_in_the_same_second(bench: Bench) -> None:
    bench.look()
    bench.now += 60
    assert bench.look("") == 0
    assert bench.look() == 0


def test_a_router_that_answers_from_an_older_table_begins_it_again_though_nobody_could_write_that_down(
    bench: Bench,
) -> None:
    bench.look(routers=(2, None))
    bench.now += 60
    assert bench.look(routers=(2, 1)) == 0
    bench.now += 1
    assert bench.look() == 1


def test_looks_at_which_nobody_asks_routers_begin_nothing_again(bench: Bench) -> None:
    bench.look(routers=())
    bench.now += 1
    bench.look()
    bench.now += 1
    bench.look(routers=())
    bench.now += 1
    assert bench.look() == 3
