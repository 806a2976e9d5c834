"""Screens and tables of the plugin. No I/O.

In this order: one dataset on a screen, its history, the list of all, lookups, and rates between two samples of
metrics."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.console import facts as console_facts
from lookupdb_operator.console.dataset import AbsentKey, Dataset, DatasetPods, Lookup, UnavailableKey
from lookupdb_operator.console.facts import (
    BuildFacts,
    GenerationFacts,
    RolloutFacts,
    ShardFacts,
    StatusFacts,
    clean,
    format_age,
    format_bytes,
    format_columns,
)
from lookupdb_operator.console.figures import MetricSample, bound_quantile, rate
from lookupdb_operator.model import Pod
from lookupdb_operator.plan import reasons

_AS_ABOVE: Final = "as above"
_MOST_SHARDS: Final = 12
"""Maximum number of shards with missing servers on a screen."""
_MOST_BUILDS: Final = 5
_MOST_TROUBLES: Final = 5
_INDENT: Final = "  "

Rows = Sequence[Sequence[str]]
"""Rows of a section, each with its cells."""


def render(view: DatasetPods, now: datetime) -> str:
    """Return the screen of a dataset."""
    facts = console_facts.describe_dataset(view)
    title_of_waits = "Waited for, when it stopped" if view.dataset.is_stopped else "Waits for"
    running = sum(build.is_running for build in facts.builds)
    lacking = [
        (rollout, shard) for rollout in facts.rollouts for shard in rollout.shards if shard.ready < len(shard.pods)
    ]
    sections: tuple[tuple[str, Rows], ...] = (
        ("Pods cannot be listed", [(facts.problem,)] if facts.problem else []),
        (title_of_waits, _list_waits(view.dataset, facts, now)),
        ("Conditions", _list_conditions(facts, now)),
        ("Generations", _list_generations(facts, now)),
        ("Rejected by a gate", _describe_rejected(view.dataset, facts, now)),
        ("Candidate", _describe_candidate(view.dataset, facts, now)),
        ("Rollouts", _list_rollouts(facts, now)),
        ("Shards that lack servers", _list_lacking_shards(lacking)),
        ("Why", _list_troubles([pod for _, shard in lacking for pod in shard.pods])),
        ("Routers", _describe_routers(facts)),
        ("Builds", [_describe_build(build, facts, now) for build in facts.builds[: running + _MOST_BUILDS]]),
    )
    lines = [*_head(facts, now)]
    for title, rows in sections:
        lines += [f"{title}:", *format_columns(rows, _INDENT)] if rows else []
    return "\n".join(lines)


def summarize(view: DatasetPods) -> dict[str, Any]:
    """Return the data for machines: the status and the pods."""
    pods = [
        {"name": pod.name, "component": pod.component, "phase": pod.phase, "ready": pod.ready}
        | ({"rollout": pod.rollout, "shard": pod.shard} if pod.rollout else {})
        | ({"trouble": pod.trouble.reason} if pod.trouble else {})
        for pod in view.pods
    ]
    problem = {"problem": view.problem} if view.problem else {}
    return summarize_dataset(view.dataset) | {"pods": pods} | problem


def _head(facts: StatusFacts, now: datetime) -> Iterator[str]:
    row = facts.row
    parts = [
        row.phase or "no operator has reconciled it yet",
        facts.serving,
        format_count(row.records, "record") if row.records else "",
        f"built {format_age(row.built_at, now)} ago" if row.built_at else "",
        f"pinned to {facts.pinned}" if facts.pinned else "",
    ]
    yield clean(f"{row.namespace}/{row.name}: {', '.join(part for part in parts if part)}")
    if facts.endpoint:
        yield clean(f"{_INDENT}{facts.endpoint}")


def _list_waits(dataset: Dataset, facts: StatusFacts, now: datetime) -> Rows:
    texts = [console_facts.split_lines(dataset, wait.describe(now)) for wait in facts.waits]
    return [(line,) for text in texts for line in text.splitlines() if line]


def _split(message: str) -> list[str]:
    return message.strip().removesuffix(".").split(". ")


def _is_shown(text: str, facts: StatusFacts) -> bool:
    """Return whether each part of ``text``, which may be cut off, is already shown among what the dataset waits for."""
    parts = reasons.join_lines(text.removesuffix("…")).split("; ")
    return all(part and any(part in wait.detail for wait in facts.waits) for part in parts)


def _list_conditions(facts: StatusFacts, now: datetime) -> Rows:
    """Return the conditions, without sentences that are already shown among what the dataset waits for."""
    shown = {sentence for wait in facts.waits for sentence in _split(wait.detail)}
    rows = []
    for found in facts.conditions:
        message = str(found.get("message", ""))
        sentences = _split(message)
        left = [sentence for sentence in sentences if sentence not in shown]
        if len(left) < len(sentences):
            message = f"{_AS_ABOVE}; {'. '.join(left)}." if left else _AS_ABOVE
        rows.append(
            (found["type"], found["status"], found["reason"], format_age(found["lastTransitionTime"], now), message)
        )
    return rows


def _list_generations(facts: StatusFacts, now: datetime) -> Rows:
    return [
        (
            found.generation,
            format_count(found.records, "record"),
            format_bytes(found.bytes),
            f"built {format_age(found.built_at, now)} ago",
            ", ".join(found.marks),
        )
        for found in facts.generations
    ]


def _describe_rejected(dataset: Dataset, facts: StatusFacts, now: datetime) -> Rows:
    if not facts.rejected:
        return []
    generation, message = facts.rejected["generation"], str(facts.rejected.get("message", ""))
    override = dataset.command("override-gates", generation)
    commands = (override, f"{names.OVERRIDE_GATES}={generation} --overwrite")
    records, built = format_count(facts.rejected["records"], "record"), format_age(facts.rejected["builtAt"], now)
    lines = [f"{generation} of {records}, built {built} ago"]
    lines += [] if _is_shown(message, facts) else [message]
    lines += [] if any(_is_shown(text, facts) for text in commands) else [f"to override the gate: {override}"]
    return [(line,) for line in lines]


def _describe_candidate(dataset: Dataset, facts: StatusFacts, now: datetime) -> Rows:
    if not facts.candidate:
        return []
    generation, since = dataset.candidate, format_age(facts.candidate["since"], now)
    return [
        (f"{generation} of {facts.candidate['rollout']} has waited for promotion for {since}",),
        (f"look at it:  {dataset.command('get', 'KEY', '--generation', generation)}",),
        (f"then:        {dataset.command('promote', generation)}, or {dataset.command('reject', generation)}",),
    ]


def _list_rollouts(facts: StatusFacts, now: datetime) -> Rows:
    return [
        (
            found.rollout,
            found.generation,
            found.role,
            f"{found.extent} × {found.replicas}, {format_count(found.ready, 'server')} ready",
            f"since {format_age(found.started_at, now)}",
            f"{found.stall} for {format_age(found.stalled_since, now)}" if found.stall else "",
        )
        for found in facts.rollouts
    ]


def _list_lacking_shards(lacking: Sequence[tuple[RolloutFacts, ShardFacts]]) -> Rows:
    rows = [
        (f"{rollout.rollout} shard {shard.shard}", f"{shard.ready}/{len(shard.pods)} servers ready")
        for rollout, shard in lacking
    ]
    more = [(f"and {len(rows) - _MOST_SHARDS} more",)] if len(rows) > _MOST_SHARDS else []
    return [*rows[:_MOST_SHARDS], *more]


def _list_troubles(pods: Sequence[Pod]) -> Rows:
    return [(line,) for line in console_facts.list_troubles(pods)[:_MOST_TROUBLES]]


def _describe_routers(facts: StatusFacts) -> Rows:
    if facts.routers is None:
        return []
    return [(facts.routers.describe(),), *_list_troubles([pod for pod in facts.routers.pods if not pod.ready])]


def _describe_build(build: BuildFacts, facts: StatusFacts, now: datetime) -> tuple[str, ...]:
    if build.is_running:
        why = f"{build.stall} for {format_age(build.stalled_since, now)}" if build.stall else ""
        return build.generation, build.outcome, f"for {format_age(build.at, now)}", why
    if not build.at:
        return build.generation, build.outcome, "", build.explain()
    took = "" if build.outcome == "overridden" else f", in {build.seconds or 0} s"
    why = build.explain(_AS_ABOVE if _is_shown(build.message, facts) else None)
    records = format_count(build.records, "record") if build.records else ""
    ended = f"{format_age(build.at, now)} ago{took}"
    return build.generation, build.result, ended, ": ".join(filter(None, (records, why)))


# The builds and generations of one dataset.


_HISTORY_HEAD: Final = ("GENERATION", "BUILD", "WHEN", "TOOK", "RECORDS", "SIZE", "STATE", "WHY")


def render_history(dataset: Dataset, now: datetime) -> str:
    """Return a table of builds, newest first, with what became of their generations."""
    rows = [
        (
            build.generation,
            build.result,
            f"{format_age(build.at, now)} ago",
            "" if build.seconds is None else f"{build.seconds} s",
            f"{build.records:,}" if build.records else "",
            format_bytes(stored.bytes) if stored else "",
            _describe_state(build, stored),
            build.explain(),
        )
        for build, stored in console_facts.describe_history(dataset)
    ]
    return "\n".join(format_columns([_HISTORY_HEAD, *rows])) if rows else f"{dataset.key} has no builds yet."


def _describe_state(build: BuildFacts, stored: GenerationFacts | None) -> str:
    if stored is None:
        return "removed" if build.outcome in ("built", "adopted", "overridden") else ""
    return ", ".join(stored.marks) or "in the store"


def summarize_history(dataset: Dataset) -> dict[str, Any]:
    """Return the data of ``render_history``, for machines."""
    marks = {found.generation: list(found.marks) for found in console_facts.describe_generations(dataset)}
    status = dataset.status
    generations = [{**found, "state": marks[found["generation"]]} for found in status.get("generations") or ()]
    builds = list(status.get("builds") or ())
    return {"namespace": dataset.namespace, "name": dataset.name, "builds": builds, "generations": generations}


# All datasets, one line each.


_HEAD: Final = ("NAME", "READY", "PHASE", "HEALTH", "GENERATION", "DATA AGE", "SHARDS", "RECORDS")


def render_list(datasets: Sequence[Dataset], now: datetime, *, everywhere: bool, place: str) -> str:
    """Return a table of ``datasets``; with ``everywhere``, including their namespaces."""
    if not datasets:
        return f"There are no datasets in {place}."
    rows: list[tuple[str, ...]] = [("NAMESPACE", *_HEAD) if everywhere else _HEAD]
    for row in map(console_facts.describe_row, datasets):
        age, records = format_age(row.built_at, now), "" if row.records is None else f"{row.records:,}"
        cells = (row.name, row.ready, row.phase, row.health, row.generation, age, row.shards, records)
        rows.append((row.namespace, *cells) if everywhere else cells)
    return "\n".join(format_columns(rows))


def summarize_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the row of a dataset, for machines."""
    return {"namespace": dataset.namespace, "name": dataset.name, "status": dict(dataset.status)}


# Lookups, and rates between two samples of metrics.


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
    """Return a table of shard servers, and one of routers."""
    servers = [_SERVER_HEAD, *map(_server_row, top.servers)]
    routers = [_ROUTER_HEAD, *map(_router_row, top.routers)]
    return "\n".join([*format_columns(servers), "", *format_columns(routers)])


def _server_row(server: ServerRates) -> tuple[str, ...]:
    if server.problem:
        return str(server.shard), server.pod, server.problem
    cached, size = server.cached_bytes, server.file_bytes
    return (
        str(server.shard),
        server.pod,
        _number(server.lookups),
        _number(server.misses),
        _bytes(server.private_bytes),
        _bytes(size),
        _UNKNOWN if cached is None or not size else f"{100 * cached / size:.0f} %",
        _number(server.major_faults),
    )


def _router_row(router: RouterRates) -> tuple[str, ...]:
    if router.problem:
        return router.pod, router.problem
    mean, p99 = router.batch_microseconds, router.batch_p99_seconds
    bound = _UNKNOWN if p99 is None else f"≤ {p99 * 1000:g} ms"
    return (
        router.pod,
        _number(router.requests),
        _number(router.errors),
        _number(router.keys),
        _number(router.unavailable),
        _UNKNOWN if mean is None else f"{mean / 1000:.2f} ms",
        "> 1 s" if p99 == math.inf else bound,
        _bytes(router.private_bytes),
    )


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    return _UNKNOWN if value is None else format_bytes(value)
