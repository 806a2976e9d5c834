"""The bytes that requests may hold together, and how much of them one namespace may have.

One namespace may have half of what the others leave, and what one request needs in any case. Transfers of files have a
budget of their own, so that what is short finds room beside them.

Who finds no room waits in order. Who waits for room of their own namespace lets others pass; who waits for room at all
lets nobody pass, so that large requests have their turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from lookupdb_operator.gateway.problems import busy, too_large

WAIT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    namespace: str
    amount: int
    granted: asyncio.Future[None]


class Budget:
    """Counts bytes, in all and by namespace."""

    def __init__(self, total: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.total = total
        self.share = total // 2
        """Of one namespace, while no other has any."""
        self.used = 0
        self._wait_seconds = wait_seconds
        self._used_by: Counter[str] = Counter()
        self._waiters: deque[_Waiter] = deque()

    @asynccontextmanager
    async def reserve(self, namespace: str, amount: int) -> AsyncIterator[None]:
        """Have ``amount`` bytes while the block runs. Raises RequestProblem if there is no room for long."""
        if amount > self.total:
            raise too_large(f"it needs {amount} bytes of memory, {self.total} are all")
        await self._acquire(namespace, amount)
        try:
            yield
        finally:
            self._release(namespace, amount)

    async def _acquire(self, namespace: str, amount: int) -> None:
        waiter = _Waiter(namespace, amount, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._grant()
        try:
            async with asyncio.timeout(self._wait_seconds):
                await waiter.granted
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._grant()
            else:
                self._release(namespace, amount)
            if isinstance(error, TimeoutError):
                raise busy(f"no memory was free for {self._wait_seconds:g} s") from error
            raise

    def _release(self, namespace: str, amount: int) -> None:
        self.used -= amount
        self._used_by[namespace] -= amount
        if not self._used_by[namespace]:
            del self._used_by[namespace]
        self._grant()

    def _grant(self) -> None:
        full: set[str] = set()
        """Namespaces of which somebody waits for its own share."""
        for waiter in tuple(self._waiters):
            if waiter.namespace in full:
                continue
            of_others = self.used - self._used_by[waiter.namespace]
            if self._used_by[waiter.namespace] + waiter.amount > max(waiter.amount, (self.total - of_others) // 2):
                full.add(waiter.namespace)
                continue
            if self.used + waiter.amount > self.total:
                return
            self._waiters.remove(waiter)
            self.used += waiter.amount
            self._used_by[waiter.namespace] += waiter.amount
            if not waiter.granted.done():
                waiter.granted.set_result(None)
