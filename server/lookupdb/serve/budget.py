"""What one worker holds for all of its clients together: parts of requests, and replies that are not taken."""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A client's connection."""

    held: int

    @property
    def fd(self) -> int:
        """The client's, which tells it from others."""

    def cut(self) -> None:
        """Close it, and hold nothing for it any more."""


class Budget:
    """Keeps ``total`` within ``limit`` by cutting clients off: one alone may hold more, for its limits are its own."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[int, Holder] = {}
        """By file descriptor; who has held something for longest comes first."""

    def hold(self, holder: Holder, size: int) -> None:
        """``holder`` now holds ``size`` bytes."""
        self.total += size - holder.held
        holder.held = size
        if size:
            self._holders.setdefault(holder.fd, holder)
        else:
            self._holders.pop(holder.fd, None)
        while self.total > self.limit and len(self._holders) > 1:
            self._victim().cut()

    def _victim(self) -> Holder:
        """Of those that hold no less than the others on average, who has held something for longest: a client that
        takes its replies comes to hold nothing again and again.
        """
        mean = self.total / len(self._holders)
        return next(holder for holder in self._holders.values() if holder.held >= mean)
