"""The reports of all senders, made into histograms, counts, and points over time. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from lookupdb.load.histogram import LatencyHistogram
from lookupdb.load.tally import FAILURE_KINDS, GenerationSpan, Tally, add_label

MAX_POINTS: Final = 600
"""Of a whole load: a longer one has longer points."""
_EDGE_SECONDS: Final = 0.05
"""By which an interval may begin too early for its point."""
_SUMS: Final = (
    *("scheduled", "held_back", "answered", "timeouts", "unsent", "found", "missing", "unavailable_keys", "mixed"),
    "busy",
)


@dataclass(slots=True)
class LoadPoint:
    """An interval of the load."""

    begin: float
    """Seconds since measuring began."""
    seconds: float
    scheduled: int = 0
    answered: int = 0
    failed: int = 0
    """Requests of which nothing was learnt."""
    p50: int | None = None
    p99: int | None = None
    highest: int | None = None
    """All in microseconds; None where there is no answer to tell them by."""

    def to_json(self) -> dict[str, Any]:
        """As the result has it."""
        return {
            "begin": round(self.begin, 3),
            "seconds": round(self.seconds, 3),
            "scheduled": self.scheduled,
            "answered": self.answered,
            "failed": self.failed,
            "p50": self.p50,
            "p99": self.p99,
            "max": self.highest,
        }


@dataclass(slots=True)
class _OpenPoint:
    point: LoadPoint
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    failure_count: int = 0


class Recording:
    """What all senders have reported."""

    def __init__(self, duration: float, processes: int) -> None:
        self.width = max(1.0, -(-duration // MAX_POINTS))
        """Seconds of a point."""
        self._duration = duration
        self._last = max(0, math.ceil(duration / self.width) - 1)
        self.total = Tally()
        """Without latencies."""
        self.latencies, self.failure_latencies, self.lags = (LatencyHistogram() for _ in range(3))
        """Of the points that are closed; of all, once it is finished."""
        self.failure_count = 0
        """Of the same, the requests that have failed before they were late: they count as slower than any answer."""
        self.points: list[LoadPoint] = []
        self._open: dict[int, _OpenPoint] = {}
        self._reached = [0] * processes
        """By sender, the point in which its last report is."""

    def take(self, process: int, begin: float, tally: Tally) -> None:
        """Take the counts of an interval, short before a point, which began so many seconds after measuring did: in the
        warm-up, if it is less than 0; then it has what became due in the moments behind it. What is answered after the
        end belongs to the last point."""
        index = min(max(0, int((begin + _EDGE_SECONDS) / self.width)), self._last)
        if begin < -_EDGE_SECONDS:
            tally.busy = 0.0
        self._reached[process] = index
        self._add_counts(tally)
        self.failure_latencies.record(tally.failure_latencies)
        self.lags.record(tally.lags)
        if tally.scheduled or tally.latencies or tally.failure_latencies:
            self._add_to_point(index, tally)
        self._close_points(min(self._reached))

    def finish(self) -> None:
        """There are no further reports."""
        self._close_points(max(self._open, default=0) + 1)

    def _add_counts(self, tally: Tally) -> None:
        for name in _SUMS:
            setattr(self.total, name, getattr(self.total, name) + getattr(tally, name))
        for kind in FAILURE_KINDS:
            for label, count in tally.failures[kind].items():
                add_label(self.total.failures[kind], label, count)
        for name, span in tally.generations.items():
            present = self.total.generations.setdefault(name, GenerationSpan(0, span.first, span.last))
            present.extend(span)

    def _add_to_point(self, index: int, tally: Tally) -> None:
        if index not in self._open:
            begin = index * self.width
            self._open[index] = _OpenPoint(LoadPoint(begin, min(self.width, self._duration - begin)))
        record = self._open[index]
        point = record.point
        point.scheduled += tally.scheduled
        point.answered += tally.answered
        point.failed += count_failures(tally)
        record.latencies.record(tally.latencies)
        record.failure_count += count_failures(tally) - tally.timeouts - tally.unsent

    def _close_points(self, end: int) -> None:
        """Close those before number ``end``."""
        for index in sorted(index for index in self._open if index < end):
            record = self._open.pop(index)
            point = record.point
            point.p50, point.p99 = record.latencies.percentiles((50.0, 99.0), record.failure_count)
            point.highest = record.latencies.highest
            self.points.append(point)
            self.latencies.merge(record.latencies)
            self.failure_count += record.failure_count


def count_failures(tally: Tally) -> int:
    """Requests of which nothing was learnt."""
    return sum(sum(labels.values()) for labels in tally.failures.values()) + tally.timeouts + tally.unsent
