"""Who is at work, of as many as may be. A seat is given back even if its holder is interrupted at whatever point: by
Ctrl-C, a signal handler that raises, or a timeout of gevent."""

from __future__ import annotations

import weakref
from collections import deque


class Seat:
    """A caller's claim to be counted. It counts from ``Seats.take`` on, and no longer than it is remembered."""

    __slots__ = ("__weakref__", "owner", "reference")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        """A thread, or a greenlet."""
        self.reference: weakref.ref[Seat] | None = None
        """By which it counts."""


class Seats:
    """The seats that are taken. Whoever calls it holds a lock."""

    def __init__(self) -> None:
        self._owners: dict[weakref.ref[Seat], int] = {}
        self._lost: deque[weakref.ref[Seat]] = deque()
        """Of those who were interrupted before they could give theirs back: of seats that nobody remembers. No code of
        ours runs when they are forgotten, which may be while this thread holds any lock."""

    def __len__(self) -> int:
        while self._lost:
            self._owners.pop(self._lost.popleft(), None)
        return len(self._owners)

    def take(self, seat: Seat) -> None:
        """Count ``seat``."""
        reference = seat.reference = weakref.ref(seat, self._lost.append)
        self._owners[reference] = seat.owner

    def leave(self, seat: Seat) -> None:
        """Count ``seat`` no more, if it was."""
        if seat.reference is not None:
            self._owners.pop(seat.reference, None)
            seat.reference = None

    def has(self, seat: Seat) -> bool:
        """Whether ``seat`` counts."""
        return seat.reference in self._owners

    def is_owner(self, owner: int) -> bool:
        """Whether ``owner`` has a seat."""
        return owner in self._owners.values()
