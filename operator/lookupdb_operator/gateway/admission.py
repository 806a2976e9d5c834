"""How many requests are worked on at once, in all and of one namespace.

Transfers of files take long, so they never take all places: a quarter is left for requests that are short, without
which no build goes on. One namespace may have half of what the others leave: of 192 places, it takes nine that take all
they can to leave none for a tenth, which is told to come again in a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lookupdb_operator.gateway.problems import busy


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
