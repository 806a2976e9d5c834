"""A rollout shard by shard (``rollout.strategy: PerShard``): which shards of the target rollout are created next, how
many at a time, and when. Shards that are created together are a *window*:

    the StatefulSets of the next ``maxSurgeShards`` shards are created
    their servers are ready: a routing table routes these shards to them            routing_tables
    routers confirm it, the drain time passes, the replaced StatefulSets go         cutover, objects
    they are seen to be gone, their pods too: the next window

So at most ``maxSurgeShards`` shards have servers beyond those of one whole rollout. A window takes a
rollout slot of its own: between two windows other datasets may have theirs. One case exceeds the bound: if routers fail
for long to take up a table, or to leave one, another target rollout may begin, because it may correct the cause.

One window replaces all shards if no generation is known to serve, or if the active one has another number of shards,
key or value format: a lookup could not know whose rules apply. The same holds if ``MOST_SERVING`` rollouts serve shards
already, each interrupted by the next. This file also counts servers per shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import (
    Absence,
    Deletion,
    Observed,
    Pod,
    Trouble,
    format_moment,
    parse_moment,
    seconds_until,
)
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import generations, reasons
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import (
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    TableStatus,
    format_shards,
    parse_shards,
    replace,
    select_shards,
    shorten_shards,
)

# The servers that routing tables reference: the newest table, and any older one that a router may still use. Nothing
# is decided here.


CONFIRMATION_SECONDS: Final = 60.0
"""Seconds that routers have to take up a routing table. A kubelet that was not nudged syncs ConfigMaps every minute or
so."""
MOST_REPLICAS: Final = 64
"""Maximum number of servers of a shard, from the CRD."""
STALE_MOUNT_SECONDS: Final = 120.0
"""Seconds for which a container that restarts may find an older routing table mounted: its kubelet syncs every minute,
from a cache that may be another minute old."""


def held_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards for which ``rollout`` has servers, or soon will."""
    return frozenset(select_shards(rollout.shard_ranges, generations.count_shards(status, rollout)))


def routed_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that the newest routing table routes to ``rollout``."""
    table = status.table
    if table is None:
        return frozenset()
    of_parts = {part.rollout: parse_shards(part.shard_ranges) for part in table.parts}
    if table.rollout != rollout.rollout:
        return of_parts.get(rollout.rollout, frozenset())
    return frozenset(range(generations.count_shards(status, rollout))).difference(*of_parts.values())


def referenced_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that some routing table may still route to ``rollout``, except as a candidate."""
    if not rollout.referenced_replicas:
        return frozenset()
    return held_shards(rollout, status) - parse_shards(rollout.window)


def pending_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that ``rollout`` has servers of, and that the newest routing table does not route to it."""
    return held_shards(rollout, status) - routed_shards(rollout, status)


def count_replicas(rollout: str, observed: Observed) -> int:
    """Number of servers per shard of ``rollout`` in the cluster, at most the number that a status can hold."""
    counts = (shard_set.replicas for shard_set in observed.shard_sets if shard_set.rollout == rollout)
    return min(max(counts, default=0), MOST_REPLICAS)


def serving_rollouts(status: DatasetStatus) -> tuple[RolloutStatus, ...]:
    """The rollouts that the newest routing table routes shards to, oldest first."""
    return tuple(rollout for rollout in status.rollouts if is_in_table(rollout.rollout, status.table))


def is_in_table(rollout: str, table: TableStatus | None) -> bool:
    """Return whether ``table`` routes shards to ``rollout``."""
    return table is not None and rollout in (table.rollout, *(part.rollout for part in table.parts))


def count_offered(status: DatasetStatus, rollout: RolloutStatus) -> int:
    """Number of servers of each shard of ``rollout`` that stay because it waits for promotion."""
    if status.candidate is None or status.candidate.rollout != rollout.rollout:
        return 0
    offered = None if status.table is None else status.table.candidate
    return rollout.offered_replicas if offered is None else offered.replicas


def is_draining(status: DatasetStatus) -> bool:
    """Return whether servers are kept only because an older table than the one in effect references them."""
    table = status.table
    if table is None or not table.confirmed_at:
        return False
    for rollout in status.rollouts:
        is_routed_to = is_in_table(rollout.rollout, table)
        if (
            rollout.referenced_replicas > (table.replicas if is_routed_to else 0)
            or rollout.offered_replicas > count_offered(status, rollout)
            or (is_routed_to and not referenced_shards(rollout, status) <= routed_shards(rollout, status))
        ):
            return True
    return False


def is_confirmation_overdue(status: DatasetStatus, situation: Situation) -> bool:
    """Return whether a router takes too long to take up the routing table."""
    table = status.table
    if table is None or table.confirmed_at:
        return False
    return seconds_until(table.written_at, CONFIRMATION_SECONDS, situation.now) == 0


def is_retirement_overdue(table: TableStatus, situation: Situation) -> bool:
    """Return whether a router keeps the servers of an older table for long after the drain time of ``table``."""
    seconds = max(situation.desired.drain_seconds, situation.desired.router_drain_seconds, STALE_MOUNT_SECONDS)
    return seconds_until(table.confirmed_at, seconds + CONFIRMATION_SECONDS, situation.now) == 0


# Leftovers: StatefulSets and pods that still exist though no rollout has servers of their shard any more. Kubernetes
# deletes them, and a rollout shard by shard waits with its next shards until they are gone.
#
# The wait ends by itself, unless a finalizer holds an object or the garbage collector does not run. After
# ``rollout.progressDeadlineSeconds`` RolledOut and Degraded name the object and what holds it. The operator removes no
# finalizer: it belongs to another program, which has something to do first.


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object that should be gone."""

    kind: str
    name: str
    rollout: str
    shard: int
    deletion: Deletion | None
    """None while it is not being deleted."""


def list_leftovers(status: DatasetStatus, observed: Observed) -> list[Leftover]:
    """The StatefulSets and pods that are to go, in order of their names."""
    held = {rollout.rollout: held_shards(rollout, status) for rollout in status.rollouts}
    servers = [Leftover("StatefulSet", x.ref.name, x.rollout, x.shard, x.deletion) for x in observed.shard_sets]
    pods = (pod for pod in observed.pods if pod.component == names.SHARDS)
    servers += [Leftover("Pod", pod.name, pod.rollout, pod.shard, pod.deletion) for pod in pods]
    found = (server for server in servers if server.shard not in held.get(server.rollout, ()))
    return sorted(found, key=lambda server: (server.name, server.kind))


def diagnose_leftovers(status: DatasetStatus, table: TableStatus, situation: Situation) -> Trouble | None:
    """The first overdue leftover, and what holds it; ``table`` has been confirmed."""
    deadline = situation.desired.progress_deadline_seconds
    for leftover in list_leftovers(status, situation.observed):
        if _remaining_seconds(leftover, table, situation) == 0:
            what = f"{leftover.kind} {leftover.name}, which was replaced, is still there"
            how = describe_holder(leftover, situation.dataset.namespace)
            return Trouble(
                reasons.DELETION_OVERDUE,
                f"{what} {deadline:g} s after it should be gone, and the next shards wait; {how}",
            )
    return None


def next_overdue_in(status: DatasetStatus, table: TableStatus, situation: Situation) -> float | None:
    """Seconds until the next leftover is overdue; None if all are overdue or there are none."""
    leftovers = list_leftovers(status, situation.observed)
    return reasons.find_earliest(_remaining_seconds(leftover, table, situation) for leftover in leftovers)


def _remaining_seconds(leftover: Leftover, table: TableStatus, situation: Situation) -> float:
    """Seconds until ``leftover`` is overdue, counted from the end of its grace period or of the drain time if later."""
    since = parse_moment(table.confirmed_at) + timedelta(seconds=situation.desired.drain_seconds)
    since = max(since, leftover.deletion.due) if leftover.deletion is not None else since
    until = since + timedelta(seconds=situation.desired.progress_deadline_seconds)
    return max(0.0, (until - situation.now).total_seconds())


def describe_holder(leftover: Leftover, namespace: str) -> str:
    """Why ``leftover`` stays, and what to do about it."""
    kind, deletion = leftover.kind.lower(), leftover.deletion
    if deletion is None:
        return "nobody has deleted it yet: check whether kube-controller-manager runs"
    if deletion.finalizers:
        held_by = ", ".join(deletion.finalizers)
        finalizers, them = ("its finalizers", "them") if len(deletion.finalizers) > 1 else ("its finalizer", "it")
        command = f"kubectl patch -n {namespace} {kind} {leftover.name} --type=merge"
        return (
            f"{finalizers} {held_by} must be removed by the controller that set {them}. If that does not happen,"
            f' this removes all finalizers: {command} -p \'{{"metadata":{{"finalizers":null}}}}\''
        )
    return f"see why with: kubectl describe -n {namespace} {kind} {leftover.name}"


PER_SHARD: Final = "PerShard"
MOST_SERVING: Final = 6
"""Maximum number of rollouts that one routing table routes shards to."""


def explain_at_once(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> str:
    """Why all shards of a rollout are created together though the spec says PerShard; empty if they are not."""
    desired, table = situation.desired, status.table
    if desired.strategy != PER_SHARD:
        return ""
    if desired.promotion != "Auto" or desired.keep_previous_seconds:
        return "PerShard cannot be combined with promotion: Manual or keepPrevious"
    if table is None:
        return "no serving generation is known that could be replaced shard by shard"
    serving = [status.find_generation(rollout.generation) for rollout in serving_rollouts(status)]
    if any(other is None or _layout(other) != _layout(generation) for other in serving):
        return "the active generation has another number of shards, key or value format"
    template = situation.template_for(generation)
    others = sum(rollout.template != template for rollout in serving_rollouts(status))
    return f"{others} rollouts serve shards already" if others >= MOST_SERVING else ""


def _layout(generation: GenerationStatus) -> tuple[object, ...]:
    key = generation.normalize, generation.key_columns, generation.separator
    return generation.shards, key, generation.value_format


def window_size(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> int:
    """Number of shards of a rollout of ``generation`` that are created at a time."""
    desired = situation.desired
    if desired.strategy != PER_SHARD or explain_at_once(generation, status, situation):
        return generation.shards
    return min(desired.max_surge_shards, generation.shards)


def next_window(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> frozenset[int]:
    """The shards of ``target`` to create next; none while others still wait to be routed to, unless all are created
    together."""
    generation = status.find_generation(target.generation)
    if generation is None or situation.desired.is_suspended:
        return frozenset()
    missing = sorted(frozenset(range(generation.shards)) - held_shards(target, status))
    size = window_size(generation, status, situation)
    if size < generation.shards and pending_shards(target, status):
        return frozenset()
    return frozenset(missing[:size])


def may_begin(status: DatasetStatus, situation: Situation, *, is_first: bool) -> bool:
    """Return whether the next window may begin: what the last one replaced is gone. The first window may begin earlier
    if routers delay the removal for long.
    """
    table = status.table
    if table is None:
        return True
    held = {rollout.rollout: held_shards(rollout, status) for rollout in status.rollouts}
    before = situation.observed.dataset.status
    for rollout in before.rollouts:
        if not held_shards(rollout, before) <= held.get(rollout.rollout, frozenset()):
            return False  # servers that this pass gave up may just have been created, and be seen later
    if table.confirmed_at and not is_draining(status):
        return not list_leftovers(status, situation.observed)
    if not is_first:
        return False
    is_late = table.confirmed_at and is_retirement_overdue(table, situation)
    return bool(is_late) or is_confirmation_overdue(status, situation)


def with_next_window(
    target: RolloutStatus, window: frozenset[int], status: DatasetStatus, situation: Situation
) -> RolloutStatus:
    """``target`` with the servers of ``window`` too."""
    held = held_shards(target, status) | window
    starting = parse_shards(target.window) | window
    return replace(
        target,
        shard_ranges=shorten_shards(held, generations.count_shards(status, target)),
        window="" if target.is_candidate else format_shards(starting),
        started_at=format_moment(situation.now),
        stall=None,
    )


def without_window(rollout: RolloutStatus, status: DatasetStatus) -> RolloutStatus:
    """``rollout`` without servers that no routing table references."""
    if not rollout.window:
        return rollout
    held = held_shards(rollout, status) - parse_shards(rollout.window)
    count = generations.count_shards(status, rollout)
    return replace(rollout, shard_ranges=shorten_shards(held, count), window="", stall=None)


def with_due_window(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> RolloutStatus:
    """``target`` with its window resized, because ``maxSurgeShards`` or the strategy may have changed. Servers that no
    table references may go at once."""
    generation = status.find_generation(target.generation)
    if generation is None or not target.is_starting:
        return target
    if situation.desired.is_suspended:
        return target if target.is_candidate else without_window(target, status)
    held = held_shards(target, status)
    starting = held if target.is_candidate else parse_shards(target.window)
    size = window_size(generation, status, situation)
    if size == generation.shards:
        missing = frozenset(range(generation.shards)) - held
        return with_next_window(target, missing, status, situation) if missing else target
    kept = frozenset(sorted(starting)[:size])
    if kept == starting:
        return target
    left = held - starting | kept
    return replace(
        target,
        shard_ranges=shorten_shards(left, generation.shards),
        window="" if target.is_candidate else format_shards(kept),
    )


def describe_progress(status: DatasetStatus) -> str:
    """Return the progress of a shard-by-shard rollout, as the beginning of a sentence; empty if there is none."""
    table = status.table
    if table is None or not table.parts:
        return ""
    counts: dict[str, int] = {}
    for rollout in serving_rollouts(status):
        name = rollout.generation if table.is_mixed else rollout.rollout
        counts[name] = counts.get(name, 0) + len(routed_shards(rollout, status))
    ours = table.generation if table.is_mixed else table.rollout
    others = [name for name in counts if name != ours]
    ordered = " and ".join(sorted(others, key=names.read_number))
    shards = format_count(sum(counts.values()), "shard")
    return f"{counts.get(ours, 0)} of {shards} answer from {ours}, the others from {ordered}; "


def describe_serving(status: DatasetStatus, verb: str = "serve") -> str:
    """Name the generations that serve, with a verb: ``g12 serves``, ``g12 and g13 serve``."""
    serving = {rollout.generation for rollout in serving_rollouts(status)}
    ordered = sorted(serving, key=names.read_number)
    if status.table is None or not status.table.is_mixed:
        return f"{status.generation} {verb}s"
    return f"{', '.join(ordered[:-1])} and {ordered[-1]} {verb}"


# The servers of a rollout's shards, counted: how many are ready, and how many are in trouble. Nothing is decided here.


_UNSEEN: Final = Absence()


@dataclass(frozen=True, slots=True)
class ShardServers:
    """The servers of one shard, pods 0 to replicas-1."""

    shard: int
    replicas: int
    ready: int
    troubled: int
    """In trouble and not ready, overdue, or being deleted."""
    overdue: int
    """Not ready for longer than servers may take, for no reported reason."""

    @property
    def needed_servers(self) -> int:
        """Number of servers that must be ready before routers are sent to them: all but one, and at least one."""
        return max(1, self.replicas - 1)


def count_ready_shards(rollout: RolloutStatus, replicas: int, shards: Collection[int], situation: Situation) -> int:
    """Number of ``shards`` of ``rollout`` that have ``replicas`` ready servers."""
    servers_by_shard = list_shard_servers(rollout, replicas, shards, situation)
    return sum(servers.ready >= servers.replicas for servers in servers_by_shard)


def list_shard_servers(
    rollout: RolloutStatus, replicas: int, shards: Collection[int], situation: Situation
) -> Iterator[ShardServers]:
    """The servers of each of ``shards`` of ``rollout``."""
    observed = situation.observed
    pods: dict[int, dict[int, Pod]] = {}
    for pod in observed.pods:
        if pod.component == SHARDS and pod.rollout == rollout.rollout and read_ordinal(pod) in range(replicas):
            pods.setdefault(pod.shard, {})[read_ordinal(pod)] = pod
    sets = {
        shard_set.shard: shard_set
        for shard_set in observed.shard_sets
        if shard_set.rollout == rollout.rollout and not shard_set.deleting
    }
    for shard in sorted(shards):
        shard_set, servers = sets.get(shard), tuple(pods.get(shard, {}).values())
        ready = sum(pod.ready and not pod.deleting for pod in servers)
        overdue = sum(_is_silent(pod) and not _remaining_patience(pod, situation) for pod in servers)
        troubled = overdue + sum(pod.deleting or (not pod.ready and pod.trouble is not None) for pod in servers)
        if shard_set is not None and shard_set.trouble is not None:
            troubled += replicas - len(servers)
        # Either count may be late; a StatefulSet's is 0 until its controller has seen the newest spec.
        ready = min(ready, 0 if shard_set is None else shard_set.ready)
        yield ShardServers(shard, replicas, ready, troubled, overdue)


def next_server_overdue_in(rollout: RolloutStatus, situation: Situation) -> float | None:
    """Seconds until the next server of ``rollout`` counts as overdue; None for never."""
    servers = (pod for pod in situation.observed.pods if pod.component == SHARDS and pod.rollout == rollout.rollout)
    return reasons.find_earliest(_remaining_patience(pod, situation) for pod in servers if _is_silent(pod))


def _is_silent(pod: Pod) -> bool:
    return not pod.ready and not pod.deleting and pod.trouble is None


def _remaining_patience(pod: Pod, situation: Situation) -> float:
    """Seconds for which ``pod`` may stay unready, whatever the wall clock shows."""
    seen = situation.observed.absences.get(pod.uid, _UNSEEN)
    return max(0.0, situation.desired.progress_deadline_seconds - seen.unready)


def read_ordinal(pod: Pod) -> int:
    """Return the number of a server among those of its shard; -1 if its name has none."""
    ordinal = pod.name.rpartition("-")[2]
    return int(ordinal) if ordinal.isascii() and ordinal.isdigit() else -1
