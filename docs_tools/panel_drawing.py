"""Draws panels of a dashboard as SVG: each kind of panel from its JSON and the series that its queries returned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any, Final

from docs_tools.panel_units import find_marks, format_value

Json = Any
Points = Sequence[tuple[float, float]]
"""Seconds since the epoch, and values."""

PALETTE: Final = ("#3274d9", "#56a64b", "#e0a100", "#a352cc", "#ff780a", "#0a8fa8", "#e02f44", "#8a6d3b", "#6d7785")
COLORS: Final = {
    "green": "#37872d",
    "orange": "#e06c00",
    "red": "#c4162a",
    "blue": "#3274d9",
    "purple": "#a352cc",
    "text": "#24292e",
}
FONT: Final = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif"
_GREY: Final = "#6b7280"
_LINE: Final = "#e5e7eb"
_CHARACTER: Final = 0.54
"""Width of a character by the size of the font."""


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one line, and its name in the legend."""

    name: str
    points: Points
    labels: Mapping[str, str] = field(default_factory=dict)
    query: int = 0
    """The number of the panel's query that returned it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, on all graphs."""

    moment: float
    color: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width


@dataclass(frozen=True, slots=True)
class Window:
    """The period that is shown, with what happened in it."""

    start: float
    end: float
    marks: Sequence[Mark] = ()

    def place(self, moment: float, box: Box) -> float:
        """Return where a moment is."""
        return box.x + box.width * (moment - self.start) / (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical axis of a graph."""

    marks: Sequence[float]
    is_logarithmic: bool = False

    def place(self, value: float, box: Box) -> float:
        """Return where a value is."""
        low, high = self.marks[0], self.marks[-1]
        if self.is_logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return box.bottom - box.height * min((value - low) / (high - low), 1.02)


def draw_panel(panel: Json, series: Sequence[Series], box: Box, window: Window) -> Iterator[str]:
    """Yield the elements of a panel with its frame and its title."""
    yield (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="4"'
        f' fill="#fff" stroke="{_LINE}"/>'
    )
    yield write(panel["title"], box.x + 10, box.y + 19, size=13, weight=600, room=box.width - 20)
    inner = Box(box.x + 10, box.y + 28, box.width - 20, box.height - 34)
    draw = _DRAWERS[panel["type"]]
    yield from draw(panel, series, inner, window)


def write(
    text: str,
    x: float,
    y: float,
    *,
    size: float = 11,
    color: str = COLORS["text"],
    anchor: str = "start",
    weight: int = 400,
    room: float = math.inf,
) -> str:
    """Return a text, cut if it is wider than ``room``."""
    most = room / (size * _CHARACTER)
    shown = text if len(text) <= most else text[: max(1, int(most) - 1)] + "…"
    extra = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (
        f' font-weight="{weight}"' if weight != 400 else ""
    )
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}"{extra}>{escape(shown)}</text>'


# What a panel's JSON says.


def _defaults(panel: Json) -> Json:
    return panel["fieldConfig"]["defaults"]


def _unit(panel: Json) -> str:
    return str(_defaults(panel).get("unit", "short"))


def _properties(panel: Json, name: str) -> dict[str, Any]:
    """Return the properties that override the defaults for the series ``name``."""
    return {
        each["id"]: each["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == name
        for each in override["properties"]
    }


def _judge(value: float, config: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the name and the colour that mappings and thresholds give to a value."""
    color = "text"
    for step in config.get("thresholds", {}).get("steps", ()):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    for mapping in config.get("mappings", ()):
        if (found := mapping["options"].get(f"{value:g}")) is not None:
            return found["text"], COLORS[found["color"]]
    return None, COLORS[color]


# One number.


def _draw_number(panel: Json, series: Sequence[Series], box: Box, window: Window) -> Iterator[str]:
    config = _defaults(panel)
    middle = box.x + box.width / 2
    if not series or not series[0].points:
        yield write(config.get("noValue", "no data"), middle, box.y + 40, size=20, color=_GREY, anchor="middle")
        return
    value = series[0].points[-1][1]
    name, color = _judge(value, config)
    if panel["options"]["textMode"] == "name":
        name = series[0].name
    if panel["options"]["graphMode"] == "area" and len(series[0].points) > 1:
        graph = Box(box.x - 9, box.y + 60, box.width + 18, box.height - 55)
        scale = Scale((0, max(value for _, value in series[0].points) or 1))
        line = _trace(series[0].points, graph, window, scale)
        yield f'<path d="{_close(line, series[0].points, graph, window)}" fill="{color}" fill-opacity=".12"/>'
        yield f'<path d="{line}" fill="none" stroke="{color}" stroke-width="1.2"/>'
    text = name or format_value(value, _unit(panel))
    yield write(text, middle, box.y + 46, size=32, color=color, anchor="middle", weight=600, room=box.width * 1.1)


# Lines, areas and bars.


def _draw_graph(panel: Json, series: Sequence[Series], box: Box, window: Window) -> Iterator[str]:
    custom = _defaults(panel)["custom"]
    is_bars = custom["drawStyle"] == "bars"
    is_stacked = custom.get("stacking", {}).get("mode") == "normal"
    shown = sorted(series, key=_last, reverse=True) if len(series) > _LEGEND_ROWS else list(series)
    rows = min(max(len(shown), 1), _LEGEND_ROWS)
    plot = Box(box.x + 58, box.y + 6, box.width - 62, box.height - 42 - 15 * rows)
    layers = _stack(shown) if is_stacked else [each.points for each in shown]
    scale = _find_scale(panel, [value for points in layers for _, value in points])
    yield from _draw_axes(plot, scale, _unit(panel), window)
    colors = [_color_of(panel, each.name, number) for number, each in enumerate(shown)]
    for layer, color in reversed(list(zip(layers, colors, strict=True))):
        if is_bars:
            yield from _draw_bars(layer, plot, window, scale, color)
            continue
        line = _trace(layer, plot, window, scale)
        if is_stacked and line:
            area = _close(line, layer, plot, window)
            yield f'<path d="{area}" fill="#fff"/>'
            yield f'<path d="{area}" fill="{color}" fill-opacity=".3"/>'
        yield f'<path d="{line}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linejoin="round"/>'
    if not series:
        yield write("no data", plot.x + plot.width / 2, plot.y + plot.height / 2, color=_GREY, anchor="middle")
    legend = Box(box.x, plot.bottom + 34, box.width, 15 * rows)
    yield from _draw_legend(shown, colors, legend, _unit(panel), is_sum=is_bars)


_LEGEND_ROWS: Final = 4


def _last(series: Series) -> tuple[float, float]:
    """Return the last moment and value: series that have ended come last."""
    return series.points[-1] if series.points else (0.0, 0.0)


def _find_scale(panel: Json, values: Sequence[float]) -> Scale:
    if _defaults(panel)["custom"].get("scaleDistribution", {}).get("type") == "log":
        above = [value for value in values if value > 0] or [0.001]
        low = math.floor(math.log10(min(above)))
        high = max(math.ceil(math.log10(max(above))), low + 1)
        return Scale([10.0**power for power in range(low, high + 1)], is_logarithmic=True)
    top = max(values, default=0) or 1
    return Scale(find_marks(float(_defaults(panel).get("max", top)), _unit(panel)))


def _color_of(panel: Json, name: str, number: int) -> str:
    fixed = _properties(panel, name).get("color")
    return COLORS[fixed["fixedColor"]] if fixed else PALETTE[number % len(PALETTE)]


def _stack(series: Sequence[Series]) -> list[Points]:
    """Return each series on top of those before it."""
    heights: dict[float, float] = {}
    layers: list[Points] = []
    for each in series:
        layer = []
        for moment, value in each.points:
            heights[moment] = heights.get(moment, 0.0) + value
            layer.append((moment, heights[moment]))
        layers.append(layer)
    return layers


def _trace(points: Points, box: Box, window: Window, scale: Scale) -> str:
    """Return a path through points, interrupted where some are missing."""
    step = min((later - earlier for (earlier, _), (later, _) in pairwise(points)), default=0)
    parts = []
    previous = -math.inf
    for moment, value in points:
        letter = "L" if moment - previous <= step * 1.5 else "M"
        parts.append(f"{letter}{window.place(moment, box):.0f} {scale.place(value, box):.1f}")
        previous = moment
    return "".join(parts)


def _close(line: str, points: Points, box: Box, window: Window) -> str:
    first, last = (window.place(points[index][0], box) for index in (0, -1))
    return f"{line}L{last:.0f} {box.bottom:.0f}L{first:.0f} {box.bottom:.0f}Z"


def _draw_bars(points: Points, box: Box, window: Window, scale: Scale, color: str) -> Iterator[str]:
    """Yield a bar for each period, which ends at its moment."""
    period = min((later - earlier for (earlier, _), (later, _) in pairwise(points)), default=0)
    for moment, value in points:
        left, right = (max(box.x, window.place(at, box)) for at in (moment - 0.85 * period, moment - 0.15 * period))
        if value > 0 and right > left:
            height = box.bottom - scale.place(value, box)
            yield f'<path d="M{left:.1f} {box.bottom:.1f}v{-height:.1f}H{right:.1f}v{height:.1f}z" fill="{color}"/>'


def _draw_axes(box: Box, scale: Scale, unit: str, window: Window) -> Iterator[str]:
    for mark in scale.marks:
        y = scale.place(mark, box)
        yield f'<path d="M{box.x:.0f} {y:.1f}H{box.right:.0f}" stroke="{_LINE}"/>'
        yield write(format_value(mark, unit), box.x - 6, y + 4, size=10, color=_GREY, anchor="end")
    yield from _draw_times(box, window)
    for event in window.marks:
        x = window.place(event.moment, box)
        yield f'<path d="M{x:.1f} {box.y:.0f}V{box.bottom:.0f}" stroke="{event.color}" stroke-dasharray="4 3"/>'
        yield f'<path d="M{x:.1f} {box.bottom:.0f}l-4 6h8z" fill="{event.color}"/>'


def _draw_times(box: Box, window: Window) -> Iterator[str]:
    minutes = (window.end - window.start) / 60
    step = (
        next((step for step in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720) if minutes / step <= box.width / 60), 1440) * 60
    )
    moment = math.ceil(window.start / step) * step
    while moment <= window.end:
        text = time.strftime("%H:%M", time.gmtime(moment))
        x = window.place(moment, box)
        if box.x + 12 < x < box.right - 12:
            yield write(text, x, box.bottom + 18, size=10, color=_GREY, anchor="middle")
        moment += step


def _draw_legend(
    series: Sequence[Series], colors: Sequence[str], box: Box, unit: str, *, is_sum: bool
) -> Iterator[str]:
    columns = ("total",) if is_sum else ("last", "max")
    for number, name in enumerate(reversed(columns)):
        yield write(name, box.right - 4 - 78 * number, box.y - 4, size=9, color=_GREY, anchor="end")
    for row, (each, color) in enumerate(list(zip(series, colors, strict=True))[:_LEGEND_ROWS]):
        y = box.y + 9 + 15 * row
        is_rest = row == _LEGEND_ROWS - 1 and len(series) > _LEGEND_ROWS
        if is_rest:
            yield write(f"and {len(series) - row} more", box.x + 18, y, color=_GREY)
            break
        yield f'<rect x="{box.x:.0f}" y="{y - 5:.0f}" width="12" height="3" rx="1" fill="{color}"/>'
        yield write(each.name, box.x + 18, y, room=box.width - 18 - 78 * len(columns) + 20)
        values = [value for _, value in each.points] or [math.nan]
        cells = (sum(values),) if is_sum else (values[-1], max(values))
        for number, value in enumerate(reversed(cells)):
            text = format_value(round(value) if is_sum else value, unit)
            yield write(text, box.right - 4 - 78 * number, y, anchor="end")


# Bands of states, a heatmap and a table.


def _draw_timeline(panel: Json, series: Sequence[Series], box: Box, window: Window) -> Iterator[str]:
    plot = Box(box.x + 90, box.y, box.width - 94, box.height - 18)
    height = plot.height / max(len(series), 1)
    for row, each in enumerate(series):
        y = plot.y + row * height
        config = {**_defaults(panel), **_properties(panel, each.name)}
        yield write(each.name, plot.x - 8, y + height / 2 + 4, anchor="end")
        for start, end, value in _find_bands(each.points, window):
            name, color = _judge(value, config)
            left, right = window.place(start, plot), window.place(end, plot)
            yield (
                f'<rect x="{left:.1f}" y="{y + 2:.1f}" width="{right - left:.1f}" height="{height - 4:.1f}" rx="2"'
                f' fill="{color}" fill-opacity=".75"/>'
            )
            if right - left > 60:
                yield write(name or "", left + 8, y + height / 2 + 4, color="#fff", weight=600)
    yield from _draw_times(plot, window)


def _find_bands(points: Points, window: Window) -> Iterator[tuple[float, float, float]]:
    """Yield the start, the end and the value of each period without a change."""
    changes = [point for number, point in enumerate(points) if number == 0 or point[1] != points[number - 1][1]]
    ends = [moment for moment, _ in changes[1:]] + [window.end]
    for (moment, value), end in zip(changes, ends, strict=True):
        yield moment, end, value


_SHADES: Final = 12


def _draw_heatmap(panel: Json, series: Sequence[Series], box: Box, window: Window) -> Iterator[str]:
    plot = Box(box.x + 58, box.y + 6, box.width - 62, box.height - 30)
    buckets = sorted(series, key=lambda each: float(each.labels["le"]))
    below: dict[float, float] = {}
    rows: list[tuple[float, dict[float, float]]] = []
    for bucket in buckets:
        counts = {moment: max(0.0, value - below.get(moment, 0.0)) for moment, value in bucket.points}
        below = dict(bucket.points)
        rows.append((float(bucket.labels["le"]), counts))
    used = [number for number, (_, counts) in enumerate(rows) if any(counts.values())]
    rows = rows[max(0, used[0] - 1) : used[-1] + 2] if used else []
    most = max((count for _, counts in rows for count in counts.values()), default=0)
    height = plot.height / max(len(rows), 1)
    shades: dict[int, list[str]] = {}
    for number, (bound, counts) in enumerate(rows):
        y = plot.bottom - (number + 1) * height
        if number % max(1, math.ceil(len(rows) / 9)) == 0:
            text = "more" if math.isinf(bound) else format_value(bound, "s")
            yield write(text, plot.x - 6, y + 4, size=10, color=_GREY, anchor="end")
            yield f'<path d="M{plot.x:.0f} {y:.1f}H{plot.right:.0f}" stroke="{_LINE}"/>'
        width = plot.width / max(len(counts), 1)
        for moment, count in counts.items():
            if count > most * 1e-4:
                left = window.place(moment, plot) - width
                cell = f"M{left:.1f} {y + 0.5:.1f}h{width - 0.5:.1f}v{height - 1:.1f}h{0.5 - width:.1f}z"
                shades.setdefault(math.ceil(_SHADES * math.sqrt(count / most)), []).append(cell)
    for shade, cells in sorted(shades.items()):
        yield f'<path d="{"".join(cells)}" fill="#1f60c4" fill-opacity="{0.08 + 0.92 * shade / _SHADES:.2f}"/>'
    yield from _draw_times(plot, window)


def _draw_table(panel: Json, series: Sequence[Series], box: Box, _window: Window) -> Iterator[str]:
    organize = panel["transformations"][-1]["options"]
    order = sorted(organize["indexByName"], key=organize["indexByName"].__getitem__)
    keys = [name for name in order if not name.startswith("Value #")]
    values = [name for name in order if name.startswith("Value #")]
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    labels: dict[tuple[str, ...], dict[str, str]] = {}
    for each in series:
        row = tuple(each.labels.get(key, "") for key in ("namespace", "dataset"))
        rows.setdefault(row, {})[f"Value #{chr(ord('A') + each.query)}"] = _last(each)[1]
        labels.setdefault(row, {}).update(each.labels)
    lefts = [box.x + box.width * share for share in (0, 0.12, 0.25)]
    rights = [box.x + box.width * (0.42 + 0.58 * (number + 1) / len(values)) for number in range(len(values))]
    for key, x in zip(keys, lefts, strict=True):
        yield write(organize["renameByName"][key], x, box.y + 14, color=_GREY, weight=600)
    for name, x in zip(values, rights, strict=True):
        yield write(organize["renameByName"][name], x, box.y + 14, color=_GREY, weight=600, anchor="end")
    for number, row in enumerate(sorted(rows)[: int((box.height - 24) / 26)]):
        y = box.y + 40 + 26 * number
        yield f'<path d="M{box.x:.0f} {y - 18:.1f}H{box.right:.0f}" stroke="{_LINE}"/>'
        for key, x in zip(keys, lefts, strict=True):
            yield write(labels[row].get(key, ""), x, y, size=12, room=box.width * 0.13)
        for name, x in zip(values, rights, strict=True):
            value = rows[row].get(name, math.nan)
            config = _properties(panel, organize["renameByName"][name])
            text, color = _judge(value, config)
            yield write(text or format_value(value, config["unit"]), x, y, size=12, color=color, anchor="end")


_DRAWERS: Final[dict[str, Callable[[Json, Sequence[Series], Box, Window], Iterator[str]]]] = {
    "heatmap": _draw_heatmap,
    "stat": _draw_number,
    "state-timeline": _draw_timeline,
    "table": _draw_table,
    "timeseries": _draw_graph,
}
