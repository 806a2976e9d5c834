"""A lane alone: when it sends what, which lookup gets the answer, and what happens when its connection is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

import hiredis
import pytest
from support.routing import identity
from support.waiting import soon

from lookupdb.router import lane
from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import BATCH_BUCKETS, BATCH_MICROSECONDS, INDEX, NAMES
from lookupdb.router.lane import EndpointSettings, Lane
from lookupdb.router.link import LinkSettings
from lookupdb.router.lookups import Problem, SingleKey
from lookupdb.router.server_connection import ServerAddress


class Connection:
    """Records the frames that a lane sends, and answers them."""

    received = 0

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def use(self, on_reply: Any, sink: object) -> None:
        self.reply = on_reply

    def write(self, data: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(data)
        self.sent.append(reader.gets())


class Replicas:
    """Takes back what failed."""

    number = 0
    generation = None

    def __init__(self, counters: memoryview) -> None:
        self.counters = counters
        self.retried: list[tuple[bytes, str]] = []

    def retry(self, lookup: Any, problem: Problem) -> None:
        self.retried.append((lookup.packed.split(b"\r\n")[1], problem.detail))


class Waiter:
    def __init__(self) -> None:
        self.answers: list[bytes | None] = []

    def found(self, value: bytes, generation: object) -> None:
        self.answers.append(value)

    def missing(self, generation: object) -> None:
        self.answers.append(None)


class Bench:
    """A lane, and what is around it."""

    def __init__(self, kind: Literal["small", "large"] = "small", deadline: float = 10, most: int = 100) -> None:
        self.counters = memoryview(bytearray(8 * len(NAMES))).cast("Q")
        link = LinkSettings(self.counters, random.Random(1), RouterBudget(1 << 20))
        settings = EndpointSettings(deadline, most, link)
        self.broken: list[str] = []
        self.lane = Lane(ServerAddress("shard", 7000), identity(), settings, kind, lambda: None)
        self.lane.link.break_connection = self._break  # type: ignore[method-assign]
        self.connection = Connection()
        self.replicas = Replicas(self.counters)
        self.waiter = Waiter()

    def _break(self, why: str) -> None:
        self.broken.append(why)

    def connected(self) -> Bench:
        self.lane.on_connection(self.connection)  # type: ignore[arg-type]
        return self

    def lookup(self, key: bytes = b"k") -> SingleKey:
        return SingleKey(key, self.waiter, self.replicas, 0.0)  # type: ignore[arg-type]

    def submit(self, *keys: bytes) -> list[SingleKey]:
        lookups = [self.lookup(key) for key in keys]
        assert all(self.lane.submit(lookup) for lookup in lookups)
        return lookups

    async def sent(self, count: int = 1) -> list[list[bytes]]:
        await soon(lambda: len(self.connection.sent) >= count, f"{count} batches are sent")
        return self.connection.sent

    def count(self, name: str) -> int:
        return self.counters[INDEX[name]]


class TestSending:
    async def test_one_key_is_a_get_and_several_are_an_mget(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a")
        assert await bench.sent() == [[b"GET", b"a"]]
        bench.connection.reply(b"1")
        bench.submit(b"b", b"c")
        assert (await bench.sent(2))[1] == [b"MGET", b"b", b"c"]
        assert (bench.count("batches"), bench.count("keys_asked")) == (2, 3)

    async def test_while_a_batch_is_in_flight_the_next_one_grows(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a")
        await bench.sent()
        bench.submit(b"b")
        await asyncio.sleep(0.01)
        bench.submit(b"c")
        assert len(bench.connection.sent) == 1
        bench.connection.reply(b"1")
        assert (await bench.sent(2))[1] == [b"MGET", b"b", b"c"]

    async def test_what_is_done_is_not_asked_for(self) -> None:
        bench = Bench().connected()
        first, _ = bench.submit(b"a", b"b")
        first.is_done = True
        assert await bench.sent() == [[b"GET", b"b"]]
        assert bench.lane.outstanding == 1

    async def test_a_full_queue_takes_no_more_until_something_is_answered(self) -> None:
        bench = Bench(most=2).connected()
        bench.submit(b"a", b"b")
        assert not bench.lane.submit(bench.lookup())
        await bench.sent()
        assert not bench.lane.submit(bench.lookup())
        bench.connection.reply([b"1", b"2"])
        assert bench.lane.submit(bench.lookup())

    async def test_before_there_is_a_connection_lookups_wait(self) -> None:
        bench = Bench()
        bench.submit(b"a")
        await asyncio.sleep(0.01)
        bench.connected()
        assert await bench.sent() == [[b"GET", b"a"]]


class TestAnswers:
    async def test_each_lookup_gets_its_own(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a", b"b")
        await bench.sent()
        bench.connection.reply([b"1", None])
        assert bench.waiter.answers == [b"1", None]
        assert (bench.count("keys_found"), bench.count("keys_missing"), bench.lane.outstanding) == (1, 1, 0)
        assert not bench.broken

    @pytest.mark.parametrize("reply", [[b"1"], [b"1", b"2", b"3"], 7, b"1", [b"1", 2]])
    async def test_one_that_does_not_fit_breaks_the_connection(self, reply: Any) -> None:
        bench = Bench().connected()
        bench.submit(b"a", b"b")
        await bench.sent()
        bench.connection.reply(reply)
        assert bench.broken[0].startswith("answered 2 keys with ")
        assert "b'" not in bench.broken[0], "a value is not quoted: its key may be another client's"
        assert bench.waiter.answers == []

    async def test_so_does_one_that_nobody_asked_for(self) -> None:
        bench = Bench().connected()
        bench.connection.reply(b"1")
        assert bench.broken == ["sent an unrequested reply: one value of 1 bytes"]

    async def test_an_error_is_a_failed_try_and_the_connection_stays(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a")
        await bench.sent()
        bench.connection.reply(hiredis.ReplyError("LOADING"))
        assert bench.replicas.retried == [(b"a", "shard 0: shard:7000: answered with an error: LOADING")]
        assert (bench.broken, bench.lane.outstanding) == ([], 0)

    async def test_damaged_values_fail_their_own_lookups_alone(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a", b"b")
        await bench.sent()
        bench.connection.reply([hiredis.ReplyError("damaged"), b"2"])
        assert bench.waiter.answers == [b"2"]
        assert [key for key, _ in bench.replicas.retried] == [b"a"]
        assert bench.count("keys_damaged") == 1

    async def test_one_that_does_not_come_in_time_breaks_the_connection(self) -> None:
        bench = Bench(deadline=0.05).connected()
        bench.submit(b"a")
        await soon(lambda: bench.broken, "the stall is noticed")
        assert bench.broken == ["did not answer within 0.05 s"]


class TestLoss:
    async def test_in_the_lane_for_small_work_all_tries_fail(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a")
        await bench.sent()
        bench.submit(b"b")
        bench.lane.on_no_connection("gone")
        assert [key for key, _ in bench.replicas.retried] == [b"a", b"b"]
        assert bench.replicas.retried[0][1] == "shard 0: shard:7000: gone"
        assert bench.lane.outstanding == 0

    async def test_a_late_answer_is_nobodys(self) -> None:
        bench = Bench().connected()
        bench.submit(b"a")
        await bench.sent()
        bench.lane.on_no_connection("gone")
        bench.connected().submit(b"b")
        await bench.sent(2)
        bench.connection.reply(b"2")
        assert bench.waiter.answers == [b"2"]


class TestMeasuring:
    """One batch in 16 is measured, by the clock that these tests replace."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [100.0]
        monkeypatch.setattr(lane, "perf_counter", lambda: now[0])
        return now

    @staticmethod
    async def ask(bench: Bench, count: int = 1) -> None:
        for _ in range(count):
            bench.submit(b"a")
            await bench.sent(len(bench.connection.sent) + 1)
            bench.connection.reply(b"1")

    @pytest.mark.parametrize(
        ("seconds", "bucket"), [(0.00009, 0), (0.00011, 1), (0.0024, 4), (0.0026, 5), (0.99, 12), (7.0, 13)]
    )
    async def test_its_seconds_are_in_the_first_bucket_that_holds_them_and_in_the_sum(
        self, clock: list[float], seconds: float, bucket: int
    ) -> None:
        bench = Bench().connected()
        await self.ask(bench, 15)
        bench.submit(b"a")
        await bench.sent(16)
        clock[0] += seconds
        bench.connection.reply(b"1")
        counts = [bench.count(name) for name in BATCH_BUCKETS]
        assert (counts.index(1), sum(counts)) == (bucket, 1)
        assert bench.count(BATCH_MICROSECONDS) == pytest.approx(seconds * 1e6, abs=1)

    async def test_of_one_whose_connection_is_lost_nothing_is_measured_nor_of_the_next_ones(
        self, clock: list[float]
    ) -> None:
        bench = Bench().connected()
        await self.ask(bench, 15)
        bench.submit(b"a")
        await bench.sent(16)
        bench.lane.on_no_connection("gone")
        clock[0] += 60
        bench.connected()
        await self.ask(bench, 15)
        assert sum(bench.count(name) for name in BATCH_BUCKETS) == 0
        await self.ask(bench)
        assert (bench.count(BATCH_BUCKETS[0]), bench.count(BATCH_MICROSECONDS)) == (1, 0)
