"""Values of a panel as text, and the marks of its axis, by the names of Grafana's units."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

_Scale = Sequence[tuple[float, str]]
"""Size and name of each unit, the smallest first."""

_PLAIN: Final[_Scale] = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"))
_SCALES: Final[dict[str, _Scale]] = {
    "s": ((1e-6, " µs"), (1e-3, " ms"), (1, " s"), (60, " min"), (3600, " h"), (86400, " d")),
    "bytes": ((1, " B"), (2**10, " KiB"), (2**20, " MiB"), (2**30, " GiB"), (2**40, " TiB")),
    "percentunit": ((0.01, "%"),),
    "short": _PLAIN,
    "reqps": tuple((size, f"{name} req/s") for size, name in _PLAIN),
    "cps": tuple((size, f"{name} /s") for size, name in _PLAIN),
}
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_TIMES: Final[dict[str, Sequence[int]]] = {
    " s": (1, 2, 5, 10, 15, 30),
    " min": (1, 2, 5, 10, 15, 30),
    " h": (1, 2, 6, 12),
}
"""Steps between round times, by their unit."""
_MOST_MARKS: Final = 4


def format_value(value: float, unit: str) -> str:
    """Return three digits of a value with its unit."""
    if not math.isfinite(value):
        return "–"
    size, name = _find_scale(abs(value), unit)
    scaled = value / size
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    text = f"{scaled:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + name


def find_marks(top: float, unit: str) -> list[float]:
    """Return round values from 0 to the first that is not below ``top``."""
    scale = _SCALES.get(unit, _PLAIN)
    steps = sorted(_find_steps(scale, top))
    step = next((step for step in steps if top / step <= _MOST_MARKS), steps[-1])
    return [step * number for number in range(max(1, math.ceil(top / step - 1e-9)) + 1)]


def _find_steps(scale: _Scale, top: float) -> Iterable[float]:
    yield from (size * step for size, name in scale for step in _TIMES.get(name, _STEPS))
    smallest = scale[0][0]
    yield from (smallest * step * 10.0**power for step in (1, 2, 5) for power in range(-6, 0) if top < smallest * 4)
    yield from (scale[-1][0] * step * 10**power for step in _STEPS for power in (3, 6, 9))


def _find_scale(value: float, unit: str) -> tuple[float, str]:
    scale = _SCALES.get(unit, _PLAIN)
    if value == 0:
        return next(((size, name) for size, name in scale if size == 1), scale[0])
    return next((each for each in reversed(scale) if value >= each[0] * 0.9995), scale[0])
