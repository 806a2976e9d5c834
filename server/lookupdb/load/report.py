"""Render the result of a load as an HTML page or an SVG drawing: latency by percentile, latency and rate over time, and
the summary. pygal draws the plots; it is optional, so only --report imports this module.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from lookupdb.errors import UsageError
from lookupdb.load.plan import clean
from lookupdb.load.result import check_version, format_microseconds, format_rate, list_rows

try:
    from pygal import XY
    from pygal.style import Style
except ModuleNotFoundError as error:
    raise UsageError(
        "--report needs pygal, which is not installed",
        hint="pip install pygal; in a clone of lookupdb, pip install --require-hashes -r requirements/report.txt",
    ) from error
# Python warns about pygal's finder for map plugins.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]

_WIDTH, _HEIGHT, _TOP, _ROW = 860, 320, 50, 19
_COLUMNS: Final = (12, 100)  # characters of a row in a drawing: a cautious guess for any font
_BLUE, _ORANGE, _RED, _GREY, _INK, _GRID = "#1d6fd1", "#d9730d", "#c81e1e", "#7b8794", "#52606d", "#e4e7eb"
_FONT: Final = "system-ui, 'Helvetica Neue', Arial, sans-serif"
_STYLE: Final[dict[str, Any]] = {
    **dict.fromkeys(("background", "plot_background"), "white"),
    **dict.fromkeys(("foreground", "foreground_strong", "foreground_subtle"), _INK),
    **dict.fromkeys(("guide_stroke_color", "major_guide_stroke_color"), _GRID),
    **dict.fromkeys(("guide_stroke_dasharray", "major_guide_stroke_dasharray"), "1,0"),
    **dict.fromkeys(("label_font_size", "major_label_font_size", "legend_font_size"), 12),
}
_PAGE_STYLE: Final = f"""
body {{ font: 14px/1.5 {_FONT}; color: #1f2933; max-width: 900px; margin: 2em auto; padding: 0 1em; }}
td, th {{ padding: 2px 18px 2px 0; text-align: left; font-weight: 400; vertical-align: top; }}
th {{ color: {_INK}; }}
svg {{ max-width: 100%; height: auto; }}
"""
_MARKED: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_MAX_CUTOVERS: Final = 8
_NOT_DRAWN: Final = re.compile(r"<!--.*?-->|<script.*?</script>", re.DOTALL)  # no scripts, no links

Lines = Mapping[str, tuple[str, Sequence[tuple[float, float | None]]]]  # name → color and points


def render_report(document: Mapping[str, Any], *, is_page: bool) -> str:
    """Return a result as an HTML page or as SVG, both well-formed XML and self-contained. Raises LookupdbError if
    another version wrote ``document``."""
    check_version(document)
    target = document["target"]
    title = escape(clean(f"Load on {target['namespace']}/{target['name']}"))
    measured = f"{document['startedAt']}, for {document['seconds']:g} s, {document['plan']['arrivals']} arrivals"
    rows = [("router", clean(target["url"])), ("measured", measured)]
    rows += [(name.strip(), text.replace("  ", ", ")) for name, text in list_rows(document)]
    charts = list(_draw_charts(document))
    if is_page:
        cells = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows)
        return (
            f'<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
            f"<title>{title}</title><style>{_PAGE_STYLE}</style></head><body><h1>{title}</h1>"
            f'<table id="outcomes">{cells}</table>{"".join(charts)}</body></html>\n'
        )
    drawn = [f'<text x="20" y="32" font-size="18">{title}</text>']
    drawn += [f'<g transform="translate(0 {_TOP + place * _HEIGHT})">{chart}</g>' for place, chart in enumerate(charts)]
    y = _TOP + len(charts) * _HEIGHT + _ROW
    for row in rows:
        columns = (textwrap.wrap(text, width) for text, width in zip(row, _COLUMNS, strict=True))
        for name, text in itertools.zip_longest(*columns, fillvalue=""):
            drawn.append(f'<text x="20" y="{y}">{escape(name)}</text><text x="120" y="{y}">{escape(text)}</text>')
            y += _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}"'
        f' font-family="{_FONT}" font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def _draw_charts(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plots; none if nothing was measured."""
    points, latency = document["points"], document["latency"]
    if latency["curve"]:
        most = min(5.0, math.log10(max(latency["count"], 10))) + 0.2  # the slowest request follows the last percentile

        def count_nines(percentile: float) -> float:
            return min(most, -math.log10(max(1 - percentile / 100, 10**-most)))

        line = [(count_nines(percentile), math.log10(value)) for percentile, value in latency["curve"]]
        yield _draw(
            "percentiles",
            "Latency by percentile of requests",
            {"latency, from the intended time": (_BLUE, line)},
            x_title="percentile",
            x_labels=[{"value": count_nines(m), "label": f"{m:g} %"} for m in _MARKED if count_nines(m) < most],
            x_value_formatter=lambda nines: f"{100 - 100 * 10**-nines:.7g} %",
            xrange=(0, most),
        )

    def follow(colors: Mapping[str, str], measure: Callable[[Mapping[str, Any], str], float | None]) -> Lines:
        middles = [point["begin"] + point["seconds"] / 2 for point in points]
        return {
            name: (color, [(middle, measure(point, name)) for middle, point in zip(middles, points, strict=True)])
            for name, color in colors.items()
        }

    spans = document["generations"][1 : 1 + _MAX_CUTOVERS]
    over_time: dict[str, Any] = {
        "cutovers": {f"{clean(span['name'])} answers first": span["firstSeconds"] for span in spans},
        "x_title": "seconds since measuring began",
        "x_value_formatter": "{:g}".format,
        "xrange": (0, points[-1]["begin"] + points[-1]["seconds"]) if points else None,
    }
    if any(point["max"] is not None for point in points):
        colors = {"p50": _BLUE, "p99": _ORANGE, "max": _RED}
        lines = follow(colors, lambda point, name: point[name] and math.log10(point[name]))
        yield _draw("latencies", "Latency over time", lines, **over_time)
    if points:
        colors = {"scheduled": _GREY, "answered": _BLUE, "failed": _RED}
        lines = follow(colors, lambda point, name: point[name] / point["seconds"])
        yield _draw("rates", "Requests a second", lines, value_formatter=format_rate, **over_time)


def _draw(name: str, title: str, lines: Lines, cutovers: Mapping[str, float] | None = None, **options: Any) -> str:
    """Return a chart as SVG. Without a ``value_formatter``, its values are logarithms of microseconds."""
    values = [value for _, line in lines.values() for _, value in line if value is not None]
    low, high = math.floor(min(values)), max(math.floor(min(values)) + 1, math.ceil(max(values)))
    if "value_formatter" in options:
        low = 0
    else:
        options |= {
            "y_labels": list(range(low, high + 1)),
            "value_formatter": lambda e: format_microseconds(round(10**e)),
        }
    colors = (*(color for color, _ in lines.values()), *(_INK for _ in cutovers or ()))
    chart = XY(
        style=Style(colors=colors, font_family=_FONT, title_font_size=15, **_STYLE),
        title=title,
        width=_WIDTH,
        height=_HEIGHT,
        explicit_size=True,
        range=(low, high),
        allow_interruptions=True,
        dots_size=1.5,
        stroke_style={"width": 1.8},
        legend_at_bottom=True,
        legend_box_size=10,
        truncate_legend=-1,
        show_x_guides=False,
        disable_xml_declaration=True,
        js=[],
        **options,
    )
    chart.uuid = name
    for label, (_, line) in lines.items():
        chart.add(label, line)
    for label, instant in (cutovers or {}).items():
        ends = [(instant, low), (instant, high)]
        chart.add(label, ends, show_dots=False, stroke_style={"width": 1, "dasharray": "4,3"})
    return _NOT_DRAWN.sub("", chart.render()).replace(f"chart-{name}", name)
