"""The report of a load: latency by percentile, latency and rate over time, outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree

from lookupdb.load.document import check_version
from lookupdb.load.plots.axis import AxisMark, LinearAxis, PercentileAxis, choose_linear, choose_log
from lookupdb.load.plots.chart import (
    FONT,
    HEIGHT,
    LineChart,
    PlotLine,
    PlotMarker,
    draw_rows,
    draw_title,
    make_canvas,
    wrap_rows,
)
from lookupdb.load.summary import list_outcomes, list_remarks
from lookupdb.load.wording import clean, format_microseconds, format_rate
from lookupdb.wording import format_count

_BLUE, _ORANGE, _RED, _GREY = "#1d6fd1", "#d9730d", "#c81e1e", "#7b8794"
_HEADER_HEIGHT: Final = 50
_ROW_HEIGHT: Final = 19
_FIGURES: Final = 5
"""In a line."""
_MAX_MARKERS: Final = 8
_BEYOND: Final = 0.2
"""Nines behind the last request, where the slowest has its place."""
_STYLE: Final = f"""
body {{ font: 14px/1.5 {FONT}; color: #1f2933; max-width: 900px; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; margin: 0 0 1.5em; }}
td, th {{ padding: 2px 18px 2px 0; text-align: left; font-weight: 400; vertical-align: top; }}
th {{ color: #616e7c; }}
svg {{ max-width: 100%; height: auto; }}
"""


def render_report(document: Mapping[str, Any], *, is_page: bool) -> str:
    """``document``, a result, as a page of HTML or as SVG. Nothing of it is fetched from elsewhere, and both are
    well-formed XML. Raises LookupdbError when another version wrote ``document``."""
    check_version(document)
    charts = make_charts(document)
    rows = _list_rows(document)
    return _render_page(document, charts, rows) if is_page else _render_drawing(document, charts, rows)


def make_charts(document: Mapping[str, Any]) -> list[LineChart]:
    """The charts of a result; none of one that has measured nothing."""
    charts = []
    if document["latency"]["curve"]:
        charts.append(_chart_percentiles(document["latency"]["curve"], document["latency"]["count"]))
    if any(point["max"] is not None for point in document["points"]):
        charts.append(_chart_latency(document))
    if document["points"]:
        charts.append(_chart_rate(document))
    return charts


def _chart_percentiles(curve: Sequence[Sequence[float]], count: int) -> LineChart:
    nines = min(5.0, math.log10(max(count, 10))) + _BEYOND
    horizontal = PercentileAxis(nines)
    vertical, marked = choose_log([value for _, value in curve])
    return LineChart(
        name="percentiles",
        title="Latency by percentile of requests",
        horizontal=horizontal,
        vertical=vertical,
        horizontal_marks=horizontal.list_marks(),
        vertical_marks=[AxisMark(vertical.locate(value), format_microseconds(value)) for value in marked],
        horizontal_title="percentile",
        lines=[PlotLine("latency, from the intended time", _BLUE, [(name, value) for name, value in curve])],
    )


def _chart_latency(document: Mapping[str, Any]) -> LineChart:
    points = document["points"]
    figures = [point[name] for point in points for name in ("p50", "p99", "max") if point[name] is not None]
    vertical, marked = choose_log(figures)
    lines = [
        PlotLine(label, color, [(_middle(point), point[name]) for point in points])
        for name, label, color in (("p50", "p50", _BLUE), ("p99", "p99", _ORANGE), ("max", "highest", _RED))
    ]
    return _chart_over_time(
        document,
        "latencies",
        "Latency over time",
        vertical,
        [AxisMark(vertical.locate(value), format_microseconds(value)) for value in marked],
        lines,
    )


def _chart_rate(document: Mapping[str, Any]) -> LineChart:
    points = document["points"]
    rates = {
        name: [(_middle(point), point[name] / point["seconds"]) for point in points]
        for name in ("scheduled", "answered", "failed")
    }
    vertical, marked = choose_linear(max(rate for line in rates.values() for _, rate in line))
    lines = [
        PlotLine("scheduled", _GREY, rates["scheduled"], is_dashed=True),
        PlotLine("answered", _BLUE, rates["answered"]),
        PlotLine("failed", _RED, rates["failed"]),
    ]
    marks = [AxisMark(vertical.locate(value), format_rate(value) if value else "0") for value in marked]
    return _chart_over_time(document, "rates", "Requests a second", vertical, marks, lines)


def _chart_over_time(
    document: Mapping[str, Any],
    name: str,
    title: str,
    vertical: Any,
    marks: Sequence[AxisMark],
    lines: Sequence[PlotLine],
) -> LineChart:
    points = document["points"]
    end = points[-1]["begin"] + points[-1]["seconds"]
    horizontal, marked = LinearAxis(0.0, end), [value for value in choose_linear(end)[1] if value <= end]
    markers = [
        PlotMarker(span["firstSeconds"], clean(span["name"])) for span in document["generations"][1 : 1 + _MAX_MARKERS]
    ]
    return LineChart(
        name=name,
        title=title,
        horizontal=horizontal,
        vertical=vertical,
        horizontal_marks=[AxisMark(horizontal.locate(value), f"{value:g}") for value in marked],
        vertical_marks=marks,
        horizontal_title="seconds since measuring began",
        lines=lines,
        markers=markers,
    )


def _middle(point: Mapping[str, Any]) -> float:
    return float(point["begin"] + point["seconds"] / 2)


def _title(document: Mapping[str, Any]) -> str:
    target = document["target"]
    return clean(f"Load on {target['namespace']}/{target['name']}")


def _list_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is written beside the plots."""
    plan, rate, latency, keys = (document[name] for name in ("plan", "rate", "latency", "keys"))
    figures = [f"p{name} {format_microseconds(value)}" for name, value in latency["percentiles"].items()]
    rows = [
        ("router", document["target"]["url"]),
        ("measured", f"{document['startedAt']}, for {document['seconds']:g} s"),
        ("rate", f"{format_rate(rate['answered'])} answered of {format_rate(rate['scheduled'])} scheduled"),
        ("latency", ", ".join(figures[:_FIGURES])),
        ("", ", ".join([*figures[_FIGURES:], f"max {format_microseconds(latency['max'])}"])),
        (
            "requests",
            f"{document['requests']['scheduled']:,} of {format_count(plan['batch'], 'key')},"
            f" {plan['arrivals']} arrivals",
        ),
        *((name, f"{count:,}") for name, count in list_outcomes(document)),
        ("keys", f"{keys['found']:,} found, {keys['missing']:,} missing, {keys['unavailable']:,} unavailable"),
        *(
            (
                f"generation {span['name']}",
                f"{span['answers']:,} answers, from {span['firstSeconds']:g} s to {span['lastSeconds']:g} s",
            )
            for span in document["generations"]
        ),
        *(("note", remark) for remark in list_remarks(document)),
        *(
            ("fail if", f"{judged['condition']}: {'holds' if judged['holds'] else 'does not hold'}")
            for judged in document["failIf"]
        ),
    ]
    return [(clean(name), clean(text)) for name, text in rows]


def _render_drawing(document: Mapping[str, Any], charts: Sequence[LineChart], rows: Sequence[tuple[str, str]]) -> str:
    lines = wrap_rows(rows)
    height = _HEADER_HEIGHT + len(charts) * HEIGHT + (len(lines) + 2) * _ROW_HEIGHT
    canvas = make_canvas(height)
    draw_title(canvas, _title(document))
    for index, chart in enumerate(charts):
        chart.draw(canvas, _HEADER_HEIGHT + index * HEIGHT)
    draw_rows(canvas, lines, _HEADER_HEIGHT + len(charts) * HEIGHT + _ROW_HEIGHT, _ROW_HEIGHT)
    return ElementTree.tostring(canvas, encoding="unicode", xml_declaration=False) + "\n"


def _render_page(document: Mapping[str, Any], charts: Sequence[LineChart], rows: Sequence[tuple[str, str]]) -> str:
    page = ElementTree.Element("html", {"xmlns": "http://www.w3.org/1999/xhtml", "lang": "en"})
    head = ElementTree.SubElement(page, "head")
    ElementTree.SubElement(head, "meta", {"charset": "utf-8"})
    ElementTree.SubElement(head, "title").text = _title(document)
    ElementTree.SubElement(head, "style").text = _STYLE
    body = ElementTree.SubElement(page, "body")
    ElementTree.SubElement(body, "h1").text = _title(document)
    table = ElementTree.SubElement(body, "table", {"id": "outcomes"})
    for name, text in rows:
        row = ElementTree.SubElement(table, "tr")
        ElementTree.SubElement(row, "th", {"scope": "row"}).text = name
        ElementTree.SubElement(row, "td").text = text
    for chart in charts:
        canvas = make_canvas(HEIGHT)
        chart.draw(canvas, 0)
        body.append(canvas)
    return "<!DOCTYPE html>\n" + ElementTree.tostring(page, encoding="unicode") + "\n"
