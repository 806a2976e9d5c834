"""The kinds of panels, each in one style, and what both dashboards share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, statetimeline, table
from grafana_foundation_sdk.builders import timeseries as graph
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as styles
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_styles
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DOCS: Final = "https://lookupdb.dev/docs/operations/monitoring.html"
FLEET: Final = "lookupdb-fleet"
DATASET: Final = "lookupdb-dataset"
REQUESTS: Final = "lookupdb_router_request_duration_seconds"

Query = tuple[str, str]
"""An expression, and the legend of its series."""
Steps = Sequence[tuple[float | None, str]]
"""Each colour, after the lowest value that gets it; None for the lowest of all."""

BAD: Final[Steps] = ((None, "green"), (1, "red"))
POOR: Final[Steps] = ((None, "green"), (1, "orange"))
FAILURES: Final[Steps] = ((None, "green"), (0.0001, "orange"), (0.001, "red"))
"""Shares of requests. Above the last share, the chart's default objective is missed."""
LATENCIES: Final[Steps] = ((None, "green"), (0.01, "orange"), (0.05, "red"))
"""Seconds of the 99th percentile. Above the last value, the chart's default objective is missed."""

_SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def quantile(part: float, buckets: str, *, by: str = "") -> str:
    """Return the expression of a quantile of a histogram, of all series or for each value of the labels ``by``."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({labels}) (rate({buckets}[$__rate_interval])))"


def quantiles(buckets: str, parts: Sequence[float] = (0.5, 0.99, 0.999)) -> list[Query]:
    """Return a query for each quantile, with its usual name."""
    return [(quantile(part, buckets), f"p{part * 100:g}") for part in parts]


def lookups(selector: str) -> str:
    """Return the series of the histogram of lookups of one key."""
    return f'{REQUESTS}_bucket{{{selector},endpoint="lookup"}}'


def share(selector: str, *, by: str = "") -> str:
    """Return the expression of the share of requests that failed: 0 if none failed, and nothing without requests."""
    grouped = f"sum by ({by})" if by else "sum"
    failed, total = (
        f"{grouped} (rate({REQUESTS}_count{{{also}}}[$__rate_interval]))"
        for also in (f'{selector},outcome="failed"', selector)
    )
    return f"({failed} or 0 * {total}) / ({total} > 0)"


def make_board(title: str, uid: str, description: str) -> dashboard.Dashboard:
    """Return an empty dashboard with its data source as a variable, and links to the other one and to the docs."""
    links = (
        dashboard.DashboardLink("lookupdb dashboards")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(["lookupdb"])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True),
        dashboard.DashboardLink("What to look at")
        .type(model.DashboardLinkType.LINK)
        .icon("doc")
        .url(DOCS)
        .target_blank(True),
    )
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["lookupdb"])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for link in links:
        made.link(link)
    return made


def add_row(made: dashboard.Dashboard, title: str, *panels: Builder[model.Panel]) -> None:
    """Add a heading with the panels below it."""
    made.with_row(dashboard.Row(title))
    for panel in panels:
        made.with_panel(panel)


def make_variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable whose values Prometheus knows."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )


class Annotation(model.AnnotationQuery, Builder[model.AnnotationQuery]):
    """Marks on all graphs, with the fields of Prometheus' annotations, which the SDK does not know."""

    def __init__(self, name: str, expr: str, *, color: str, text: str, value_is_time: bool = False) -> None:
        super().__init__(name=name, datasource=_SOURCE, icon_color=color)
        self._fields = {
            "target": {"expr": expr, "refId": "Anno"},
            "titleFormat": name,
            "textFormat": text,
            "useValueForTime": "on" if value_is_time else False,
        }

    def build(self) -> model.AnnotationQuery:
        """Return itself."""
        return self

    def to_json(self) -> dict[str, object]:
        """Return all fields."""
        return {**super().to_json(), **self._fields}


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Return thresholds in the panel's own unit."""
    made = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def name_values(names: Mapping[str, tuple[str, str]]) -> list[model.ValueMapping]:
    """Return the text and the colour of each value."""
    options = {value: model.ValueMappingResult(text=text, color=color) for value, (text, color) in names.items()}
    return [model.ValueMap(options=options)]


P = TypeVar("P", stat.Panel, graph.Panel, heatmap.Panel, statetimeline.Panel, table.Panel)


def _begin(panel: P, title: str, description: str, *, span: int, height: int) -> P:
    return panel.title(title).description(description).datasource(_SOURCE).span(span).height(height)


def make_number(
    title: str,
    description: str,
    expr: str,
    *,
    unit: str = "short",
    steps: Steps = ((None, "text"),),
    names: Mapping[str, tuple[str, str]] | None = None,
    label: str = "",
    absent: str = "no data",
) -> stat.Panel:
    """Return one large number with its history; with ``label``, the value of that label instead."""
    query = _query(expr, 0).legend_format(f"{{{{{label}}}}}" if label else "")
    return (
        _begin(stat.Panel(), title, description, span=4, height=4)
        .unit(unit)
        .thresholds(thresholds(steps))
        .mappings(name_values(names) if names else [])
        .no_value(absent)
        .color_mode(styles.BigValueColorMode.VALUE)
        .graph_mode(styles.BigValueGraphMode.NONE if label or names else styles.BigValueGraphMode.AREA)
        .text_mode(styles.BigValueTextMode.NAME if label else styles.BigValueTextMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query.instant() if label else query.range())
    )


def make_graph(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    span: int = 8,
    top: float | None = None,
    is_stacked: bool = False,
    is_bars: bool = False,
    is_logarithmic: bool = False,
    colors: Mapping[str, str] | None = None,
) -> graph.Panel:
    """Return lines over time, or bars, with the last and the largest value in the legend; ``colors`` are of series."""
    made = (
        _begin(graph.Panel(), title, description, span=span, height=8)
        .unit(unit)
        .line_width(1)
        .fill_opacity(60 if is_bars else 25 if is_stacked else 8)
        .show_points(styles.VisibilityMode.NEVER)
        .draw_style(styles.GraphDrawStyle.BARS if is_bars else styles.GraphDrawStyle.LINE)
        .legend(
            common.VizLegendOptions()
            .display_mode(styles.LegendDisplayMode.TABLE)
            .placement(styles.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["sum"] if is_bars else ["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(styles.TooltipDisplayMode.MULTI).sort(styles.SortOrder.DESCENDING))
    )
    if is_logarithmic:
        made.scale_distribution(common.ScaleDistributionConfig().type(styles.ScaleDistribution.LOG).log(10))
    else:
        made.min(0)
    if is_bars:  # each bar counts a period of its own
        made.interval("5m").decimals(0)
    if is_stacked or is_bars:
        made.stacking(common.StackingConfig().mode(styles.StackingMode.NORMAL).group("A"))
    if top is not None:
        made.max(top)
    for series, color in (colors or {}).items():
        made.override_by_name(series, [model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    for number, (expr, legend) in enumerate(queries):
        made.with_target(_query(expr, number).legend_format(legend).range())
    return made


make_durations = partial(make_graph, unit="s", is_logarithmic=True)


def make_heatmap(title: str, description: str, expr: str) -> heatmap.Panel:
    """Return how many requests were in each bucket of a histogram, over time."""
    color = heatmap.HeatmapColorOptions().mode(heatmap_styles.HeatmapColorMode.SCHEME).scheme("Blues").steps(32)
    return (
        _begin(heatmap.Panel(), title, description, span=8, height=8)
        .color(color)
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .show_tooltip()
        .cell_values(heatmap.CellValues().unit("short"))
        .with_target(_query(expr, 0).legend_format("{{le}}").format(PromQueryFormat.HEATMAP).range())
    )


def make_timeline(
    title: str,
    description: str,
    query: Query,
    names: Mapping[str, tuple[str, str]],
    special: Mapping[str, Mapping[str, tuple[str, str]]],
) -> statetimeline.Panel:
    """Return a band for each series that shows the names of its values; ``special`` are other names of a series."""
    made = (
        _begin(statetimeline.Panel(), title, description, span=24, height=6)
        .mappings(name_values(names))
        .show_value(styles.VisibilityMode.AUTO)
        .merge_values(True)
        .fill_opacity(70)
        .legend(common.VizLegendOptions().show_legend(False))
        .with_target(_query(query[0], 0).legend_format(query[1]).range())
    )
    for series, own in special.items():
        made.override_by_name(series, [model.DynamicConfigValue("mappings", name_values(own))])
    return made


class Column:
    """A column of a table: a query with a value for each row."""

    def __init__(
        self,
        name: str,
        expr: str,
        unit: str = "short",
        *,
        steps: Steps = (),
        names: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.name = name
        self.expr = expr
        self.is_shown = bool(unit)
        self._unit = unit
        self._steps = steps
        self._names = names

    def properties(self) -> Iterable[model.DynamicConfigValue]:
        """Yield how a cell looks."""
        yield model.DynamicConfigValue("unit", self._unit)
        if self._names:
            yield model.DynamicConfigValue("mappings", name_values(self._names))
        if self._steps:
            yield model.DynamicConfigValue("thresholds", thresholds(self._steps).build())
        if self._names or self._steps:
            yield model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})


def make_table(
    title: str, description: str, labels: Mapping[str, str], columns: Sequence[Column], link: str
) -> table.Panel:
    """Return a row for each combination of ``labels``; ``link`` is where a click on a row leads."""
    names = [f"Value #{_ref_id(number)}" for number in range(len(columns))]
    shown = {name: column for name, column in zip(names, columns, strict=True) if column.is_shown}
    order = [*labels, *shown]
    organize: dict[str, Any] = {
        "excludeByName": {"Time": True, **{name: True for name in names if name not in shown}},
        "indexByName": {name: number for number, name in enumerate(order)},
        "renameByName": {**labels, **{name: column.name for name, column in shown.items()}},
    }
    made = (
        _begin(table.Panel(), title, description, span=24, height=7)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(model.DataTransformerConfig(id_val="organize", options=organize))
        .data_links([dashboard.DashboardLink("Open the dataset").url(link)])
    )
    for column in shown.values():
        made.override_by_name(column.name, list(column.properties()))
    for number, column in enumerate(columns):
        made.with_target(_query(column.expr, number).format(PromQueryFormat.TABLE).instant())
    return made


def make_quality_numbers(selector: str) -> tuple[stat.Panel, stat.Panel]:
    """Return the share of requests that failed, and the latency."""
    return (
        make_number(
            "Failed requests",
            "Share of requests that failed because of the service: 5xx, or keys that were unavailable.",
            share(selector),
            unit="percentunit",
            steps=FAILURES,
            absent="no requests",
        ),
        make_number(
            "p99 latency of lookups",
            "99 of 100 lookups of one key are answered within this time, measured in the routers.",
            quantile(0.99, lookups(selector)),
            unit="s",
            steps=LATENCIES,
            absent="no lookups",
        ),
    )


def make_builds(selector: str) -> graph.Panel:
    """Return the builds that ended, by outcome."""
    return make_graph(
        "Builds",
        "Builds that ended. Rejected: a gate did not let the new data through, and the old keep serving.",
        (f"sum by (outcome) (increase(lookupdb_operator_builds_total{{{selector}}}[$__interval]))", "{{outcome}}"),
        unit="short",
        is_bars=True,
        colors={"succeeded": "green", "rejected": "orange", "failed": "red"},
    )


def make_refusals(rate: Callable[[str], str]) -> graph.Panel:
    """Return the requests that routers refused; ``rate`` is the expression of a counter of routers."""
    return make_graph(
        "Refused requests",
        "Requests that routers refused, by reason. Overloaded: the memory budget of a router is used up.",
        (rate("requests_refused"), "invalid"),
        (rate("requests_unauthenticated"), "unauthenticated"),
        (rate("requests_forbidden"), "forbidden"),
        (rate("requests_overloaded"), "overloaded"),
        (rate("connections_refused"), "too many connections"),
        unit="reqps",
    )


def _query(expr: str, number: int) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).ref_id(_ref_id(number)).datasource(_SOURCE)


def _ref_id(number: int) -> str:
    return chr(ord("A") + number)
