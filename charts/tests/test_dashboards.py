"""The dashboards: committed as generated, complete, and made of metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from charts.dashboards.dashboards import FOLDER, make_dashboards
from charts.dashboards.queries import find_annotation_queries, find_panels, find_queries, replace_variables
from docs_tools import product

from chart_support import ROOT, promtool, render

Json = Any

DASHBOARDS: Final[dict[str, Json]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
VARIABLES: Final = {
    "namespace": "default",
    "dataset": "airports",
    "datasource": "p",
    "__interval": "5m",
    "__rate_interval": "5m",
}
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def _expressions(dashboard: Json) -> list[str]:
    queries = [*find_queries(dashboard, VARIABLES), *find_annotation_queries(dashboard, VARIABLES)]
    return [query.expr for query in queries]


def test_the_committed_dashboards_are_the_generated_ones() -> None:
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == make_dashboards(), "run `make dashboards`"


def test_the_chart_puts_each_dashboard_into_a_config_map() -> None:
    rendered = render({"grafanaDashboard": {"enabled": True, "labels": {"grafana_dashboard": "yes"}}})
    for name, dashboard in DASHBOARDS.items():
        config_map = rendered.get_object("ConfigMap", f"lookupdb-dashboard-{name}")
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "yes"
        ((file, text),) = config_map["data"].items()
        assert file == f"{name}.json"
        assert json.loads(text) == dashboard
    assert not [name for name in render().names("ConfigMap") if "dashboard" in name]


@each_dashboard
def test_each_panel_says_what_it_shows(dashboard: Json) -> None:
    panels = list(find_panels(dashboard))
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles), "runbooks name a panel by its title"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        if panel["type"] == "timeseries":
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@each_dashboard
def test_no_panel_lies_upon_another(dashboard: Json) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@each_dashboard
def test_each_metric_of_a_query_exists(dashboard: Json) -> None:
    known = set()
    for families in product.metric_families().values():
        for name, kind, _ in families:
            known |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    variables = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    for expr in [*_expressions(dashboard), *variables]:
        names = set(re.findall(r"\blookupdb_\w+", expr))
        assert names | set(re.findall(r"\bprocess_\w+", expr)), expr
        assert names <= known, f"{sorted(names - known)} of {expr}"


@each_dashboard
def test_prometheus_parses_each_query(dashboard: Json, tmp_path: Path) -> None:
    rules = [{"record": f"query{number}", "expr": expr} for number, expr in enumerate(_expressions(dashboard))]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is YAML
    assert promtool("check", "rules", str(file)) == ""


def test_queries_are_found_in_rows_too_and_have_no_variables() -> None:
    inner = {"type": "stat", "title": "In a row", "targets": [{"expr": "b[$__rate_interval]"}]}
    outer = {"type": "timeseries", "title": "Outside", "targets": [{"expr": 'a{n=~"${n}"}', "legendFormat": "{{n}}"}]}
    dashboard = {"panels": [outer, {"type": "row", "title": "Row", "panels": [inner]}]}
    first, second = find_queries(dashboard, {"n": "x|y", "__rate_interval": "1m"})
    assert (first.panel, first.expr, first.legend) == ("Outside", 'a{n=~"x|y"}', "{{n}}")
    assert (second.panel, second.expr, second.legend) == ("In a row", "b[1m]", "")


def test_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(KeyError, match="dataset"):
        replace_variables("up$dataset", {})


def test_runbooks_name_panels_that_exist() -> None:
    titles = {panel["title"] for dashboard in DASHBOARDS.values() for panel in find_panels(dashboard)}
    pages = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
    named = [
        (page.name, name) for page in pages for name in re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", page.read_text())
    ]
    assert len(named) > len(pages)
    assert [(page, name) for page, name in named if name not in titles] == [], "italics are the titles of panels"
