"""A list of keys, scattered over shards in slices and gathered again: one answer, when all slices have come in."""

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
from lookupdb.router.servers.connection import ServerAddress

# A generation as requests know it: how its keys are encoded, and what an answer says of it.


@dataclass(frozen=True, slots=True, eq=False)
class ServedGeneration:
    """What an answer comes from: a generation, or several of a mixed routing table. Compared by identity."""

    names: tuple[str, ...]
    """``g12``; of several, in the order of their numbers."""
    value_format: Literal["json", "raw"]
    encode: Callable[[str], bytes]
    """From a key as asked to the bytes it is stored under (see ``keys.make_key_encoder``); raises InvalidKey."""
    normalize: tuple[str, ...]
    """The steps by which ``encode`` normalises."""
    etag: str = field(default="", kw_only=True)
    """The entity tag of values out of it, with its quotes; empty for several."""
    name: str = field(init=False)
    """``g12``, or ``g12, g13``: as the header has it."""
    members: dict[str, object] = field(init=False)
    """As the answer to a batch has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", ", ".join(self.names))
        members: dict[str, object] = {"generation": self.name}
        if len(self.names) > 1:
            members = {"generation": None, "generations": self.names}
        object.__setattr__(self, "members", members)


# The interface between the HTTP front and the lookup core: callbacks, so that a lookup costs no future.


Reason: TypeAlias = Literal["NoTable", "Unreachable", "QueueFull", "Deadline", "BadAnswer", "Damaged", "Overloaded"]
"""Stable, because clients read it. ``docs/reference/http-api.md`` says what they can do; here is who says it, and when:

| reason | who | when |
| --- | --- | --- |
| NoTable | ``LookupCore.find``, ``find_many``; ``DatasetExchange`` | no routing table is in effect |
| Unreachable | ``Lane._fail`` | the connection is lost or closed during a try |
| Unreachable | ``ShardReplicas._park`` | no endpoint is ready or was a moment ago, or too many keys wait for one |
| QueueFull | ``ShardReplicas._submit_to_least_busy`` | the queues of the chosen and the least busy endpoint are full |
| Deadline | ``Deadlines._sweep`` | the deadline has passed, wherever the lookup waits |
| BadAnswer | ``Lane._refuse`` | a try is answered with an error |
| Damaged | ``Lane._refuse``, ``Lane._on_reply`` | a try finds the key's value damaged |
| Overloaded | ``LookupCore.find``, ``find_many`` | the budget is used up, or half of it for a batch |
| Overloaded | ``PendingLookup.may_receive`` | a large value comes while three quarters of the budget are used |
| Overloaded | ``HttpConnection._refuse_overloaded`` | the budget is used up: the request is refused, not its keys |

What a try says is told only if no other try is open and no second one can begin (``PendingLookup.fail_try``).
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing can be said about a key. Always temporary: the client may ask again."""

    reason: Reason
    detail: str
    """A sentence for people: what was tried, where, and what was found."""
    shard: int | None = None
    is_of_client: bool = False
    """The client waited for less than the router's deadline, and a server that was asked was at work still."""
    address: ServerAddress | None = field(default=None, compare=False)
    """Of the endpoint that it is one with, if it is."""


NO_TABLE: Final = Problem("NoTable", "the router has no valid routing table yet: nothing is served")
OVERLOADED: Final = Problem(
    "Overloaded", "the router holds as many requests and answers as its memory allows; come back later"
)


def make_endpoint_problem(reason: Reason, shard: int, address: ServerAddress, finding: str) -> Problem:
    """Return the problem with the endpoint of ``shard`` at ``address``, which its sentence names."""
    return Problem(reason, f"shard {shard}: {address}: {finding}", shard, address=address)


class Waiter(Protocol):
    """Gets exactly one of these calls for one key, possibly before ``LookupCore.find`` returns. Must not raise."""

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value."""

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about the key now."""

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """The routing table in effect, whose active generation is ``active``, has none of this name. A mixed one has
        none of any name."""


class BatchWaiter(Protocol):
    """Gets exactly one of these calls for a list of keys, possibly before ``find_many`` returns. Must not raise."""

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """What was found of the keys: ``size`` bytes. With a ``problem`` some of them are unavailable, but not all: it
        is why the first of them is."""

    def too_large(self, limit: int) -> None:
        """The values are more than ``limit`` bytes together."""

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about any of the keys now."""

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """The routing table in effect, whose active generation is ``active``, has none of this name. A mixed one has
        none of any name."""


# A pending lookup: keys of one shard that a request waits for, until they are answered or the deadline has passed.
#
# It has at most two tries. The second begins when the first has failed, or is late while another replica is ready; the
# first answer wins, and what comes after it is ignored.


log = logging.getLogger(__name__)

KEYS_UNAVAILABLE: Final = INDEX["keys_unavailable"]
CLIENT_DEADLINE_KEYS_UNAVAILABLE: Final = INDEX["client_deadline_keys_unavailable"]
CANDIDATE_KEYS_UNAVAILABLE: Final = INDEX["candidate_keys_unavailable"]


class LookupTarget(Protocol):
    """An endpoint, as a lookup knows it."""

    address: ServerAddress

    @property
    def outstanding(self) -> int:
        """Keys queued and in flight."""

    @property
    def answered_at(self) -> float:
        """The loop's time of the last answer."""

    @property
    def is_silent(self) -> bool:
        """Whether it has let a batch wait for the whole deadline, and answered none since."""

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch; False when the queue is full."""


class LookupReplicas(Protocol):
    """The replicas of a shard, as a lookup knows them."""

    number: int
    """Of the shard."""
    generation: ServedGeneration
    """Which all of them have proven to serve."""
    counters: memoryview
    unavailable_counter: int
    """The place, in ``counters``, of keys of which nothing could be said."""
    client_deadline_counter: int
    """That of those for which a client did not wait for long enough."""

    def explain_absence(self) -> str:
        """Why no endpoint is ready."""

    def submit(self, lookup: PendingLookup) -> None:
        """Begin the first try of ``lookup``."""

    def retry(self, lookup: PendingLookup, problem: Problem) -> None:
        """Begin the second try of ``lookup``, whose first failed with ``problem``."""

    def try_another(self, lookup: PendingLookup, *, is_hedge: bool) -> None:
        """Begin the second try of ``lookup``, whose first goes on, if another replica is ready."""


class PendingLookup:
    """What SingleKey and ShardSlice share: which endpoints were asked, and what follows when a try fails."""

    __slots__ = ("first_target", "is_done", "is_retried", "open_tries", "replicas", "second_target", "started_at")
    key_count: int

    def __init__(self, replicas: LookupReplicas, started_at: float) -> None:
        self.replicas = replicas
        self.started_at = started_at
        """The event loop's time of the lookup."""
        self.is_done = False
        self.is_retried = False
        self.open_tries = 0
        """How many endpoints have it now."""
        self.first_target: LookupTarget | None = None
        """The endpoint of the first try."""
        self.second_target: LookupTarget | None = None
        """That of the second, which may be the same; None once it has failed while the first goes on."""

    @property
    def open_targets(self) -> tuple[LookupTarget, ...]:
        """The endpoints that have it now."""
        first, second = self.first_target, self.second_target
        targets = (first, second) if self.open_tries > 1 else (second or first,) if self.open_tries else ()
        return tuple(target for target in targets if target is not None)

    @property
    def packed(self) -> bytes:
        """The keys as RESP bulk strings, one after the other: so they stand in a batch."""
        raise NotImplementedError

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Take the values of an answered batch: this lookup's begin at index ``offset``. The lane counts them."""
        raise NotImplementedError

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """As ``deliver``, but some values could not be read: the try has failed for their keys, with ``problem``."""
        raise NotImplementedError

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Whether a value may be received with which ``size`` bytes have come for this lookup in this try. If not, the
        request is answered here and now."""
        if budget.has_room(size):
            return True
        self.give_up(OVERLOADED)
        return False

    def give_up(self, problem: Problem) -> None:
        """Tell the waiter that nothing can be said, unless the lookup is answered already."""
        raise NotImplementedError

    def count_unavailable(self, problem: Problem, key_count: int) -> None:
        """Count keys that are given up with ``problem``."""
        replicas = self.replicas
        counter = replicas.client_deadline_counter if problem.is_of_client else replicas.unavailable_counter
        replicas.counters[counter] += key_count

    def fail_try(self, problem: Problem) -> None:
        """End a try. Begin the second if there was none; give the lookup up when no endpoint has it any more."""
        self.open_tries -= 1
        if self.is_done:
            return
        if self.open_tries:
            second = self.second_target
            if second is not None and second.address == problem.address:
                self.second_target = None
            return
        if self.is_retried:
            self.give_up(problem)
        else:
            self.is_retried = True
            self.replicas.retry(self, problem)


def fail_tries(lookups: Iterable[PendingLookup], problem: Problem) -> None:
    """End a try of each of ``lookups``. Raises nothing: what goes wrong with one must not cost the others theirs."""
    for lookup in lookups:
        try:
            lookup.fail_try(problem)
        except Exception:
            log.exception("a waiter failed")


class SingleKey(PendingLookup):
    """One key that one waiter waits for."""

    __slots__ = ("packed", "waiter")
    key_count = 1
    packed: bytes
    """The key as a RESP bulk string. No property: an attribute is read at half the cost."""

    def __init__(self, key: bytes, waiter: Waiter, replicas: LookupReplicas, started_at: float) -> None:
        # Not through super(): this is the hot path.
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = self.is_retried = False
        self.open_tries = 0
        self.first_target = self.second_target = None
        self.packed = b"$%d\r\n%b\r\n" % (len(key), key)
        self.waiter = waiter

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Tell the waiter its value."""
        self.is_done = True
        value = values[offset]
        if value is None:
            self.waiter.missing(self.replicas.generation)
        else:
            self.waiter.found(value, self.replicas.generation)

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Fail the try: the one value could not be read."""
        self.fail_try(problem)

    def give_up(self, problem: Problem) -> None:
        """Tell the waiter."""
        if not self.is_done:
            self.is_done = True
            self.count_unavailable(problem, 1)
            self.waiter.unavailable(problem)


# Deadlines of all lookups, by a coarse sweep: no lookup has a timer of its own, and none is ever forgotten.
#
# All lookups of one deadline end in the order in which they began: two queues suffice. Nearly all have the router's
# own; those of clients that wait for less are kept apart by how long.


_DEADLINES: Final = INDEX["deadlines"]
_MAX_TICK_SECONDS: Final = 0.05
_MIN_TICK_SECONDS: Final = 0.001
_KEPT_BITS: Final = 4
"""Of a shorter deadline in milliseconds; the others become 0."""
_COMPACT_AT: Final = 4096
"""Lookups in a queue, beyond which those that are done are sought behind one that is not."""


class RequestDeadlines:
    """The router's own deadline, and the shorter ones that requests ask for.

    A shorter one is rounded down, by an eighth at most, to one of some hundred, which is how many there can be.
    """

    def __init__(self, milliseconds: int, hedge: float, counters: memoryview) -> None:
        self.own = Deadlines(milliseconds / 1000, hedge, counters)
        self._milliseconds = milliseconds
        self._hedge = hedge
        self._counters = counters
        self._shorter: dict[int, Deadlines] = {}

    def choose_watch(self, milliseconds: int) -> Callable[[PendingLookup], None]:
        """What watches over a lookup that ends after ``milliseconds``, or after the router's own deadline if that is
        less."""
        if milliseconds >= self._milliseconds:
            return self.own.add
        lost_bits = max(0, milliseconds.bit_length() - _KEPT_BITS)
        rounded = milliseconds >> lost_bits << lost_bits
        shorter = self._shorter.get(rounded)
        if shorter is None:
            shorter = self._shorter[rounded] = Deadlines(rounded / 1000, self._hedge, self._counters, is_of_client=True)
        return shorter.add


class Deadlines:
    """Ends every lookup after ``deadline`` seconds, and gives it a second try before that.

    The second try comes after ``hedge`` seconds, or, when that is 0, after half of the deadline: then the first
    counts as timed out.
    """

    def __init__(self, deadline: float, hedge: float, counters: memoryview, *, is_of_client: bool = False) -> None:
        self._deadline = deadline
        self._is_of_client = is_of_client
        """Whether clients asked for it; else it is the router's own."""
        self._is_hedge = 0 < hedge < deadline / 2
        self._retry_seconds = hedge if self._is_hedge else deadline / 2
        self._tick_seconds = min(max(self._retry_seconds / 8, _MIN_TICK_SECONDS), _MAX_TICK_SECONDS)
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._retry_queue: deque[PendingLookup] = deque()
        """Lookups whose second try is not due."""
        self._deadline_queue: deque[PendingLookup] = deque()
        """Lookups whose second try was due, and which end at their deadline."""
        self._compact_at = _COMPACT_AT
        self._timer: asyncio.TimerHandle | None = None

    def add(self, lookup: PendingLookup) -> None:
        """Watch over ``lookup`` until it is done."""
        retry_queue = self._retry_queue
        while retry_queue and retry_queue[0].is_done:
            # Not left to the sweep: thousands would wait for it, and push what is in use out of the cache.
            retry_queue.popleft()
        retry_queue.append(lookup)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_seconds, self._sweep)

    def _sweep(self) -> None:
        try:
            self._end_due(self._loop.time())
        finally:  # whatever is raised about one lookup, the others end at their deadlines
            self._timer = (
                self._loop.call_later(self._tick_seconds, self._sweep)
                if self._retry_queue or self._deadline_queue
                else None
            )

    def _end_due(self, now: float) -> None:
        retry_queue, deadline_queue = self._retry_queue, self._deadline_queue
        while retry_queue and (retry_queue[0].is_done or retry_queue[0].started_at + self._retry_seconds <= now):
            lookup = retry_queue.popleft()
            if not lookup.is_done:
                deadline_queue.append(lookup)
                if lookup.started_at + self._deadline > now:  # or a server would be asked for nobody
                    lookup.replicas.try_another(lookup, is_hedge=self._is_hedge)
        while deadline_queue and (deadline_queue[0].is_done or deadline_queue[0].started_at + self._deadline <= now):
            lookup = deadline_queue.popleft()
            if not lookup.is_done:
                self._counters[_DEADLINES] += lookup.key_count
                lookup.give_up(self._problem(lookup))
        if len(retry_queue) + len(deadline_queue) > self._compact_at:
            self._compact()

    def _compact(self) -> None:
        """Forget what is done: while one shard does not answer, the others' lookups must not pile up behind its own."""
        self._retry_queue = deque(lookup for lookup in self._retry_queue if not lookup.is_done)
        self._deadline_queue = deque(lookup for lookup in self._deadline_queue if not lookup.is_done)
        self._compact_at = max(_COMPACT_AT, 2 * (len(self._retry_queue) + len(self._deadline_queue)))

    def _problem(self, lookup: PendingLookup) -> Problem:
        """Tells a server that is silent from one that is slow, and both from none: a dead one whose connection has not
        broken yet is silent."""
        shard, seconds, target = lookup.replicas.number, f"{self._deadline:g} s", lookup.first_target
        if target is None:
            finding = f"no server came back within {seconds}"
        elif target.answered_at < lookup.started_at:
            finding = f"no answer from {target.address} for {seconds}, to this lookup or another"
        else:
            finding = f"no answer from {target.address} within {seconds}; it has answered others since"
        if not lookup.open_tries:  # it waits for a server, for its first try or its second
            finding += f"; not reachable now: {lookup.replicas.explain_absence()}"
        elif lookup.is_retried:
            finding += "; a second try had none either"
        # Without a server that answers, among those that have it, nobody waits for long enough.
        is_of_client = self._is_of_client and not all(endpoint.is_silent for endpoint in lookup.open_targets)
        return Problem("Deadline", f"shard {shard}: {finding}", shard, is_of_client)


LARGE_SLICE_KEYS: Final = 16
"""A slice of more keys is large work whatever came lately: its values may be larger."""


class ScatterGather:
    """The answers to one list of keys, until all its slices have come in. Counts its values in ``budget``."""

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
        """A key that is in no slice is missing."""
        self._waiter: BatchWaiter | None = waiter
        self.generation = generation
        """What the answer comes from."""
        self.value_bytes = 0
        """Of the values that have come, or are known to come."""
        self.pending_slices = 0
        self.problem: Problem | None = None
        """Why nothing can be said of the first key of which that is so."""
        self.budget = budget
        self.held_bytes = 0
        """Taken of the budget."""
        self._slices: list[ShardSlice] = []
        self.is_large = False
        """Whether its slices are large work, by their mean: then those that happen to be small go with them."""

    def await_slices(self, slices: list[ShardSlice]) -> None:
        """Wait for all of ``slices``."""
        self._slices = slices
        self.pending_slices = len(slices)
        self.is_large = self.key_count > LARGE_SLICE_KEYS * len(slices)

    def count_bytes(self, size: int) -> bool:
        """Count ``size`` bytes of values more; False when they are too many: then the waiter was told."""
        self.value_bytes += size
        if self.value_bytes <= self.budget.answer_bytes:
            return True
        waiter = self._release_waiter()
        self.abandon()
        waiter.too_large(self.budget.answer_bytes)
        return False

    def hold(self, size: int) -> None:
        """Take ``size`` bytes of the budget for values that are kept here from now on."""
        self.held_bytes += size
        self.budget.take(size)

    def finish_slice(self) -> None:
        """Tell the waiter when this was the last one."""
        self.pending_slices -= 1
        if not self.pending_slices:
            self.finish()

    def finish(self) -> None:
        """Tell the waiter."""
        values = self.values
        self.values = NO_VALUES  # slices that wait in queues, done as they are, must not keep them
        if self.problem and values.unavailable_count == self.key_count:
            self.refuse(self.problem)
            return
        size = self.value_bytes
        self._release_budget()
        self._release_waiter().done(self.generation, values, size, self.problem)

    def refuse(self, problem: Problem) -> None:
        """Tell the waiter that nothing can be said about any of the keys, whatever has come."""
        waiter = self._release_waiter()
        self.abandon()
        waiter.unavailable(problem)

    def abandon(self) -> None:
        """Wait for nothing more, tell nobody, and hold nothing."""
        for shard_slice in self._slices:
            shard_slice.end()
        self._release_budget()
        self.values = NO_VALUES
        self._waiter = None

    def _release_waiter(self) -> BatchWaiter:
        """The waiter, whom this object forgets: it refers back here, and nothing may wait for the garbage collector."""
        waiter = self._waiter
        assert waiter is not None, "the waiter was told already"
        self._waiter = None
        return waiter

    def _release_budget(self) -> None:
        self.budget.release(self.held_bytes)
        self.held_bytes = 0
        self._slices = []


class ShardSlice(PendingLookup):
    """Those keys of a ScatterGather that one batch to one shard holds."""

    __slots__ = ("counted_bytes", "gather", "key_count", "keys")

    def __init__(self, keys: ShardKeys, gather: ScatterGather, replicas: LookupReplicas, started_at: float) -> None:
        # Not through super(): this is the hot path of batches.
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = self.is_retried = False
        self.open_tries = 0
        self.first_target = self.second_target = None
        self.keys = keys
        self.gather = gather
        self.key_count = len(keys)
        self.counted_bytes = 0
        """Of its values, as far as the gather has counted them before they are delivered."""

    @property
    def packed(self) -> bytes:
        """The keys as RESP bulk strings, one after the other."""
        return self.keys.packed

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Put the values where they belong."""
        # Calls are spared: this is the hot path of batches.
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
        """Wait for nothing any longer, and keep no keys: a lookup that is done stays in queues for a while, where its
        keys would be counted nowhere."""
        self.is_done = True
        self.keys = NO_KEYS

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Keep the values that could be read, and fail the try for the other keys.

        While another try is open, keep nothing: its answer must fit the keys that it was asked for.
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
            self.gather.hold(size)
            self.counted_bytes = 0  # of the keys that remain
            self.fail_try(problem)

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Whether the gather's values stay within the bounds."""
        return super().may_receive(size, budget) and self._count(max(size, self.counted_bytes))

    def _count(self, size: int) -> bool:
        """Have the gather count that the slice has ``size`` bytes of values, or more; two endpoints may bring the same
        ones. False: too many."""
        more, self.counted_bytes = size - self.counted_bytes, size
        return self.gather.count_bytes(more)

    def give_up(self, problem: Problem) -> None:
        """Note it for all keys. Where the router is short of memory the whole request makes room."""
        if self.is_done:
            return
        gather = self.gather
        if problem is OVERLOADED:
            self.count_unavailable(problem, gather.key_count - gather.values.unavailable_count)  # others of it failed
            gather.refuse(problem)
            return
        self.count_unavailable(problem, self.key_count)
        gather.values.mark_unavailable(self.keys)
        gather.problem = gather.problem or problem
        gather.value_bytes -= self.counted_bytes  # of values that do not come after all
        self.end()
        gather.finish_slice()
