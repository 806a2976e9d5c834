"""Notices a batch that is not answered. Bytes that come are progress: a reply may take longer than a lookup waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PROGRESS_BYTES: Final = 4096
"""In the time of a deadline: fewer are no progress, or an endpoint that trickles would be waited for for ever."""


class StallWatch:
    """Calls ``on_stall`` when of what is in flight since ``in_flight_since()`` too little has come for ``seconds``.

    ``received()`` is how many bytes have come since the connection was made. There is one timer, not one a batch.
    """

    def __init__(
        self,
        seconds: float,
        in_flight_since: Callable[[], float | None],
        received: Callable[[], int],
        on_stall: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._in_flight_since = in_flight_since
        self._received = received
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._watched: float | None = None
        """When the batch was sent whose bytes are counted from ``_received_before``."""
        self._received_before = 0

    @property
    def is_watching(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    def watch(self, sent: float) -> None:
        """Something was sent at ``sent``: look at it later."""
        self._watched = sent
        self._received_before = self._received()
        self._timer = self._loop.call_at(sent + self._seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        since = self._in_flight_since()
        if since is None:
            return
        now = self._loop.time()
        if since != self._watched and since + self._seconds > now:
            self.watch(since)
        elif self._received() - self._received_before >= PROGRESS_BYTES:
            self._received_before = self._received()
            self._watched = since
            self._timer = self._loop.call_later(self._seconds, self._check)
        else:
            self._on_stall()
