"""Slices that wait in the lane for large work: requests take turns, so that none waits for all of another's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lookupdb.route.lookups.scatter_gather import ScatterGather, ShardSlice


class FairQueue:
    """As a deque of slices, but ``popleft`` takes the next slice of the request whose turn it is."""

    def __init__(self) -> None:
        self._turns: deque[ScatterGather] = deque()
        """The requests, in the order of their turns."""
        self._slices: dict[ScatterGather, deque[ShardSlice]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[ShardSlice]:
        for gather in self._turns:
            yield from self._slices[gather]

    def append(self, shard_slice: ShardSlice) -> None:
        """Queue ``shard_slice`` behind the others of its request."""
        gather = shard_slice.gather
        slices = self._slices.get(gather)
        if slices is None:
            self._slices[gather] = deque((shard_slice,))
            self._turns.append(gather)
        else:
            slices.append(shard_slice)

    def popleft(self) -> ShardSlice:
        """The first slice of the request whose turn it is; its next turn comes after all others'."""
        gather = self._turns.popleft()
        slices = self._slices[gather]
        shard_slice = slices.popleft()
        if slices:
            self._turns.append(gather)
        else:
            del self._slices[gather]
        return shard_slice

    def clear(self) -> None:
        """Forget all."""
        self._turns.clear()
        self._slices.clear()
