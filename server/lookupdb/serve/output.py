"""Replies on their way to one client: what it has not taken yet is kept, and too much of that pauses the client."""

from __future__ import annotations

import os

from lookupdb.serve import shard_counters


class ReplyOutput:
    """Writes to the non-blocking socket ``fd``. Every method may raise OSError: the client is gone."""

    __slots__ = ("_fd", "_slot", "is_paused", "unsent")

    def __init__(self, fd: int, slot: memoryview) -> None:
        self._fd = fd
        self._slot = slot
        self.unsent = bytearray()
        self.is_paused = False
        """Whether too much is unsent to read and answer any more."""

    def send(self, data: bytes, high: int) -> None:
        """Write ``data``, now or when the client takes it. More than ``high`` unsent pauses the client."""
        try:
            sent = 0 if self.unsent else os.write(self._fd, data)
        except BlockingIOError:
            sent = 0
        self._slot[shard_counters.SENT_BYTES] += sent
        if sent != len(data):
            self.keep_unsent(data, sent, high)

    def keep_unsent(self, data: bytes, sent: int, high: int) -> None:
        """Keep what the client has not taken of ``data``: all but the first ``sent`` bytes."""
        self.unsent += memoryview(data)[sent:]
        self._slot[shard_counters.SENT_BYTES] += len(data) - sent
        if len(self.unsent) > high:
            self.is_paused = True

    def flush(self, high: int) -> None:
        """Write what is unsent. The client may go on when no more than half of ``high`` remains."""
        try:
            del self.unsent[: os.write(self._fd, self.unsent)]
        except BlockingIOError:
            return
        if len(self.unsent) <= high // 2:
            self.is_paused = False
