"""A lookup from submission to answer.

A waiter gets one call per key (``Waiter``) or per batch (``BatchWaiter``). A ``PendingLookup`` holds the keys of one
shard: a ``SingleKey``, or a ``ShardSlice`` of a batch. It has at most two tries: the second begins when the first
fails, or is late while another replica is ready. The first answer wins; later ones are ignored. ``Deadlines`` starts
late second tries and ends overdue lookups. ``ScatterGather`` collects the slices of a batch and answers when the last
one has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final, Literal, Protocol, TypeAlias

from hiredis import ReplyError

from lookupdb.router.batch_keys import NO_KEYS, NO_VALUES, BatchKeys, BatchValues, ReplyValues, ShardKeys
from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import INDEX
from lookupdb.router.server_connection import ServerAddress


@dataclass(frozen=True, slots=True, eq=False)
class ServedGeneration:
    """The generation that answers, or the generations of a mixed routing table. Compared by identity."""

    names: tuple[str, ...]
    """For example ``g12``; several are in the order of their numbers."""
    value_format: Literal["json", "raw"]
    encode: Callable[[str], bytes]
    """Turns a requested key into its stored bytes (see ``keys.make_key_encoder``); raises InvalidKey."""
    normalize: tuple[str, ...]
    etag: str = field(default="", kw_only=True)
    """The entity tag of the generation's values, with quotes; empty for several generations."""
    name: str = field(init=False)
    """The value of the generation header: ``g12``, or ``g12, g13``."""
    members: dict[str, object] = field(init=False)
    """The members that name the generation in the answer to a batch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", ", ".join(self.names))
        members: dict[str, object] = {"generation": self.name}
        if len(self.names) > 1:
            members = {"generation": None, "generations": self.names}
        object.__setattr__(self, "members", members)


# Lookups use callbacks, so that a key costs no future.

Reason: TypeAlias = Literal["NoTable", "Unreachable", "QueueFull", "Deadline", "BadAnswer", "Damaged", "Overloaded"]
"""Stable, because clients read it. ``docs/reference/http-api.md`` says what clients can do. Sources of each reason:

| reason | source | condition |
| --- | --- | --- |
| NoTable | ``LookupCore.find``, ``find_many``; ``GET /v1/dataset`` | no routing table is in effect |
| Unreachable | ``Lane.on_no_connection``, ``stop_waiting`` | the connection breaks or closes during a try |
| Unreachable | ``ShardReplicas._park`` | no endpoint is ready or was recently, or too many keys wait for one |
| QueueFull | ``ShardReplicas.submit`` | the queues of the chosen and the least busy endpoint are full |
| Deadline | ``Deadlines._sweep`` | the deadline has passed, wherever the lookup waits |
| BadAnswer | ``Lane._on_reply`` | the server answers a try with an error |
| Damaged | ``Lane._on_reply`` | the key's value is damaged |
| Overloaded | ``LookupCore.find``, ``find_many`` | the budget is used up, or half of it for a batch |
| Overloaded | ``PendingLookup.may_receive`` | a large value arrives while three quarters of the budget are used |
| Overloaded | ``ConnectionLife._refuse_overloaded`` | the budget is used up: the request is refused, not its keys |

A try's problem is reported only if no other try is open and no second one can begin (``PendingLookup.fail_try``).
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a key is unavailable. Always temporary: the client may retry."""

    reason: Reason
    detail: str
    """A sentence for people: the attempt, the place and the finding."""
    shard: int | None = None
    is_of_client: bool = False
    """True if the client's deadline was shorter than the router's, and a server was still working."""


NO_TABLE: Final = Problem("NoTable", "the router has no valid routing table yet: nothing is served")
OVERLOADED: Final = Problem(
    "Overloaded", "the requests and answers in the router use up its memory budget; retry later"
)


def make_endpoint_problem(reason: Reason, shard: int, address: ServerAddress, finding: str) -> Problem:
    """Return a problem with the endpoint of ``shard`` at ``address``."""
    return Problem(reason, f"shard {shard}: {address}: {finding}", shard)


class Waiter(Protocol):
    """Gets exactly one of these calls for a key, possibly before ``LookupCore.find`` returns. Must not raise."""

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """Take the key's value."""

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""

    def unavailable(self, problem: Problem) -> None:
        """The key is unavailable."""

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """The routing table, whose active generation is ``active``, serves no generation ``name``. During a
        shard-by-shard rollout it serves none by name."""


class BatchWaiter(Protocol):
    """Gets exactly one of these calls for a batch, possibly before ``find_many`` returns. Must not raise."""

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """Take the values, ``size`` bytes. ``problem`` is the first unavailable key's; None if all keys are
        available."""

    def too_large(self, limit: int) -> None:
        """The values exceed ``limit`` bytes together."""

    def unavailable(self, problem: Problem) -> None:
        """All keys are unavailable."""

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """See ``Waiter.unknown_generation``."""


log = logging.getLogger(__name__)

KEYS_UNAVAILABLE: Final = INDEX["keys_unavailable"]
CLIENT_DEADLINE_KEYS_UNAVAILABLE: Final = INDEX["client_deadline_keys_unavailable"]
CANDIDATE_KEYS_UNAVAILABLE: Final = INDEX["candidate_keys_unavailable"]


class LookupTarget(Protocol):
    """An endpoint as lookups use it."""

    address: ServerAddress

    @property
    def outstanding(self) -> int:
        """The number of keys queued and in flight."""

    @property
    def answered_at(self) -> float:
        """Event loop time of the last answer."""

    @property
    def is_silent(self) -> bool:
        """Return whether a batch has waited for the whole deadline, and none was answered since."""

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch. Return False if the queue is full."""


class LookupReplicas(Protocol):
    """The replicas of a shard as lookups use them."""

    number: int
    generation: ServedGeneration
    """The generation that all replicas have proven to serve."""
    counters: memoryview
    unavailable_counter: int
    client_deadline_counter: int
    """The counter of keys whose client did not wait long enough."""

    def explain_absence(self) -> str:
        """Return why no endpoint is ready."""

    def submit(self, lookup: PendingLookup) -> None:
        """Begin the first try of ``lookup``."""

    def retry(self, lookup: PendingLookup, problem: Problem) -> None:
        """Begin the second try of ``lookup`` after the first failed with ``problem``."""

    def try_another(self, lookup: PendingLookup, *, is_hedge: bool) -> None:
        """Begin the second try of ``lookup`` while the first is open, if another replica is ready."""


class PendingLookup:
    """What SingleKey and ShardSlice share: the endpoints that have the lookup, and what follows a failed try."""

    __slots__ = ("first_target", "is_done", "is_retried", "open_tries", "replicas", "second_target", "started_at")
    key_count: int

    def __init__(self, replicas: LookupReplicas, started_at: float) -> None:
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = False
        self.is_retried = False
        self.open_tries = 0
        """The number of endpoints that have this lookup now."""
        self.first_target: LookupTarget | None = None
        self.second_target: LookupTarget | None = None
        """The endpoint of the second try, possibly the same."""

    @property
    def packed(self) -> bytes:
        """The keys as consecutive RESP bulk strings, as a batch contains them."""
        raise NotImplementedError

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Take this lookup's values of an answered batch, from ``offset`` on. The lane counts them."""
        raise NotImplementedError

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Take the readable values like ``deliver``. For the other keys the try has failed with ``problem``."""
        raise NotImplementedError

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Return whether this try may receive a value that brings it to ``size`` bytes. If not, answer the request
        now."""
        if budget.has_room(size):
            return True
        self.give_up(OVERLOADED)
        return False

    def give_up(self, problem: Problem) -> None:
        """Report the problem to the waiter, unless the lookup is done."""
        raise NotImplementedError

    def count_unavailable(self, problem: Problem, key_count: int) -> None:
        """Count keys that are given up with ``problem``."""
        replicas = self.replicas
        counter = replicas.client_deadline_counter if problem.is_of_client else replicas.unavailable_counter
        replicas.counters[counter] += key_count

    def fail_try(self, problem: Problem) -> None:
        """End a try. Begin the second if there was none; give up when no endpoint has the lookup."""
        self.open_tries -= 1
        if self.is_done or self.open_tries:
            return
        if self.is_retried:
            self.give_up(problem)
        else:
            self.is_retried = True
            self.replicas.retry(self, problem)


def fail_tries(lookups: Iterable[PendingLookup], problem: Problem) -> None:
    """End a try of each of ``lookups``. Never raises: an error of one lookup must not stop the others."""
    for lookup in lookups:
        try:
            lookup.fail_try(problem)
        except Exception:
            log.exception("a waiter failed")


class SingleKey(PendingLookup):
    """One key with its waiter."""

    __slots__ = ("packed", "waiter")
    key_count = 1
    packed: bytes
    """The key as a RESP bulk string. Reading an attribute costs half as much as a property."""

    def __init__(self, key: bytes, waiter: Waiter, replicas: LookupReplicas, started_at: float) -> None:
        # No super(): this is the hot path.
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = self.is_retried = False
        self.open_tries = 0
        self.first_target = self.second_target = None
        self.packed = b"$%d\r\n%b\r\n" % (len(key), key)
        self.waiter = waiter

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Give the waiter its value."""
        self.is_done = True
        value = values[offset]
        if value is None:
            self.waiter.missing(self.replicas.generation)
        else:
            self.waiter.found(value, self.replicas.generation)

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Fail the try: its only value is unreadable."""
        self.fail_try(problem)

    def give_up(self, problem: Problem) -> None:
        """Report the problem to the waiter."""
        if not self.is_done:
            self.is_done = True
            self.count_unavailable(problem, 1)
            self.waiter.unavailable(problem)


# One coarse sweep watches all deadlines, so that no lookup needs a timer. Lookups of one deadline end in the order in
# which they began, so two queues suffice for each deadline.


_DEADLINES: Final = INDEX["deadlines"]
_MAX_TICK_SECONDS: Final = 0.05
_MIN_TICK_SECONDS: Final = 0.001
_KEPT_BITS: Final = 4
"""Number of significant bits to keep of a shorter deadline in milliseconds."""
_COMPACT_AT: Final = 4096
"""Queue length beyond which finished lookups are removed even behind an open one."""


class RequestDeadlines:
    """The router's own deadline, and the shorter ones that clients request.

    A shorter one is rounded down, by at most an eighth, which limits the number of queues to a few hundred.
    """

    def __init__(self, milliseconds: int, hedge: float, counters: memoryview) -> None:
        self.own = Deadlines(milliseconds / 1000, hedge, counters)
        self._milliseconds = milliseconds
        self._hedge = hedge
        self._counters = counters
        self._shorter: dict[int, Deadlines] = {}

    def choose_watch(self, milliseconds: int) -> Callable[[PendingLookup], None]:
        """Return the ``add`` that watches a lookup for ``milliseconds``, or for the router's own deadline if that is
        shorter."""
        if milliseconds >= self._milliseconds:
            return self.own.add
        lost_bits = max(0, milliseconds.bit_length() - _KEPT_BITS)
        rounded = milliseconds >> lost_bits << lost_bits
        shorter = self._shorter.get(rounded)
        if shorter is None:
            shorter = self._shorter[rounded] = Deadlines(rounded / 1000, self._hedge, self._counters, is_of_client=True)
        return shorter.add


class Deadlines:
    """Starts a second try of each open lookup, and ends the lookup after ``deadline`` seconds.

    The second try begins after ``hedge`` seconds. If that is 0, it begins after half of the deadline, when the first
    counts as timed out.
    """

    def __init__(self, deadline: float, hedge: float, counters: memoryview, *, is_of_client: bool = False) -> None:
        self._deadline = deadline
        self._is_of_client = is_of_client
        """True if clients requested this deadline; otherwise it is the router's own."""
        self._is_hedge = 0 < hedge < deadline / 2
        self._retry_seconds = hedge if self._is_hedge else deadline / 2
        self._tick_seconds = min(max(self._retry_seconds / 8, _MIN_TICK_SECONDS), _MAX_TICK_SECONDS)
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._retry_queue: deque[PendingLookup] = deque()
        self._deadline_queue: deque[PendingLookup] = deque()
        """Lookups whose second try was due; they end at their deadline."""
        self._compact_at = _COMPACT_AT
        self._timer: asyncio.TimerHandle | None = None

    def add(self, lookup: PendingLookup) -> None:
        """Watch ``lookup`` until it is done."""
        retry_queue = self._retry_queue
        while retry_queue and retry_queue[0].is_done:
            # The sweep would come too late: thousands of finished lookups would crowd the CPU cache.
            retry_queue.popleft()
        retry_queue.append(lookup)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_seconds, self._sweep)

    def _sweep(self) -> None:
        now, retries, deadlines = self._loop.time(), self._retry_queue, self._deadline_queue
        try:
            while retries and (retries[0].is_done or retries[0].started_at + self._retry_seconds <= now):
                lookup = retries.popleft()
                if not lookup.is_done:
                    deadlines.append(lookup)
                    if lookup.started_at + self._deadline > now:  # else nobody waits for the second try
                        lookup.replicas.try_another(lookup, is_hedge=self._is_hedge)
            while deadlines and (deadlines[0].is_done or deadlines[0].started_at + self._deadline <= now):
                lookup = deadlines.popleft()
                if not lookup.is_done:
                    self._counters[_DEADLINES] += lookup.key_count
                    lookup.give_up(self._problem(lookup))
            if len(retries) + len(deadlines) > self._compact_at:
                # Remove finished lookups, which pile up behind those of a shard that does not answer.
                self._retry_queue = deque(lookup for lookup in retries if not lookup.is_done)
                self._deadline_queue = deque(lookup for lookup in deadlines if not lookup.is_done)
                self._compact_at = max(_COMPACT_AT, 2 * (len(self._retry_queue) + len(self._deadline_queue)))
        finally:  # an error of one lookup must not stop the others' deadlines
            is_due = self._retry_queue or self._deadline_queue
            self._timer = self._loop.call_later(self._tick_seconds, self._sweep) if is_due else None

    def _problem(self, lookup: PendingLookup) -> Problem:
        """Return the problem of an overdue lookup. It distinguishes a silent server, a slow server, and no server."""
        shard, seconds, target = lookup.replicas.number, f"{self._deadline:g} s", lookup.first_target
        if target is None:
            finding = f"no server came back within {seconds}"
        elif target.answered_at < lookup.started_at:
            finding = f"no answer from {target.address} for {seconds}, to this lookup or another"
        else:
            finding = f"no answer from {target.address} within {seconds}; it has answered others since"
        if not lookup.open_tries:  # waits for a ready server
            finding += f"; not reachable now: {lookup.replicas.explain_absence()}"
        elif lookup.is_retried:
            finding += "; a second try had none either"
        # If every server that has the lookup is silent, a longer client deadline would not have helped.
        tried = [target for target in (lookup.first_target, lookup.second_target) if target is not None]
        asked = tried[-lookup.open_tries :] if lookup.open_tries else []
        is_of_client = self._is_of_client and not all(target.is_silent for target in asked)
        return Problem("Deadline", f"shard {shard}: {finding}", shard, is_of_client)


LARGE_SLICE_KEYS: Final = 16
"""A slice with more keys is large work regardless of recent value sizes."""


class ScatterGather:
    """Gathers the values of a batch until all its slices have arrived. Counts their bytes in ``budget``."""

    __slots__ = (
        "_slices",
        "_waiter",
        "budget",
        "generation",
        "held_bytes",
        "is_large",
        "key_count",
        "pending_slices",
        "problem",
        "value_bytes",
        "values",
    )

    def __init__(
        self, keys: BatchKeys, waiter: BatchWaiter, generation: ServedGeneration, budget: RouterBudget
    ) -> None:
        self.key_count = len(keys)
        self.values: BatchValues = keys.make_values()
        """The values; a key that is in no slice is missing."""
        self._waiter: BatchWaiter | None = waiter
        self.generation = generation
        self.value_bytes = 0
        """Bytes of values that have arrived or are announced."""
        self.pending_slices = 0
        self.problem: Problem | None = None
        self.budget = budget
        self.held_bytes = 0
        """Bytes taken from the budget."""
        self._slices: list[ShardSlice] = []
        self.is_large = False
        """True if its slices are large work on average; then the small ones count as large, too."""

    def await_slices(self, slices: list[ShardSlice]) -> None:
        """Wait for all of ``slices``."""
        self._slices = slices
        self.pending_slices = len(slices)
        self.is_large = self.key_count > LARGE_SLICE_KEYS * len(slices)

    def count_bytes(self, size: int) -> bool:
        """Count ``size`` more bytes of values. If that is too many, answer the waiter and return False."""
        self.value_bytes += size
        if self.value_bytes <= self.budget.answer_bytes:
            return True
        waiter = self._release_waiter()
        self.abandon()
        waiter.too_large(self.budget.answer_bytes)
        return False

    def finish(self) -> None:
        """Answer the waiter."""
        values = self.values
        self.values = NO_VALUES  # finished slices in queues must not keep the values
        if self.problem and values.unavailable_count == self.key_count:
            self.refuse(self.problem)
            return
        size = self.value_bytes
        self._release_budget()
        self._release_waiter().done(self.generation, values, size, self.problem)

    def refuse(self, problem: Problem) -> None:
        """Answer the waiter that all keys are unavailable, and drop what has arrived."""
        waiter = self._release_waiter()
        self.abandon()
        waiter.unavailable(problem)

    def abandon(self) -> None:
        """Stop waiting, without an answer, and release everything."""
        for shard_slice in self._slices:
            shard_slice.end()
        self._release_budget()
        self.values = NO_VALUES
        self._waiter = None

    def _release_waiter(self) -> BatchWaiter:
        """Return the waiter and forget it. The waiter refers back, and no object may wait for the garbage collector."""
        waiter = self._waiter
        assert waiter is not None, "the waiter has its answer already"
        self._waiter = None
        return waiter

    def _release_budget(self) -> None:
        self.budget.release(self.held_bytes)
        self.held_bytes = 0
        self._slices = []


class ShardSlice(PendingLookup):
    """The keys of a ScatterGather that go to one shard in one batch."""

    __slots__ = ("counted_bytes", "gather", "key_count", "keys")

    def __init__(self, keys: ShardKeys, gather: ScatterGather, replicas: LookupReplicas, started_at: float) -> None:
        # No super(): this is the hot path of batches.
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = self.is_retried = False
        self.open_tries = 0
        self.first_target = self.second_target = None
        self.keys = keys
        self.gather = gather
        self.key_count = len(keys)
        self.counted_bytes = 0
        """Bytes of its values that the gather counted before delivery."""

    @property
    def packed(self) -> bytes:
        """The keys as consecutive RESP bulk strings."""
        return self.keys.packed

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Store the values in the gather."""
        # Few calls: this is the hot path of batches.
        gather = self.gather
        size = gather.values.place(self.keys, values, offset)
        if self.counted_bytes or gather.value_bytes + size > gather.budget.answer_bytes:
            if not self._count(size):
                return
        else:
            gather.value_bytes += size
        gather.held_bytes += size
        gather.budget.used += size
        self.end()
        gather.pending_slices -= 1
        if not gather.pending_slices:
            gather.finish()

    def end(self) -> None:
        """End the lookup and drop its keys, because the lookup stays in queues for a while, and no budget counts it
        there."""
        self.is_done = True
        self.keys = NO_KEYS

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Keep the readable values, and fail the try for the other keys.

        While another try is open, keep nothing: its answer must match the keys that were sent.
        """
        if self.open_tries > 1:
            self.fail_try(problem)
            return
        own_values = values[offset : offset + self.key_count]
        readable = [type(value) is not ReplyError for value in own_values]
        size = self.gather.values.place(self.keys.select(readable), list(compress(own_values, readable)), 0)
        self.keys = self.keys.select([not is_readable for is_readable in readable])
        self.key_count = len(self.keys)
        if self._count(size):
            self.gather.held_bytes += size
            self.gather.budget.take(size)
            self.counted_bytes = 0  # for the remaining keys
            self.fail_try(problem)

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Return whether the gather's values stay within the limits."""
        return super().may_receive(size, budget) and self._count(max(size, self.counted_bytes))

    def _count(self, size: int) -> bool:
        """Count ``size`` bytes of values toward the gather's limit, only once if two endpoints send them. Return False
        if they exceed the limit."""
        more, self.counted_bytes = size - self.counted_bytes, size
        return self.gather.count_bytes(more)

    def give_up(self, problem: Problem) -> None:
        """Record the problem for all keys. If the router is short of memory, refuse the whole request."""
        if self.is_done:
            return
        gather = self.gather
        if problem is OVERLOADED:
            self.count_unavailable(problem, gather.key_count - gather.values.unavailable_count)  # others failed before
            gather.refuse(problem)
            return
        self.count_unavailable(problem, self.key_count)
        gather.values.mark_unavailable(self.keys)
        gather.problem = gather.problem or problem
        gather.value_bytes -= self.counted_bytes  # these values will not arrive
        self.end()
        gather.pending_slices -= 1
        if not gather.pending_slices:
            gather.finish()
