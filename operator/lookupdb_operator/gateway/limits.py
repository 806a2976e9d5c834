"""Shared limits of one gateway (requests, memory, bodies) and its metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from lookupdb.process.admin import MetricFamily, counter, gauge, labelled_counter
from lookupdb.store.gateway_wire import ErrorKind
from lookupdb_operator.gateway.request import Access, RequestProblem, busy, invalid, too_large

# Concurrent requests, in total and for each namespace.
#
# Transfers of files are slow, so they never take all places: a quarter is reserved for short requests, which builds
# need. One namespace may have half of what the others leave. Of 192 places, nine greedy namespaces leave none for a
# tenth, which must retry in a second.


class Places:
    """Places of one kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._taken_by: Counter[str] = Counter()

    @contextmanager
    def take(self, namespace: str) -> Iterator[None]:
        """Take one place for ``namespace`` while the block runs. Raises RequestProblem if it may have no more."""
        of_others = self.taken - self._taken_by[namespace]
        if self._taken_by[namespace] >= max(1, (self.most - of_others) // 2) or self.taken >= self.most:
            raise busy(
                f"{self._taken_by[namespace]} such requests of namespace {namespace} are in flight, and {of_others} of "
                f"others: {self.most} are the most, and one namespace may have half of what others leave"
            )
        self.taken += 1
        self._taken_by[namespace] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._taken_by[namespace] -= 1
            if not self._taken_by[namespace]:
                del self._taken_by[namespace]


class Admission:
    """Counts requests in flight."""

    def __init__(self, most: int) -> None:
        short = max(1, most // 4)
        self._short = Places(short)
        self._transfers = Places(most - short)

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight."""
        return self._short.taken + self._transfers.taken

    def admit(self, namespace: str, *, transfers: bool) -> AbstractContextManager[None]:
        """Count a request of ``namespace`` while the block runs. Raises RequestProblem if there are too many."""
        return (self._transfers if transfers else self._short).take(namespace)


# Memory for requests, in total and for each namespace.
#
# One namespace may have half of what the others leave, and one request an eighth of the total. So no namespace waits
# for another one's waiting requests, and some room is always left. Transfers of files have their own budget, apart from
# short requests.
#
# A request without room waits for a while, in the order of its namespace.


WAIT_SECONDS: Final = 10.0
_REQUESTS: Final = 8
"""Size of the budget in largest requests."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    namespace: str
    amount: int
    granted: asyncio.Future[None]


class Budget:
    """Counts bytes, in total and by namespace."""

    def __init__(self, total: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.total = total
        self.most = total // _REQUESTS
        """Most bytes of one request."""
        self.used = 0
        self._wait_seconds = wait_seconds
        self._used_by: Counter[str] = Counter()
        self._waiters: deque[_Waiter] = deque()

    @asynccontextmanager
    async def reserve(self, namespace: str, amount: int) -> AsyncIterator[None]:
        """Reserve ``amount`` bytes while the block runs. Raises RequestProblem if there is no room for too long."""
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
        """Namespaces with a request that must keep waiting."""
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


# Request bodies: the length is known beforehand.


CHUNK_BYTES: Final = 256 << 10
IDLE_SECONDS: Final = 60.0
"""Seconds for a chunk to be sent or received: at least 4 KiB a second."""
SHORT_SECONDS: Final = 30.0
"""Seconds for a whole short body."""
_MAX_DIGITS: Final = 18


def read_length(request: web.BaseRequest, most: int) -> int:
    """Return the body's declared length. Raises RequestProblem, also if it is more than ``most``."""
    text = request.headers.get("Content-Length", "")
    if not text:
        raise RequestProblem(ErrorKind.INVALID, "expected a Content-Length", status=411)
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise invalid("expected a body without Content-Encoding")
    if not (text.isascii() and text.isdecimal()):
        raise invalid("the Content-Length is no number")
    if len(text) > _MAX_DIGITS or int(text) > most:
        raise too_large(f"the body has {text[:_MAX_DIGITS]} bytes, {most} are the most")
    return int(text)


# Metrics, and a log of refused requests that is limited in rate.


log = logging.getLogger(__name__)

LOG_SECONDS: Final = 10.0
"""Seconds between two log lines about refused requests, at least."""


class GatewayMetrics:
    """Counters, which only the event loop changes, and gauges, which are read at each scrape."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.requests: Counter[tuple[str, int]] = Counter()
        """Answered requests by operation and status."""
        self.refusals: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.gauges: dict[str, tuple[str, Callable[[], float | None]]] = {}
        """Name → help text and function for the value, which may be None."""
        self._logged_at: float | None = None
        self._suppressed = 0

    def count_refusal(self, reason: str, detail: str, remote: str | None, namespace: str = "") -> None:
        """Count a refused request, and log it, or include it in the number of suppressed lines."""
        self.refusals[reason] += 1
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
            self._suppressed += 1
            return
        extra = {"reason": reason, "client": remote, "namespace": namespace, "othersSince": self._suppressed}
        log.warning("refused a request: %s", detail, extra=extra)
        self._logged_at, self._suppressed = now, 0

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the current metric families."""
        yield labelled_counter(
            "lookupdb_gateway_requests",
            "Requests answered, by operation and HTTP status.",
            [
                ({"operation": operation, "code": str(code)}, count)
                for (operation, code), count in sorted(dict(self.requests).items())
            ],
        )
        yield labelled_counter(
            "lookupdb_gateway_refusals",
            "Requests refused because of their token or their path, by reason.",
            [({"reason": reason}, count) for reason, count in sorted(dict(self.refusals).items())],
        )
        yield counter("lookupdb_gateway_received_bytes", "Bytes of objects that clients sent.", self.received_bytes)
        yield counter("lookupdb_gateway_sent_bytes", "Bytes of objects sent to clients.", self.sent_bytes)
        for name, (help_text, read) in self.gauges.items():
            value = read()
            if value is not None:
                yield gauge(name, help_text, value)


@dataclass(frozen=True, slots=True)
class Room:
    """Limits and permissions for ``Reads`` and ``Writes``."""

    budget: Budget
    """Memory for files."""
    short_budget: Budget
    """Memory for short requests, kept free of files."""
    metrics: GatewayMetrics
    access: Access
    idle_seconds: float = IDLE_SECONDS
    """Seconds a client may be idle."""
    short_seconds: float = SHORT_SECONDS
    """Seconds for a short body."""
