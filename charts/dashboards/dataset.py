"""The dashboard of one dataset, down to each shard and replica."""

from __future__ import annotations

from typing import Final

from charts.dashboards.panels import (
    DATASET,
    REQUESTS,
    Annotation,
    add_row,
    lookups,
    make_board,
    make_builds,
    make_durations,
    make_graph,
    make_heatmap,
    make_number,
    make_quality_numbers,
    make_refusals,
    make_timeline,
    make_variable,
    quantile,
    quantiles,
)
from grafana_foundation_sdk.builders import dashboard

_IN: Final = 'namespace="$namespace",dataset="$dataset"'
_REPLICA: Final = "shard {{shard}} {{pod}}"
_BY: Final = "by (shard, pod)"
_LOOKUPS: Final = lookups(_IN)
_BATCHES: Final = f'{REQUESTS}_bucket{{{_IN},endpoint="batch"}}'
_INFO: Final = f"max by (namespace, dataset, generation) (lookupdb_dataset_info{{{_IN}}})"
_CONDITION: Final = f"lookupdb_dataset_condition{{{_IN},condition="


def make_dataset_dashboard() -> dashboard.Dashboard:
    """Return the dashboard."""
    made = make_board("lookupdb dataset", DATASET, "One dataset: is it healthy, fresh and fast, and if not, why.")
    made.with_variable(make_variable("namespace", "Namespace", "label_values(lookupdb_dataset_info, namespace)"))
    names = 'label_values(lookupdb_dataset_info{namespace="$namespace"}, dataset)'
    made.with_variable(make_variable("dataset", "Dataset", names))
    for annotation in _annotations():
        made.annotation(annotation)
    _add_health(made)
    _add_freshness(made)
    _add_speed(made)
    _add_replicas(made)
    _add_causes(made)
    return made


def _annotations() -> tuple[Annotation, ...]:
    cutover = _newest("cutover_timestamp_seconds")
    return (
        Annotation(
            "Cutover",
            f"1000 * {cutover} * on (namespace, dataset) group_right () {_INFO}",
            color="blue",
            text="{{generation}} serves",
            value_is_time=True,
        ),
        Annotation(
            "Rollout", f"{_newest('rollout_started_timestamp_seconds')} > 0", color="purple", text="rolling out"
        ),
        Annotation(
            "Build failed or rejected",
            "sum by (outcome) (increase(lookupdb_operator_builds_total"
            f'{{{_IN},outcome=~"failed|rejected"}}[$__rate_interval])) > 0',
            color="red",
            text="{{outcome}}",
        ),
    )


def _newest(fact: str) -> str:
    return f"max by (namespace, dataset) (lookupdb_dataset_{fact}{{{_IN}}})"


def _rate(metric: str, by: str = "") -> str:
    return f"sum {by}{' ' if by else ''}(rate(lookupdb_{metric}_total{{{_IN}}}[$__rate_interval]))"


def _add_health(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "Is it healthy?",
        make_number(
            "Ready",
            "Whether lookups are answered: by a ready router, from a ready server for every shard.",
            f'max({_CONDITION}"Ready",status="True"}})',
            names={"1": ("yes", "green"), "0": ("no", "red")},
        ),
        make_number("Generation", "The generation that answers lookups.", _INFO, label="generation"),
        make_number("Records", "Records of that generation.", _newest("records")),
        make_number(
            "Since the last refresh",
            "Time since the served data were last checked against their source, or built from it.",
            f"time() - {_newest('refreshed_timestamp_seconds')}",
            unit="s",
        ),
        *make_quality_numbers(_IN),
        make_timeline(
            "Conditions",
            "The conditions of the dataset over time. Built and RolledOut are not true while a build or rollout runs."
            " `kubectl describe lds` shows the reasons.",
            (f'max by (condition) (lookupdb_dataset_condition{{{_IN},status="True"}})', "{{condition}}"),
            {"1": ("true", "green"), "0": ("not yet", "blue")},
            {
                "Ready": {"1": ("true", "green"), "0": ("not true", "red")},
                "Degraded": {"1": ("true", "orange"), "0": ("not true", "green")},
            },
        ),
    )


def _add_freshness(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "Is it fresh?",
        make_graph(
            "Age of the data",
            "Time since the last refresh, and since the source of the served data was modified, if the source says so."
            " Stale after: the limit of refresh.staleAfterSeconds, if there is one.",
            (f"time() - {_newest('refreshed_timestamp_seconds')}", "since the last refresh"),
            (f"time() - {_newest('source_timestamp_seconds')}", "since the source was modified"),
            (_newest("stale_after_seconds"), "stale after"),
            unit="s",
            colors={"stale after": "red"},
        ),
        make_graph(
            "From source to serving",
            "Time that the served generation needed: from the change of its source until it was built,"
            " and from there until all routers answered from it.",
            (f"{_newest('built_timestamp_seconds')} - {_newest('source_timestamp_seconds')}", "source to build"),
            (f"{_newest('cutover_timestamp_seconds')} - {_newest('built_timestamp_seconds')}", "build to cutover"),
            unit="s",
            is_stacked=True,
        ),
        make_builds(_IN),
    )


def _add_speed(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "How fast is it?",
        make_graph(
            "Requests",
            "Requests that routers answered, by protocol and kind: lookups of one key, batches of several, and others.",
            (
                f"sum by (protocol, endpoint) (rate({REQUESTS}_count{{{_IN}}}[$__rate_interval])) > 0",
                "{{protocol}} {{endpoint}}",
            ),
            unit="reqps",
            is_stacked=True,
        ),
        make_graph(
            "HTTP answers by code",
            "404 is a missing key. 503 is a key that no replica answered in time.",
            (_rate("router_requests", "by (code)") + " > 0", "{{code}}"),
            unit="reqps",
            is_stacked=True,
        ),
        make_graph(
            "Keys",
            "Keys looked up: found, missing, or unavailable because no replica of their shard answered in time.",
            *((_rate(f"router_keys_{result}"), result) for result in ("found", "missing", "unavailable")),
            unit="cps",
            is_stacked=True,
            colors={"found": "green", "missing": "blue", "unavailable": "red"},
        ),
        make_durations(
            "Latency of lookups",
            "Time from the first byte of a request for one key to the last byte of its answer.",
            *quantiles(_LOOKUPS),
        ),
        make_durations(
            "Latency of batches",
            "Time from the first byte of a request for several keys to the last byte of its answer.",
            *quantiles(_BATCHES),
        ),
        make_heatmap(
            "Distribution of latency",
            "Lookups of one key by the time that they took. Two bands mean two causes, such as memory and disk.",
            f"sum by (le) (rate({_LOOKUPS}[$__rate_interval]))",
        ),
    )


def _add_replicas(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "Which shard, which replica?",
        make_graph(
            "Keys looked up by replica",
            "Keys that each shard server looked up. Replicas of a shard should be about equal.",
            (_rate("shard_lookups", _BY), _REPLICA),
            unit="cps",
        ),
        make_durations(
            "p99 latency in shard servers",
            "99 of 100 commands are answered within this time by the shard server alone, without router and network.",
            (quantile(0.99, f"lookupdb_shard_request_duration_seconds_bucket{{{_IN}}}", by="shard, pod"), _REPLICA),
        ),
        make_durations(
            "Wait of routers for shards",
            "Time from sending a batch to a shard server until its answer, with the network, for every 16th batch.",
            *quantiles(f"lookupdb_router_batch_duration_seconds_bucket{{{_IN}}}"),
        ),
        make_graph(
            "Shard file in the page cache",
            "Share of the shard's file that is in memory. Lookups of the rest wait for the disk.",
            (
                f"sum {_BY} (lookupdb_shard_resident_bytes{{{_IN}}}) / sum {_BY} (lookupdb_shard_file_bytes{{{_IN}}})",
                _REPLICA,
            ),
            unit="percentunit",
            top=1,
        ),
        make_graph(
            "Major page faults",
            "Reads that waited for the disk. Many of them under load: the shard does not fit into memory.",
            (_rate("shard_major_faults", _BY), _REPLICA),
            unit="cps",
        ),
        make_graph(
            "Memory of shard servers",
            "Memory that the processes own, without the page cache, which the kernel can reclaim at any time.",
            (f"sum {_BY} (lookupdb_shard_private_bytes{{{_IN}}})", _REPLICA),
            unit="bytes",
        ),
    )


def _add_causes(made: dashboard.Dashboard) -> None:
    add_row(
        made,
        "If not, why?",
        make_graph(
            "Endpoints",
            "Shard servers that routers use, and those that they cannot use. Each worker of a router counts."
            " The router's `/status` gives the reason for each endpoint.",
            (f"sum(lookupdb_router_endpoints_ready{{{_IN}}})", "ready"),
            (f"sum(lookupdb_router_endpoints_unready{{{_IN}}})", "not ready"),
            unit="short",
            is_stacked=True,
            colors={"ready": "green", "not ready": "red"},
        ),
        make_graph(
            "Retries and deadlines",
            "Keys that were sent again, sent to a second replica, refused by a full queue, or not answered in time.",
            (_rate("router_retries"), "sent again"),
            (_rate("router_hedges"), "second replica"),
            (_rate("router_queue_full"), "queue full"),
            (_rate("router_deadlines"), "deadline passed"),
            (_rate("router_client_deadline_keys_unavailable"), "deadline of the client passed"),
            unit="cps",
        ),
        make_refusals(lambda name: _rate(f"router_{name}")),
        make_graph(
            "Memory of routers",
            "Memory that the processes own. Budget: requests and answers that the workers hold now.",
            (f"sum by (pod) (lookupdb_router_private_bytes{{{_IN}}})", "{{pod}}"),
            (f"sum(lookupdb_router_budget_used_bytes{{{_IN}}})", "budget in use"),
            unit="bytes",
        ),
        make_graph(
            "Connections",
            "Open connections of clients to routers, and of routers to shard servers.",
            (f"sum(lookupdb_router_connections{{{_IN}}})", "clients to routers"),
            (f"sum(lookupdb_shard_open_connections{{{_IN}}})", "routers to shard servers"),
            unit="short",
        ),
        make_graph(
            "Restarts of workers",
            "Worker processes that ended and were started again. It should be 0.",
            *(
                (
                    f"sum by (pod) (increase(lookupdb_{component}_worker_restarts_total{{{_IN}}}[$__rate_interval]))",
                    "{{pod}}",
                )
                for component in ("router", "shard")
            ),
            unit="short",
        ),
    )
