"""Data is cold when lookups wait longer for a disk than they compute, and not because some pages are read from one."""

from __future__ import annotations

import pytest

from lookupdb.shard.worker import COLD_FAULTS, SECONDS, WARM_READS, ColdSwitch, Usage

START = Usage(seconds=1000.0, faults=5000, reads=70_000, cpu=20.0, waited=30.0)
"""The usage of a process at startup, which does not count."""


Spent = tuple[float, int, int, float, float]


def used(start: Usage, seconds: float, faults: int, reads: int, cpu: float, waited: float) -> Usage:
    return Usage(
        start.seconds + seconds, start.faults + faults, start.reads + reads, start.cpu + cpu, start.waited + waited
    )


@pytest.fixture
def cold() -> tuple[ColdSwitch, Usage]:
    """A switch whose data is cold, a page taking a tenth of a millisecond, and the usage at which it became so."""
    switch, usage = ColdSwitch(START), used(START, 0.1, 500, 500, 0.02, 0.05)
    assert switch.update(usage) is not None
    assert switch.is_cold
    return switch, usage


@pytest.mark.parametrize(
    ("spent", "is_cold"),
    [
        pytest.param((0.007, 100, 100, 0.003, 0.004), True, id="one MGET of a hundred pages"),
        pytest.param((1.0, 125, 125, 0.01, 0.98), True, id="a disk that turns"),
        pytest.param((0.5, 99, 99, 0.01, 0.4), False, id="a page less"),
        pytest.param((1.0, 300, 300, 0.9, 0.04), False, id="a busy worker some of whose pages were evicted"),
        pytest.param((0.4, 179, 460, 0.3, 0.02), False, id="the first load of a file that was evicted in part"),
        pytest.param((1.0, 500, 0, 0.9, 0.0), False, id="faults that wait for no disk"),
        pytest.param((1.0, 0, 0, 0.1, 0.9), False, id="something that is no page"),
        pytest.param((1.0, 0, 0, 0.0, 0.0), False, id="nothing"),
    ],
)
def test_data_is_cold_when_the_loop_waits_longer_than_it_computes(spent: Spent, is_cold: bool) -> None:
    switch = ColdSwitch(START)
    weighed = switch.update(used(START, *spent))
    assert switch.is_cold is is_cold
    assert weighed == (pytest.approx(spent) if is_cold else None)


def test_what_is_weighed_is_a_second() -> None:
    switch, usage = ColdSwitch(START), START
    for _ in range(20):
        usage = used(usage, SECONDS, COLD_FAULTS - 1, COLD_FAULTS - 1, 0.0, 0.9)
        assert switch.update(usage) is None


@pytest.mark.parametrize(
    ("spent", "is_cold"),
    [
        pytest.param((1.0, 0, 20_000, 1.0, 0.0), True, id="much is read, though nothing faults"),
        pytest.param((1.0, 0, 100, 0.01, 0.0), True, id="little is asked, and that is read"),
        pytest.param((1.0, 0, WARM_READS - 1, 0.01, 0.0), False, id="hardly anything is read"),
        pytest.param((1.0, 0, 500, 1.0, 0.0), False, id="to wait would cost less than is computed"),
        pytest.param((0.9, 0, 0, 0.0, 0.0), True, id="it is too early to say"),
    ],
)
def test_it_is_warm_again_when_to_wait_would_cost_less(
    cold: tuple[ColdSwitch, Usage], spent: Spent, is_cold: bool
) -> None:
    switch, usage = cold
    weighed = switch.update(used(usage, *spent))
    assert switch.is_cold is is_cold
    assert weighed == (None if is_cold else pytest.approx(spent))


def test_the_faults_of_a_cold_time_do_not_count_afterwards(cold: tuple[ColdSwitch, Usage]) -> None:
    switch, usage = cold
    usage = used(usage, SECONDS, 10 * COLD_FAULTS, 0, 0.1, 0.5)
    assert switch.update(usage) is not None
    assert switch.update(used(usage, 0.5, 1, 1, 0.0, 0.4)) is None
    assert not switch.is_cold


def test_usage_is_measured_in_full_when_it_may_change_something(cold: tuple[ColdSwitch, Usage]) -> None:
    switch, now = ColdSwitch(START), START.seconds
    assert not switch.is_due(now + 0.1, START.faults + COLD_FAULTS - 1)
    assert switch.is_due(now + 0.1, START.faults + COLD_FAULTS)
    assert switch.is_due(now + SECONDS, START.faults)
    switch, usage = cold
    assert not switch.is_due(usage.seconds + 0.1, usage.faults + COLD_FAULTS)
    assert switch.is_due(usage.seconds + SECONDS, usage.faults)
