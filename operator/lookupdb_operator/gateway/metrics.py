"""What the gateway counts, and what of it it logs: who is refused shows in the log, though not for each request."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from lookupdb.runtime.exposition import MetricFamily, counter, gauge, labelled_counter

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
