"""The bytes that one worker holds for all of its clients together: parts of requests, and replies not taken."""

from __future__ import annotations

from typing import Protocol


class BudgetHolder(Protocol):
    """A client's connection."""

    held_bytes: int

    @property
    def fd(self) -> int:
        """The client's file descriptor."""

    def cut(self) -> None:
        """Close the connection, and free what is held for it."""


class ServerBudget:
    """Keeps ``total`` within ``limit`` by cutting clients off. One alone may hold more: it has limits of its own."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[int, BudgetHolder] = {}
        """By file descriptor, in the order in which they began to hold something."""

    def charge(self, holder: BudgetHolder, size: int) -> None:
        """Note that ``holder`` holds ``size`` bytes now, and cut clients off while all hold too much."""
        self.total += size - holder.held_bytes
        holder.held_bytes = size
        if size:
            self._holders.setdefault(holder.fd, holder)
        else:
            self._holders.pop(holder.fd, None)
        while self.total > self.limit and len(self._holders) > 1:
            self._next_victim().cut()

    def _next_victim(self) -> BudgetHolder:
        """Return who has held something for longest of those that hold at least the average. A client that takes its
        replies comes to hold nothing again and again, so it is spared.
        """
        mean = self.total / len(self._holders)
        return next(holder for holder in self._holders.values() if holder.held_bytes >= mean)
