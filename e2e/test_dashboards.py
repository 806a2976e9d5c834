"""Every query of the chart's dashboards finds data: a real Prometheus evaluates them after a rebuild under load."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pytest
from charts.dashboards.queries import PanelQuery, find_annotation_queries, find_queries
from e2e.support.figures import record
from e2e.support.helm import CHART
from e2e.support.kubectl import until
from e2e.support.prometheus import Prometheus
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

DATASET: Final = "records"
INTERVALS: Final = {"__rate_interval": "10m", "__interval": "10m"}


def test_no_panel_is_without_data(prometheus: Prometheus, scenario: Scenario) -> None:
    keys = scenario.source(DATASET, version="old", records=500)
    scenario.apply(scenario.dataset(DATASET, DATASET, shards=2, refresh={"staleAfterSeconds": 86_400}))
    scenario.wait_settled(DATASET)
    one = {"namespace": scenario.namespace, "dataset": DATASET} | INTERVALS
    with scenario.gentle_load(DATASET, keys) as load:
        scenario.source(DATASET, version="new", records=500)
        scenario.refresh(DATASET)
        load.wait_generation("g2", seconds=240)
        scenario.wait_settled(DATASET, generation="g2")
        asked = _check(prometheus, "fleet", {"namespace": ".*"} | INTERVALS)
        asked += _check(prometheus, "dataset", one)
    record("dashboards", "queries of panels with data", asked)

    cutover = next(mark for mark in find_annotation_queries(_read("dataset"), one) if mark.panel == "Cutover")
    (mark,) = prometheus.query(cutover.expr)
    assert mark.labels["generation"] == "g2"


def _check(prometheus: Prometheus, name: str, variables: Mapping[str, str]) -> int:
    """Wait until each query of a dashboard has data. Return their number."""
    queries = find_queries(_read(name), variables)
    for query in queries:
        what = f"data for {query.panel} of {name}: {query.expr}"
        until(partial(_has_data, prometheus, query), seconds=60, what=what)
    return len(queries)


def _has_data(prometheus: Prometheus, query: PanelQuery) -> bool:
    return any(math.isfinite(series.value) for series in prometheus.query(query.expr))


def _read(name: str) -> Any:
    return json.loads((CHART / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
