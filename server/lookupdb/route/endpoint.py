"""One endpoint of a shard: its connection, its state and its queue.

Keys leave in batches. A lone ask leaves at once; while a batch is in flight the next one gathers, and it leaves
together with those of the other endpoints (see ``gathering``). Answers come in the order of the batches, so a
connection on which one went missing or wrong is closed, never resynchronised: a late answer can then not be taken for
another's.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final

import hiredis

from lookupdb.route.asks import Ask
from lookupdb.route.connection import Connection
from lookupdb.route.counters import INDEX
from lookupdb.route.gathering import ENOUGH_KEYS, Gathering
from lookupdb.route.identity import Identity
from lookupdb.route.proof import NotProven, connect
from lookupdb.route.table import Address
from lookupdb.route.waiters import Problem

log = logging.getLogger(__name__)

BATCH_KEYS: Final = 256
"""A batch is sent once it has so many keys. An ask has no more, so that a batch stays below twice as many."""
BATCHES_IN_FLIGHT: Final = 1
"""A second one gives smaller batches for the same keys: with 100 clients and 4 shards 9.7 keys instead of 11.7, and
38,700 lookups a second instead of 47,000 (one run of four rounds, on a machine that was not quiet)."""
BATCH_BYTES: Final = 4 << 20
"""What an answer should not exceed: where values are large, a batch has fewer keys."""
CONNECT_SECONDS: Final = 2.0
"""To resolve, connect and prove."""
FIRST_BACKOFF_SECONDS: Final = 0.05
LONGEST_BACKOFF_SECONDS: Final = 2.0
"""A replica that is back is used again within so long. Both are halved at random, so that routers spread out."""
STEADY_SECONDS: Final = 1.0
"""An endpoint that was ready for so long is connected again quickly."""
_SAMPLED: Final = 64

_KINDS: Final = frozenset((bytes, NoneType))
_FOUND: Final = INDEX["keys_found"]
_MISSING: Final = INDEX["keys_missing"]
_BATCHES: Final = INDEX["batches"]
_ASKED: Final = INDEX["keys_asked"]
_BATCHES_SAMPLED: Final = INDEX["batches_sampled"]
_MICROSECONDS: Final = INDEX["batch_microseconds_sampled"]
_BROKEN: Final = INDEX["endpoints_broken"]
_PROOFS_FAILED: Final = INDEX["proofs_failed"]


class State(enum.StrEnum):
    """Of an endpoint; only a READY one is asked."""

    CONNECTING = "connecting"
    """Until it has proven what it serves."""
    READY = "ready"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all endpoints of a worker share."""

    deadline_seconds: float
    """A batch that takes longer breaks its connection."""
    max_queued_keys: int
    counters: memoryview
    """The worker's slot (see ``counters``)."""
    random: random.Random
    password: str | None = None
    """Given to every endpoint before it is asked who it is."""
    gathering: Gathering = field(default_factory=Gathering)


@dataclass(frozen=True, slots=True)
class _Batch:
    asks: list[Ask]
    keys: int
    sent: float


class Endpoint:
    """The endpoint at ``address``, which must prove to be ``identity``. Connects from ``start()`` to ``close()``."""

    def __init__(self, address: Address, identity: Identity, settings: Settings) -> None:
        self.address = address
        self.identity = identity
        self.state = State.CONNECTING
        self.why: str | None = None
        """Why it is not ready: the last failure."""
        self.outstanding = 0
        """Keys queued and in flight."""
        self.broken_at = float("-inf")
        """The loop's time when it was ready for the last time."""
        self.was_ready = False
        self.observers: list[Callable[[], None]] = []
        """Called when it has become ready or has ceased to be, or is not for another reason than before."""
        self._settings = settings
        self._max_queued_keys = settings.max_queued_keys
        self._gathering = settings.gathering
        self._loop = asyncio.get_running_loop()
        self.queue: deque[Ask] = deque()
        self._in_flight: deque[_Batch] = deque()
        self._connection: Connection | None = None
        self._scheduled = False
        self._lost: asyncio.Future[str] = self._loop.create_future()
        """Why the connection that was ready is gone."""
        self._life: asyncio.Task[None] | None = None
        self._stall_watch: asyncio.TimerHandle | None = None
        self._batch_keys = BATCH_KEYS
        self._received = 0
        """Bytes that had come when the last batch was answered."""
        self.answered_at = float("-inf")
        """The loop's time of the last answer."""

    # Asking: the hot path.

    def ask(self, ask: Ask) -> bool:
        """Queue ``ask`` for the next batch; False when the queue is full. Only for a ready endpoint."""
        if self.outstanding >= self._max_queued_keys:
            return False
        self.outstanding += ask.count
        ask.tries += 1
        self.queue.append(ask)
        if not self._scheduled and len(self._in_flight) < BATCHES_IN_FLIGHT:
            self._scheduled = True
            self._gathering.add(self)
        return True

    def send(self) -> None:
        """Send the next batch."""
        self._scheduled = False
        if self._connection is None or len(self._in_flight) >= BATCHES_IN_FLIGHT:
            return
        queue = self.queue
        asks: list[Ask] = []
        keys: list[bytes] = []
        while queue and len(keys) < self._batch_keys:
            ask = queue.popleft()
            if ask.done:
                self.outstanding -= ask.count
            else:
                asks.append(ask)
                ask.add_to(keys)
        if not keys:
            return
        now = self._loop.time()
        self._in_flight.append(_Batch(asks, len(keys), now))
        if len(keys) == 1:
            self._connection.write(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(keys[0]), keys[0]))
        else:
            self._connection.write(hiredis.pack_command(("MGET", *keys)))  # type: ignore[arg-type]
        counters = self._settings.counters
        counters[_BATCHES] += 1
        counters[_ASKED] += len(keys)
        if self._stall_watch is None:
            self._watch_from(now)

    def _answered(self, reply: Any) -> None:
        """The oldest batch in flight is answered: hand out its values, send the next."""
        if not self._in_flight:
            self._close_connection(f"answered what was not asked: {str(reply)[:200]!r}")
            return
        batch = self._in_flight.popleft()
        self.outstanding -= batch.keys
        values = [reply] if batch.keys == 1 else reply
        if type(values) is list and len(values) == batch.keys and _KINDS.issuperset(map(type, values)):
            self._measure(batch)
            if self.outstanding >= ENOUGH_KEYS:
                self.send()  # first, so that the shard has something to do while these are handed out
            self._hand_out(batch.asks, values)
            if self.queue and not self._scheduled and not self._in_flight:
                self._scheduled = True
                self._gathering.add(self)
        elif isinstance(reply, hiredis.ReplyError):
            self._refused(batch, f"answered with an error: {reply}")
        else:
            self._in_flight.appendleft(batch)
            self.outstanding += batch.keys
            self._close_connection(f"answered {batch.keys} keys with {_shape(reply)}")

    def _hand_out(self, asks: list[Ask], values: list[bytes | None]) -> None:
        at = 0
        missing, found = values.count(None), len(values)
        for ask in asks:
            if ask.done:
                missing -= values[at : at + ask.count].count(None)
                found -= ask.count
            else:
                try:
                    ask.take(values, at)
                except Exception:  # whatever it is, it must not cost the others their answer
                    log.exception("a waiter failed")
            at += ask.count
        counters = self._settings.counters
        counters[_FOUND] += found - missing
        if missing:
            counters[_MISSING] += missing

    def _refused(self, batch: _Batch, why: str) -> None:
        """An error reply is a failed try of its batch; the connection itself is still in order."""
        problem = self.problem("BadAnswer", why)
        for ask in batch.asks:
            ask.failed(problem)
        self.send()

    def _measure(self, batch: _Batch) -> None:
        """How long the answer took, now and then, and how many keys the next batch may have at values of this size."""
        self.answered_at = now = self._loop.time()
        received = self._connection.received if self._connection else 0
        size, self._received = received - self._received, received
        if size > BATCH_BYTES or self._batch_keys < BATCH_KEYS:
            fitting = max(1, BATCH_BYTES * batch.keys // max(size, 1))
            self._batch_keys = min(fitting, 2 * self._batch_keys, BATCH_KEYS)
        counters = self._settings.counters
        if counters[_BATCHES] % _SAMPLED == 0:
            counters[_BATCHES_SAMPLED] += 1
            counters[_MICROSECONDS] += int((now - batch.sent) * 1e6)

    # A batch that is never answered.

    def _watch_from(self, sent: float) -> None:
        self._stall_watch = self._loop.call_at(sent + self._settings.deadline_seconds, self._check_stalled)

    def _check_stalled(self) -> None:
        self._stall_watch = None
        if not self._in_flight:
            return
        oldest = self._in_flight[0].sent
        if oldest + self._settings.deadline_seconds <= self._loop.time():
            self._close_connection(f"did not answer within {self._settings.deadline_seconds:g} s")
        else:
            self._watch_from(oldest)

    # The connection's life.

    def start(self) -> None:
        """Connect, and connect again whenever the connection breaks."""
        self._life = self._loop.create_task(self._live())

    def close(self) -> None:
        """Close the connection; what is still asked of it fails."""
        self._set_state(State.CLOSED, "closed")
        if self._life:
            self._life.cancel()
        self._close_connection("closed")

    def problem(self, reason: Any, why: str) -> Problem:
        """``why`` with this endpoint's name."""
        return Problem(reason, f"shard {self.identity.shard}: {self.address}: {why}", self.identity.shard)

    async def _live(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            ready_at = await self._connect()
            if ready_at is not None:
                self._fail(await self._lost)
                if self._loop.time() - ready_at > STEADY_SECONDS:
                    backoff = FIRST_BACKOFF_SECONDS
            await asyncio.sleep(backoff * (1 - self._settings.random.random() / 2))
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _connect(self) -> float | None:
        """Become ready, or say why not; the loop's time when it did."""
        self._lost = self._loop.create_future()
        self._set_state(State.CONNECTING, self.why)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await connect(self.address, self.identity, self._settings.password, self._broken)
        except TimeoutError:
            self._fail(f"did not connect and prove itself within {CONNECT_SECONDS:g} s")
        except NotProven as error:
            self._settings.counters[_PROOFS_FAILED] += 1
            self._fail(str(error))
        except OSError as error:
            self._fail(f"cannot be connected to: {error.strerror or error}")
        else:
            self._connection = connection
            connection.on_reply = self._answered
            self._set_state(State.READY, None)
            return self._loop.time()
        return None

    def _fail(self, why: str) -> None:
        self._set_state(State.BROKEN, why)
        self._close_connection(why)

    def _names(self) -> dict[str, Any]:
        return {"generation": self.identity.generation, "shard": self.identity.shard}

    def _close_connection(self, why: str) -> None:
        if self._connection:
            self._connection.close(why)

    def _broken(self, why: str) -> None:
        """The connection is gone: so are the tries of all asks that were in flight or queued."""
        self._connection = None
        self._received = 0
        if self.state is State.READY:
            self._settings.counters[_BROKEN] += 1
            self._set_state(State.BROKEN, why)
        asks = [ask for batch in self._in_flight for ask in batch.asks] + list(self.queue)
        self._in_flight.clear()
        self.queue.clear()
        self.outstanding = 0
        problem = self.problem("Unreachable", why)
        for ask in asks:
            ask.failed(problem)
        if not self._lost.done():
            self._lost.set_result(why)

    def _set_state(self, state: State, why: str | None) -> None:
        was_ready, is_ready = self.state is State.READY, state is State.READY
        if self.state is State.CLOSED:
            return
        news = state is State.BROKEN and why != self.why
        if news:
            log.warning("endpoint not usable: %s", why, extra={"endpoint": str(self.address), **self._names()})
        self.state, self.why = state, why
        if was_ready:
            self.broken_at = self._loop.time()
        self.was_ready = self.was_ready or is_ready
        if is_ready:
            log.info("endpoint ready", extra={"endpoint": str(self.address), **self._names()})
        if was_ready != is_ready or news:
            for observer in tuple(self.observers):
                observer()


def _shape(reply: Any) -> str:
    return f"a list of {len(reply)}" if isinstance(reply, list) else f"{type(reply).__name__} {str(reply)[:100]!r}"
