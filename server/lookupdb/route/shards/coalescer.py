"""When batches leave: once an iteration of the event loop brings nothing new, for all endpoints of a worker together.

A lone lookup leaves at once, after one look at the sockets that does not wait; of a thousand that come together those
for one shard leave together. Each batch costs a write and a read on both ends, whatever it holds.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

MAX_ITERATIONS: Final = 4
"""Of the event loop: lookups are kept while each brings more. With 100 clients and 4 shards 0 gives batches of 5 to
7 keys, 4 of 10 to 12. More were better with 16 and 256 clients and worse with 100, by runs that vary as much."""

ENOUGH_KEYS: Final = 64
"""A batch that holds so many pays for itself, and nothing is gained by waiting for more."""


class BatchSender(Protocol):
    """What has a queue to send."""

    outstanding: int
    """Keys queued and in flight."""

    def send(self) -> None:
        """Send it, or as much of it as may be sent now."""


class Coalescer:
    """Has each sender that is added send once, soon."""

    def __init__(self) -> None:
        self._call_soon = asyncio.get_running_loop().call_soon
        self._senders: list[BatchSender] = []
        self._coalesced = 0
        """Keys, at the last iteration."""
        self._iterations = 0

    def add(self, sender: BatchSender) -> None:
        """Have ``sender`` send soon. It is not among those added already."""
        if not self._senders:
            self._call_soon(self._send_or_wait)
        self._senders.append(sender)

    def _send_or_wait(self) -> None:
        """Have all send, or look once more for what comes in: a callback that is due keeps the loop from waiting."""
        key_count = 0
        for sender in self._senders:
            key_count += sender.outstanding
        more = self._coalesced < key_count < ENOUGH_KEYS * len(self._senders)
        if more and self._iterations < MAX_ITERATIONS:
            self._coalesced = key_count
            self._iterations += 1
            self._call_soon(self._send_or_wait)
            return
        senders, self._senders = self._senders, []
        self._coalesced = self._iterations = 0
        for sender in senders:
            sender.send()
