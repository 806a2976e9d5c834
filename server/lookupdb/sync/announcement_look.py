"""Looks for an announcement beside a routing table, which nobody who follows that waits for."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lookupdb.errors import StoreError
from lookupdb.runtime.daemon_calls import call_in_thread
from lookupdb.sync.store_feed import StoreFeed
from lookupdb.sync.target import SyncTarget

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""A store that takes longer is not waited for: what it says is taken at a later look."""


class AnnouncementLook:
    """What ``feed`` finds announced: one look at a time, however long it takes."""

    def __init__(self, feed: StoreFeed, slots: asyncio.Semaphore) -> None:
        self._feed = feed
        self._slots = slots
        self._uid = ""
        self._found: SyncTarget | None = None
        self._running: asyncio.Task[None] | None = None

    async def find(self, uid: str) -> SyncTarget | None:
        """What is announced of the dataset with ``uid``, or was when the store last answered; None if nothing is."""
        if uid != self._uid:
            self._uid, self._found = uid, None
        if self._running is None:
            self._running = asyncio.create_task(self._look(uid))
        await asyncio.wait({self._running}, timeout=WAIT_SECONDS)
        return self._found

    async def _look(self, uid: str) -> None:
        try:
            async with self._slots:
                found = await call_in_thread(self._feed.look_for_announcement, uid)
            if uid == self._uid:
                self._found = found
        except StoreError as error:
            log.debug("the announcement cannot be read", extra={"reason": error.message})
        finally:
            self._running = None
