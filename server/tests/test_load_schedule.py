"""When requests are to be sent: rates, ramps, warm-ups; uniform and Poisson arrivals; by one sender or several."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from lookupdb.errors import UsageError
from lookupdb.load.plan import RateProfile, RateSegment, intended_times, make_profile, parse_ramp


def _times(profile: RateProfile, arrivals: str, seed: int = 1, processes: int = 1) -> list[float]:
    """Return the times of all senders together."""
    senders = [
        list(intended_times(profile, arrivals, seed, process, processes))  # type: ignore[arg-type]
        for process in range(processes)
    ]
    for times in senders:
        assert times == sorted(times)
    return sorted(itertools.chain(*senders))


def _count(times: list[float], seconds: int) -> list[int]:
    counts = [0] * seconds
    for instant in times:
        counts[int(instant)] += 1
    return counts


def test_uniform_arrivals_of_a_constant_rate_are_evenly_apart() -> None:
    profile = make_profile(4, 4, ramp=0, duration=2, warmup=0)
    assert _times(profile, "uniform") == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75])


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_several_senders_together_send_what_one_would(processes: int) -> None:
    profile = make_profile(10, 50, ramp=3, duration=5, warmup=1)
    assert _times(profile, "uniform", processes=processes) == pytest.approx(_times(profile, "uniform"))


def test_a_ramp_goes_from_one_rate_to_the_other_and_stays_there() -> None:
    profile = make_profile(0, 100, ramp=4, duration=6, warmup=0)
    assert sum(segment.requests for segment in profile.segments) == pytest.approx(400)
    counts = _count(_times(profile, "uniform"), 6)
    assert counts == pytest.approx([12.5, 37.5, 62.5, 87.5, 100, 100], abs=1)
    down = _count(_times(make_profile(100, 0, ramp=4, duration=4, warmup=0), "uniform"), 4)
    assert down == pytest.approx([87.5, 62.5, 37.5, 12.5], abs=1)


def test_a_warm_up_comes_first_at_the_first_rate() -> None:
    profile = make_profile(10, 90, ramp=2, duration=2, warmup=3)
    assert profile.seconds == 5
    assert _count(_times(profile, "uniform"), 5) == pytest.approx([10, 10, 10, 30, 70], abs=1)


def test_a_ramp_that_is_cut_short_ends_where_it_has_come_to() -> None:
    profile = make_profile(0, 100, ramp=10, duration=5, warmup=0)
    assert profile.segments == (RateSegment(5, 0, 50),)


def test_instants_are_where_the_integral_of_the_rate_says() -> None:
    segment = RateSegment(10, 20, 80)
    for instant in (0.1, 1.0, 5.0, 9.9):
        expected = 20 * instant + (80 - 20) / 10 * instant**2 / 2
        assert segment.find_instant(expected) == pytest.approx(instant)
    assert segment.find_instant(0) == 0
    assert RateSegment(10, 0, 1).find_instant(1e-9) > 0


@pytest.mark.parametrize("processes", [1, 4])
def test_poisson_arrivals_have_the_gaps_of_a_poisson_process(processes: int) -> None:
    rate, seconds = 1000.0, 20
    times = _times(make_profile(rate, rate, ramp=0, duration=seconds, warmup=0), "poisson", processes=processes)
    assert len(times) == pytest.approx(rate * seconds, abs=5 * math.sqrt(rate * seconds))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / rate, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / rate, rel=0.05), "uniform arrivals would have none"
    assert sum(gap > 1 / rate for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)


def test_a_seed_decides_poisson_arrivals_and_senders_differ() -> None:
    profile = make_profile(100, 100, ramp=0, duration=2, warmup=0)
    assert _times(profile, "poisson", seed=5) == _times(profile, "poisson", seed=5)
    assert _times(profile, "poisson", seed=5) != _times(profile, "poisson", seed=6)
    first, second = (list(intended_times(profile, "poisson", 5, process, 2)) for process in (0, 1))
    assert first != second


def test_a_ramp_is_read() -> None:
    assert parse_ramp("100:1000:30") == (100, 1000, 30)
    assert parse_ramp("0:50:1.5") == (0, 50, 1.5)


@pytest.mark.parametrize(
    "text", ["", "100", "1:2", "1:2:3:4", "a:b:c", "-1:5:5", "0:0:5", "1:2:0.5", "1:nan:5", "1:inf:5"]
)
def test_what_is_no_ramp_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ramp"):
        parse_ramp(text)
