"""Whether this machine can send what is asked for: a result of senders that were late would be of them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from lookupdb.errors import LookupdbError

LATE_SECONDS: Final = 3.0
"""For so long a sender may be behind its schedule."""
LATE_MICROSECONDS: Final = 100_000
"""Behind it, at the median."""
NOTICEABLE_MICROSECONDS: Final = 10_000
"""At the 99th percentile: what is said of a result."""
BUSY_SHARE: Final = 0.9
"""Of a processor: above, a sender's own queue is part of what it measures."""


class SenderTooSlow(LookupdbError):
    """This machine cannot send at the rate that is asked for."""

    reason = "SenderTooSlow"


def check_capacity(rate: float, capacities: Sequence[float], processors: int) -> None:
    """Raises SenderTooSlow unless senders with these ``capacities``, each of a whole processor, reach ``rate``."""
    each = rate / len(capacities)
    room = min(capacities) * min(1.0, processors / len(capacities))
    if each <= room:
        return
    reachable = int(room * len(capacities))
    hint = f"ask for {reachable:,} requests/s or fewer, or for fewer keys in each"
    if len(capacities) < processors:
        hint += f", or give --processes {len(capacities) + 1}: this machine has {processors} processors"
    raise SenderTooSlow(
        f"this machine can send some {reachable:,} requests/s like these by {len(capacities)} process"
        f"{'es' if len(capacities) > 1 else ''}, and {rate:,.0f} are asked for",
        hint=hint,
    )


class LagWatch:
    """Watches how late one sender is."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int]] = deque()

    def check(self, seconds: float, lags: Sequence[int]) -> None:
        """Take the ``lags`` of a report, in microseconds. Raises SenderTooSlow when all reports of some seconds were
        late."""
        if not lags:
            return
        self._reports.append((seconds, sorted(lags)[len(lags) // 2]))
        while self._reports[-1][0] - self._reports[0][0] > LATE_SECONDS:
            self._reports.popleft()
        spans_enough = self._reports[-1][0] - self._reports[0][0] > LATE_SECONDS * 0.8
        if spans_enough and all(lag > LATE_MICROSECONDS for _, lag in self._reports):
            raise SenderTooSlow(
                f"this machine does not keep up: for {LATE_SECONDS:g} s requests left more than"
                f" {LATE_MICROSECONDS // 1000} ms late, the last ones {self._reports[-1][1] / 1e6:.2g} s",
                hint="ask for a lower --rate, give more --processes, or run it where nothing else needs the processors",
            )
