"""Slices that wait in the lane for large work: requests rotate, so that none waits for all of another's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lookupdb.route.lookups.scatter_gather import ScatterGather, ShardSlice


class FairQueue:
    """As a deque of slices, but ``popleft`` takes the next slice of the request that is first in the rotation."""

    def __init__(self) -> None:
        self._gathers: deque[ScatterGather] = deque()
        """The requests, in the order of the rotation."""
        self._slices: dict[ScatterGather, deque[ShardSlice]] = {}

    def __len__(self) -> int:
        return len(self._gathers)

    def __iter__(self) -> Iterator[ShardSlice]:
        for gather in self._gathers:
            yield from self._slices[gather]

    def append(self, shard_slice: ShardSlice) -> None:
        """Queue ``shard_slice`` behind the others of its request."""
        gather = shard_slice.gather
        slices = self._slices.get(gather)
        if slices is None:
            self._slices[gather] = deque((shard_slice,))
            self._gathers.append(gather)
        else:
            slices.append(shard_slice)

    def popleft(self) -> ShardSlice:
        """The next slice of the first request, which then goes behind all others."""
        gather = self._gathers.popleft()
        slices = self._slices[gather]
        shard_slice = slices.popleft()
        if slices:
            self._gathers.append(gather)
        else:
            del self._slices[gather]
        return shard_slice

    def clear(self) -> None:
        """Forget all."""
        self._gathers.clear()
        self._slices.clear()
