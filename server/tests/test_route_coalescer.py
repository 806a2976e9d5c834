"""When batches leave: together, soon, and not later than a few turns of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from support.waiting import soon

from lookupdb.router.lane import ENOUGH_KEYS, MAX_ITERATIONS, Coalescer


class Sender:
    """Notes at which turn of the loop it sent, and how much it had by then."""

    def __init__(self, outstanding: int = 1) -> None:
        self.outstanding = outstanding
        self.sent: list[int] = []

    def send(self) -> None:
        self.sent.append(self.outstanding)


async def test_one_that_is_added_sends_once() -> None:
    coalescer, sender = Coalescer(), Sender()
    coalescer.add(cast("Any", sender))
    assert not sender.sent
    await soon(lambda: sender.sent, "it has sent")
    for _ in range(2 * MAX_ITERATIONS):
        await asyncio.sleep(0)
    assert sender.sent == [1]


async def test_all_that_were_added_send_at_the_same_turn() -> None:
    coalescer, senders = Coalescer(), [Sender(), Sender()]
    for sender in senders:
        coalescer.add(cast("Any", sender))
    for _ in range(2 * MAX_ITERATIONS):
        assert bool(senders[0].sent) == bool(senders[1].sent)
        await asyncio.sleep(0)
    assert senders[0].sent


async def test_while_each_turn_brings_more_they_wait_for_it_but_not_for_ever() -> None:
    coalescer, sender = Coalescer(), Sender()
    coalescer.add(cast("Any", sender))
    for _ in range(4 * MAX_ITERATIONS):
        await asyncio.sleep(0)
        sender.outstanding += 1
    assert len(sender.sent) == 1
    assert MAX_ITERATIONS <= sender.sent[0] <= MAX_ITERATIONS + 2


async def test_what_is_enough_for_a_batch_waits_for_nothing() -> None:
    coalescer, sender = Coalescer(), Sender(ENOUGH_KEYS)
    coalescer.add(cast("Any", sender))
    await asyncio.sleep(0)
    assert sender.sent


async def test_one_that_sends_may_be_added_again() -> None:
    coalescer, sender = Coalescer(), Sender()
    for count in (1, 2, 3):
        coalescer.add(cast("Any", sender))
        await soon(lambda count=count: len(sender.sent) == count, "it has sent again")  # type: ignore[misc]
