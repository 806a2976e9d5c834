"""What every operation of one gateway shares: the memory it may hold, whose store it is, what is counted."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from lookupdb.process.admin import MetricFamily, counter, gauge, labelled_counter
from lookupdb.store.gateway_wire import ErrorKind
from lookupdb_operator.gateway.access import Access
from lookupdb_operator.gateway.request import RequestProblem, busy, invalid, too_large

# How many requests are worked on at once, in all and of one namespace.
#
# Transfers of files take long, so they never take all places: a quarter is left for requests that are short, without
# which no build goes on. One namespace may have half of what the others leave: of 192 places, it takes nine that take
# all they can to leave none for a tenth, which is told to come again in a second.


class Places:
    """Places of one kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._taken_by: Counter[str] = Counter()

    @contextmanager
    def take(self, namespace: str) -> Iterator[None]:
        """Take one for ``namespace`` while the block runs. Raises RequestProblem if it can have no more."""
        of_others = self.taken - self._taken_by[namespace]
        if self._taken_by[namespace] >= max(1, (self.most - of_others) // 2) or self.taken >= self.most:
            raise busy(
                f"{self._taken_by[namespace]} such requests of namespace {namespace} are in flight, and {of_others} of "
                f"others: {self.most} are the most, of which one namespace has half of what others leave"
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
        """How many are worked on now."""
        return self._short.taken + self._transfers.taken

    def admit(self, namespace: str, *, transfers: bool) -> AbstractContextManager[None]:
        """Count a request of ``namespace`` while the block runs. Raises RequestProblem if there are too many."""
        return (self._transfers if transfers else self._short).take(namespace)


# The bytes that requests may hold together, and how much of them one namespace may have.
#
# One namespace may have half of what the others leave, and one request an eighth of all. So what one namespace may have
# is always free: nobody waits for another namespace that waits, and however many hold what they may, a smaller part is
# left. Transfers of files have a budget of their own, so that what is short finds room beside them.
#
# Who finds no room waits for a while, in the order of its namespace.


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


# A request's body: its length is known beforehand, and whoever sends it must go on sending.


CHUNK_BYTES: Final = 256 << 10
IDLE_SECONDS: Final = 60.0
"""In which a chunk must have come, or gone: 4 KiB a second at least."""
SHORT_SECONDS: Final = 30.0
"""In which all of a short body must have come."""
_MAX_DIGITS: Final = 18


def read_length(request: web.BaseRequest, most: int) -> int:
    """The length that ``request`` says its body has. Raises RequestProblem, also if that is more than ``most``."""
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


class Body:
    """Reads the bytes of one body."""

    def __init__(
        self,
        request: web.BaseRequest,
        length: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        whole_seconds: float = math.inf,
    ) -> None:
        """``whole_seconds`` after the first chunk was asked for, the last must be there."""
        self._request = request
        self.length = length
        self.received = 0
        self._idle_seconds = idle_seconds
        self._whole_seconds = whole_seconds

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield it, ``length`` bytes in all. Raises RequestProblem if it ends early, or takes too long."""
        self._accept()
        end = time.monotonic() + self._whole_seconds
        while self.received < self.length:
            size = min(CHUNK_BYTES, self.length - self.received)
            seconds = min(self._idle_seconds, end - time.monotonic())
            try:
                async with asyncio.timeout(seconds):
                    chunk = await self._request.content.readexactly(size)
            except TimeoutError as error:
                limit = f"{size} bytes did not come within {seconds:.3g} s"
                if seconds < self._idle_seconds:
                    limit = f"it did not come within {self._whole_seconds:g} s"
                raise self._end_early(limit, 408) from error
            except (EOFError, OSError, web.RequestPayloadError) as error:
                raise self._end_early("the client went away", 400) from error
            self.received += size
            yield chunk

    def _accept(self) -> None:
        """Ask for the body, if the client waits to be asked."""
        transport = self._request.transport
        if transport and self._request.headers.get("Expect", "").lower() == "100-continue":
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _end_early(self, why: str, status: int) -> RequestProblem:
        detail = f"the body ends after {self.received} of {self.length} bytes, nothing was put: {why}"
        return RequestProblem(ErrorKind.INVALID, detail, status=status)


# What the gateway counts, and what of it it logs: who is refused shows in the log, though not for each request.


log = logging.getLogger(__name__)

LOG_SECONDS: Final = 10.0
"""At most one line about refused requests in so many."""


class GatewayMetrics:
    """Counters, which only the event loop changes, and what is read when they are asked for."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.requests: Counter[tuple[str, int]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.gauges: dict[str, tuple[str, Callable[[], float | None]]] = {}
        """Name → its help, and where its value comes from; None while there is none."""
        self._logged_at: float | None = None
        self._suppressed = 0

    def count_request(self, operation: str, status: int) -> None:
        """Count a request that was answered."""
        self.requests[operation, status] += 1

    def count_refusal(self, reason: str, detail: str, remote: str | None, namespace: str = "") -> None:
        """Count a request that nobody or somebody else may send, and log it, or at least that it was one of many."""
        self.refusals[reason] += 1
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
            self._suppressed += 1
            return
        extra = {"reason": reason, "client": remote, "namespace": namespace, "othersSince": self._suppressed}
        log.warning("refused a request: %s", detail, extra=extra)
        self._logged_at, self._suppressed = now, 0

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families as they are now."""
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
    """For ``Reads`` and ``Writes``."""

    budget: Budget
    """Of files."""
    short_budget: Budget
    """Of all that is short, which files leave free."""
    metrics: GatewayMetrics
    access: Access
    idle_seconds: float = IDLE_SECONDS
    """For which a client may send or take nothing."""
    short_seconds: float = SHORT_SECONDS
    """In which what is short must have come."""

    @property
    def cluster(self) -> str:
        """The cluster's id, with which every path begins."""
        return self.access.cluster
