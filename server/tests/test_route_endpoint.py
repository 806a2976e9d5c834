"""Batches, queues and proofs of the router's endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace

import pytest
from support.routing import LIMITS, Core, entry, identity, table
from support.scripted_shard import ScriptedShard, hang_up, hold, late
from support.waiting import soon

from lookupdb.router import link as identities
from lookupdb.router.lane import MAX_ITERATIONS
from lookupdb.router.lookups import Problem

RECORDS = {b"k%d" % i: b"v%d" % i for i in range(2000)}


@pytest.fixture
async def core() -> AsyncIterator[Core]:
    core = Core()
    yield core
    core.close()


async def test_a_lone_lookup_is_one_get_that_leaves_at_once(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        assert await core.find("k1") == b"v1"
        assert shard.asked == [[b"GET", b"k1"]]


async def test_lookups_that_arrive_together_leave_together(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        answers = [core.find(f"k{i}") for i in range(100)]
        assert [await answer for answer in answers] == [b"v%d" % i for i in range(100)]
        assert shard.asked == [[b"MGET", *(b"k%d" % i for i in range(100))]]


async def test_while_each_turn_of_the_loop_brings_more_a_batch_waits_for_it(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        answers = []
        for i in range(MAX_ITERATIONS):
            answers.append(core.find(f"k{i}"))
            await asyncio.sleep(0)
        assert [await answer for answer in answers] == [b"v%d" % i for i in range(MAX_ITERATIONS)]
        assert shard.asked == [[b"MGET", *(b"k%d" % i for i in range(MAX_ITERATIONS))]]


async def test_but_not_for_ever(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        async with asyncio.timeout(60):
            while not shard.asked:
                core.find("k1")
                await asyncio.sleep(0)


async def test_while_a_batch_is_in_flight_the_next_one_gathers(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS, late(0.05)) as shard:
        await core.serve(table(entry([[shard.address]])))
        first = core.find("k0")
        await soon(lambda: shard.asked, "the first lookup has left")
        others = [core.find(f"k{i}") for i in range(1, 10)]
        assert await first == b"v0"
        assert [await answer for answer in others] == [b"v%d" % i for i in range(1, 10)]
        assert [command[0] for command in shard.asked] == [b"GET", b"MGET"]


async def test_batches_are_bounded(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        assert await core.find_many([f"k{i}" for i in range(2000)]) == [b"v%d" % i for i in range(2000)]
        assert max(len(command) for command in shard.asked) <= 513


async def test_single_lookups_and_parts_of_batches_share_a_batch(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        one, many, other = core.find("k1"), core.find_many(["k2", "none", "k2"]), core.find("none")
        assert [await one, await many, await other] == [b"v1", [b"v2", None, b"v2"], None]
        assert len(shard.asked) == 1


async def test_a_full_queue_is_unavailable_at_once() -> None:
    core = Core(replace(LIMITS, max_queued_keys=5, max_keys=5))
    async with ScriptedShard(identity(), RECORDS, hold) as shard:
        await core.serve(table(entry([[shard.address]])))
        answers = [core.find(f"k{i}") for i in range(6)]
        assert answers[5].future.done()
        problem = await answers[5]
        assert isinstance(problem, Problem)
        assert (problem.reason, problem.shard) == ("QueueFull", 0)
        assert "the queue is full (5 keys)" in problem.detail
        assert not any(answer.future.done() for answer in answers[:5])
        assert core.count("queue_full") == 1
        core.close()


@pytest.mark.parametrize(
    "served",
    [
        pytest.param(identity(dataset="default/other"), id="another dataset"),
        pytest.param(identity(uid="another"), id="a dataset made again under its name"),
        pytest.param(identity(generation="g2"), id="another generation"),
        pytest.param(identity(shard=1, shards=2), id="another shard"),
        pytest.param(identity(normalize=("strip",)), id="other normalisation"),
    ],
)
async def test_an_address_that_serves_something_else_is_not_used(core: Core, served: identities.ShardIdentity) -> None:
    async with ScriptedShard(served, RECORDS) as shard:
        core.cutover.offer(table(entry([[shard.address]])))
        await soon(lambda: core.count("proofs_failed"), "the proof has failed")
        problem = await core.find("k1")
        assert isinstance(problem, Problem)
        assert problem.reason == "Unreachable"
        assert "serves something else" in problem.detail
        assert shard.asked == []
        [reported] = core.cutover.status()["endpoints"]
        assert reported["endpoint"] == str(shard.address)
        assert "serves something else: expected" in reported["why"]


async def test_an_address_is_used_once_it_serves_the_right_thing(core: Core) -> None:
    async with ScriptedShard(identity(generation="g2"), RECORDS) as shard:
        core.cutover.offer(table(entry([[shard.address]])))
        await soon(lambda: core.count("proofs_failed"), "the proof has failed")
        shard.identity = identity()
        await soon(lambda: core.cutover.is_complete, "the endpoint has proven itself")
        assert await core.find("k1") == b"v1"


async def test_an_endpoint_proves_itself_again_after_every_reconnect(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        shard.hang_up()
        assert await core.find("k1") == b"v1"
        assert shard.proofs == 2


async def test_where_values_are_large_a_batch_has_fewer_keys() -> None:
    core = Core(replace(LIMITS, deadline_milliseconds=60_000))  # 20 MB may take a while
    with closing(core):
        async with ScriptedShard(identity(), dict.fromkeys(RECORDS, b"x" * 500000)) as shard:
            await core.serve(table(entry([[shard.address]])))
            for _ in range(3):
                shard.asked.clear()
                answers = [core.find(f"k{i}") for i in range(40)]
                assert {len(await answer) for answer in answers} == {500_000}
            assert max(len(command) - 1 for command in shard.asked) < 20


async def test_a_waiter_that_fails_does_not_cost_the_others_their_answer(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS) as shard:
        await core.serve(table(entry([[shard.address]])))
        one, broken, other = core.find("k1"), core.find("k2"), core.find("k3")
        broken.future.set_result("told already")
        assert (await one, await other) == (b"v1", b"v3")


async def test_an_endpoint_that_breaks_again_and_again_is_tried_less_and_less(core: Core) -> None:
    async with ScriptedShard(identity(), RECORDS, hang_up) as shard:
        await core.serve(table(entry([[shard.address]])))
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 0.8 or shard.proofs < 2:
            core.find("k1")
            await asyncio.sleep(0.01)
        assert 2 <= shard.proofs <= 8
