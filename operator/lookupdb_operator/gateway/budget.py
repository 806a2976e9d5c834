"""The bytes that requests may hold together, and how much of them one namespace may have.

One namespace may have half of what the others leave, and one request an eighth of all. So what one namespace may have
is always free: nobody waits for another namespace that waits, and however many hold what they may, a smaller part is
left. Transfers of files have a budget of their own, so that what is short finds room beside them.

Who finds no room waits for a while, in the order of its namespace.
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
_REQUESTS: Final = 8
"""Of the largest kind, that the whole budget is worth."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    namespace: str
    amount: int
    granted: asyncio.Future[None]


class Budget:
    """Counts bytes, in all and by namespace."""

    def __init__(self, total: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.total = total
        self.most = total // _REQUESTS
        """Of one request."""
        self.used = 0
        self._wait_seconds = wait_seconds
        self._used_by: Counter[str] = Counter()
        self._waiters: deque[_Waiter] = deque()

    @asynccontextmanager
    async def reserve(self, namespace: str, amount: int) -> AsyncIterator[None]:
        """Have ``amount`` bytes while the block runs. Raises RequestProblem if there is no room for long."""
        if amount > self.most:
            raise too_large(
                f"it needs {amount} bytes of memory, {self.most} are the most of one request (--body-memory)"
            )
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
        """Namespaces of which somebody goes on waiting."""
        for waiter in tuple(self._waiters):
            if waiter.namespace in full:
                continue
            of_others = self.used - self._used_by[waiter.namespace]
            if self._used_by[waiter.namespace] + waiter.amount > (self.total - of_others) // 2:
                full.add(waiter.namespace)
                continue
            self._waiters.remove(waiter)
            self.used += waiter.amount
            self._used_by[waiter.namespace] += waiter.amount
            if not waiter.granted.done():
                waiter.granted.set_result(None)
