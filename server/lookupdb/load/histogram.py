"""Latencies, counted within a thousandth of each value. The one place that knows the library: HdrHistogram."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from lookupdb.errors import UsageError
from lookupdb.load.rank import find_rank

try:
    from hdrh.histogram import HdrHistogram
except ModuleNotFoundError as error:
    raise UsageError(
        "lookupdb load counts latencies by hdrhistogram, which is not installed",
        hint="pip install hdrhistogram; where it has no wheel, as for arm64, that needs a C compiler",
    ) from error

HIGHEST_MICROSECONDS: Final = 300_000_000
"""Five minutes: no request is waited for so long. What is longer counts as this."""
_DIGITS: Final = 3


class LatencyHistogram:
    """How often requests took how many microseconds."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, HIGHEST_MICROSECONDS, _DIGITS)
        self._sum = 0
        self.highest: int | None = None
        """In microseconds, and exact; None of none."""

    def record(self, microseconds: Iterable[int]) -> None:
        """Count each of ``microseconds``."""
        for value, times in Counter(microseconds).items():
            counted = min(max(value, 1), HIGHEST_MICROSECONDS)
            self._counts.record_value(counted, times)
            self._sum += counted * times
            self.highest = max(self.highest or 0, counted)

    def merge(self, other: Self) -> None:
        """Count what ``other`` has counted, too."""
        self._counts.add(other._counts)
        self._sum += other._sum
        self.highest = max(self.highest or 0, other.highest or 0) or None

    @property
    def count(self) -> int:
        """How many were counted."""
        return int(self._counts.get_total_count())

    @property
    def mean(self) -> float | None:
        """In microseconds; None of none."""
        return self._sum / self.count if self.count else None

    def percentile(self, percentile: float) -> int | None:
        """The microseconds that so many of a hundred did not exceed; None of none."""
        return self.percentiles((percentile,))[0]

    def percentiles(self, percentiles: Sequence[float], failure_count: int = 0) -> list[int | None]:
        """The same for each of ``percentiles``; none is above ``highest``. ``failure_count`` more requests took longer
        than any that was counted: None, where one of them has that rank."""
        count, highest = self.count, self.highest
        if highest is None:
            return [None] * len(percentiles)
        # The library rounds to the nearest rank: the 99th percentile of 51 would be the 50th, which 2 % exceed.
        shares = [100 * find_rank(percentile, count + failure_count) / count for percentile in percentiles]
        found = self._counts.get_percentile_to_value_dict([share for share in shares if share <= 100])
        return [min(int(found[share]), highest) if share <= 100 else None for share in shares]

    def encode(self) -> str:
        """All counts, as HdrHistogram's libraries in other languages read them (V2, base64)."""
        return bytes(self._counts.encode()).decode()

    def summarize(self, percentiles: Sequence[float], failure_count: int = 0) -> dict[str, Any]:
        """For machines, in microseconds; None where there is nothing to tell. ``failure_count`` is as for
        ``percentiles``."""
        values, mean = self.percentiles(percentiles, failure_count), self.mean
        return {
            "count": self.count,
            "mean": mean if mean is None else round(mean, 1),
            "max": self.highest,
            "percentiles": {f"{name:g}": value for name, value in zip(percentiles, values, strict=True)},
        }


CURVE_PERCENTILES: Final = tuple(round(100 - 100 * 10 ** -(step / 16), 6) for step in range(16 * 5 + 1))
"""0 to 99.999, at even steps of the logarithm of what is left: where a curve of percentiles has its points."""


def thin_curve(histogram: LatencyHistogram, failure_count: int = 0) -> list[tuple[float, int | None]]:
    """The points of the curve of percentiles, no more than the count bears, and the highest as the last. It ends before
    100 %, if ``failure_count`` more requests took longer than any that was counted."""
    count = histogram.count
    if not count:
        return []
    bound = 100 - 100 / count
    chosen = CURVE_PERCENTILES[: bisect.bisect_right(CURVE_PERCENTILES, bound)] or (0.0,)
    curve = [*zip(chosen, histogram.percentiles(chosen), strict=True), (100.0, histogram.highest)]
    return [(round(percentile * count / (count + failure_count), 6), value) for percentile, value in curve]
