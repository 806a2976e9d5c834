"""Output of the plugin: columns, lists, lookups, and rates between two samples of metrics."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

import orjson
from prometheus_client.parser import text_string_to_metric_families

from lookupdb_operator import names
from lookupdb_operator.model import Pod
from lookupdb_operator.plan.clock import parse_moment

# Formats of columns, ages and sizes. Text from a cluster becomes one line without control characters.


_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_TWO_UNITS_BELOW: Final = 10
"""Below this number of units, the next smaller unit is shown too: 3 h 20 min."""
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def format_columns(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Return ``rows`` with aligned columns; the last cell of a row may have any length."""
    rows = [[clean(cell) for cell in row] for row in rows]
    columns = max(map(len, rows), default=0)
    widths = [max((len(row[i]) for row in rows if i + 1 < len(row)), default=0) for i in range(columns)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    ]


def clean(text: str) -> str:
    """Return ``text`` on one line, without control characters for a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def format_age(moment: str, now: datetime) -> str:
    """Return the age of ``moment``, as "3 h 20 min"; empty if it is empty, "?" if it is not a time."""
    if not moment:
        return ""
    try:
        seconds = (now - parse_moment(moment)).total_seconds()
    except ValueError:
        return "?"
    return format_seconds(max(0.0, seconds))


def format_until(moment: str, now: datetime) -> str:
    """Return the time until ``moment``: "in 3 h 20 min", or "now" if it has passed."""
    try:
        seconds = (parse_moment(moment) - now).total_seconds()
    except ValueError:
        return "?"
    return f"in {format_seconds(seconds)}" if seconds >= 1 else "now"


def format_seconds(seconds: float) -> str:
    """Return "45 s", "3 h 20 min" or "12 d"."""
    whole = int(seconds)
    for i, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            count, rest = divmod(whole, size)
            smaller, name = _UNITS[i + 1] if i + 1 < len(_UNITS) else (1, "")
            more = f" {rest // smaller} {name}" if name and count < _TWO_UNITS_BELOW and rest // smaller else ""
            return f"{count} {unit}{more}"
    return "0 s"


def format_bytes(size: float) -> str:
    """Return a size as "12.3 MiB"."""
    for unit in _BINARY[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_BINARY[-1]}"


# Answers of routers and their output. Values are printed unchanged, because reformatting would alter numbers.


_PROBLEM: Final = "application/problem+json"
_JSON: Final = "application/json"
_PROBLEMS: Final = "https://lookupdb.dev/problems/"
GENERATION_HEADER: Final = "Lookupdb-Generation"


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A record has the key."""

    key: str
    generation: str
    value: bytes
    is_json: bool


@dataclass(frozen=True, slots=True)
class AbsentKey:
    """A router says that no record of the generation has the key."""

    key: str
    generation: str
    why: str


@dataclass(frozen=True, slots=True)
class UnavailableKey:
    """The key cannot be looked up now."""

    key: str
    why: str


Lookup = FoundKey | AbsentKey | UnavailableKey


def read_answer(key: str, status: int, headers: Mapping[str, str], body: bytes) -> Lookup | None:
    """Parse a router's answer about ``key``; None if it is not from a router, or the request is invalid. A 404 from
    elsewhere, for example about a missing Service, says nothing about the key."""
    media_type = headers.get("Content-Type", "").partition(";")[0].strip()
    generation = headers.get(GENERATION_HEADER, "")
    if status == 200 and generation:
        return FoundKey(key, generation, body, media_type == _JSON)
    problem = _read_problem(body) if media_type == _PROBLEM else {}
    name, detail = str(problem.get("type", "")).removeprefix(_PROBLEMS), str(problem.get("detail", ""))
    if status == 404 and name == "missing":
        return AbsentKey(key, generation, detail)
    if status == 503:
        return UnavailableKey(key, detail or "no router can be reached")
    return None


def read_refusal(status: int, body: bytes) -> tuple[str, str] | None:
    """Return why a router refuses the request, and a hint; None if it does not, or if the API server does."""
    problem = _read_problem(body)
    name, detail = str(problem.get("type", "")).removeprefix(_PROBLEMS), str(problem.get("detail", ""))
    if (status, name) == (412, "unknown-generation"):
        why = detail.partition(f"; leave {GENERATION_HEADER} out")[0]
        return why, "without --generation, the active one answers"
    if (status, name) in ((401, "unauthenticated"), (403, "forbidden")):
        return detail, "give a token that the routers accept, by --token-file"
    return None


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


def _read_problem(body: bytes) -> Mapping[str, Any]:
    try:
        problem = orjson.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


# One sample of an admin port's metrics.


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Values with their labels, by metric name."""

    values: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text`` in the Prometheus text format; empty for any other text."""
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    values.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError:
            return cls({})
        return cls({name: tuple(samples) for name, samples in values.items()})

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of all values of ``name`` with these labels; None if there are none."""
        found = [value for found_labels, value in self.values.get(name, ()) if labels.items() <= found_labels.items()]
        return sum(found) if found else None


def bound_quantile(before: MetricSample, after: MetricSample, name: str, share: float) -> float | None:
    """Return the lowest bucket bound of the histogram ``name`` that covers ``share`` of the observations in between:
    infinite beyond the last bucket, None without observations."""
    grown = {
        float(labels["le"]): value - (before.total(f"{name}_bucket", le=labels["le"]) or 0)
        for labels, value in after.values.get(f"{name}_bucket", ())
    }
    count = grown.get(math.inf, 0)
    if count <= 0 or min(grown.values()) < 0:
        return None
    return min(bound for bound, value in grown.items() if value >= share * count)


def rate(before: MetricSample, after: MetricSample, seconds: float, name: str, **labels: str) -> float | None:
    """Return the increase of ``name`` per second. None if unknown, or if the server restarted in between."""
    first, last = before.total(name, **labels), after.total(name, **labels)
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return (last - first) / seconds


_SERVER_HEAD: Final = ("SHARD", "SERVER", "LOOKUPS/S", "MISSES/S", "PRIVATE", "FILE", "IN CACHE", "FAULTS/S")
_ROUTER_HEAD: Final = ("ROUTER", "REQUESTS/S", "5XX/S", "KEYS/S", "UNAVAILABLE/S", "BATCH MEAN", "BATCH P99", "PRIVATE")
_UNKNOWN: Final = "-"
_BATCHES: Final = "lookupdb_router_batch_seconds"
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
        major_faults=rate(before, after, seconds, "lookupdb_shard_major_faults"),
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
        errors=per_second("lookupdb_router_requests_total", status="5xx"),
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
