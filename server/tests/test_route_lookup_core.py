"""Lookups: keys find their shard, answers their waiter, and no response mixes generations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from support.routing import BUILT_AT, LIMITS, SHORT_DEADLINE, Core, entry, identity, table
from support.scripted_shard import ScriptedShard
from support.waiting import soon

from lookupdb import keys
from lookupdb.router.batch_keys import UNAVAILABLE
from lookupdb.router.counters import BATCH_BUCKETS, BATCH_MICROSECONDS
from lookupdb.router.lookups import Problem

SHARDS = 4


@pytest.fixture
async def core() -> AsyncIterator[Core]:
    core = Core()
    yield core
    core.close()


def part(records: dict[str, str], shard: int, shards: int) -> dict[bytes, bytes]:
    return {key.encode(): v.encode() for key, v in records.items() if keys.shard_number(key.encode(), shards) == shard}


async def serve(
    stack: AsyncExitStack, records: dict[str, str], generation: str = "g1", shards: int = SHARDS, **members: Any
) -> list[ScriptedShard]:
    """Shards of one generation, each with its part of ``records``."""
    return [
        await stack.enter_async_context(
            ScriptedShard(identity(number, shards, generation, **members), part(records, number, shards))
        )
        for number in range(shards)
    ]


def addresses(shards: list[ScriptedShard]) -> list[list[Any]]:
    return [[shard.address] for shard in shards]


RECORDS = {f"k{i}": f"v{i}" for i in range(100)}


async def test_every_key_is_found_in_its_shard_and_others_are_missing(core: Core, stack: AsyncExitStack) -> None:
    await core.serve(table(entry(addresses(await serve(stack, RECORDS)))))
    for key, value in RECORDS.items():
        assert await core.find(key) == value.encode()
    assert await core.find("k100") is None
    assert (core.count("keys_found"), core.count("keys_missing")) == (100, 1)


async def test_a_batch_is_aligned_with_its_keys_however_often_one_is_asked(core: Core, stack: AsyncExitStack) -> None:
    await core.serve(table(entry(addresses(await serve(stack, RECORDS)))))
    asked = ["k1", "none", "k99", "k1", "", "k0"]
    assert await core.find_many(asked) == [b"v1", None, b"v99", b"v1", None, b"v0"]
    assert (core.count("keys_found"), core.count("keys_missing")) == (4, 2)


async def test_an_empty_batch_is_done(core: Core, stack: AsyncExitStack) -> None:
    await core.serve(table(entry(addresses(await serve(stack, RECORDS)))))
    assert await core.find_many([]) == []


@pytest.mark.parametrize("key", ["", "k" * 512, "\ud800"], ids=["empty", "too long", "lone surrogate"])
async def test_a_key_that_no_record_can_have_is_missing(core: Core, stack: AsyncExitStack, key: str) -> None:
    shards = await serve(stack, RECORDS)
    await core.serve(table(entry(addresses(shards))))
    assert await core.find(key) is None
    assert await core.find_many([key, key]) == [None, None]
    assert not any(shard.asked for shard in shards)


async def test_keys_are_normalised_as_the_generation_says(core: Core, stack: AsyncExitStack) -> None:
    steps = ("strip", "casefold")
    shards = await serve(stack, {"strasse": "found"}, normalize=steps)
    await core.serve(table(entry(addresses(shards), normalize=list(steps))))
    assert await core.find(" Straße ") == b"found"
    assert await core.find("  ") is None


async def test_without_a_table_all_is_unavailable(core: Core) -> None:
    for answer in (core.find("k1"), core.find_many(["k1"])):
        problem = await answer
        assert isinstance(problem, Problem)
        assert problem.reason == "NoTable"
    assert core.lookups.describe_dataset() is None


async def test_a_candidate_is_asked_by_name_and_the_active_generation_otherwise(
    core: Core, stack: AsyncExitStack
) -> None:
    old = await serve(stack, {"a": "old"})
    new = await serve(stack, {"a": "new"}, "g2", shards=2)
    await core.serve(table(entry(addresses(old)), entry(addresses(new), "g2")))
    await soon(lambda: all(shard.proofs for shard in new), "the candidate is connected")
    for generation, value in ((None, b"old"), ("g1", b"old"), ("g2", b"new")):
        await soon(lambda: core.lookups.live.generations["g2"].shards[0].is_proven, "proven")  # type: ignore[union-attr]
        answer, batch = core.find("a", generation), core.find_many(["a"], generation)
        assert (await answer, await batch) == (value, [value])
        assert answer.generation == batch.generation == (generation or "g1")
    assert await core.find("a", "g3") == "g3"
    assert await core.find_many(["a"], "g3") == "g3"


async def test_the_dataset_is_described(core: Core, stack: AsyncExitStack) -> None:
    active, candidate = await serve(stack, RECORDS), await serve(stack, RECORDS, "g2")
    await core.serve(table(entry(addresses(active)), entry(addresses(candidate), "g2")))
    told = core.lookups.describe_dataset()
    assert told
    assert told.pop("ageSeconds") > 0
    assert told == {
        "namespace": "default",
        "name": "sample",
        "generation": "g1",
        "records": 3,
        "shards": 4,
        "builtAt": BUILT_AT,
        "candidates": ["g2"],
    }


async def test_a_key_of_a_shard_that_cannot_be_reached_is_unavailable_and_never_missing(
    stack: AsyncExitStack,
) -> None:
    core = Core(replace(LIMITS, deadline_milliseconds=2000))
    stack.callback(core.close)
    shards = await serve(stack, RECORDS)
    await core.serve(table(entry(addresses(shards))))
    await shards[2].stop()
    await soon(lambda: core.count("endpoints_broken"), "the router has noticed")
    values = await core.find_many(list(RECORDS))
    for (key, value), found in zip(RECORDS.items(), values, strict=True):
        dead = keys.shard_number(key.encode(), SHARDS) == 2
        assert found is UNAVAILABLE if dead else found == value.encode()


async def test_every_16th_batch_to_an_endpoint_is_measured(stack: AsyncExitStack) -> None:
    core = Core(LIMITS)
    stack.callback(core.close)
    shards = await serve(stack, RECORDS, shards=2)
    await core.serve(table(entry([[shard.address] for shard in shards])))
    key = next(key for key in RECORDS if keys.shard_number(key.encode(), 2) == 0)
    for asked in range(1, 50):
        await core.find(key)
        counts = [core.count(name) for name in BATCH_BUCKETS]
        assert sum(counts) == asked // 16
    other = next(key for key in RECORDS if keys.shard_number(key.encode(), 2) == 1)
    await core.find(other)
    assert sum(core.count(name) for name in BATCH_BUCKETS) == 3, "whatever others have been asked"
    assert core.count(BATCH_MICROSECONDS) > 0


async def test_what_is_unavailable_of_a_candidate_is_counted_apart(stack: AsyncExitStack) -> None:
    """An outage of a candidate that serves nothing wakes nobody."""
    core = Core(replace(LIMITS, deadline_milliseconds=2000))
    stack.callback(core.close)
    [shard] = await serve(stack, RECORDS, shards=1)
    await core.serve(table(entry([[shard.address]]), entry([["127.0.0.1:9"]], "g2")))
    assert await core.find("k1") == RECORDS["k1"].encode()
    assert isinstance(await core.find("k1", "g2"), Problem)
    assert isinstance(await core.find_many(["k1", "k2"], "g2"), Problem)
    assert (core.count("keys_unavailable"), core.count("candidate_keys_unavailable")) == (0, 3)
    await core.serve(table(entry([[shard.address]]), version=2))
    await shard.stop()
    assert isinstance(await core.find("k1"), Problem)
    assert (core.count("keys_unavailable"), core.count("candidate_keys_unavailable")) == (1, 3)


@pytest.mark.parametrize(("generation", "counted"), [("g1", (3, 0)), ("g2", (0, 3))])
async def test_what_an_overloaded_router_does_not_look_up_of_a_candidate_is_counted_apart_too(
    stack: AsyncExitStack, generation: str, counted: tuple[int, int]
) -> None:
    core = Core(LIMITS)
    stack.callback(core.close)
    [active], [candidate] = await serve(stack, RECORDS, shards=1), await serve(stack, RECORDS, "g2", shards=1)
    await core.serve(table(entry([[active.address]]), entry([[candidate.address]], "g2")))
    core.budget.take(core.budget.limit + 1)
    for problem in (await core.find("k1", generation), await core.find_many(["k1", "k2"], generation)):
        assert isinstance(problem, Problem)
        assert problem.reason == "Overloaded"
    assert (core.count("keys_unavailable"), core.count("candidate_keys_unavailable")) == counted


async def test_single_keys_that_are_asked_together_make_way_when_single_keys_do(
    stack: AsyncExitStack, core: Core
) -> None:
    """A batch already makes way at half of the budget."""
    await core.serve(table(entry(addresses(await serve(stack, RECORDS)))))
    for used, reasons in (
        (core.budget.batch_mark + 1, ["Overloaded", None]),
        (core.budget.limit + 1, ["Overloaded"] * 2),
    ):
        core.budget.take(used)
        found = [await core.find_many(["k1", "k2"], are_single=are_single) for are_single in (False, True)]
        assert [answer.reason if isinstance(answer, Problem) else None for answer in found] == reasons
        core.budget.release(used)


@pytest.mark.parametrize(("generation", "counted"), [("g1", (2, 0)), ("g2", (0, 2))])
async def test_so_is_a_candidates_batch_that_makes_room_when_its_values_come(
    stack: AsyncExitStack, generation: str, counted: tuple[int, int]
) -> None:
    core = Core(LIMITS)
    stack.callback(core.close)
    large = dict.fromkeys(("k1", "k2"), "v" * 100000)
    [active], [candidate] = await serve(stack, large, shards=1), await serve(stack, large, "g2", shards=1)
    await core.serve(table(entry([[active.address]]), entry([[candidate.address]], "g2")))
    await soon(lambda: core.lookups.live.generations["g2"].shards[0].is_proven, "proven")  # type: ignore[union-attr]
    batch = core.find_many(["k1", "k2"], generation)
    core.budget.take(core.budget.limit)
    problem = await batch
    assert isinstance(problem, Problem)
    assert problem.reason == "Overloaded"
    assert (core.count("keys_unavailable"), core.count("candidate_keys_unavailable")) == counted


async def test_a_batch_of_which_nothing_can_be_said_is_unavailable(stack: AsyncExitStack) -> None:
    core = Core(replace(LIMITS, deadline_milliseconds=SHORT_DEADLINE))
    stack.callback(core.close)
    [shard] = await serve(stack, RECORDS, shards=1)
    await core.serve(table(entry([[shard.address]])))
    await shard.stop()
    problem = await core.find_many(["k1", "k2"])
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.shard) == ("Deadline", 0)
    why = "cannot be connected to"
    await soon(lambda: why in (core.cutover.status()["endpoints"][0]["why"] or ""), "a new connection has failed")
    problem = await core.find("k1")
    assert isinstance(problem, Problem)
    assert problem.reason == "Unreachable"
    assert problem.detail.startswith(f"shard 0 cannot be reached: {shard.address}: cannot be connected to")
    assert core.count("keys_unavailable") == 3
