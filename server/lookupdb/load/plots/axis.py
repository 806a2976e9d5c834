"""Where values lie on an axis, and which of them are marked. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MARKS: Final = 5


@dataclass(frozen=True, slots=True)
class AxisMark:
    """A value that is marked."""

    place: float
    """0 is the axis' begin, 1 its end."""
    text: str


class PlotAxis(Protocol):
    """One axis of a plot."""

    def locate(self, value: float) -> float:
        """The place of ``value``, between 0 and 1."""


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """From ``low`` to ``high``, in even steps."""

    low: float
    high: float

    def locate(self, value: float) -> float:
        """The place of ``value``."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


@dataclass(frozen=True, slots=True)
class LogAxis:
    """From ``low`` to ``high``, both above 0; ten times as much is always as far."""

    low: float
    high: float

    def locate(self, value: float) -> float:
        """The place of ``value``."""
        bounded = min(self.high, max(self.low, value))
        return math.log(bounded / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True, slots=True)
class PercentileAxis:
    """From 0 % towards 100 %: each further nine is as far as the last one. ``nines`` are the most that are told
    apart."""

    nines: float

    def locate(self, value: float) -> float:
        """The place of ``value``, a percentile."""
        rest = max(1 - value / 100, 10**-self.nines)
        return min(1.0, -math.log10(rest) / self.nines)

    def list_marks(self) -> list[AxisMark]:
        """0 %, 50 %, 90 %, 99 % …"""
        marked = [0.0, 50.0, *(100 - 10 ** (2 - nine) for nine in range(1, int(self.nines) + 1))]
        return [AxisMark(self.locate(value), f"{value:.10g} %") for value in marked]


def choose_linear(highest: float) -> tuple[LinearAxis, list[float]]:
    """An axis from 0 to ``highest`` or a little more, and the values to mark."""
    raw = max(highest, 1e-9) / _MARKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _STEPS if power * factor >= raw * (1 - 1e-9))
    count = max(1, math.ceil(highest / step - 1e-9))
    return LinearAxis(0.0, step * count), [step * index for index in range(count + 1)]


def choose_log(values: Sequence[float]) -> tuple[LogAxis, list[float]]:
    """An axis for ``values``, of whole powers of ten, and the values to mark."""
    low = math.floor(math.log10(max(1.0, min(values, default=1.0))))
    high = max(low + 1, math.ceil(math.log10(max(1.0, max(values, default=1.0)))))
    return LogAxis(10.0**low, 10.0**high), [10.0**power for power in range(low, high + 1)]
