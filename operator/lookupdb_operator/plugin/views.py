"""Output of the plugin: lookups, and rates between two samples of metrics."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lookupdb_operator import names
from lookupdb_operator.console.answers import AbsentKey, Lookup, UnavailableKey
from lookupdb_operator.console.figures import MetricSample, bound_quantile, rate
from lookupdb_operator.console.formats import format_bytes, format_columns
from lookupdb_operator.model import Pod


def render_line(lookup: Lookup) -> bytes:
    """Return one of several lookups as a JSON object."""
    key = b'{"key":' + orjson.dumps(lookup.key)
    if isinstance(lookup, UnavailableKey):
        return key + b',"unavailable":' + orjson.dumps(lookup.why) + b"}"
    key += b',"generation":' + orjson.dumps(lookup.generation)
    if isinstance(lookup, AbsentKey):
        return key + b',"missing":true}'
    value = lookup.value if lookup.is_json else orjson.dumps(base64.b64encode(lookup.value).decode())
    return key + b',"value":' + value + b"}"


_SERVER_HEAD: Final = ("SHARD", "SERVER", "LOOKUPS/S", "MISSES/S", "PRIVATE", "FILE", "IN CACHE", "FAULTS/S")
_ROUTER_HEAD: Final = ("ROUTER", "REQUESTS/S", "5XX/S", "KEYS/S", "UNAVAILABLE/S", "BATCH MEAN", "BATCH P99", "PRIVATE")
_UNKNOWN: Final = "-"
_BATCHES: Final = "lookupdb_router_batch_duration_seconds"
_ANSWERED: Final = ("lookupdb_router_keys_found_total", "lookupdb_router_keys_missing_total")
_UNAVAILABLE: Final = (
    "lookupdb_router_keys_unavailable_total",
    "lookupdb_router_client_deadline_keys_unavailable_total",
)


@dataclass(frozen=True, slots=True)
class ServerRates:
    """Rates of a shard server, per second."""

    pod: str
    rollout: str
    shard: int
    lookups: float | None = None
    misses: float | None = None
    private_bytes: float | None = None
    file_bytes: float | None = None
    cached_bytes: float | None = None
    """Bytes of its file in the page cache."""
    major_faults: float | None = None
    problem: str = ""
    """Why nothing is known about it."""


@dataclass(frozen=True, slots=True)
class RouterRates:
    """Rates of a router, per second."""

    pod: str
    requests: float | None = None
    errors: float | None = None
    keys: float | None = None
    unavailable: float | None = None
    batch_microseconds: float | None = None
    """Mean time from sending a batch to its answer, of every 16th batch."""
    batch_p99_seconds: float | None = None
    """Bound that 99 % of batches do not exceed, by the histogram; infinite beyond the last bucket."""
    private_bytes: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Top:
    """Rates of all servers and routers."""

    servers: tuple[ServerRates, ...]
    routers: tuple[RouterRates, ...]
    seconds: float


Samples = Mapping[str, MetricSample | str]
"""Metrics of each pod, or why they cannot be read."""


def measure(pods: Sequence[Pod], before: Samples, after: Samples, seconds: float) -> Top:
    """Return the rates of ``pods`` in the ``seconds`` from ``before`` to ``after``."""
    servers, routers = [], []
    for pod in pods:
        first, last = before[pod.name], after[pod.name]
        is_router = pod.component == names.ROUTER
        if isinstance(last, str) or isinstance(first, str):
            problem = last if isinstance(last, str) else str(first)
            if is_router:
                routers.append(RouterRates(pod.name, problem=problem))
            else:
                servers.append(ServerRates(pod.name, pod.rollout, pod.shard, problem=problem))
        elif is_router:
            routers.append(_measure_router(pod, first, last, seconds))
        else:
            servers.append(_measure_server(pod, first, last, seconds))
    return Top(tuple(servers), tuple(routers), seconds)


def _measure_server(pod: Pod, before: MetricSample, after: MetricSample, seconds: float) -> ServerRates:
    return ServerRates(
        pod=pod.name,
        rollout=pod.rollout,
        shard=pod.shard,
        lookups=rate(before, after, seconds, "lookupdb_shard_lookups_total"),
        misses=rate(before, after, seconds, "lookupdb_shard_misses_total"),
        private_bytes=after.total("lookupdb_shard_private_bytes"),
        file_bytes=after.total("lookupdb_shard_file_bytes"),
        cached_bytes=after.total("lookupdb_shard_resident_bytes"),
        major_faults=rate(before, after, seconds, "lookupdb_shard_major_faults_total"),
    )


def _measure_router(pod: Pod, before: MetricSample, after: MetricSample, seconds: float) -> RouterRates:
    def per_second(name: str, **labels: str) -> float | None:
        return rate(before, after, seconds, name, **labels)

    unavailable = _sum(map(per_second, _UNAVAILABLE))
    batches = per_second(f"{_BATCHES}_count")
    spent = per_second(f"{_BATCHES}_sum")
    return RouterRates(
        pod=pod.name,
        requests=per_second("lookupdb_router_requests_total"),
        errors=_sum(per_second("lookupdb_router_requests_total", code=code) for code in ("500", "503")),
        keys=_sum((*map(per_second, _ANSWERED), unavailable)),
        unavailable=unavailable,
        batch_microseconds=spent / batches * 1e6 if spent is not None and batches else None,
        batch_p99_seconds=bound_quantile(before, after, _BATCHES, 0.99),
        private_bytes=after.total("lookupdb_router_private_bytes"),
    )


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def render_top(top: Top) -> str:
    """Return two tables."""
    servers = [_SERVER_HEAD, *map(_server_row, top.servers)]
    routers = [_ROUTER_HEAD, *map(_router_row, top.routers)]
    return "\n".join([*format_columns(servers), "", *format_columns(routers)])


def _server_row(server: ServerRates) -> tuple[str, ...]:
    if server.problem:
        return str(server.shard), server.pod, server.problem
    return (
        str(server.shard),
        server.pod,
        _number(server.lookups),
        _number(server.misses),
        _bytes(server.private_bytes),
        _bytes(server.file_bytes),
        _share(server.cached_bytes, server.file_bytes),
        _number(server.major_faults),
    )


def _router_row(router: RouterRates) -> tuple[str, ...]:
    if router.problem:
        return router.pod, router.problem
    mean = router.batch_microseconds
    return (
        router.pod,
        _number(router.requests),
        _number(router.errors),
        _number(router.keys),
        _number(router.unavailable),
        _UNKNOWN if mean is None else f"{mean / 1000:.2f} ms",
        _bound(router.batch_p99_seconds),
        _bytes(router.private_bytes),
    )


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _bound(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    return "> 1 s" if math.isinf(seconds) else f"≤ {seconds * 1000:g} ms"


def _bytes(value: float | None) -> str:
    return _UNKNOWN if value is None else format_bytes(value)


def _share(part: float | None, total: float | None) -> str:
    return _UNKNOWN if part is None or not total else f"{100 * part / total:.0f} %"
