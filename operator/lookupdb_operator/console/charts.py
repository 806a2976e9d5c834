"""Line charts as SVG paths: from points to what a template draws. Texts are HTML beside the SVG, so that the picture
may be stretched to any width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 120
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_SHORTEST_SECONDS: Final = 60.0
"""The least time from the left to the right edge."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, with the text of its last value."""

    name: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its lines. ``top`` and ``middle`` label the grid."""

    title: str
    lines: tuple[Line, ...]
    top: str
    middle: str
    seconds: float
    summary: str
    """What a reader who cannot see it should know."""


Series = tuple[str, Sequence[float]]
"""A name and one value for each moment; nan is unknown."""


def draw(title: str, times: Sequence[float], series: Sequence[Series], show: Callable[[float], str]) -> Chart:
    """Return the chart of ``series``. ``show`` formats a value."""
    known = [value for _, values in series for value in values if not math.isnan(value)]
    top = _round_up(max(known, default=0.0))
    span = max(times[-1] - times[0], _SHORTEST_SECONDS) if times else _SHORTEST_SECONDS
    lines = tuple(Line(name, _path(times, values, span, top), _show_last(values, show)) for name, values in series)
    now = ", ".join(f"{line.name} {line.last}" for line in lines)
    summary = f"{title}: now {now}; highest {show(max(known))}" if known else f"{title}: no figures yet"
    return Chart(title, lines, show(top), show(top / 2), span, summary)


def _show_last(values: Sequence[float], show: Callable[[float], str]) -> str:
    return "–" if not values or math.isnan(values[-1]) else show(values[-1])


def _round_up(value: float) -> float:
    """Return the next round number, as the upper edge of a chart."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in _STEPS if step * size >= value * 0.999)


def _path(times: Sequence[float], values: Sequence[float], span: float, top: float) -> str:
    return " ".join(_commands(times, values, span, top))


def _commands(times: Sequence[float], values: Sequence[float], span: float, top: float) -> Iterator[str]:
    pen = "M"
    for at, value in zip(times, values, strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        x, y = WIDTH - (times[-1] - at) / span * WIDTH, HEIGHT - min(value / top, 1.0) * (HEIGHT - 4) - 1
        yield f"{pen}{x:.1f} {y:.1f}"
        pen = "L"
