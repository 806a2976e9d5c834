"""One endpoint of a shard: a lane for small work and, once there is any, one for large work, each a connection.

Slices that are expected to bring many bytes take the large lane: a lookup of a small value does not wait behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lookupdb.route.lookups.pending import PendingLookup
from lookupdb.route.lookups.scatter_gather import LARGE_SLICE_KEYS, ShardSlice
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.identity import ShardIdentity
from lookupdb.route.servers.link_state import LinkState
from lookupdb.route.shards.batch_size import LARGE_SLICE_BYTES
from lookupdb.route.shards.lane import Lane
from lookupdb.route.shards.settings import EndpointSettings

CONNECTIONS_AN_ENDPOINT: Final = 2
"""At most: one a lane."""


class Endpoint:
    """The endpoint at ``address``, which must prove to be ``identity``. Connects from ``start()`` to ``close()``."""

    def __init__(self, address: ServerAddress, identity: ShardIdentity, settings: EndpointSettings) -> None:
        self.address = address
        self.identity = identity
        self.observers: list[Callable[[], None]] = []
        """Called when it has become ready or has ceased to be, or is not for another reason than before."""
        self._small = Lane(address, identity, settings, "small", self._on_state_change)
        self._large = Lane(address, identity, settings, "large", lambda: None)
        self._submit_small = self._small.submit

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch; False when the queue is full. Only for a ready endpoint."""
        return self._lane_for(lookup).submit(lookup) if type(lookup) is ShardSlice else self._submit_small(lookup)

    def _lane_for(self, shard_slice: ShardSlice) -> Lane:
        """The lane for large work if ``shard_slice`` is, and that lane is there: it is connected for the first."""
        large, count = self._large, shard_slice.key_count
        if count <= LARGE_SLICE_KEYS and not shard_slice.gather.is_large:
            most = LARGE_SLICE_BYTES / count
            if self._small.batch_size.value_bytes <= most and large.batch_size.value_bytes <= most:
                return self._small
        if large.is_usable:
            return large
        if large.link.state is LinkState.NEW:
            large.link.start()
        return self._small

    @property
    def outstanding(self) -> int:
        """Keys queued and in flight."""
        return self._small.outstanding + self._large.outstanding

    @property
    def slice_keys(self) -> int:
        """How many keys of a request stay together."""
        small, large = self._small.batch_size.slice_keys, self._large.batch_size.slice_keys
        return small if small < large else large

    @property
    def answered_at(self) -> float:
        """The loop's time of the last answer."""
        return max(self._small.answered_at, self._large.answered_at)

    @property
    def is_silent(self) -> bool:
        """Whether it has let a batch wait for the whole deadline, and answered none since, though it may be ready: a
        server whose storage hangs answers what proves it."""
        return self.answered_at < max(self._small.stalled_at, self._large.stalled_at)

    @property
    def state(self) -> LinkState:
        """The state of the lane for small work: without that the endpoint is not used."""
        return self._small.link.state

    @property
    def last_failure(self) -> str | None:
        """Why it is not ready; None if nothing has failed since it was, or since it began."""
        return self._small.link.last_failure

    @property
    def broken_at(self) -> float:
        """The loop's time when it was ready for the last time, if it may be back in a moment."""
        return self._small.link.broken_at

    @property
    def was_ready(self) -> bool:
        """Whether it has ever been ready."""
        return self._small.link.was_ready

    def start(self) -> None:
        """Connect, and connect again whenever the connection breaks."""
        self._small.link.start()

    def close(self) -> None:
        """Close the connections; tries that are still open fail."""
        self._small.close()
        self._large.close()

    def _on_state_change(self) -> None:
        for observer in tuple(self.observers):
            observer()
        if self.state is not LinkState.READY:
            self._large.stop_waiting(self.last_failure or "not ready")
