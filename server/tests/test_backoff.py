"""Delays double up to a limit, are spread by chance, and begin again after a success."""

import pytest

from lookupdb.backoff import Backoff, delay_after, spread


@pytest.mark.parametrize(
    ("failures", "delay"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (10**9, 30.0)]
)
def test_delays_double_up_to_the_longest(failures: int, delay: float) -> None:
    assert delay_after(failures, 0.5, 30) == delay


def test_a_delay_is_shortened_by_half_at_most() -> None:
    assert [spread(8.0, chance) for chance in (0.0, 0.5, 1.0)] == [8.0, 6.0, 4.0]


def test_a_series_begins_again_after_a_reset() -> None:
    backoff = Backoff(1, 5)
    assert [backoff.fail() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    assert backoff.failures == 4
    backoff.reset()
    assert (backoff.failures, backoff.fail()) == (0, 1.0)


def test_each_delay_of_a_series_is_spread_again_and_growth_is_not() -> None:
    chances = iter([0.0, 1.0, 0.5])
    backoff = Backoff(1, 60, lambda: next(chances))
    assert [backoff.fail() for _ in range(3)] == [1.0, 1.0, 3.0]
