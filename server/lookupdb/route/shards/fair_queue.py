"""Asks that wait for large work's turn: requests take turns, one part each, so that none waits for all of another's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lookupdb.route.lookups.pending import ScatterGather, ShardSlice


class FairQueue:
    """As a deque of parts, but ``popleft`` takes the next part of the request whose turn it is."""

    def __init__(self) -> None:
        self._turns: deque[ScatterGather] = deque()
        """The requests, in the order of their turns."""
        self._parts: dict[ScatterGather, deque[ShardSlice]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[ShardSlice]:
        for gather in self._turns:
            yield from self._parts[gather]

    def append(self, part: ShardSlice) -> None:
        """``part`` waits behind the others of its request."""
        gather = part.gather
        parts = self._parts.get(gather)
        if parts is None:
            self._parts[gather] = deque((part,))
            self._turns.append(gather)
        else:
            parts.append(part)

    def popleft(self) -> ShardSlice:
        """The first part of the request whose turn it is; its next turn comes after all others'."""
        gather = self._turns.popleft()
        parts = self._parts[gather]
        part = parts.popleft()
        if parts:
            self._turns.append(gather)
        else:
            del self._parts[gather]
        return part

    def clear(self) -> None:
        """Forget all."""
        self._turns.clear()
        self._parts.clear()
