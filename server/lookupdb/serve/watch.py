"""What the worker waits for: one epoll, and which clients the hot path may answer."""

from __future__ import annotations

import select
from typing import Final

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
"""The client is gone, in both directions."""

BUSY: Final = 0
"""Not for the hot path: no client, or one of whom something is under way."""
IDLE: Final = 1
"""Its next bytes begin a request, and it has asked nothing since the last sweep."""
ACTIVE: Final = 2
"""Its next bytes begin a request."""


class Watch:
    """Level-triggered: what an event leaves unread or unwritten is told again."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.states: list[int] = []
        """By file descriptor: BUSY, IDLE or ACTIVE. A list, because the hot path looks here first."""

    def add(self, fd: int) -> None:
        """Wait for ``fd`` to be readable."""
        missing = fd + 1 - len(self.states)
        if missing > 0:
            self.states += [BUSY] * missing
        self.epoll.register(fd, READ)

    def change(self, fd: int, events: int) -> None:
        """Wait for ``events`` of ``fd``; for ``BROKEN`` too, whatever they are."""
        self.epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Wait no longer for ``fd``, which is still open."""
        self.states[fd] = BUSY
        self.epoll.unregister(fd)
