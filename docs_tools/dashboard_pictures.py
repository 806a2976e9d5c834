"""Draws the dashboards of the chart from a Prometheus' data. `make draw-dashboards PROMETHEUS=URL` runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import urllib3
from charts.dashboards.queries import find_annotation_queries, find_panels, replace_variables

from docs_tools.panel_drawing import COLORS, FONT, Box, Mark, Series, Window, draw_panel, write

ROOT: Final = Path(__file__).resolve().parents[1]
DASHBOARDS: Final = ROOT / "charts" / "lookupdb" / "dashboards"
PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 1120
_COLUMN: Final = (WIDTH - 16) / 24
_LINE: Final = 34
_TOP: Final = 48
_BAR_SECONDS: Final = 60
"""The period of a bar: shorter than in Grafana, because pictures show minutes and Grafana shows hours."""

Json = Any


class Source:
    """A Prometheus server and the period to draw."""

    def __init__(self, url: str, *, start: float, end: float, points: int) -> None:
        self.start = start
        self.end = end
        self._url = url.rstrip("/")
        self._step = (end - start) / points
        self._pool = urllib3.PoolManager()

    def read(
        self, expr: str, *, step: float | None = None, is_instant: bool = False
    ) -> list[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        """Return the labels and the points of each series. Raises ClickException with Prometheus' error."""
        seconds = step or self._step
        period = {"time": self.end} if is_instant else {"start": self.start, "end": self.end, "step": seconds}
        name = "query" if is_instant else "query_range"
        fields = {"query": expr, **{key: str(value) for key, value in period.items()}}
        answer = self._pool.request("GET", f"{self._url}/api/v1/{name}", fields=fields).json()
        if answer["status"] != "success":
            raise click.ClickException(f"{expr}: {answer['error']}")
        return [
            (
                found["metric"],
                [
                    (float(moment), float(value))
                    for moment, value in found.get("values", [found.get("value")])
                    if value not in ("NaN", "+Inf", "-Inf")
                ],
            )
            for found in answer["data"]["result"]
        ]


def draw_dashboard(dashboard: Json, source: Source, variables: Mapping[str, str]) -> str:
    """Return the picture of a dashboard."""
    window = Window(source.start, source.end, _read_marks(dashboard, source, variables))
    parts = []
    bottom = 0.0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        y = _TOP + place["y"] * _LINE
        if panel["type"] == "row":
            parts.append(write(panel["title"], 10, y + 24, size=16, weight=700))
            continue
        box = Box(8 + place["x"] * _COLUMN + 4, y + 4, place["w"] * _COLUMN - 8, place["h"] * _LINE - 8)
        parts += draw_panel(panel, list(_read_series(panel, source, variables)), box, window)
        bottom = max(bottom, box.bottom)
    shown = "/".join(value for name, value in variables.items() if not name.startswith("__") and value != ".*")
    parts.insert(0, write(dashboard["title"] + (f" · {shown}" if shown else ""), 10, 34, size=22, weight=700))
    height = bottom + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="{FONT}">'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#f4f5f7"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _read_series(panel: Json, source: Source, variables: Mapping[str, str]) -> Iterator[Series]:
    step = _BAR_SECONDS if "interval" in panel else None
    for number, target in enumerate(panel["targets"]):
        expr = replace_variables(target["expr"], {**variables, "__interval": f"{_BAR_SECONDS}s"})
        for labels, points in source.read(expr, step=step, is_instant=target.get("instant", False)):
            name = _fill(target.get("legendFormat", ""), labels)
            yield Series(name, points, labels, number)


def _fill(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend).strip()


def _read_marks(dashboard: Json, source: Source, variables: Mapping[str, str]) -> Sequence[Mark]:
    """Return the marks of the annotations. Their times are the values of their series."""
    known = dashboard["annotations"].get("list", ())
    colors = {mark["name"]: mark["iconColor"] for mark in known if mark["useValueForTime"]}
    moments = {
        (value / 1000, COLORS[colors[query.panel]])
        for query in find_annotation_queries(dashboard, variables)
        if query.panel in colors
        for _, points in source.read(query.expr)
        for _, value in points
    }
    return [Mark(moment, color) for moment, color in sorted(moments) if source.start < moment < source.end]


@click.command(help=__doc__)
@click.option("--prometheus", "url", required=True, help="URL of a Prometheus server.")
@click.option("--end", type=float, required=True, help="End of the period, in seconds since the epoch.")
@click.option("--minutes", default=30.0, show_default=True, help="Length of the period.")
@click.option("--points", default=90, show_default=True, help="Points of each line.")
@click.option("--rate-interval", default="1m", show_default=True, help="Grafana's $__rate_interval.")
@click.option("--namespace", default="default", show_default=True, help="Namespace of the one dataset.")
@click.option("--dataset", required=True, help="Its name.")
def main(url: str, end: float, minutes: float, points: int, rate_interval: str, namespace: str, dataset: str) -> None:
    """Write docs/pictures/dashboard-*.svg."""
    source = Source(url, start=end - 60 * minutes, end=end, points=points)
    chosen = {"fleet": {"namespace": ".*"}, "dataset": {"namespace": namespace, "dataset": dataset}}
    for name, variables in chosen.items():
        dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))
        known = {**variables, "__rate_interval": rate_interval}
        path = PICTURES / f"dashboard-{name}.svg"
        path.write_text(draw_dashboard(dashboard, source, known), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(list(find_panels(dashboard)))} panels, {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
