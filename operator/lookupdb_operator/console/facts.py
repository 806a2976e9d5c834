"""The facts about datasets that `status`, `ls`, `history` and the console show, as frozen dataclasses, and formats of
their text.

Times stay as the status has them. The command or page turns them into ages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.console.dataset import Dataset, DatasetPods, Members
from lookupdb_operator.model import Pod, parse_moment
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import ALL, CONDITIONS, parse_shards

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


# Facts.


_WAITED_FOR: Final = {"Built": "a build", "RolledOut": "a rollout"}
"""Condition → what a dataset waits for while the condition is not True."""
_UNDER_WAY: Final = "under way"


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that a dataset waits for, with the start or end of the wait if known."""

    what: str
    detail: str = ""
    since: str = ""
    until: str = ""

    def describe(self, now: datetime) -> str:
        """Return it as a sentence without a full stop."""
        if self.since:
            return f"{self.what}, for {format_age(self.since, now)}: {self.detail}"
        if self.until:
            return f"{self.what} {format_until(self.until, now)}, {self.detail}"
        return f"{self.what}: {self.detail}" if self.detail else self.what


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """A generation in the store. ``marks`` say what became of it: active, candidate, has served, …"""

    generation: str
    records: int
    bytes: int
    built_at: str
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """A shard of a rollout, and its servers."""

    shard: int
    pods: tuple[Pod, ...]

    @property
    def ready(self) -> int:
        """The number of servers that are ready."""
        return sum(pod.ready for pod in self.pods)


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """A rollout with its servers."""

    rollout: str
    generation: str
    role: str
    extent: str
    """``8 shards``, or ``3 of 8 shards`` with servers during a shard-by-shard rollout."""
    replicas: int
    started_at: str
    shards: tuple[ShardFacts, ...]
    stall: str = ""
    stalled_since: str = ""

    @property
    def ready(self) -> int:
        """The number of servers that are ready."""
        return sum(shard.ready for shard in self.shards)


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """The routers, and the routing table that they should have."""

    ready: int
    pods: tuple[Pod, ...]
    table: str
    """The version of the routing table; empty without one."""
    is_confirmed: bool

    def describe(self) -> str:
        """Return it as half a sentence."""
        confirmed = "confirmed by all" if self.is_confirmed else "not confirmed by all yet"
        table = f"routing table {self.table} {confirmed}" if self.table else "no routing table yet"
        return f"{self.ready}/{len(self.pods)} ready, {table}"


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """A build: the running one, or one that has ended."""

    generation: str
    outcome: str
    at: str
    """When it ended, or when the running one started."""
    reason: str = ""
    message: str = ""
    records: int = 0
    seconds: int | None = None
    count: int = 1
    """Number of builds in a row that ended this way."""
    stall: str = ""
    stalled_since: str = ""

    @property
    def is_running(self) -> bool:
        """True if it has not ended."""
        return self.outcome == _UNDER_WAY

    @property
    def result(self) -> str:
        """The outcome, and how often it happened."""
        return self.outcome + (f" × {self.count}" if self.count > 1 else "")

    def explain(self, message: str | None = None) -> str:
        """Return the reason, unless it repeats the outcome, and ``message``, by default the build's."""
        reason = self.reason if self.reason.lower() != self.outcome.lower() else ""
        own = self.message
        if own.startswith(f"{self.outcome} {self.generation}: "):
            own = own.partition("; ")[2]  # a note, for example that the store announces another generation
        return ": ".join(filter(None, (reason, own if message is None else message)))


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One dataset in a list of all."""

    namespace: str
    name: str
    ready: str
    phase: str
    health: str
    """The reason of its condition Degraded."""
    generation: str
    built_at: str
    shards: str
    records: int | None
    level: str
    """``good``, ``warning``, ``bad`` or ``unknown``."""


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """Everything about one dataset except its figures."""

    row: FleetRow
    serving: str
    pinned: str
    endpoint: str
    problem: str
    """Why the pods are unknown; empty if they are known."""
    waits: tuple[Wait, ...]
    conditions: tuple[Members, ...]
    """The four conditions."""
    generations: tuple[GenerationFacts, ...]
    """Those in the store, newest first."""
    rejected: Members
    """The generation that a gate rejected; empty if there is none."""
    candidate: Members
    """The generation that waits for promotion; empty if there is none."""
    rollouts: tuple[RolloutFacts, ...]
    routers: RouterFacts | None
    """None if there are no routers, or none are known."""
    builds: tuple[BuildFacts, ...]
    """The running one first, then the others, newest first."""


def describe_dataset(view: DatasetPods) -> StatusFacts:
    """Return the facts of one dataset."""
    dataset, status = view.dataset, view.dataset.status
    return StatusFacts(
        row=describe_row(dataset),
        serving=_describe_serving(dataset),
        pinned=str(dataset.spec.get("generation") or ""),
        endpoint=str(status.get("endpoint") or ""),
        problem=view.problem,
        waits=tuple(_find_waits(dataset)),
        conditions=tuple(found for kind in CONDITIONS if (found := dataset.condition(kind))),
        generations=describe_generations(dataset),
        rejected=status.get("refused") or {},
        candidate=status.get("candidate") or {},
        rollouts=tuple(_describe_rollouts(view)),
        routers=_describe_routers(view),
        builds=tuple(_describe_builds(dataset)),
    )


def describe_row(dataset: Dataset) -> FleetRow:
    """Return the row of a dataset in a list of all."""
    status, ready = dataset.status, str(dataset.condition("Ready").get("status", ""))
    degraded = dataset.condition("Degraded")
    return FleetRow(
        namespace=dataset.namespace,
        name=dataset.name,
        ready=ready,
        phase=str(status.get("phase") or ""),
        health=str(degraded.get("reason", "")),
        generation=str(status.get("generation") or ""),
        built_at=str(status.get("builtAt") or ""),
        shards=str(status.get("shards") or ""),
        records=status.get("records"),
        level={"True": "warning" if degraded.get("status") == "True" else "good", "False": "bad"}.get(ready, "unknown"),
    )


def _describe_serving(dataset: Dataset) -> str:
    if dataset.is_stopped:
        return f"served {dataset.status.get('generation') or 'nothing'}"
    if len(dataset.serving) > 1:
        mixture = sorted(dataset.serving, key=names.read_number)
        return f"serves {', '.join(mixture[:-1])} and {mixture[-1]}, shard by shard"
    generation = dataset.status.get("generation")
    return f"serves {generation}" if generation else "serves nothing"


def _find_waits(dataset: Dataset) -> Iterator[Wait]:
    for kind, what in _WAITED_FOR.items():
        condition = dataset.condition(kind)
        if condition and condition.get("status") != "True":
            message = str(condition.get("message", ""))
            since = "" if dataset.is_stopped else str(condition.get("lastTransitionTime", "")) or "?"
            yield Wait(what, message, since=since)
    if dataset.is_stopped:
        return
    failure: Members = dataset.status.get("failure") or {}
    if failure.get("retryAt"):
        failures = format_count(failure.get("count", 1), "failure")
        yield Wait("the next build attempt,", f"after {failures}", until=str(failure["retryAt"]))
    yield from _describe_schedule(dataset)


def split_lines(dataset: Dataset, text: str) -> str:
    """Return ``text``, with the lines of the error of a failed build, which conditions join."""
    error = str((dataset.status.get("failure") or {}).get("message", ""))
    joined, (first, *others) = reasons.join_lines(error), error.splitlines() or [""]
    if not others or joined not in text:
        return text
    before, _, after = text.partition(joined)
    return "\n  ".join((before + first, *others, after.lstrip(".; ")))


def _describe_schedule(dataset: Dataset) -> Iterator[Wait]:
    """Yield when the schedule next checks the source."""
    status, refresh = dataset.status, dataset.spec.get("refresh") or {}
    next_check, due = status.get("nextCheck"), (status.get("schedule") or {}).get("due")
    if due and due != (status.get("build") or {}).get("slot"):
        yield Wait(f"the source is due for its check of {due}")
    elif next_check:
        yield Wait("next check of the source", f"at {next_check}", until=str(next_check))
    elif refresh.get("schedule") and refresh.get("suspend"):
        schedule = refresh["schedule"]
        yield Wait(f"no check of the source: refresh.suspend is true, and the schedule {schedule!r} is paused")


def describe_generations(dataset: Dataset) -> tuple[GenerationFacts, ...]:
    """Return the generations in the store, newest first, each with its marks."""
    status, serving = dataset.status, dataset.serving
    stored = status.get("generations") or ()
    marks: dict[str, set[Any]] = {
        "active": set() if len(serving) > 1 else {status.get("generation")},
        "serves some shards": serving if len(serving) > 1 else set(),
        "candidate": {(status.get("candidate") or {}).get("generation")},
        "pinned": {dataset.spec.get("generation")},
        "rolled back": {mark.get("generation") for mark in status.get("rolledBack") or ()},
        "gate overridden": {found["generation"] for found in stored if found.get("overridden")},
        "has served": {found["generation"] for found in stored if found.get("servedBy")} - {status.get("generation")},
        "rejected": {mark.get("generation") for mark in status.get("rejected") or ()},
    }
    return tuple(
        GenerationFacts(
            generation=found["generation"],
            records=found["records"],
            bytes=found["bytes"],
            built_at=found["builtAt"],
            marks=tuple(mark for mark, marked in marks.items() if found["generation"] in marked),
        )
        for found in reversed(stored)
    )


def _describe_rollouts(view: DatasetPods) -> Iterator[RolloutFacts]:
    status = view.dataset.status
    shards = {generation["generation"]: generation["shards"] for generation in status.get("generations") or ()}
    for rollout in status.get("rollouts") or ():
        by_shard: dict[int, list[Pod]] = {}
        for pod in view.pods:
            if pod.rollout == rollout["rollout"] and not pod.deleting:
                by_shard.setdefault(pod.shard, []).append(pod)
        replicas = max((*map(len, by_shard.values()), int(rollout.get("named", 0))), default=0)
        stall: Members = rollout.get("stall") or {}
        yield RolloutFacts(
            rollout=rollout["rollout"],
            generation=rollout["generation"],
            role=find_role(rollout, status),
            extent=_count_shards(rollout, shards.get(rollout["generation"])),
            replicas=replicas,
            started_at=rollout["startedAt"],
            shards=tuple(ShardFacts(shard, tuple(pods)) for shard, pods in sorted(by_shard.items())),
            stall=str(stall.get("reason", "")),
            stalled_since=str(stall.get("since", "")),
        )


def _count_shards(rollout: Members, shards: int | None) -> str:
    of_all = "? shards" if shards is None else format_count(shards, "shard")
    try:
        held = parse_shards(rollout.get("shardRanges", ALL))
    except ValueError:
        return f"? of {of_all}"
    return f"{len(held)} of {of_all}" if held else of_all


def find_role(rollout: Members, status: Members) -> str:
    """Return what a rollout does: active, taking over, candidate, …"""
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


def _describe_routers(view: DatasetPods) -> RouterFacts | None:
    routers, table = view.of_component(names.ROUTER), view.dataset.table
    if view.problem or (not routers and not table):
        return None
    version = str(table["version"]) if table else ""
    return RouterFacts(sum(pod.ready for pod in routers), routers, version, bool(table.get("confirmedAt")))


def list_troubles(pods: Sequence[Pod]) -> list[str]:
    """Return the troubles of ``pods``, each once, with the first pod and the number of others."""
    named: dict[str, list[str]] = {}
    for pod in pods:
        if pod.trouble is not None:
            # Messages contain the names of their pods.
            named.setdefault(pod.trouble.message.replace(pod.name, "…"), []).append(pod.name)
    return [
        f"{names_of[0]}{f' and {len(names_of) - 1} more' if len(names_of) > 1 else ''}: {message}"
        for message, names_of in named.items()
    ]


def _describe_builds(dataset: Dataset) -> Iterator[BuildFacts]:
    status = dataset.status
    yield from _find_running_build(dataset)
    yield from map(_past_build, reversed(status.get("builds") or ()))
    if not status.get("builds") and (failure := status.get("failure")):
        yield BuildFacts(failure["generation"], "failed", "", str(failure["reason"]), str(failure["message"]))


def _find_running_build(dataset: Dataset) -> Iterator[BuildFacts]:
    if build := dataset.status.get("build"):
        stall: Members = build.get("stall") or {}
        yield BuildFacts(
            generation=str(build["generation"]),
            outcome=_UNDER_WAY,
            at=str(build.get("startedAt", "")),
            stall=str(stall.get("reason", "")),
            stalled_since=str(stall.get("since", "")),
        )


def _past_build(build: Members) -> BuildFacts:
    return BuildFacts(
        generation=str(build.get("generation", "")),
        outcome=str(build.get("outcome", "")),
        at=str(build.get("finishedAt", "")),
        reason=str(build.get("reason", "")),
        message=str(build.get("message", "")),
        records=int(build.get("records") or 0),
        seconds=build.get("seconds"),
        count=int(build.get("count", 1)),
    )


def describe_history(dataset: Dataset) -> list[tuple[BuildFacts, GenerationFacts | None]]:
    """Return the builds, newest first, each with its generation if the store has it. A generation whose build is not
    known has an entry, too."""
    status, generations = dataset.status, describe_generations(dataset)
    stored = {found.generation: found for found in generations}
    builds = [_past_build(build) for build in status.get("builds") or ()]
    known = {build.generation for build in builds}
    builds += [
        BuildFacts(found.generation, "", found.built_at, records=found.records)
        for found in reversed(generations)
        if found.generation not in known
    ]
    builds.sort(key=lambda build: (names.read_number(build.generation), build.at))
    newest_first = (*_find_running_build(dataset), *reversed(builds))
    return [(build, stored.get(build.generation)) for build in newest_first]


@dataclass(frozen=True, slots=True)
class Action:
    """A command for a person, and what it is for."""

    title: str
    command: str


def list_actions(dataset: Dataset, facts: StatusFacts) -> Iterator[Action]:
    """Yield the commands that apply to a dataset in its current state, first those that it waits for."""
    if facts.candidate:
        generation = dataset.candidate
        yield Action(f"Look at {generation} first", dataset.command("get", "KEY", "--generation", generation))
        yield Action(f"Let {generation} serve", dataset.command("promote", generation))
        yield Action(f"Reject {generation}", dataset.command("reject", generation))
    if facts.rejected:
        generation = facts.rejected["generation"]
        yield Action(f"Override the gate that rejected {generation}", dataset.command("override-gates", generation))
    if facts.pinned:
        yield Action("Let newer generations serve", dataset.command("unpin"))
    elif any("has served" in found.marks for found in facts.generations):
        yield Action("Go back to the previous generation", dataset.command("rollback"))
    yield Action("Read the source again", dataset.command("refresh"))
    yield Action("Look a key up", dataset.command("get", "KEY"))
    yield Action("Follow its state", dataset.command("status", "--watch"))
    yield Action("Read the log of the last build", dataset.command("logs"))
