"""Counters in shared memory."""

from __future__ import annotations

from lookupdb.process.worker import Counters


def test_a_worker_counts_in_its_own_slot_and_scrapes_see_the_sum() -> None:
    supervisor_counters = Counters(("lookups", "hits"), 2)
    worker_counters = Counters(("lookups", "hits"), 2, fd=supervisor_counters.fd)
    worker_counters.slot(0)[worker_counters.index["lookups"]] += 5
    worker_counters.slot(1)[worker_counters.index["lookups"]] += 2
    assert supervisor_counters.total("lookups") == 7
    assert supervisor_counters.value("lookups", 1) == 2
    assert supervisor_counters.total("hits") == 0


def test_slots_do_not_share_cache_lines() -> None:
    counters = Counters([f"c{number}" for number in range(9)], 3)
    for slot in range(3):
        for place in range(9):
            counters.slot(slot)[place] = slot + 1
    assert [counters.total(f"c{number}") for number in range(9)] == [6] * 9


def test_counters_hold_64_bits() -> None:
    counters = Counters(("bytes",), 1)
    counters.slot(0)[0] = 2**64 - 1
    assert counters.total("bytes") == 2**64 - 1


def test_blocks_are_counted_apart_and_the_heartbeat_too() -> None:
    supervisor_counters = Counters(("lookups", "hits"), 2, 3)
    worker_counters = Counters(("lookups", "hits"), 2, 3, fd=supervisor_counters.fd)
    for worker in range(2):
        for block in range(3):
            worker_counters.slot(worker, block)[0] = 10 * worker + block
        worker_counters.beat(worker)
    assert [supervisor_counters.values("lookups", block) for block in range(3)] == [[0, 10], [1, 11], [2, 12]]
    assert supervisor_counters.total("hits", 2) == 0
    assert [supervisor_counters.beats(worker) for worker in range(2)] == [1, 1]
