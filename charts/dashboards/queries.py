"""The queries of a dashboard's panels, ready for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Any


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel."""

    panel: str
    """Its title."""
    expr: str
    legend: str


def find_panels(dashboard: Json) -> Iterator[Json]:
    """Yield every panel, those of rows included, from top to bottom; no row."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


def find_queries(dashboard: Json, variables: Mapping[str, str]) -> list[PanelQuery]:
    """Return every query of every panel. ``variables`` are those of the dashboard and Grafana's own, such as
    ``__rate_interval``. Raises KeyError if one is missing."""
    return [
        PanelQuery(panel["title"], replace_variables(target["expr"], variables), target.get("legendFormat", ""))
        for panel in find_panels(dashboard)
        for target in panel["targets"]
    ]


def find_annotation_queries(dashboard: Json, variables: Mapping[str, str]) -> list[PanelQuery]:
    """Return the queries of the marks on graphs."""
    return [
        PanelQuery(mark["name"], replace_variables(mark["target"]["expr"], variables), mark["textFormat"])
        for mark in dashboard.get("annotations", {}).get("list", ())
    ]


def replace_variables(expr: str, variables: Mapping[str, str]) -> str:
    """Return ``expr`` with the value of each ``$name`` and ``${name}``."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: variables[found[1] or found[2]], expr)
