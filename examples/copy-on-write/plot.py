"""Draws how private memory grows while requests come in, and how much all processes take at the end. The SVG needs no
other file. ``python plot.py samples.json memory.svg`` draws it again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from math import floor, log10
from pathlib import Path
from typing import Any, Final

WIDTH: Final = 1040
HEIGHT: Final = 470
_LEFT, _TOP, _RIGHT, _BOTTOM = 78, 84, 560, 410
"""The frame of the lines."""
_BARS_LEFT, _BARS_RIGHT = 640, 930
_STYLES: Final = {
    "each": 'stroke="#888888" stroke-width="2.5"',
    "dict": 'stroke="#d55e00" stroke-width="2.5"',
    "frozen": 'stroke="#222222" stroke-width="2.5" stroke-dasharray="7 5"',
    "pickle": 'stroke="#e8a33d" stroke-width="2.5" stroke-dasharray="2 4"',
    "shelve": 'stroke="#56b4e9" stroke-width="2.5"',
    "lookupdb": 'stroke="#007a5a" stroke-width="4"',
}
"""The line of each way, distinguishable without colours."""
_SHADES: Final = {"1": "heap: what a process must have", "0.3": "mapped files, which the kernel may drop"}
"""The opacity of a bar's two parts, with their meaning."""
_TICKS: Final = 6
_BOLD: Final = 'font-weight="bold"'


def draw(report: dict[str, Any]) -> str:
    """Return the SVG of a report from ``workers``."""
    setting = (
        f"{report['records']:,} records, {report['workers']} gunicorn workers, "
        f"up to {report['rate']:,} random lookups a second, Python {report['python']}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        "font-family=\"system-ui, -apple-system, 'DejaVu Sans', sans-serif\">",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(20, 28, "Pages shared by a fork become private when their objects are read", f'font-size="18" {_BOLD}'),
        _text(20, 48, setting),
        *_draw_lines(report),
        *_draw_bars(report["ways"]),
    ]
    return "\n".join([*parts, "</svg>\n"])


def _draw_lines(report: dict[str, Any]) -> Iterator[str]:
    curves = {
        name: [(sample["seconds"], sum(sample["private"]) / 1e6) for sample in way["samples"]]
        for name, way in report["ways"].items()
    }
    right, top = (max(point[axis] for curve in curves.values() for point in curve) for axis in (0, 1))

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (_RIGHT - _LEFT) * x / right, _BOTTOM - (_BOTTOM - _TOP) * y / top

    yield _text(_LEFT, _TOP - 12, f"Private memory of the {report['workers']} workers together, MB", _BOLD)
    for y in ticks(top):
        level = place(0, y)[1]
        yield f'<path d="M{_LEFT} {level:.1f}H{_RIGHT}" stroke="{"#e4e4e4" if y else "#999"}"/>'
        yield _text(_LEFT - 8, level + 4, f"{y:,g}", 'text-anchor="end"')
    for x in ticks(right):
        yield _text(place(x, 0)[0], _BOTTOM + 20, f"{x:,g}", 'text-anchor="middle"')
    yield _text((_LEFT + _RIGHT) / 2, _BOTTOM + 42, "seconds of requests", 'text-anchor="middle"')
    for name, curve in curves.items():
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
        title = f"<title>{escape(report['ways'][name]['title'])}</title>"
        yield f'<polyline points="{points}" fill="none" stroke-linejoin="round" {_STYLES[name]}>{title}</polyline>'


def _draw_bars(ways: dict[str, Any]) -> Iterator[str]:
    """Draw each way's name and line above its bar, as a legend for the curves."""
    ends = {name: way["samples"][-1] for name, way in ways.items()}
    scale = (_BARS_RIGHT - _BARS_LEFT) / max(end["anonymous"] + end["file"] for end in ends.values())
    step = (_BOTTOM - _TOP) / max(4, len(ways))
    yield _text(_BARS_LEFT, _TOP - 12, "All processes at the end, MB", _BOLD)
    for row, (name, end) in enumerate(ends.items()):
        x, y = float(_BARS_LEFT), _TOP + 12 + row * step
        yield f'<path d="M{_BARS_LEFT} {y:.1f}h34" {_STYLES[name]}/>'
        yield _text(_BARS_LEFT + 42, y + 4, ways[name]["title"])
        colour = _STYLES[name].split('"')[1]
        for opacity, part in zip(_SHADES, ("anonymous", "file"), strict=True):
            yield _rectangle(x, y + 12, end[part] * scale, f'fill="{colour}" fill-opacity="{opacity}"')
            x += end[part] * scale
        yield _text(x + 6, y + 24, f"{(end['anonymous'] + end['file']) / 1e6:,.0f}")
    for row, (opacity, meaning) in enumerate(_SHADES.items()):
        y = _BOTTOM + 10 + 22 * row
        yield _rectangle(_BARS_LEFT, y, 24, f'fill="#444" fill-opacity="{opacity}"')
        yield _text(_BARS_LEFT + 32, y + 12, meaning)


def ticks(end: float) -> list[float]:
    """Return at most seven round numbers from 0 to ``end``."""
    if end <= 0:
        return [0.0]
    magnitude = 10.0 ** floor(log10(end / _TICKS))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude * _TICKS >= end)
    return [number * step for number in range(floor(end / step) + 1)]


def _text(x: float, y: float, text: str, style: str = "") -> str:
    size = "" if "font-size" in style else 'font-size="13" '
    return f'<text x="{x:.1f}" y="{y:.1f}" {size}fill="#222" {style}>{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="14" {style}/>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(json.loads(Path(sys.argv[1]).read_text())))
