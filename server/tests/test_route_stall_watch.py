"""When a batch counts as stalled, and which bytes count as progress."""

from __future__ import annotations

import asyncio

from support.waiting import soon

from lookupdb.router.lane import PROGRESS_BYTES, StallWatch


class Wire:
    """A fake connection for a stall watch."""

    def __init__(self, seconds: float) -> None:
        self.since: float | None = None
        self.pace = 0
        """Bytes that come between two looks."""
        self.looks = 0
        self.stalls = 0
        self.watch = StallWatch(seconds, lambda: self.since, self._received, self._stalled)
        self._bytes = 0

    def send(self) -> None:
        self.send_next()
        assert self.since is not None
        self.watch.watch(self.since)

    def send_next(self, received: int = 0) -> None:
        """Another batch, while the timer runs for one that is answered. So much of its reply comes at once."""
        self.since = asyncio.get_running_loop().time()
        self._bytes = received

    def _received(self) -> int:
        self.looks += 1
        self._bytes += self.pace
        return self._bytes

    def _stalled(self) -> None:
        self.stalls += 1


class TestStallWatch:
    async def test_nothing_comes(self) -> None:
        wire = Wire(0.05)
        wire.send()
        await soon(lambda: wire.stalls, "the stall is noticed")

    async def test_bytes_that_come_are_progress(self) -> None:
        wire = Wire(0.02)
        wire.pace = PROGRESS_BYTES
        wire.send()
        await soon(lambda: wire.looks > 10, "it was looked at again and again")
        assert not wire.stalls
        wire.pace = 0
        await soon(lambda: wire.stalls, "until none come any more")

    async def test_a_trickle_is_none(self) -> None:
        wire = Wire(0.02)
        wire.pace = PROGRESS_BYTES // 2 - 1
        wire.send()
        await soon(lambda: wire.stalls, "the stall is noticed")

    async def test_what_comes_before_the_look_at_another_batch_is_progress(self) -> None:
        """The look after that, at its own time, has only what came in between, which may be no time at all."""
        wire = Wire(0.2)
        wire.send()
        await asyncio.sleep(0.1)
        wire.send_next(received=PROGRESS_BYTES)
        assert wire.since is not None
        await soon(lambda: wire.stalls, "no more comes")
        assert asyncio.get_running_loop().time() >= wire.since + 2 * 0.2

    async def test_an_answered_batch_is_not_watched(self) -> None:
        wire = Wire(0.03)
        wire.send()
        wire.since = None
        await soon(lambda: wire.watch.timer is None, "the timer ends")
        assert not wire.stalls
