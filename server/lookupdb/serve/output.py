"""Replies on their way to one client: what it has not taken yet is owed, and too much of that pauses the client."""

from __future__ import annotations

import os

from lookupdb.serve import counted


class Output:
    """Writes to the non-blocking socket ``fd``. Every method may raise OSError: the client is gone."""

    __slots__ = ("_fd", "_slot", "owed", "paused")

    def __init__(self, fd: int, slot: memoryview) -> None:
        self._fd = fd
        self._slot = slot
        self.owed = bytearray()
        self.paused = False
        """Whether too much is owed to read and answer any more."""

    def send(self, data: bytes, high: int) -> None:
        """Write ``data``, now or when the client takes it. More than ``high`` owed pauses the client."""
        try:
            sent = 0 if self.owed else os.write(self._fd, data)
        except BlockingIOError:
            sent = 0
        self._slot[counted.SENT_BYTES] += sent
        if sent != len(data):
            self.owe(data, sent, high)

    def owe(self, data: bytes, sent: int, high: int) -> None:
        """The client took only so many bytes of ``data``."""
        self.owed += memoryview(data)[sent:]
        self._slot[counted.SENT_BYTES] += len(data) - sent
        if len(self.owed) > high:
            self.paused = True

    def flush(self, high: int) -> None:
        """Write what is owed. When no more than half of ``high`` is left the client may go on."""
        try:
            del self.owed[: os.write(self._fd, self.owed)]
        except BlockingIOError:
            return
        if len(self.owed) <= high // 2:
            self.paused = False
