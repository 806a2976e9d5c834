"""Notices a batch that is not answered. Bytes that come are progress: a reply may take longer than a lookup waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PROGRESS_BYTES: Final = 4096
"""In the time of a deadline: fewer are no progress, or an endpoint that trickles would be waited for for ever."""


class StallWatch:
    """Calls ``on_stall`` when of what is in flight since ``in_flight_since()`` too little has come for ``seconds``.

    ``received()`` is how many bytes have come since that was sent: what came before the watch looked counts, too. There
    is one timer, not one a batch.
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
        self._watched, self._received_before = sent, 0
        self._timer = self._loop.call_at(sent + self._seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        since = self._in_flight_since()
        if since is None:
            return
        if since != self._watched and since + self._seconds > self._loop.time():
            self.watch(since)
            return
        before = self._received_before if since == self._watched else 0
        received = self._received()
        if received - before >= PROGRESS_BYTES:
            self._watched, self._received_before = since, received
            self._timer = self._loop.call_later(self._seconds, self._check)
        else:
            self._on_stall()
