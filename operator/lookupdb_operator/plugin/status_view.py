"""One dataset on a screen. Each part is a function from data to lines, or no lines if it has nothing to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import Pod
from lookupdb_operator.plan import reasons
from lookupdb_operator.plugin.changes import Dataset, DatasetPods, Members
from lookupdb_operator.plugin.views import clean, format_age, format_bytes, format_columns, format_until
from lookupdb_operator.status import ALL, parse_shards

_CONDITIONS: Final = ("Ready", "Built", "RolledOut", "Degraded")
_WAITED_FOR: Final = {"Built": "a build", "RolledOut": "a rollout"}
"""Condition → what it waits for while it is not True."""
_AS_ABOVE: Final = "as above"
_MOST_SHARDS: Final = 12
"""Most shards with missing servers on a screen."""
_MOST_BUILDS: Final = 5
_MOST_TROUBLES: Final = 5
_INDENT: Final = "  "


def render(view: DatasetPods, now: datetime) -> str:
    """Return the screen."""
    parts = (
        _head(view, now),
        _section("Pods cannot be listed", [(view.problem,)] if view.problem else []),
        _waits(view, now),
        _conditions(view, now),
        _generations(view, now),
        _refused(view, now),
        _candidate(view, now),
        _rollouts(view, now),
        _shards(view),
        _routers(view),
        _builds(view, now),
    )
    return "\n".join(line for part in parts for line in part)


def summarize(view: DatasetPods) -> dict[str, Any]:
    """Return the data for machines: the status and the pods."""
    dataset = view.dataset
    pods = [
        {"name": pod.name, "component": pod.component, "phase": pod.phase, "ready": pod.ready}
        | ({"rollout": pod.rollout, "shard": pod.shard} if pod.rollout else {})
        | ({"trouble": pod.trouble.reason} if pod.trouble else {})
        for pod in view.pods
    ]
    problem = {"problem": view.problem} if view.problem else {}
    return {
        "namespace": dataset.namespace,
        "name": dataset.name,
        "status": dict(dataset.status),
        "pods": pods,
    } | problem


def to_json(document: Any) -> str:
    """Return ``document`` as JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _head(view: DatasetPods, now: datetime) -> Iterator[str]:
    dataset, status = view.dataset, view.dataset.status
    pinned = dataset.spec.get("generation")
    facts = [
        str(status.get("phase") or "no operator has looked at it yet"),
        _serving(dataset),
        format_count(status["records"], "record") if status.get("records") else "",
        f"built {format_age(status['builtAt'], now)} ago" if status.get("builtAt") else "",
        f"pinned to {pinned}" if pinned else "",
    ]
    yield clean(f"{dataset.key}: {', '.join(fact for fact in facts if fact)}")
    if status.get("endpoint"):
        yield clean(f"{_INDENT}{status['endpoint']}")


def _serving(dataset: Dataset) -> str:
    if len(dataset.serving) > 1:
        mixture = sorted(dataset.serving, key=names.read_number)
        return f"serves {', '.join(mixture[:-1])} and {mixture[-1]}, shard by shard"
    generation = dataset.status.get("generation")
    return f"serves {generation}" if generation else "serves nothing"


def _find_waiting(view: DatasetPods) -> dict[str, Members]:
    """Return conditions that wait for something, by type. ``_waits`` shows their messages; other parts do not repeat
    them."""
    conditions = {kind: view.dataset.condition(kind) for kind in _WAITED_FOR}
    return {kind: found for kind, found in conditions.items() if found and found.get("status") != "True"}


def _leave_out_told(message: str, view: DatasetPods) -> str:
    """Return ``message`` without sentences that ``_waits`` shows."""
    told = {sentence for found in _find_waiting(view).values() for sentence in _split(str(found.get("message", "")))}
    sentences = _split(message)
    left = [sentence for sentence in sentences if sentence not in told]
    if len(left) == len(sentences):
        return message
    return f"{_AS_ABOVE}; {'. '.join(left)}." if left else _AS_ABOVE


def _split(message: str) -> list[str]:
    return message.strip().removesuffix(".").split(". ")


def _is_told(text: str, view: DatasetPods) -> bool:
    """Return whether ``_waits`` shows ``text``, which may have several lines, or its beginning."""
    begin = reasons.join_lines(text.removesuffix("…"))
    return bool(begin) and any(begin in str(found.get("message", "")) for found in _find_waiting(view).values())


def _waits(view: DatasetPods, now: datetime) -> Iterator[str]:
    """Yield what it waits for, and for how long."""
    lines = []
    for kind, condition in _find_waiting(view).items():
        since = format_age(str(condition.get("lastTransitionTime", "")), now)
        lines.append(f"{_WAITED_FOR[kind]}, for {since}: {condition.get('message', '')}")
    failure: Members = view.dataset.status.get("failure") or {}
    if failure.get("retryAt"):
        lines.append(f"next attempt at a build {format_until(failure['retryAt'], now)}, after {failure.get('count')}")
    yield from _section("Waits for", ((line,) for line in (*lines, *_describe_schedule(view, now))))


def _describe_schedule(view: DatasetPods, now: datetime) -> Iterator[str]:
    """Yield when the schedule next checks the source."""
    status, refresh = view.dataset.status, view.dataset.spec.get("refresh") or {}
    next_check, due = status.get("nextCheck"), (status.get("schedule") or {}).get("due")
    if due and due != (status.get("build") or {}).get("slot"):
        yield f"the check of the source of {due} waits to be made"
    elif next_check:
        yield f"next check of the source {format_until(next_check, now)}, at {next_check}"
    elif refresh.get("schedule") and refresh.get("suspend"):
        yield f"no check of the source: refresh.suspend is true, and the schedule {refresh['schedule']!r} rests"


def _conditions(view: DatasetPods, now: datetime) -> Iterator[str]:
    rows = []
    for kind in _CONDITIONS:
        if condition := view.dataset.condition(kind):
            since = format_age(str(condition.get("lastTransitionTime", "")), now)
            message = _leave_out_told(str(condition.get("message", "")), view)
            rows.append((kind, condition["status"], condition["reason"], since, message))
    yield from _section("Conditions", rows)


def _generations(view: DatasetPods, now: datetime) -> Iterator[str]:
    status, serving = view.dataset.status, view.dataset.serving
    marks: dict[str, set[Any]] = {
        "active": set() if len(serving) > 1 else {status.get("generation")},
        "serves some shards": serving if len(serving) > 1 else set(),
        "candidate": {(status.get("candidate") or {}).get("generation")},
        "pinned": {view.dataset.spec.get("generation")},
        "rolled back": {mark.get("generation") for mark in status.get("rolledBack") or ()},
        "gate overridden": {
            generation["generation"] for generation in status.get("generations") or () if generation.get("overridden")
        },
        "has served": {
            generation["generation"] for generation in status.get("generations") or () if generation.get("servedBy")
        }
        - {status.get("generation")},
        "rejected": {mark.get("generation") for mark in status.get("rejected") or ()},
    }
    rows = [
        (
            generation["generation"],
            format_count(generation["records"], "record"),
            format_bytes(generation["bytes"]),
            f"built {format_age(generation['builtAt'], now)} ago",
            ", ".join(mark for mark, marked in marks.items() if generation["generation"] in marked),
        )
        for generation in reversed(status.get("generations") or ())
    ]
    yield from _section("Generations", rows)


def _refused(view: DatasetPods, now: datetime) -> Iterator[str]:
    refused: Members = view.dataset.status.get("refused") or {}
    if not refused:
        return
    name, generation = _addressed(view), refused.get("generation")
    records = format_count(int(refused.get("records", 0)), "record")
    built = format_age(str(refused.get("builtAt", "")), now)
    message, override = str(refused.get("message", "")), f"{names.OVERRIDE_GATES}={generation} --overwrite"
    lines = [f"{generation} of {records}, built {built} ago"]
    lines += [] if _is_told(message, view) else [message]
    lines += [] if _is_told(override, view) else [f"to let it through: kubectl annotate lds {name} {override}"]
    yield from _section("Refused by a gate", ((line,) for line in lines))


def _candidate(view: DatasetPods, now: datetime) -> Iterator[str]:
    candidate: Members = view.dataset.status.get("candidate") or {}
    if not candidate:
        return
    name, generation = _addressed(view), candidate.get("generation")
    since = format_age(str(candidate.get("since", "")), now)
    yield from _section(
        "Candidate",
        [
            (f"{generation} of {candidate.get('rollout')} has waited for promotion for {since}",),
            (f"look at it:  kubectl lookupdb get {name} KEY --generation {generation}",),
            (f"then:        kubectl lookupdb promote {name} {generation}, or reject {name} {generation}",),
        ],
    )


def _addressed(view: DatasetPods) -> str:
    """Return the dataset as a command's arguments, independent of the context's namespace."""
    return f"-n {view.dataset.namespace} {view.dataset.name}"


def _rollouts(view: DatasetPods, now: datetime) -> Iterator[str]:
    status = view.dataset.status
    shards = {generation["generation"]: generation["shards"] for generation in status.get("generations") or ()}
    rows = []
    for rollout in status.get("rollouts") or ():
        pods = view.of_rollout(rollout["rollout"])
        ready = sum(pod.ready for pod in pods)
        stall: Members = rollout.get("stall") or {}
        servers = f"{_replicas(rollout, pods)}, {format_count(ready, 'server')} ready"
        rows.append(
            (
                rollout["rollout"],
                rollout["generation"],
                _role(rollout, status),
                f"{_count_shards(rollout, shards.get(rollout['generation']))} × {servers}",
                f"since {format_age(rollout['startedAt'], now)}",
                f"{stall['reason']} for {format_age(stall['since'], now)}" if stall else "",
            )
        )
    yield from _section("Rollouts", rows)


def _count_shards(rollout: Members, shards: int | None) -> str:
    """Return the number of shards with servers and, during a shard-by-shard rollout, of all shards."""
    of_all = "? shards" if shards is None else format_count(shards, "shard")
    try:
        held = parse_shards(rollout.get("shardRanges", ALL))
    except ValueError:
        return f"? of {of_all}"
    return f"{len(held)} of {of_all}" if held else of_all


def _role(rollout: Members, status: Members) -> str:
    table: Members = status.get("table") or {}
    if any(part["rollout"] == rollout["rollout"] for part in table.get("parts") or ()):
        return "being replaced"
    if table.get("rollout") == rollout["rollout"] and table.get("parts"):
        return "replacing"
    if table.get("rollout") == rollout["rollout"]:
        return "active" if table.get("confirmedAt") else "taking over"
    if (status.get("candidate") or {}).get("rollout") == rollout["rollout"]:
        return "candidate"
    if rollout.get("keptSince"):
        return "kept"
    return "ending" if rollout.get("named") else "starting"


def _replicas(rollout: Members, pods: tuple[Pod, ...]) -> int:
    counts: dict[int, int] = {}
    for pod in pods:
        counts[pod.shard] = counts.get(pod.shard, 0) + 1
    return max((*counts.values(), int(rollout.get("named", 0))), default=0)


def _shards(view: DatasetPods) -> Iterator[str]:
    """Yield shards with servers that are not ready, and the reasons of the first pods that have one."""
    rows, troubled = [], []
    for rollout in view.dataset.status.get("rollouts") or ():
        by_shard: dict[int, list[Pod]] = {}
        for pod in view.of_rollout(rollout["rollout"]):
            by_shard.setdefault(pod.shard, []).append(pod)
        for shard, pods in sorted(by_shard.items()):
            ready = sum(pod.ready for pod in pods)
            if ready < len(pods):
                rows.append((f"{rollout['rollout']} shard {shard}", f"{ready}/{len(pods)} servers ready"))
                troubled += [pod for pod in pods if pod.trouble is not None]
    more = [(f"and {len(rows) - _MOST_SHARDS} more",)] if len(rows) > _MOST_SHARDS else []
    yield from _section("Shards that lack servers", [*rows[:_MOST_SHARDS], *more])
    yield from _section("Why", _troubles(troubled))


def _troubles(pods: list[Pod]) -> list[tuple[str, ...]]:
    """Return the troubles of ``pods``, each once, with the first pod and the number of others."""
    named: dict[str, list[str]] = {}
    for pod in pods:
        if pod.trouble is not None:
            # Messages contain the names of their pods.
            named.setdefault(pod.trouble.message.replace(pod.name, "…"), []).append(pod.name)
    return [
        (f"{names_of[0]}{f' and {len(names_of) - 1} more' if len(names_of) > 1 else ''}: {message}",)
        for message, names_of in list(named.items())[:_MOST_TROUBLES]
    ]


def _routers(view: DatasetPods) -> Iterator[str]:
    routers = view.of_component(names.ROUTER)
    table: Members = view.dataset.status.get("table") or {}
    if view.problem or (not routers and not table):
        return
    ready = sum(pod.ready for pod in routers)
    confirmed = "confirmed by all" if table.get("confirmedAt") else "not confirmed by all yet"
    version = f", routing table {table['version']} {confirmed}" if table else ", no routing table yet"
    rows: list[tuple[str, ...]] = [(f"{ready}/{len(routers)} ready{version}",)]
    rows += _troubles([pod for pod in routers if not pod.ready])
    yield from _section("Routers", rows)


def _builds(view: DatasetPods, now: datetime) -> Iterator[str]:
    status = view.dataset.status
    rows: list[tuple[str, ...]] = []
    if build := status.get("build"):
        stall: Members = build.get("stall") or {}
        why = f"{stall['reason']} for {format_age(stall['since'], now)}" if stall else ""
        rows.append((build["generation"], "under way", f"for {format_age(build['startedAt'], now)}", why))
    for build in list(reversed(status.get("builds") or ()))[:_MOST_BUILDS]:
        rows.append(_past_build(build, view, now))
    if not status.get("builds") and (failure := status.get("failure")):
        rows.append((failure["generation"], "failed", "", f"{failure['reason']}: {failure['message']}"))
    yield from _section("Builds", rows)


def _past_build(build: Members, view: DatasetPods, now: datetime) -> tuple[str, ...]:
    outcome, reason = str(build.get("outcome", "")), str(build.get("reason", ""))
    count = int(build.get("count", 1))
    records = format_count(build["records"], "record") if build.get("records") else ""
    message = str(build.get("message", ""))
    message = _AS_ABOVE if _is_told(message, view) else message
    facts = [records, reason if reason.lower() != outcome.lower() else "", message]
    took = "" if outcome == "overridden" else f", in {build.get('seconds', 0)} s"
    return (
        str(build.get("generation", "")),
        outcome + (f" × {count}" if count > 1 else ""),
        f"{format_age(str(build.get('finishedAt', '')), now)} ago{took}",
        ": ".join(fact for fact in facts if fact),
    )


def _section(title: str, rows: Any) -> Iterator[str]:
    lines = format_columns(rows, _INDENT)
    if lines:
        yield f"{title}:"
        yield from lines


# All datasets, one line each.


_HEAD: Final = ("NAME", "READY", "PHASE", "HEALTH", "GENERATION", "DATA AGE", "SHARDS", "RECORDS")


def render_list(datasets: Sequence[Dataset], now: datetime, *, everywhere: bool, namespace: str) -> str:
    """Return a table of ``datasets``; with ``everywhere``, including their namespaces."""
    if not datasets:
        return (
            "There are no LookupDatasets." if everywhere else f"There are no LookupDatasets in namespace {namespace}."
        )
    head = ("NAMESPACE", *_HEAD) if everywhere else _HEAD
    rows = [(dataset.namespace, *_row(dataset, now)) if everywhere else _row(dataset, now) for dataset in datasets]
    return "\n".join(format_columns([head, *rows]))


def summarize_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the row of a dataset, for machines."""
    return {"namespace": dataset.namespace, "name": dataset.name, "status": dict(dataset.status)}


def _row(dataset: Dataset, now: datetime) -> tuple[str, ...]:
    status = dataset.status
    return (
        dataset.name,
        str(dataset.condition("Ready").get("status", "")),
        str(status.get("phase", "")),
        str(dataset.condition("Degraded").get("reason", "")),
        str(status.get("generation", "")),
        format_age(str(status.get("builtAt", "")), now),
        str(status.get("shards", "")),
        f"{status['records']:,}" if "records" in status else "",
    )
