"""A chart as SVG: lines over two axes, with a legend."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from lookupdb.load.plots.axis import AxisMark, PlotAxis

WIDTH, HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 34, 48, 46
_NAME_WIDTH, _GAP = 190, 12
_LETTER_WIDTH = 6.6
"""Of a row's text, and rather too much: which font is there is not known."""
_INK, _FAINT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
FONT: Final = "system-ui, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line, and what it is."""

    name: str
    color: str
    points: Sequence[tuple[float, float | None]]
    """Where there is no value, there is a gap."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class PlotMarker:
    """An upright line at a value of the horizontal axis, with a text."""

    value: float
    text: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart of ``lines``."""

    name: str
    """Of the group that holds it, for those who look it up."""
    title: str
    horizontal: PlotAxis
    vertical: PlotAxis
    horizontal_marks: Sequence[AxisMark]
    vertical_marks: Sequence[AxisMark]
    horizontal_title: str
    lines: Sequence[PlotLine]
    markers: Sequence[PlotMarker] = ()

    def draw(self, parent: ElementTree.Element, top: float) -> None:
        """Draw it into ``parent``, from ``top`` on, ``HEIGHT`` high."""
        group = _add(parent, "g", id=self.name, transform=f"translate(0 {top:g})")
        _text(group, _LEFT, 18, self.title, size=15, weight="600")
        self._draw_axes(group)
        self._draw_legend(group)
        for marker in self.markers:
            self._draw_marker(group, marker)
        for line in self.lines:
            self._draw_line(group, line)

    def _draw_axes(self, group: ElementTree.Element) -> None:
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        for mark in self.vertical_marks:
            y = bottom - mark.place * (bottom - _TOP)
            _line(group, _LEFT, y, right, y, _GRID)
            _text(group, _LEFT - 8, y + 4, mark.text, anchor="end", color=_FAINT)
        for mark in self.horizontal_marks:
            x = _LEFT + mark.place * (right - _LEFT)
            _line(group, x, bottom, x, bottom + 4, _FAINT)
            _text(group, x, bottom + 17, mark.text, anchor="middle", color=_FAINT)
        _line(group, _LEFT, bottom, right, bottom, _FAINT)
        _text(group, (_LEFT + right) / 2, bottom + 36, self.horizontal_title, anchor="middle", color=_FAINT)

    def _draw_legend(self, group: ElementTree.Element) -> None:
        x = float(_LEFT)
        for line in self.lines:
            _line(group, x, 33, x + 18, 33, line.color, width=2.5, is_dashed=line.is_dashed)
            _text(group, x + 24, 37, line.name)
            x += 44 + 7.2 * len(line.name)

    def _draw_marker(self, group: ElementTree.Element, marker: PlotMarker) -> None:
        x = _LEFT + self.horizontal.locate(marker.value) * (WIDTH - _RIGHT - _LEFT)
        _line(group, x, _TOP, x, HEIGHT - _BOTTOM, _FAINT, is_dashed=True)
        _text(group, x + 4, _TOP + 10, marker.text, color=_FAINT)

    def _draw_line(self, group: ElementTree.Element, line: PlotLine) -> None:
        for is_gap, run in itertools.groupby(line.points, lambda point: point[1] is None):
            if not is_gap:
                self._draw_run(group, line, [(x, y) for x, y in run if y is not None])

    def _draw_run(self, group: ElementTree.Element, line: PlotLine, points: Sequence[tuple[float, float]]) -> None:
        bottom = HEIGHT - _BOTTOM
        places = [
            (
                _LEFT + self.horizontal.locate(x) * (WIDTH - _RIGHT - _LEFT),
                bottom - self.vertical.locate(y) * (bottom - _TOP),
            )
            for x, y in points
        ]
        if len(places) == 1:
            _add(group, "circle", cx=f"{places[0][0]:.1f}", cy=f"{places[0][1]:.1f}", r="3", fill=line.color)
            return
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashes = {"stroke-dasharray": "5 4"} if line.is_dashed else {}
        _add(group, "polyline", points=corners, fill="none", stroke=line.color, **{"stroke-width": "1.8"}, **dashes)


def make_canvas(height: float) -> ElementTree.Element:
    """An empty drawing, ``WIDTH`` wide, on white."""
    canvas = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height:g}",
            "width": str(WIDTH),
            "height": f"{height:g}",
            "font-family": FONT,
            "font-size": "12",
        },
    )
    _add(canvas, "rect", width="100%", height="100%", fill="#ffffff")
    return canvas


def wrap_rows(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """``rows``, a name and a text each, in as many lines as they need to end within the drawing."""
    lines: list[tuple[str, str]] = []
    for name, text in rows:
        names = textwrap.wrap(name, int((_NAME_WIDTH - _GAP) / _LETTER_WIDTH))
        texts = textwrap.wrap(text, int((WIDTH - _RIGHT - _LEFT - _NAME_WIDTH) / _LETTER_WIDTH))
        lines += itertools.zip_longest(names, texts, fillvalue="")
    return lines


def draw_rows(parent: ElementTree.Element, rows: Sequence[tuple[str, str]], top: float, line_height: float) -> None:
    """Write ``rows``, as ``wrap_rows`` returns them, from ``top`` on."""
    for index, (name, text) in enumerate(rows):
        y = top + index * line_height
        _text(parent, _LEFT, y, name, color=_FAINT)
        _text(parent, _LEFT + _NAME_WIDTH, y, text)


def draw_title(parent: ElementTree.Element, title: str) -> None:
    """Write the title of a drawing."""
    _text(parent, _LEFT, 32, title, size=18, weight="600")


def _add(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _line(
    parent: ElementTree.Element,
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    color: str,
    *,
    width: float = 1.0,
    is_dashed: bool = False,
) -> None:
    ends = {name: f"{value:.1f}" for name, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2))}
    dashes = {"stroke-dasharray": "4 3"} if is_dashed else {}
    _add(parent, "line", stroke=color, **ends, **{"stroke-width": f"{width:g}"}, **dashes)


def _text(
    parent: ElementTree.Element,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    color: str = _INK,
    size: int = 12,
    weight: str = "400",
) -> None:
    style = {"text-anchor": anchor, "font-size": str(size), "font-weight": weight}
    _add(parent, "text", x=f"{x:.1f}", y=f"{y:.1f}", fill=color, **style).text = text
