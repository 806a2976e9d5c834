"""Lookups of concurrent coroutines leave as one batch.

The first lookup has a task started, whose first step is at the end of this turn of the loop: all that was asked for by
then leaves at once. Who comes while a batch is under way waits for it to end, and leaves with the next; after
PATIENCE_SECONDS it leaves beside it, up to MAX_FLIGHTS. Who has much more time left than the first of them leaves with
the next. A caller that is cancelled is left out, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from lookupdb.client.attempts import deadline_failure
from lookupdb.client.combiner import (
    MAX_BATCH_CHARACTERS,
    MAX_FLIGHTS,
    MAX_WAITING,
    MAX_WAITING_CHARACTERS,
    PATIENCE_SECONDS,
    may_leave_together,
    queue_full,
)
from lookupdb.client.shared_answer import SharedAnswer


class _Waiter(NamedTuple):
    """A caller that waits for its answer."""

    key: str
    future: asyncio.Future[SharedAnswer]
    deadline: float
    context: contextvars.Context
    """The caller's: a batch is asked for in that of its first, whose trace it has."""


class AsyncCombiner:
    """Has ``ask_batch`` ask for the keys of several callers until the last of their deadlines, and tells it when the
    router should answer. Of one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ask_batch: Callable[[Sequence[str], float, float], Awaitable[SharedAnswer]],
        max_keys: Callable[[], int],
        timeout: float,
    ) -> None:
        self._loop = loop
        self._ask_batch = ask_batch
        self._max_keys = max_keys
        self._timeout = timeout
        self._queue: deque[_Waiter] = deque()
        self._characters = 0
        """Of the keys of those in the queue."""
        self._flights = 0
        self._scheduled: list[_Waiter] | None = None
        """What a task that has yet to begin will fill with those who wait."""
        self._patience: asyncio.TimerHandle | None = None
        self._is_impatient = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def find(self, key: str) -> asyncio.Future[SharedAnswer]:
        """The answer to a batch with ``key``, of which the caller takes its part. Raises Unavailable."""
        queue = self._queue
        self._characters += len(key)
        if queue and (len(queue) >= MAX_WAITING or self._characters > MAX_WAITING_CHARACTERS):
            self._characters -= len(key)
            raise queue_full(key, len(queue))
        loop = self._loop
        future: asyncio.Future[SharedAnswer] = loop.create_future()
        queue.append(_Waiter(key, future, loop.time() + self._timeout, contextvars.copy_context()))
        if self._scheduled is None:
            self._schedule()
        return future

    async def close(self) -> None:
        """End what is under way; who waits gets RuntimeError."""
        self._is_closed = True
        waiting = [*self._queue]
        self._clear_queue()  # or the end of a batch would have them leave
        self._stop_patience()
        _fail(waiting, self._describe_end())
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self) -> None:
        """Have what waits leave, or wait on."""
        if self._flights == 0 or (self._is_impatient and self._flights < MAX_FLIGHTS):
            self._stop_patience()
            batch = self._scheduled = []
            self._flights += 1
            task = self._loop.create_task(self._lead(batch), context=self._queue[0].context)
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, batch))
        elif self._patience is None:
            self._patience = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _end(self, batch: list[_Waiter], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._scheduled is batch:  # it was cancelled before its first step: nothing of it has run
            self._scheduled = None
            self._land()

    def _land(self) -> None:
        self._flights -= 1
        while self._queue and self._queue[0].future.done():
            self._characters -= len(self._queue.popleft().key)
        if self._queue and self._scheduled is None:
            self._schedule()

    def _lose_patience(self) -> None:
        self._is_impatient = True
        if self._queue and self._scheduled is None:
            self._schedule()

    def _stop_patience(self) -> None:
        self._is_impatient = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _lead(self, batch: list[_Waiter]) -> None:
        self._scheduled = None
        batch += self._take_batch()
        if self._queue:
            self._schedule()
        try:
            if batch:
                await self._fly(batch)
        finally:
            self._land()

    def _take_batch(self) -> list[_Waiter]:
        """The first of those who still wait, as many as one batch may have."""
        queue, most = self._queue, self._max_keys()
        if len(queue) <= most:
            batch = [waiter for waiter in queue if not waiter.future.done()]
            self._clear_queue()
        else:
            batch = [waiter for waiter in islice(queue, most) if not waiter.future.done()]
            self._characters -= sum([len(queue.popleft().key) for _ in range(most)])
        characters = 0
        for count, waiter in enumerate(batch):
            characters += len(waiter.key)
            if count and characters > MAX_BATCH_CHARACTERS:
                self._put_back(batch, count)
                break
        now = self._loop.time()
        if batch and not may_leave_together(now, batch[0].deadline, batch[-1].deadline):
            first = _first_deadline(batch, now)
            is_fitting = [waiter.deadline <= now or may_leave_together(now, first, waiter.deadline) for waiter in batch]
            self._put_back(batch, sum(is_fitting))
        return batch

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._characters = 0

    def _put_back(self, batch: list[_Waiter], count: int) -> None:
        """Have all behind the first ``count`` wait on."""
        self._queue.extendleft(reversed(batch[count:]))
        self._characters += sum([len(waiter.key) for waiter in batch[count:]])
        del batch[count:]

    async def _fly(self, batch: list[_Waiter]) -> None:
        """Ask for the keys of ``batch``, and give each caller the answer."""
        timer = self._loop.call_at(batch[0].deadline, self._expire, batch)
        try:
            answer_by = _first_deadline(batch, self._loop.time())
            answer = await self._ask_batch([waiter.key for waiter in batch], batch[-1].deadline, answer_by)
        except Exception as error:
            _fail(batch, error)
        except BaseException:
            _fail(batch, self._describe_end())
            raise
        else:
            for waiter in batch:
                if not waiter.future.done():
                    waiter.future.set_result(answer)
        finally:
            timer.cancel()

    def _expire(self, batch: list[_Waiter]) -> None:
        """Tell those whose time has passed; others of the batch may wait on."""
        now = self._loop.time()
        for waiter in batch:
            if waiter.future.done():
                continue
            if waiter.deadline > now:
                self._loop.call_at(waiter.deadline, self._expire, batch)
                return
            waiter.future.set_exception(deadline_failure(self._timeout).to_error((waiter.key,)))

    def _describe_end(self) -> RuntimeError:
        return RuntimeError("this client is closed" if self._is_closed else "the task that asked was cancelled")


def _first_deadline(batch: Sequence[_Waiter], now: float) -> float:
    """That of the first whose time is not over; the last one's, if that of all is."""
    return next((waiter.deadline for waiter in batch if waiter.deadline > now), batch[-1].deadline)


def _fail(batch: Sequence[_Waiter], error: Exception) -> None:
    for waiter in batch:
        if not waiter.future.done():
            waiter.future.set_exception(copy.copy(error))
