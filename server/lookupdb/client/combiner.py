"""Lookups of concurrent threads and greenlets leave as one batch.

Who finds no batch under way leads: it asks for its own key alone, at once. Who comes meanwhile waits. When the leader
has its answer, it hands all who wait to the first of them, which asks for all their keys and gives each its part, but
for those who have much more time than the first: they leave with the next. No thread of the client's own is needed, and
nobody waits who could be asking. A batch that is slow does not hold up the others for long: who has waited for
PATIENCE_SECONDS leads the next one beside it, up to MAX_FLIGHTS.

See connection_pool.py for what gevent demands.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lookupdb.client.answers import KeyAnswer
from lookupdb.client.attempts import deadline_failure
from lookupdb.client.refusals import make_unavailable
from lookupdb.client.requests import MAX_TARGET_CHARACTERS
from lookupdb.client.seats import Seat, Seats
from lookupdb.client.shared_answer import SharedAnswer
from lookupdb.errors import Unavailable

PATIENCE_SECONDS: Final = 0.005
MAX_FLIGHTS: Final = 8
MAX_WAITING: Final = 10_000
MAX_WAITING_CHARACTERS: Final = MAX_WAITING * MAX_TARGET_CHARACTERS
"""Of the keys of all who wait: those that records have never reach it. A character has four bytes at most, so 20 MB.
Who waits alone may have a longer key."""
MAX_BATCH_CHARACTERS: Final = 200_000
"""Keys of one batch have so many characters, so that it fits a request body of 1 MiB."""
QUEUE_FULL: Final = "ClientQueueFull"


def may_leave_together(now: float, first: float, last: float) -> bool:
    """Whether callers may be of one batch, of whom one waits until ``first``, and none for longer than until ``last``.
    The router is to answer by ``first``, so that what it knows by then is told to all: who has little time left does
    not take more than half of another's."""
    return last - now <= 2 * (first - now)


def queue_full(key: str, waiting: int) -> Unavailable:
    """The error of ``key``, for which there is no room beside so many who wait."""
    longest = f"{MAX_WAITING} may, and keys of {MAX_WAITING_CHARACTERS} characters together"
    return make_unavailable((key,), QUEUE_FULL, f"{waiting} lookups of this client wait already: {longest}")


class _Waiter:
    """A caller that waits: for its answer, or to lead."""

    __slots__ = ("answer", "batch", "deadline", "is_impatient", "is_queued", "is_settled", "key", "lock", "seat")

    def __init__(self, key: str, deadline: float, seat: Seat) -> None:
        self.key = key
        self.deadline = deadline
        self.seat = seat
        """Which it takes to lead."""
        self.lock = threading.Lock()
        self.lock.acquire()
        self.is_queued = True
        self.is_impatient = False
        """Whether it has waited for longer than it should for others' batches."""
        self.is_settled = False
        """Whether the lock was released, which happens once."""
        self.batch: list[_Waiter] | None = None
        """Those whom it leads, itself among them."""
        self.answer: SharedAnswer | None = None
        """None once it is settled: the leader has failed; ask again."""

    def settle(self) -> None:
        self.is_settled = True
        self.lock.release()


class Combiner:
    """Has ``ask_batch`` ask for the keys of several callers, and ``ask_key`` for one, until the deadline given. The
    former is also told when the router should answer."""

    def __init__(
        self,
        ask_key: Callable[[str, float], KeyAnswer],
        ask_batch: Callable[[Sequence[str], float, float], SharedAnswer],
        max_keys: Callable[[], int],
        timeout: float,
    ) -> None:
        self._ask_key = ask_key
        self._ask_batch = ask_batch
        self._max_keys = max_keys
        self._timeout = timeout
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._characters = 0
        """Of the keys of those in the queue."""
        self._leaders = Seats()
        """One for each batch that is under way."""

    def find(self, key: str) -> KeyAnswer:
        """What is found of ``key``. Raises LookupFailed."""
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._find_once(key, deadline)
            if answer is not None:
                return answer

    def _find_once(self, key: str, deadline: float) -> KeyAnswer | None:
        """None if the one who was to ask has failed."""
        seat, waiter = Seat(threading.get_ident()), None
        try:
            with self._lock:
                is_alone = self._leaders.is_owner(seat.owner)  # it leads already: it must not wait for itself
                leads = not (is_alone or len(self._leaders) or self._queue)
                if leads:
                    self._leaders.take(seat)
                elif not is_alone and self._has_room(key):
                    waiter = _Waiter(key, deadline, seat)
                    self._queue.append(waiter)
                    self._characters += len(key)
            if leads or is_alone:
                return self._ask_key(key, deadline)
            if waiter is None:
                raise queue_full(key, len(self._queue))
            answer = self._await(waiter)
            return answer.take(key) if answer is not None else None
        finally:
            if waiter is not None:
                self._end_wait(waiter)
            self._leave(seat)

    def _has_room(self, key: str) -> bool:
        """Whether a caller more may wait."""
        waiting = len(self._queue)
        return not waiting or (waiting < MAX_WAITING and self._characters + len(key) <= MAX_WAITING_CHARACTERS)

    def _await(self, waiter: _Waiter) -> SharedAnswer | None:
        """The answer; None if its leader has failed."""
        seconds = PATIENCE_SECONDS
        while not waiter.lock.acquire(timeout=max(0.0, min(seconds, waiter.deadline - time.monotonic()))):
            seconds = self._timeout
            with self._lock:
                waiter.is_impatient = True
                if waiter.is_settled:
                    continue
                is_late = time.monotonic() >= waiter.deadline
                if is_late or len(self._leaders) < MAX_FLIGHTS:
                    self._pull(waiter, is_late=is_late)
                if waiter.batch:
                    break
            if is_late:
                raise deadline_failure(self._timeout).to_error((waiter.key,))
        if waiter.batch:
            answer_by = min([led.deadline for led in waiter.batch])
            waiter.answer = self._ask_batch([led.key for led in waiter.batch], waiter.deadline, answer_by)
            return waiter.answer
        answer = waiter.answer
        if answer is not None and answer.is_late(waiter.key) and time.monotonic() < waiter.deadline:
            return None  # the leader's time was over, and this caller's is not
        return answer

    def _pull(self, waiter: _Waiter, *, is_late: bool) -> None:
        """Take ``waiter`` out of the queue, if it is there, and have it lead those with it unless it is late."""
        if not waiter.is_queued:
            return
        if is_late:
            self._dequeue(waiter)
        else:
            waiter.is_settled = True
            self._lead(waiter)

    def _lead(self, waiter: _Waiter) -> None:
        """Have ``waiter``, who is in the queue, lead the first of the others: as many as one batch may have."""
        self._dequeue(waiter)
        waiter.batch = [waiter]
        self._leaders.take(waiter.seat)
        now, first, last, characters = time.monotonic(), waiter.deadline, waiter.deadline, len(waiter.key)
        self._drop_late(now)
        most = self._max_keys()
        while self._queue and len(waiter.batch) < most:
            led = self._queue[0]
            first, last, characters = min(first, led.deadline), max(last, led.deadline), characters + len(led.key)
            if characters > MAX_BATCH_CHARACTERS or not may_leave_together(now, first, last):
                break
            self._dequeue(led)
            waiter.batch.append(led)

    def _drop_late(self, now: float) -> None:
        """Have nobody wait in front whose time is over: each of them notices itself."""
        while self._queue and self._queue[0].deadline <= now:
            self._dequeue(self._queue[0])

    def _dequeue(self, waiter: _Waiter) -> None:
        waiter.is_queued = False
        self._queue.remove(waiter)
        self._characters -= len(waiter.key)

    def _end_wait(self, waiter: _Waiter) -> None:
        """A caller has its answer, or waits no longer. Those whom it led get what it has; without,
        they ask again."""
        with self._lock:
            if waiter.is_queued:
                self._dequeue(waiter)
            batch, waiter.batch = waiter.batch, None
        for led in batch or ():
            if led is not waiter:
                led.answer = waiter.answer
                led.settle()

    def _leave(self, seat: Seat) -> None:
        """If it led: a batch has ended, and the first of those who wait leads the next, and so on, if those with it are
        not all."""
        with self._lock:
            if not self._leaders.has(seat):
                return
            self._leaders.leave(seat)
            self._drop_late(time.monotonic())
            while self._queue and self._may_lead(self._queue[0]):
                leader = self._queue[0]
                self._lead(leader)
                leader.settle()

    def _may_lead(self, first: _Waiter) -> bool:
        """Whether the first of those who wait need not wait for the batches that are under way."""
        count = len(self._leaders)
        return not count or (first.is_impatient and count < MAX_FLIGHTS)
