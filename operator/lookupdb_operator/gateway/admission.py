"""How many requests are worked on at once, in all and of one namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from lookupdb_operator.gateway.problems import busy


class Admission:
    """Counts requests in flight."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.share = max(1, most // 2)
        """Of one namespace."""
        self.in_flight = 0
        self._of_namespace: Counter[str] = Counter()

    @contextmanager
    def admit(self, namespace: str) -> Iterator[None]:
        """Count a request of ``namespace`` while the block runs. Raises RequestProblem if there are too many."""
        if self.in_flight >= self.most:
            raise busy(f"{self.most} requests are in flight, and no more at once")
        if self._of_namespace[namespace] >= self.share:
            raise busy(f"{self.share} requests of namespace {namespace} are in flight, and no more at once")
        self.in_flight += 1
        self._of_namespace[namespace] += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._of_namespace[namespace] -= 1
            if not self._of_namespace[namespace]:
                del self._of_namespace[namespace]
