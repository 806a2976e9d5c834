"""Invariants that hold whatever fails. The model cluster checks them at each step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from lookupdb.dataset.schedule import LONGEST_JITTER
from lookupdb_operator import names
from lookupdb_operator.model import Manifest, ObservedDataset, parse_moment
from lookupdb_operator.plan import generations as promotion
from lookupdb_operator.plan import lifecycle, reasons, windows
from lookupdb_operator.plan import lifecycle as recovery
from lookupdb_operator.plan.lifecycle import GenerationPhase, Phase, RolloutPhase
from lookupdb_operator.status import DatasetStatus, format_shards, parse_shards

DRAIN: float = 5.0
"""Seconds for which servers stay that no router answers from any more: the smallest ``rollout.drainSeconds`` requested.
"""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Invariants:
    """Remembers earlier states to judge the present one."""

    builds: dict[str, str] = field(default_factory=dict)
    """Generation → the spec that its builder reads."""
    rollouts: dict[str, str] = field(default_factory=dict)
    """Rollout → its template."""
    generations: dict[str, str] = field(default_factory=dict)
    """Rollout → the generation that its servers serve."""
    needs: dict[int, tuple[dict[str, Any], tuple[tuple[str, int, int], ...]]] = field(default_factory=dict)
    """Id of each table that was in effect → the table, and the rollouts, shards and servers that it names. An edit may
    name others under the same version."""
    may_mix: bool = False
    """True: a rollout may have gone shard by shard."""
    tables: dict[int, str] = field(default_factory=dict)
    """Version → content."""
    edited: set[int] = field(default_factory=set)
    """Versions that somebody has given a table by hand."""
    last_version: int = 0
    lookups: list[tuple[dict[str, Any], datetime]] = field(default_factory=list)
    """Tables of lookups in flight, and until when."""
    cutovers: int = 0
    reads: int = 0
    """Number of reads of the source so far."""
    read_by: dict[str, int] = field(default_factory=dict)
    """Build → the number of its read."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Generation → fingerprint of its source."""
    last_read: dict[str, int] = field(default_factory=dict)
    """Fingerprint → the number of the last read that found it."""
    found: set[tuple[str, str]] = field(default_factory=set)
    """Builds, and fingerprints that they found."""
    rolled_back: set[tuple[str, str]] = field(default_factory=set)
    """Source and spec of the generations that a pin has sent routers away from."""
    refused: set[str] = field(default_factory=set)
    """Generations that a gate rejected and nobody overrode."""
    candidates: set[str] = field(default_factory=set)
    """Generations that have waited for promotion."""
    rejected: set[tuple[str, str]] = field(default_factory=set)
    """Source and spec of rejected candidates."""
    is_manual: bool = False
    """True: generations wait for promotion now."""
    promoted: str = ""
    """The candidate that the last status promotes; empty: none."""
    lost: set[str] = field(default_factory=set)
    """Generations that the store has lost, even if it has them again."""
    has_forgotten: bool = False
    unscaled: set[tuple[str, int]] = field(default_factory=set)
    """Rollout and shard of sets whose last write the API server refused."""
    answered: int = 0
    """Number of the read that answered the last refresh."""
    checked: dict[str, datetime] = field(default_factory=dict)
    """Slot of the schedule → when its check was requested, by the operator's clock."""
    operator_now: datetime | None = None
    """The operator's clock at its last pass; None if nobody notes it."""

    def forget(self, generations: set[str], rollouts: set[str]) -> None:
        """Forget a lost status: only builds of ``generations`` and ``rollouts`` remain known."""
        self.builds = {name: spec for name, spec in self.builds.items() if name in generations}
        self.rollouts = {name: template for name, template in self.rollouts.items() if name.split()[0] in rollouts}
        self.answered = 0
        self.checked.clear()
        self.rolled_back, self.rejected = set(), set()
        self.has_forgotten = True

    def pass_again(self, now: datetime, *, is_known: bool) -> None:
        """Note that the operator's clock, perhaps set back, says ``now``. When a slot passes again, the operator
        recognises only the one it has noted; ``is_known`` says whether that is the next one. It notes the moment of an
        edit in place of a slot when the schedule changes."""
        if not is_known:
            self.checked = {slot: at for slot, at in self.checked.items() if parse_moment(slot) <= now}
        self.checked = {slot: min(at, now) for slot, at in self.checked.items()}

    def read(self, build: str, fingerprint: str, *, publishes: bool) -> None:
        """A builder reads its source."""
        self.reads += 1
        self.read_by[build] = self.last_read[fingerprint] = self.reads
        self.found.add((build, fingerprint))
        if publishes:
            self.fingerprints[build] = fingerprint

    def refuse(self, generation: str) -> None:
        """A gate rejects ``generation``."""
        self.refused.add(generation)

    def overridden(self, generation: str, status: DatasetStatus) -> None:
        """Somebody who sees ``status`` overrides the gate for ``generation``; before the rejection that has no
        effect."""
        refused = status.refused
        if refused is not None and refused.generation == generation:
            self.refused.discard(generation)

    def written(self, manifest: Manifest, before: Manifest | None) -> None:
        """An object is created or replaced."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        labels = manifest["metadata"]["labels"]
        if kind == "ConfigMap" and name.endswith("-build"):
            spec = manifest["data"][names.DATASET_FILE]
            _same(self.builds, labels[names.GENERATION], spec, f"{name} is claimed for two different builds")
        elif kind == "StatefulSet":
            template = orjson.dumps(manifest["spec"]["template"]["spec"]["containers"]).decode()
            self.generations[labels[names.ROLLOUT]] = labels[names.GENERATION]
            rollout = f"{labels[names.ROLLOUT]} shard {labels[names.SHARD]}"
            _same(self.rollouts, rollout, template, f"the template of {rollout} changes")
        elif name.endswith("-routing-table"):
            self._table(orjson.loads(manifest["data"][names.TABLE_FILE]))
        elif kind == "Job" and before is not None and manifest["spec"] != before["spec"]:
            raise Broken(f"the Job {name} is changed")

    def _table(self, content: dict[str, Any]) -> None:
        version = content["version"]
        _same(self.tables, version, orjson.dumps(content).decode(), f"routing table {version} has two contents")
        if version < self.last_version:
            raise Broken(f"routing table {version} is written after {self.last_version}")
        self.last_version = version
        generations = content["generations"]
        if content["active"] != generations[0]["generation"]:
            raise Broken(f"routing table {version} has lost its active generation")
        if {generation["generation"] for generation in generations[1:]} - self.candidates:
            raise Broken(f"routing table {version} mixes generations")
        is_mixed = any("generation" in shard for shard in generations[0]["shards"])
        if content["formatVersion"] != (2 if is_mixed else 1) or (is_mixed and len(generations) > 1):
            raise Broken(f"routing table {version} is of a format that it must not have")
        for generation in generations:
            self._check_entry(generation, version)

    def _check_entry(self, entry: dict[str, Any], version: int) -> None:
        """Check that each shard is of one rollout, which serves the table's generation."""
        for shard in entry["shards"]:
            rollouts = {_rollout_of(host) for host in shard["endpoints"]}
            if len(rollouts) != 1 or not (self.may_mix or rollouts == {entry["rollout"]}):
                raise Broken(f"routing table {version} mixes rollouts")
            says, (rollout,) = shard.get("generation", entry["generation"]), rollouts
            if self.generations.get(rollout, says) != says:
                raise Broken(f"routing table {version} says {says} of a shard of {self.generations[rollout]}")
        if all("generation" in shard for shard in entry["shards"]):
            raise Broken(f"routing table {version} has no shard of its own generation")

    def claims(self, before: DatasetStatus, after: DatasetStatus, spec: Mapping[str, Any]) -> None:
        """Check a write of the status while ``spec`` is desired."""
        pinned = spec.get("generation", "")
        for counter in ("last_generation", "last_rollout", "last_table"):
            if getattr(after, counter) < getattr(before, counter):
                raise Broken(f"{counter} goes back")
        version = 0 if before.table is None else before.table.version
        is_inconsistent = before.table is not None and recovery.is_inconsistent(before)
        forgets = after.table is None and (version < self.last_version or is_inconsistent)  # there is a newer one
        if before.table is not None and not forgets and (after.table is None or after.table.version < version):
            raise Broken("the routing table's version goes back")
        _check_transitions(before, after, was_lost=forgets)
        self._check_verified(before, after)
        self._check_refusal(before, after)
        self._check_freshness(before, after, pinned)
        self._check_slots(before, after)
        self._check_wish(before, after, pinned)
        if not forgets:
            self._check_pin(before, after, pinned)
        if spec.get("suspend") and not self.has_forgotten:
            self._check_suspended(before, after)
        rolled = {rollout.generation for rollout in after.rollouts if rollout.template}
        if not rolled <= {generation.generation for generation in after.generations}:
            raise Broken("a generation that is rolled out is not kept")
        if rolled & self.refused:
            raise Broken(f"{', '.join(rolled & self.refused)} was refused by a gate, and is rolled out")

    def _check_wish(self, before: DatasetStatus, after: DatasetStatus, pinned: str) -> None:
        """Check that a build begins only on request: its spec has no generation that is new enough, a refresh or check
        is not answered, or the store lost that generation. A lost one is built again no sooner than due, and not while
        one is pinned."""
        build, lost = after.build, after.lost
        if build is None or (before.build is not None and before.build.generation == build.generation):
            return
        newest = next((known for known in reversed(after.generations) if known.content == build.content), None)
        if newest is None or build.slot or build.refresh not in ("", newest.refresh):
            return
        if max(names.read_number(newest.generation), newest.verified_by) < after.refreshed_by:
            return
        if lost is None or lost.generation != newest.generation or not lost.retry_at or pinned:
            raise Broken(f"{build.generation} is built, and nobody asked for it")
        if build.unless_fingerprint or build.unless_success_file:
            raise Broken(
                f"{build.generation} is built for {newest.generation}, which is lost, and may be found the same"
            )
        if self.operator_now is not None and parse_moment(lost.retry_at) > self.operator_now:
            raise Broken(f"{build.generation} is built before {newest.generation}, which is lost, may be tried again")

    def _check_suspended(self, before: DatasetStatus, after: DatasetStatus) -> None:
        """Check that nothing begins, and no new table is written."""
        claimed = ("last_generation", "last_rollout")
        if any(getattr(before, counter) != getattr(after, counter) for counter in claimed) or after.build is not None:
            raise Broken("something is begun while it is suspended")
        tables = [
            None if table is None else (table.rollout, table.replicas, table.parts)
            for table in (before.table, after.table)
        ]
        if tables[0] != tables[1] or not _names(before) <= _names(after):
            raise Broken("what serves or is kept changes while it is suspended")

    def decides(self, before: DatasetStatus, after: DatasetStatus, dataset: ObservedDataset) -> None:
        """Check a write of the status after ``dataset`` was seen: nothing takes effect that must not, and what serves
        stays."""
        _check_surge(before, after, dataset)
        if after.candidate is not None:
            self.candidates.add(after.candidate.generation)
        pinned = dataset.spec.get("generation", "")
        self.may_mix = self.may_mix or dataset.spec["rollout"]["strategy"] == "PerShard"
        self.is_manual = dataset.spec["rollout"]["promotion"] == "Manual"
        served = "" if before.table is None else before.table.generation
        is_heard = not dataset.spec["suspend"] and before.find_generation(dataset.reject)
        if is_heard and dataset.reject not in (served, before.generation, pinned):
            self.rejected.add(_data(dataset.reject, before))
        sent_to = "" if after.table is None else after.table.generation
        self._check_promotion(before, after, dataset)
        if before.table is not None and after.table is None and not after.rollouts:
            raise Broken("nothing serves any more")
        if sent_to != served:
            if self.is_manual and served and sent_to and sent_to not in (dataset.promote, pinned):
                raise Broken(f"{sent_to} takes effect, and nobody has promoted it")
            if _data(sent_to, after) in self.rejected and sent_to != pinned:
                raise Broken(f"{sent_to} takes effect, and was rejected")
        known = {rollout.rollout for rollout in before.rollouts}
        for rollout in after.rollouts:
            is_rejected = _data(rollout.generation, after) in self.rejected and rollout.generation not in (
                pinned,
                served,
            )
            if rollout.rollout not in known and rollout.template and is_rejected:
                raise Broken(f"{rollout.generation} is rolled out, and was rejected")
        if pinned and pinned == sent_to:
            self.rejected.discard(_data(pinned, after))

    def _check_promotion(self, before: DatasetStatus, after: DatasetStatus, dataset: ObservedDataset) -> None:
        """Check that a promoted candidate takes effect or stays the candidate. Exceptions: the spec has changed, or the
        store lost it and RolledOut says that it waits no more."""
        self.promoted, name = "", dataset.promote
        waited = before.candidate is not None and before.candidate.generation == name
        if not waited or not self.is_manual or dataset.spec["suspend"] or dataset.spec.get("generation"):
            return
        generation = after.find_generation(name)
        if generation is None or dataset.parsed is None or generation.content != dataset.parsed.content_hash():
            return
        if generation.premature_promotion or promotion.is_rejected(generation, after):
            return
        self.promoted = name
        rolled_out = after.condition("RolledOut")
        says = "" if rolled_out is None else f"{rolled_out.reason}: {rolled_out.message}"
        stays = after.candidate is not None and after.candidate.generation == name
        serves = after.table is not None and after.table.generation == name
        if stays and says.startswith(reasons.CANDIDATE_WAITING):
            raise Broken(f"{name} is promoted, and waits for it")
        is_answered = name in self.lost and f"promote names {name}, which does not wait" in says
        if not stays and not serves and not is_answered:
            raise Broken(f"the promotion of {name} is lost, and RolledOut says {says}")

    def _check_pin(self, before: DatasetStatus, after: DatasetStatus, pinned: str) -> None:
        """Check that a pinned generation is kept, and that only a pin sends routers back to one that was rolled back
        from."""
        if before.find_generation(pinned) is not None and after.find_generation(pinned) is None:
            raise Broken(f"{pinned} is pinned, and is not kept")
        if after.table is None or (before.table is not None and after.table.generation == before.table.generation):
            return
        sent_to, left = after.table.generation, "" if before.table is None else before.table.generation
        data = {name: _data(name, before) for name in (sent_to, left, before.generation)}
        if sent_to == pinned:
            self.rolled_back.discard(data[sent_to])
            if left:
                newer = {name for name in data if names.read_number(name) > names.read_number(pinned)}
                self.rolled_back |= {data[name] for name in newer}
        elif data[sent_to] in self.rolled_back:
            raise Broken(f"{sent_to} was rolled back from, and routers are sent to it again")

    def _check_verified(self, before: DatasetStatus, after: DatasetStatus) -> None:
        """Check that a build which found the source unchanged read the source of each generation that says so. A build
        whose pod ran twice may have found another source the second time."""
        build = "" if before.build is None else before.build.generation
        known = {one.generation: one.verified_by for one in before.generations}
        for generation in after.generations:
            is_new = known.get(generation.generation, generation.verified_by) != generation.verified_by
            if is_new and build in self.read_by and (build, generation.fingerprint) not in self.found:
                raise Broken(f"{build} has verified {generation.generation}, whose source it has not found")

    def _check_refusal(self, before: DatasetStatus, after: DatasetStatus) -> None:
        """Check that no gate rejects the source of an overridden generation while that one is the newest, unless it was
        built and judged again as another generation."""
        failure, newest = after.failure, after.generations[-1] if after.generations else None
        if failure is None or failure == before.failure or failure.reason != reasons.GATE_CLOSED or newest is None:
            return
        if after.refused is not None and after.refused.generation == failure.generation:
            return
        read = self.read_by.get(failure.generation)
        is_same = newest.content == failure.content and self.last_read.get(newest.fingerprint) == read
        if read is not None and is_same and newest.overridden and newest.generation not in self.lost:
            raise Broken(f"a gate is closed for the source of {newest.generation}, which was let through")

    def _check_freshness(self, before: DatasetStatus, after: DatasetStatus, pinned: str) -> None:
        """Check that no rollout begins, or is gone back to, with data from before the last answered refresh.
        Exceptions: a pinned generation, and one that serves while it is pinned or newer ones are rolled back."""
        refused, is_answered = before.refused, after.refreshed_by != before.refreshed_by
        if is_answered and refused is not None and after.find_generation(refused.generation) is not None:
            self.answered = self.last_read.get(refused.fingerprint, self.answered)
        elif is_answered and before.build is not None:
            self.answered = self.read_by.get(before.build.generation, self.answered)
        known = {rollout.rollout: rollout for rollout in before.rollouts}
        gone_back_to = after.table.rollout if after.table and after.table.version > self.last_version else ""
        waits = before.candidate is not None and before.candidate.rollout == gone_back_to
        is_candidate = waits or (gone_back_to in known and not known[gone_back_to].referenced_replicas)
        is_served = before.table is not None and before.table.rollout == gone_back_to
        may_stay = pinned or before.rolled_back or after.rejected or self.is_manual
        stays = before.table.generation if before.table is not None and may_stay else ""
        for rollout in after.rollouts:
            if rollout.generation in (pinned, stays, self.promoted):
                continue
            is_new = rollout.rollout not in known and bool(rollout.template)
            if is_new or (rollout.rollout == gone_back_to and not is_candidate and not is_served):
                read = self.last_read.get(self.fingerprints.get(rollout.generation, ""))
                if read is not None and read < self.answered:
                    raise Broken(f"{rollout.generation} is rolled out, and older than the refresh that was answered")

    def _check_slots(self, before: DatasetStatus, after: DatasetStatus) -> None:
        """Check that each slot is checked once, when due, and that only the newest of missed slots is checked."""
        known, slot = (status.schedule.due if status.schedule is not None else "" for status in (before, after))
        is_under_way = before.build is not None and before.build.slot == slot
        if slot in ("", known) or is_under_way or self.operator_now is None:
            return
        now, moment = self.operator_now, parse_moment(slot)
        if slot in self.checked:
            raise Broken(f"the check of {slot} is asked for twice")
        if moment > now:
            raise Broken(f"the check of {slot} is asked for at {now}")
        if parse_moment(after.next_check) <= now:
            raise Broken(f"the check of {slot} is asked for, though that of {after.next_check} is due")
        latest = moment + timedelta(seconds=LONGEST_JITTER)
        made_up = [other for other, at in self.checked.items() if latest < at]
        if made_up:
            raise Broken(f"the check of {slot} is made up for, beside those of {made_up}")
        self.checked[slot] = now

    def deleted(self, manifest: Manifest, status: DatasetStatus) -> None:
        """Check that the operator may delete an object while its status is ``status``."""
        rollout = manifest["metadata"]["labels"].get(names.ROLLOUT)
        known = None if rollout is None else status.find_rollout(rollout)
        if manifest["kind"] != "StatefulSet" or (
            known is not None
            and known.shard_ranges
            and int(manifest["metadata"]["labels"][names.SHARD]) not in parse_shards(known.shard_ranges)
        ):
            return
        if lifecycle.rollout_phase(rollout, status) is not RolloutPhase.GONE:
            raise Broken(f"servers of {rollout} are deleted, which is {lifecycle.rollout_phase(rollout, status).value}")

    def scaled(self, name: str, *, is_refused: bool) -> None:
        """Note that the StatefulSet ``name`` was written, or that the API server refused it."""
        shard_set = names.read_rollout(name), names.read_shard(name) or 0
        self.unscaled = self.unscaled | {shard_set} if is_refused else self.unscaled - {shard_set}

    def left(self, table: dict[str, Any], now: datetime) -> None:
        """A router takes up another table; its lookups on ``table`` are still in flight."""
        self.lookups.append((table, now + timedelta(seconds=DRAIN)))
        self.cutovers += 1

    def took(self, table: dict[str, Any]) -> None:
        """A router takes up ``table``."""
        if table["version"] not in self.tables and table["version"] not in self.edited:
            raise Broken("a router has a table that nobody wrote")

    def serving(self, tables: Iterable[dict[str, Any]], sets: Mapping[tuple[str, int], int], now: datetime) -> None:
        """Check that all servers named by ``tables`` in effect and by lookups in flight are still wanted. A set that
        was just scaled down may be seen as before, and named so. If the API server refuses to scale it up again, it
        lacks one server, and routers ask the others, as after any loss."""
        self.lookups = [(table, until) for table, until in self.lookups if until > now]
        in_effect = (*tables, *(table for table, _ in self.lookups))
        for table in {id(table): table for table in in_effect}.values():
            for rollout, shard, servers in self._needs_of(table):
                kept = sets.get((rollout, shard), 0)
                needed = max(1, servers - 1) if (rollout, shard) in self.unscaled else servers
                if kept < needed:
                    raise Broken(
                        f"{rollout} shard {shard} has {kept} servers,"
                        f" and routing table {table['version']}, which is in effect, names {servers}"
                    )

    def _needs_of(self, table: dict[str, Any]) -> tuple[tuple[str, int, int], ...]:
        known = self.needs.get(id(table))
        if known is None or known[0] is not table:
            known = self.needs[id(table)] = table, tuple(_list_needs(table["generations"]))
        return known[1]


def _check_surge(before: DatasetStatus, after: DatasetStatus, dataset: ObservedDataset) -> None:
    """Check that a shard-by-shard rollout keeps the number of shards within bounds. Exception: a rollout that begins
    while routers still use the servers replaced before it."""
    known = {rollout.rollout: rollout for rollout in before.rollouts}
    for rollout in after.rollouts:
        generation, old = after.find_generation(rollout.generation), known.get(rollout.rollout)
        if generation is None or not rollout.shard_ranges:
            continue
        is_late = after.table is None or not after.table.confirmed_at or windows.is_draining(after)
        begun = windows.held_shards(rollout, after) - (windows.held_shards(old, before) if old else frozenset())
        if not begun or (old is None and is_late):
            continue
        shards = sum(len(windows.held_shards(other, after)) for other in after.rollouts)
        if shards > generation.shards + dataset.spec["rollout"]["maxSurgeShards"]:
            raise Broken(f"shards {format_shards(begun)} of {rollout.rollout} begin, and {shards} are there then")


def _rollout_of(host: str) -> str:
    return host.split(".")[1].rpartition("-")[2]


def _list_needs(entries: Iterable[dict[str, Any]]) -> Iterable[tuple[str, int, int]]:
    for entry in entries:
        for shard, named in enumerate(entry["shards"]):
            servers = {host.split(".")[0] for host in named["endpoints"]}
            yield _rollout_of(named["endpoints"][0]), shard, len(servers)


def _check_transitions(before: DatasetStatus, after: DatasetStatus, *, was_lost: bool) -> None:
    """Return whether one pass through the table of transitions leads from ``before`` to ``after``."""
    rollouts = {rollout.rollout for status in (before, after) for rollout in status.rollouts}
    generations = {generation.generation for status in (before, after) for generation in status.generations}
    generations |= {status.build.generation for status in (before, after) if status.build is not None}
    generations |= {status.refused.generation for status in (before, after) if status.refused is not None}
    for name in rollouts | generations:
        phase_of: Callable[[str, DatasetStatus], Phase] = (
            lifecycle.rollout_phase if name in rollouts else lifecycle.generation_phase
        )
        start, end = phase_of(name, before), phase_of(name, after)
        is_forgotten = start in (RolloutPhase.UNCLAIMED, GenerationPhase.UNCLAIMED)
        if end not in reachable(start, recovers=was_lost or is_forgotten):
            raise Broken(f"{name} was {start.value} and becomes {end.value}: no transition leads there")


def _names(status: DatasetStatus) -> set[str]:
    return {generation.generation for generation in status.generations}


def _data(name: str, status: DatasetStatus) -> tuple[str, str]:
    """Return source and spec of the generation ``name``."""
    generation = status.find_generation(name)
    return ("", name) if generation is None else (generation.fingerprint, generation.content)


@functools.cache
def reachable(start: Phase, *, recovers: bool) -> frozenset[Phase]:
    """Return every phase that one pass may lead to: each transition is applied once, in order."""
    phases = {start}
    for transition in lifecycle.TRANSITIONS:
        if recovers or transition is not lifecycle.RECOVER:
            phases |= {after for before, after in transition.edges if before in phases}
    return frozenset(phases)


def _same(known: dict[Any, str], key: Any, value: str, message: str) -> None:
    if known.setdefault(key, value) != value:
        raise Broken(message)
