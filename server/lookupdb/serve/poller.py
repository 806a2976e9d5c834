"""The sockets that the worker waits for, by one epoll, and the clients that the hot path may answer."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, Final

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
"""The client is gone, in both directions."""

BUSY: Final = 0
"""Not for the hot path: no client, or one with a request or replies under way."""
IDLE: Final = 1
"""Its next bytes begin a request, and it has asked nothing since the last sweep."""
ACTIVE: Final = 2
"""Its next bytes begin a request."""


class Poller:
    """Level-triggered: the next poll reports again what an event leaves unread or unwritten."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.fast_path = bytearray()
        """By file descriptor: BUSY, IDLE or ACTIVE."""
        self.protocols = bytearray()
        """By file descriptor: which version of RESP a client on the hot path speaks."""
        self.park: Callable[[Any], None] | None = None
        """While data is cold, no client is for the hot path: its connection gives itself to this, which reads what is
        needed for what it has ``parked``, and is called back by ``unpark``."""

    def add(self, fd: int) -> None:
        """Wait for ``fd`` to be readable."""
        missing = fd + 1 - len(self.fast_path)
        if missing > 0:
            self.fast_path += bytes(missing)  # BUSY
            self.protocols += bytes(missing)
        self.epoll.register(fd, READ)

    def change(self, fd: int, events: int) -> None:
        """Wait for ``events`` of ``fd``. ``BROKEN`` is always reported."""
        self.epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop waiting for ``fd``, which is still open."""
        self.fast_path[fd] = BUSY
        self.epoll.unregister(fd)


def is_broken(fd: int) -> bool:
    """Whether ``fd`` has an event of ``BROKEN`` now."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
