"""Faults of a network, a node or a shard cause a retry or an unavailable key, but never a wrong answer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from support.replicas import serve_replicas
from support.routing import LIMITS, SHORT_DEADLINE, Core, entry, identity, table
from support.scripted_shard import Script, ScriptedShard, answer, hang_up, hold, late, saying
from support.waiting import soon

from lookupdb.keys import shard_number
from lookupdb.router.budget import RouterLimits
from lookupdb.router.lookups import Problem

RECORDS = {b"k%d" % i: b"v%d" % i for i in range(500)}
KEYS = [f"k{i}" for i in range(500)]
VALUES = list(RECORDS.values())
SHORT = replace(LIMITS, deadline_milliseconds=SHORT_DEADLINE)


async def replicas(
    stack: AsyncExitStack, *scripts: Script, limits: RouterLimits = LIMITS
) -> tuple[Core, list[ScriptedShard]]:
    """A core with one shard, whose replicas follow ``scripts``."""
    return await serve_replicas(stack, RECORDS, *scripts, limits=limits)


async def answered(core: Core, key: str) -> bytes | None:
    """Return the value. Repeat lookups whose deadline passed: the machine may be slow. No other problem may occur."""
    while isinstance(found := await core.find(key), Problem):
        assert found.reason == "Deadline", found
    assert found is None or isinstance(found, bytes)
    return found


BAD = {
    "hangs up in the middle of an answer": hang_up,
    "answers with an error": saying(b"-LOADING come back later\r\n"),
    "answers what is not RESP": saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "answers too few values": saying(b"*1\r\n$1\r\nx\r\n"),
    "answers too many values": saying(b"*3\r\n$1\r\nx\r\n$1\r\nx\r\n$1\r\nx\r\n"),
    "announces more values than memory holds": saying(b"*4000000000\r\n$1\r\nx\r\n"),
    "answers a number": saying(b":1\r\n"),
    "answers with errors for values": saying(b"*2\r\n-ERR\r\n-ERR\r\n"),
    "answers twice": saying(b"*2\r\n$2\r\nv0\r\n$2\r\nv1\r\n*2\r\n$1\r\nx\r\n$1\r\nx\r\n"),
}


@pytest.mark.parametrize("script", BAD.values(), ids=BAD.keys())
async def test_a_replica_that_answers_wrong_costs_a_second_try_and_no_answer(
    stack: AsyncExitStack, script: Script
) -> None:
    core, (bad, _) = await replicas(stack, script, answer)
    for _ in range(10):
        assert await core.find_many(["k0", "k1"]) == [b"v0", b"v1"]
    assert bad.asked
    assert core.count("keys_unavailable") == 0


@pytest.mark.parametrize("script", BAD.values(), ids=BAD.keys())
async def test_when_the_only_replica_answers_wrong_its_keys_are_unavailable_or_right(
    stack: AsyncExitStack, script: Script
) -> None:
    core, _ = await replicas(stack, script)
    for _ in range(3):
        told = await core.find_many(["k0", "k1"])
        assert isinstance(told, Problem) or told == [b"v0", b"v1"]
    assert core.count("keys_missing") == 0


@pytest.mark.parametrize("asked", [1, 2], ids=["a key", "two keys"])
async def test_what_a_shard_answers_too_much_is_nobodys(stack: AsyncExitStack, asked: int) -> None:
    """Enough keys wait to be sent at the first answer, and the surplus has a value for each of them."""
    gate = asyncio.Event()

    async def surplus(shard: ScriptedShard, command: list[bytes]) -> bytes:
        await gate.wait()
        following = b"*100\r\n" + b"$5\r\nWRONG\r\n" * 100 if command is shard.asked[0] else b""
        return await answer(shard, command) + following

    core, [shard] = await replicas(stack, surplus)
    lookups = [core.find(key) for key in KEYS[:asked]]
    await soon(lambda: shard.asked, "the shard is asked")
    assert len(shard.asked[0]) == 1 + asked
    lookups += [core.find(key) for key in KEYS[asked : asked + 100]]
    gate.set()
    told = [await lookup for lookup in lookups]
    assert all(isinstance(value, Problem) or value == right for value, right in zip(told, VALUES, strict=False))
    assert core.count("endpoints_broken") == 1
    assert core.count("keys_missing") == 0


async def test_a_single_wrong_answer_is_unavailable_with_a_reason(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, saying(b"-ERR out of order\r\n"))
    problem = await core.find("k1")
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.detail) == (
        "BadAnswer",
        f"shard 0: {shard.address}: answered with an error: ERR out of order",
    )


async def test_a_replica_lost_in_the_middle_of_a_batch_loses_nothing(stack: AsyncExitStack) -> None:
    core, shards = await replicas(stack, late(0.03), late(0.03))
    answers = [core.find_many(KEYS) for _ in range(4)]
    await soon(lambda: shards[0].asked and shards[1].asked, "both are asked")
    await shards[0].stop()
    for told in answers:
        assert await told == VALUES
    assert core.count("retries") > 0
    assert core.count("keys_unavailable") == 0


async def test_a_single_replica_that_is_back_within_the_deadline_loses_nothing(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, late(0.02))
    answers = [core.find(key) for key in KEYS]
    await soon(lambda: shard.asked, "it is asked")
    await shard.stop()
    later = [core.find(key) for key in KEYS]
    await shard.start()
    assert [await told for told in answers + later] == VALUES + VALUES


async def test_a_replica_that_never_answers_is_left_to_its_deadline_and_closed(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, hold, limits=SHORT)
    began = asyncio.get_running_loop().time()
    problem = await core.find("k1")
    took = asyncio.get_running_loop().time() - began
    assert isinstance(problem, Problem)
    assert problem.reason == "Deadline"
    assert problem.detail.startswith(f"shard 0: no answer from {shard.address} for 0.4 s, to this lookup or another")
    assert 0.39 < took < 5, "a busy machine is late"
    await soon(lambda: core.count("endpoints_broken"), "the connection is closed")
    shard.script = answer
    await soon(lambda: shard.proofs == 2, "it is connected again")
    assert await answered(core, "k2") == b"v2"


async def test_a_lookup_that_comes_when_no_server_is_connected_says_so_and_why(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, answer, limits=replace(LIMITS, deadline_milliseconds=1500))
    await shard.stop()
    await soon(lambda: core.count("endpoints_broken"), "the router has noticed")
    problem = await core.find("k1")
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.shard) == ("Deadline", 0)
    here = f"shard 0: no server came back within 1.5 s; not reachable now: {shard.address}: "
    assert problem.detail.startswith(here)
    assert "cannot be connected to" in problem.detail


async def test_who_waits_for_less_is_told_sooner_and_nobody_else(stack: AsyncExitStack) -> None:
    core, _ = await replicas(stack, hold)
    loop = asyncio.get_running_loop()
    began = loop.time()
    patient = asyncio.ensure_future(core.find("k0"))
    alone, many = core.find("k1", deadline_ms=400), core.find_many(["k2", "k3"], deadline_ms=300)
    for problem, seconds in ((await many, 0.288), (await alone, 0.384)):
        assert isinstance(problem, Problem)
        assert problem.reason == "Deadline"
        assert problem.detail.startswith("shard 0: no answer from ")
        assert loop.time() - began >= seconds - 0.001
    assert not patient.done()
    assert (core.count("keys_unavailable"), core.count("client_deadline_keys_unavailable")) == (0, 3)
    patient.cancel()


async def test_who_waits_for_less_while_no_server_is_there_is_not_to_blame(stack: AsyncExitStack) -> None:
    """An outage also reaches lookups whose clients all have shorter deadlines."""
    core, [shard] = await replicas(stack, answer, limits=replace(LIMITS, deadline_milliseconds=5000))
    await shard.stop()
    await soon(lambda: core.count("endpoints_broken"), "the router has noticed")
    for problem in (await core.find("k1", deadline_ms=30), await core.find_many(["k2", "k3"], deadline_ms=30)):
        assert isinstance(problem, Problem)
        assert problem.detail.startswith("shard 0: no server came back within 0.03 s")
    assert (core.count("keys_unavailable"), core.count("client_deadline_keys_unavailable")) == (3, 0)


async def test_who_waits_as_long_as_the_router_does_is_not_to_blame_for_a_slow_server(stack: AsyncExitStack) -> None:
    core, _ = await replicas(stack, hold, limits=SHORT)
    for deadline_ms in (None, SHORT_DEADLINE, 600_000):
        await core.find("k1", deadline_ms=deadline_ms)
    assert (core.count("keys_unavailable"), core.count("client_deadline_keys_unavailable")) == (3, 0)


async def test_who_waits_for_less_is_not_to_blame_for_a_server_that_answers_nobody(stack: AsyncExitStack) -> None:
    """A server whose storage hangs still proves itself again and again."""
    core, _ = await replicas(stack, hold, limits=replace(LIMITS, deadline_milliseconds=200))
    await core.find("k1", deadline_ms=50)
    assert (core.count("keys_unavailable"), core.count("client_deadline_keys_unavailable")) == (0, 1)
    await soon(lambda: core.count("endpoints_broken"), "its connection is given up")
    for _ in range(5):
        await core.find("k1", deadline_ms=50)
    assert (core.count("keys_unavailable"), core.count("client_deadline_keys_unavailable")) == (5, 1)


async def test_a_key_is_counted_once_where_its_slice_fails_and_then_the_memory(stack: AsyncExitStack) -> None:
    records = {b"k%d" % number: b"y" * 70_000 for number in range(40)}
    core = Core(replace(LIMITS, deadline_milliseconds=5000))
    stack.callback(core.close)
    scripts = (saying(b"-ERR boom\r\n"), late(0.5))
    shards = [
        await stack.enter_async_context(ScriptedShard(identity(number, 2), records, script))
        for number, script in enumerate(scripts)
    ]
    await core.serve(table(entry([[shard.address] for shard in shards])))
    asked = asyncio.ensure_future(core.find_many([f"k{number}" for number in range(40)]))
    await soon(lambda: core.count("keys_unavailable"), "one slice is given up")
    core.budget.take(core.budget.limit)  # others use the memory up meanwhile
    problem = await asked
    assert isinstance(problem, Problem)
    assert problem.reason == "Overloaded"
    assert core.count("keys_unavailable") == 40


async def test_who_waits_for_less_for_a_candidate_is_counted_with_candidates(stack: AsyncExitStack) -> None:
    core = Core(LIMITS)
    stack.callback(core.close)
    active, candidate = [
        await stack.enter_async_context(ScriptedShard(identity(generation=generation), RECORDS, hold))
        for generation in ("g1", "g2")
    ]
    await core.serve(table(entry([[active.address]]), entry([[candidate.address]], "g2")))
    await soon(lambda: core.lookups.live.generations["g2"].shards[0].is_proven, "proven")  # type: ignore[union-attr]
    assert isinstance(await core.find("k1", "g2", deadline_ms=30), Problem)
    counted = [core.count(name) for name in ("candidate_keys_unavailable", "client_deadline_keys_unavailable")]
    assert (core.count("keys_unavailable"), *counted) == (0, 1, 0)


async def test_nobody_waits_for_longer_than_the_routers_deadline(stack: AsyncExitStack) -> None:
    core, _ = await replicas(stack, hold, limits=SHORT)
    problem = await core.find("k1", deadline_ms=600_000)
    assert isinstance(problem, Problem)
    assert " for 0.4 s, to this lookup" in problem.detail


async def test_an_answer_that_comes_after_the_deadline_is_nobodys(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, late(0.5), limits=SHORT)
    assert isinstance(await core.find("k1"), Problem)
    shard.script = answer
    assert [await answered(core, "k2"), await answered(core, "k3")] == [b"v2", b"v3"]


async def test_with_two_replicas_one_that_never_answers_costs_half_the_deadline(stack: AsyncExitStack) -> None:
    core, shards = await replicas(stack, hold, answer, limits=replace(LIMITS, deadline_milliseconds=2000))
    answers = [core.find(key) for key in KEYS for _ in range(4)]
    assert [await told for told in answers] == [value for value in VALUES for _ in range(4)]
    assert shards[0].asked
    assert core.count("retries") > 0
    assert core.count("hedges") == 0


async def test_a_slow_replica_is_hedged_and_the_first_answer_wins(stack: AsyncExitStack) -> None:
    limits = replace(LIMITS, deadline_milliseconds=60_000, hedge_milliseconds=10)
    core, shards = await replicas(stack, late(10), answer, limits=limits)
    loop = asyncio.get_running_loop()
    for key, value in zip(KEYS[:30], VALUES[:30], strict=True):
        began = loop.time()
        assert await core.find(key) == value
        assert loop.time() - began < 5, "it was not waited for"
    assert shards[0].asked
    assert core.count("hedges") > 0
    assert core.count("endpoints_broken") == 0


async def test_without_another_replica_there_is_no_hedge(stack: AsyncExitStack) -> None:
    limits = replace(LIMITS, hedge_milliseconds=10)
    core, [shard] = await replicas(stack, late(0.1), limits=limits)
    assert await core.find("k1") == b"v1"
    assert len(shard.asked) == 1
    assert core.count("hedges") == 0


async def test_the_less_busy_replica_is_preferred(stack: AsyncExitStack) -> None:
    core, shards = await replicas(stack, late(0.03), answer)
    for _ in range(20):
        await asyncio.gather(*(core.find(key).future for key in KEYS[:4]))
        await asyncio.sleep(0)
    slow, fast = (sum(len(command) - 1 for command in shard.asked) for shard in shards)
    assert fast >= slow


async def test_an_address_reused_by_another_shard_is_not_asked(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, answer, limits=SHORT)
    await shard.stop()
    shard.identity = identity(generation="g2")
    await shard.start()
    problem = await core.find("k1")
    assert isinstance(problem, Problem)
    assert shard.asked == []
    await soon(lambda: core.count("proofs_failed"), "the proof has failed")


async def test_an_endpoint_that_accepts_and_says_nothing_is_not_used(stack: AsyncExitStack) -> None:
    core, [shard] = await replicas(stack, answer, limits=SHORT)
    shard.silent = True
    shard.hang_up()
    await soon(lambda: core.count("endpoints_broken"), "the router has noticed")
    assert isinstance(await core.find("k1"), Problem)
    await asyncio.sleep(0.1)
    problem = await core.find("k1")
    assert isinstance(problem, Problem)
    assert problem.reason in ("Unreachable", "Deadline")


async def test_a_full_replica_gives_way_to_the_other(stack: AsyncExitStack) -> None:
    core, _ = await replicas(
        stack, hold, answer, limits=replace(LIMITS, deadline_milliseconds=2000, max_queued_keys=3, max_keys=3)
    )
    answers = [core.find(key) for key in KEYS[:5]]
    told = [await each for each in answers]
    assert told == VALUES[:5]


async def test_answered_asks_do_not_pile_up_behind_one_that_is_not(stack: AsyncExitStack) -> None:
    core = Core(replace(LIMITS, deadline_milliseconds=20_000))
    stack.callback(core.close)
    scripts = [hold, answer]
    shards = [
        await stack.enter_async_context(ScriptedShard(identity(number, 2), RECORDS, script))
        for number, script in enumerate(scripts)
    ]
    await core.serve(table(entry([[shard.address] for shard in shards])))
    held = next(key for key in KEYS if shard_number(key.encode(), 2) == 0)
    others = [key for key in KEYS if shard_number(key.encode(), 2) == 1]
    core.find(held)
    for _ in range(40):
        await asyncio.gather(*(core.find(key).future for key in others))
    deadlines = core.lookups._watch.__self__  # type: ignore[attr-defined]
    await soon(
        lambda: len(deadlines._retry_queue) < 5000, "those that are done are forgotten before their deadline", 15
    )
