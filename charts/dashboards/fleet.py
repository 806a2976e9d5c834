"""The dashboard of all datasets: is it healthy, is it fresh, how fast is it, and why not."""

from __future__ import annotations

from typing import Final

from charts.dashboards.panels import (
    BAD,
    DATASET,
    FAILURES,
    FLEET,
    LATENCIES,
    POOR,
    REQUESTS,
    Column,
    add_row,
    lookups,
    make_board,
    make_builds,
    make_durations,
    make_graph,
    make_number,
    make_quality_numbers,
    make_refusals,
    make_table,
    make_variable,
    quantile,
    quantiles,
    share,
)
from grafana_foundation_sdk.builders import dashboard

_IN: Final = 'namespace=~"$namespace"'
_EACH: Final = "{{namespace}}/{{dataset}}"
_BY: Final = "sum by (namespace, dataset)"
_NEWEST: Final = "max by (namespace, dataset)"
_LOOKUPS: Final = lookups(_IN)


def make_fleet_dashboard() -> dashboard.Dashboard:
    """Return the dashboard."""
    made = make_board("lookupdb fleet", FLEET, "All datasets: are they healthy, fresh and fast, and if not, why.")
    namespaces = make_variable("namespace", "Namespace", "label_values(lookupdb_dataset_info, namespace)")
    made.with_variable(namespaces.multi(True).include_all(True).all_value(".*"))
    _add_health(made)
    _add_freshness(made)
    _add_speed(made)
    _add_causes(made)
    _add_control(made)
    return made


def _add_health(made: dashboard.Dashboard) -> None:
    condition = f"lookupdb_dataset_condition{{{_IN},condition="
    add_row(
        made,
        "Is it healthy?",
        make_number(
            "Datasets", "Datasets that the operator reports.", f"count({_NEWEST} (lookupdb_dataset_info{{{_IN}}}))"
        ),
        make_number(
            "Not ready",
            "Datasets that do not answer lookups, or not all of them. It should be 0.",
            f'sum({condition}"Ready",status="True"}} == bool 0)',
            steps=BAD,
        ),
        make_number(
            "Degraded",
            "Datasets with a problem that needs somebody, such as a failing build. Most of them still answer lookups.",
            f'sum({condition}"Degraded",status="True"}})',
            steps=POOR,
        ),
        make_number(
            "Stale",
            "Datasets whose last refresh is longer ago than refresh.staleAfterSeconds allows.",
            f"count(time() - lookupdb_dataset_refreshed_timestamp_seconds{{{_IN}}}"
            f" > lookupdb_dataset_stale_after_seconds{{{_IN}}}) or vector(0)",
            steps=POOR,
        ),
        *make_quality_numbers(_IN),
        make_table(
            "Datasets, one by one",
            "Click on a row to open the dashboard of that dataset.",
            {"namespace": "Namespace", "dataset": "Dataset", "generation": "Generation"},
            _columns(condition),
            f"/d/{DATASET}?var-namespace=${{__data.fields.Namespace}}&var-dataset=${{__data.fields.Dataset}}&${{__url_time_range}}",
        ),
    )


def _columns(condition: str) -> list[Column]:
    return [
        Column("", f"max by (namespace, dataset, generation) (lookupdb_dataset_info{{{_IN}}})", unit=""),
        Column(
            "Ready",
            f'{_NEWEST} ({condition}"Ready",status="True"}})',
            names={"1": ("yes", "green"), "0": ("no", "red")},
        ),
        Column(
            "Degraded",
            f'{_NEWEST} ({condition}"Degraded",status="True"}})',
            names={"1": ("yes", "orange"), "0": ("no", "text")},
        ),
        Column("Refreshed", f"time() - {_NEWEST} (lookupdb_dataset_refreshed_timestamp_seconds{{{_IN}}})", "s"),
        Column("Records", f"{_NEWEST} (lookupdb_dataset_records{{{_IN}}})"),
        Column("Requests", f"{_BY} (rate({REQUESTS}_count{{{_IN}}}[$__rate_interval]))", "reqps"),
        Column("Failed", share(_IN, by="namespace, dataset"), "percentunit", steps=FAILURES),
        Column("p99", quantile(0.99, _LOOKUPS, by="namespace, dataset"), "s", steps=LATENCIES),
        Column(
            "Memory",
            f"{_BY} (lookupdb_router_private_bytes{{{_IN}}}) + {_BY} (lookupdb_shard_private_bytes{{{_IN}}})",
            "bytes",
        ),
    ]


def _add_freshness(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "Is it fresh?",
        make_graph(
            "Time since the last refresh",
            "Time since the served data were last checked against their source, or built from it."
            " A line that keeps rising means that refreshes fail or are not due.",
            (f"time() - {_NEWEST} (lookupdb_dataset_refreshed_timestamp_seconds{{{_IN}}})", _EACH),
            unit="s",
        ),
        make_graph(
            "Age of the source data",
            "Time since the source of the served data was last modified, if the source says so.",
            (f"time() - {_NEWEST} (lookupdb_dataset_source_timestamp_seconds{{{_IN}}})", _EACH),
            unit="s",
        ),
        make_builds(_IN),
    )


def _add_speed(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "How fast is it?",
        make_graph(
            "Requests",
            "Requests that routers answered, over HTTP and the Redis protocol.",
            (f"{_BY} (rate({REQUESTS}_count{{{_IN}}}[$__rate_interval]))", _EACH),
            unit="reqps",
            is_stacked=True,
        ),
        make_graph(
            "Failed requests by dataset",
            "Share of each dataset's requests that failed because of the service. It should be 0.",
            (share(_IN, by="namespace, dataset"), _EACH),
            unit="percentunit",
        ),
        make_durations(
            "Latency of lookups",
            "Time from the first byte of a request for one key to the last byte of its answer, over all datasets.",
            *quantiles(_LOOKUPS),
        ),
        make_durations(
            "p99 latency by dataset",
            "99 of 100 lookups of one key are answered within this time.",
            (quantile(0.99, _LOOKUPS, by="namespace, dataset"), _EACH),
            span=12,
        ),
        make_graph(
            "CPU",
            "Processors that the routers and shard servers of each dataset keep busy.",
            (f'{_BY} (rate(process_cpu_seconds_total{{{_IN},dataset!=""}}[$__rate_interval]))', _EACH),
            unit="short",
            span=12,
            is_stacked=True,
        ),
    )


def _add_causes(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "If not, why?",
        make_graph(
            "Unavailable keys",
            "Keys that no replica of their shard answered in time. Clients get an error for them. It should be 0.",
            (f"{_BY} (rate(lookupdb_router_keys_unavailable_total{{{_IN}}}[$__rate_interval]))", _EACH),
            unit="cps",
        ),
        make_graph(
            "Endpoints not ready",
            "Shard servers that routers cannot use: not reachable, or serving something else than they should."
            " Each worker of a router counts.",
            (f"{_BY} (lookupdb_router_endpoints_unready{{{_IN}}})", _EACH),
            unit="short",
        ),
        make_refusals(_refused),
        make_graph(
            "Memory",
            "Memory that processes own, without the page cache, which the kernel can reclaim at any time.",
            *(
                (f"sum(lookupdb_{component}_private_bytes{{{_IN}}})", f"{component}s")
                for component in ("router", "shard")
            ),
            unit="bytes",
            span=12,
            is_stacked=True,
        ),
        make_graph(
            "Major page faults",
            "Reads that waited for the disk. Many of them under load: shards do not fit into memory.",
            (f"{_BY} (rate(lookupdb_shard_major_faults_total{{{_IN}}}[$__rate_interval]))", _EACH),
            unit="cps",
            span=12,
        ),
    )


def _refused(name: str) -> str:
    return f"sum(rate(lookupdb_router_{name}_total{{{_IN}}}[$__rate_interval]))"


def _add_control(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "Operator and gateway",
        make_graph(
            "Reconcile passes",
            "Passes of the operator over datasets, by outcome. Everything but done is retried.",
            ("sum by (outcome) (rate(lookupdb_operator_reconciles_total[$__rate_interval]))", "{{outcome}}"),
            unit="cps",
            is_stacked=True,
        ),
        make_durations(
            "Wait in the operator's queue",
            "Time from a change of a dataset until the operator looks at it.",
            *quantiles("lookupdb_operator_queue_duration_seconds_bucket", (0.5, 0.99)),
        ),
        make_graph(
            "Duration of builds, rollouts and cutovers",
            "Mean duration of those that ended within the last hour, over all datasets.",
            *(
                (
                    f"sum(increase(lookupdb_operator_{what}_duration_seconds_sum[1h]))"
                    f" / (sum(increase(lookupdb_operator_{what}_duration_seconds_count[1h])) > 0)",
                    f"{what}s",
                )
                for what in ("build", "rollout", "cutover")
            ),
            unit="s",
        ),
        make_graph(
            "Gateway requests",
            "Requests of builds and shard servers to the store's gateway, by status."
            " 401 and 403: tokens. 502 and 503: the store, or lack of room.",
            ("sum by (code) (rate(lookupdb_gateway_requests_total[$__rate_interval]))", "{{code}}"),
            unit="reqps",
            span=12,
        ),
        make_durations(
            "Duration of gateway transfers",
            "99 of 100 objects are read or written within this time.",
            (quantile(0.99, "lookupdb_gateway_transfer_duration_seconds_bucket", by="operation"), "p99 {{operation}}"),
            span=12,
        ),
    )
