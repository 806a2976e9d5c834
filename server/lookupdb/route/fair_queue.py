"""Asks that wait for large work's turn: requests take turns, one part each, so that none waits for all of another's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lookupdb.route.asks import Gather, Part


class FairQueue:
    """As a deque of parts, but ``popleft`` takes the next part of the request whose turn it is."""

    def __init__(self) -> None:
        self._requests: dict[Gather, deque[Part]] = {}
        """In the order of their turns."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Part]:
        for parts in self._requests.values():
            yield from parts

    def append(self, part: Part) -> None:
        """``part`` waits behind the others of its request."""
        self._requests.setdefault(part.gather, deque()).append(part)

    def popleft(self) -> Part:
        """The first part of the request whose turn it is; its next turn comes after all others'."""
        gather = next(iter(self._requests))
        parts = self._requests.pop(gather)
        part = parts.popleft()
        if parts:
            self._requests[gather] = parts
        return part

    def clear(self) -> None:
        """Forget all."""
        self._requests.clear()
