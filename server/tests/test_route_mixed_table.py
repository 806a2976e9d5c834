"""A mixed routing table in the lookup core: the generation of each shard, and how an answer names it."""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from support.routing import BUILT_AT, LIMITS, Core, entry, identity, mixed, table
from support.scripted_shard import Script, ScriptedShard, answer, hang_up
from support.waiting import soon

from lookupdb import keys
from lookupdb.router.batch_keys import UNAVAILABLE
from lookupdb.router.routing_table import RoutingTable

SHARDS = 4
KEYS = [f"k{number}" for number in range(40)]
OLDER = "2026-11-19T00:00:00Z"


@pytest.fixture
async def core() -> AsyncIterator[Core]:
    core = Core()
    yield core
    core.close()


def shard_of(key: str, shards: int = SHARDS) -> int:
    return keys.shard_number(key.encode(), shards)


def keys_of(*shards: int) -> list[str]:
    return [key for key in KEYS if shard_of(key) in shards]


async def served(stack: AsyncExitStack, generation: str, shards: int = SHARDS) -> list[ScriptedShard]:
    """Shards of ``generation``, all of whose values are its name."""
    parts: list[dict[bytes, bytes]] = [{} for _ in range(shards)]
    for key in KEYS:
        parts[shard_of(key, shards)][key.encode()] = generation.encode()
    return [
        await stack.enter_async_context(ScriptedShard(identity(number, shards, generation), part))
        for number, part in enumerate(parts)
    ]


def whole(generation: str, shards: list[ScriptedShard], built_at: str = BUILT_AT) -> dict[str, Any]:
    return entry([[shard.address] for shard in shards], generation, builtAt=built_at)


class Step:
    """g9 and g12, of which g9 still serves some shards."""

    def __init__(self, old: list[ScriptedShard], new: list[ScriptedShard]) -> None:
        self.old, self.new = old, new
        self.entries = whole("g9", old, OLDER), whole("g12", new)

    def table(self, remaining: Collection[int], version: int = 1) -> Any:
        old, new = self.entries
        return table(mixed(new, old, remaining) if remaining else new, version=version)


@pytest.fixture
async def step(stack: AsyncExitStack) -> Step:
    return Step(await served(stack, "g9"), await served(stack, "g12"))


async def test_each_key_is_answered_by_the_generation_of_its_shard_and_the_answer_names_it(
    core: Core, step: Step
) -> None:
    await core.serve(step.table({1, 3}))
    for key in KEYS:
        expected = "g9" if shard_of(key) in (1, 3) else "g12"
        found, missing = core.find(key), core.find(f"no {key}")
        assert await found == expected.encode()
        assert found.generation == expected
        assert await missing is None
        assert missing.generation == ("g9" if shard_of(f"no {key}") in (1, 3) else "g12")


@pytest.mark.parametrize(
    ("shards", "generation"),
    [((0, 1, 2, 3), "g9, g12"), ((0, 1), "g9, g12"), ((1, 3), "g9"), ((3,), "g9"), ((0, 2), "g12")],
)
async def test_a_batch_comes_from_the_generations_of_its_keys_shards(
    core: Core, step: Step, shards: tuple[int, ...], generation: str
) -> None:
    await core.serve(step.table({1, 3}))
    asked = [*keys_of(*shards), "", "k" * 512]
    batch = core.find_many(asked)
    assert await batch == [b"g9" if shard_of(key) in (1, 3) else b"g12" for key in asked[:-2]] + [None, None]
    assert batch.generation == generation


async def test_keys_that_no_record_can_have_are_missing_in_all_generations(core: Core, step: Step) -> None:
    await core.serve(step.table({1, 3}))
    one, many, none = core.find(""), core.find_many(["", "k" * 512]), core.find_many([])
    assert (await one, await many, await none) == (None, [None, None], [])
    assert one.generation == many.generation == none.generation == "g9, g12"


async def test_no_generation_of_a_mixed_table_can_be_asked_for_by_name(core: Core, step: Step) -> None:
    await core.serve(step.table({1, 3}))
    for name in ("g9", "g12", "g9, g12", ""):
        one, many = core.find("k1", name), core.find_many(KEYS, name)
        assert (await one, await many) == (name, name)
        assert one.generation == many.generation == "g9, g12", "it is said what serves instead"
    assert not any(shard.asked for shard in (*step.old, *step.new))


async def test_the_dataset_and_the_status_say_how_many_shards_each_generation_serves(core: Core, step: Step) -> None:
    await core.serve(step.table({0, 1, 3}))
    told = core.lookups.describe_dataset()
    assert told
    assert (told["generation"], told["shardGenerations"], told["shards"]) == ("g12", {"g9": 3, "g12": 1}, SHARDS)
    assert (told["builtAt"], told["candidates"]) == (OLDER, [])
    assert told["ageSeconds"] == pytest.approx(time.time() - datetime.datetime.fromisoformat(OLDER).timestamp(), abs=60)
    status = core.cutover.status()
    assert (status["generation"], status["shardGenerations"]) == ("g12", {"g9": 3, "g12": 1})
    await core.serve(step.table({}, version=2))
    told = core.lookups.describe_dataset()
    assert told
    assert (told["generation"], told["builtAt"]) == ("g12", BUILT_AT)
    assert "shardGenerations" not in told
    assert core.cutover.status()["shardGenerations"] is None


async def test_three_generations_are_told_apart(core: Core, stack: AsyncExitStack, step: Step) -> None:
    target = whole("g13", await served(stack, "g13"))
    old, new = step.entries
    await core.serve(table(mixed(mixed(target, old, {3}), new, {1, 2})))
    for shards, generation in (
        ((0, 1, 2, 3), "g9, g12, g13"),
        ((0, 3), "g9, g13"),
        ((1, 3), "g9, g12"),
        ((2, 0), "g12, g13"),
        ((3, 2, 0), "g9, g12, g13"),
        ((1, 2), "g12"),
    ):
        for _ in range(2):
            batch = core.find_many(keys_of(*shards))
            await batch
            assert batch.generation == generation


async def test_a_partial_answer_names_the_generations_of_all_shards_that_were_asked(
    stack: AsyncExitStack, step: Step
) -> None:
    core = Core(replace(LIMITS, deadline_milliseconds=2000))
    stack.callback(core.close)
    await core.serve(step.table({1, 3}))
    await step.new[2].stop()
    await soon(lambda: core.count("endpoints_broken"), "the router has noticed")
    asked = keys_of(1, 2)
    batch = core.find_many(asked)
    assert await batch == [b"g9" if shard_of(key) == 1 else UNAVAILABLE for key in asked]
    assert batch.generation == "g9, g12"


def held(release: asyncio.Event) -> Script:
    """Answers once ``release`` is set."""

    async def script(shard: ScriptedShard, command: list[bytes]) -> bytes:
        await release.wait()
        return await answer(shard, command)

    return script


async def test_what_was_asked_of_a_table_is_answered_in_its_name_whatever_has_taken_effect_since(
    core: Core, step: Step
) -> None:
    release = asyncio.Event()
    await core.serve(step.table({1, 2, 3}))
    step.old[1].script = step.old[3].script = held(release)
    one, many = core.find(keys_of(1)[0]), core.find_many(keys_of(1, 3))
    across = core.find_many(keys_of(0, 1))
    await core.serve(step.table({3}, version=2))
    later = core.find(keys_of(1)[0])
    assert (await later, later.generation) == (b"g12", "g12")
    release.set()
    assert (await one, one.generation) == (b"g9", "g9")
    assert (await many, many.generation) == ([b"g9"] * len(keys_of(1, 3)), "g9")
    assert await across == [b"g12" if shard_of(key) == 0 else b"g9" for key in keys_of(0, 1)]
    assert across.generation == "g9, g12"


async def test_a_second_try_after_the_table_has_changed_asks_the_generation_that_the_first_did(
    core: Core, stack: AsyncExitStack, step: Step
) -> None:
    """The first replica breaks while the new table is in effect: the other one of the same generation answers."""
    release = asyncio.Event()
    old, new = step.entries
    twin = await stack.enter_async_context(ScriptedShard(identity(1, SHARDS, "g9"), step.old[1].records))
    old = {**old, "shards": [*old["shards"]]}
    old["shards"][1] = {"endpoints": [str(step.old[1].address), str(twin.address)]}

    asked: list[ScriptedShard] = []

    async def break_first(shard: ScriptedShard, command: list[bytes]) -> bytes:
        asked.append(shard)
        if shard is not asked[0]:
            return await answer(shard, command)
        await release.wait()
        return await hang_up(shard, command)

    await core.serve(table(mixed(new, old, {1, 3})))
    await soon(lambda: core.count("endpoints_ready") == SHARDS + 1, "both replicas are connected")
    step.old[1].script = twin.script = break_first
    one, many = core.find(keys_of(1)[0]), core.find_many(keys_of(1, 3))
    await soon(lambda: asked, "one replica is asked")
    await core.serve(step.table({}, version=2))
    release.set()
    assert (await one, one.generation) == (b"g9", "g9")
    assert (await many, many.generation) == ([b"g9"] * len(keys_of(1, 3)), "g9")
    assert core.count("retries")


async def test_sixteen_steps_there_and_back_connect_each_server_once(core: Core, stack: AsyncExitStack) -> None:
    """No step touches the connections of the shards that it does not change."""
    count = 16
    step = Step(await served(stack, "g9", count), await served(stack, "g12", count))
    old, new = step.entries
    await core.serve(table(old))
    for done in range(1, count + 1):
        await core.serve(table(mixed(new, old, range(done, count)) if done < count else new, version=1 + done))
        values = await core.find_many(KEYS)
        assert values == [b"g12" if shard_of(key, count) < done else b"g9" for key in KEYS]
    for done in range(1, count + 1):
        await core.serve(table(mixed(old, new, range(done, count)) if done < count else old, version=20 + done))
        values = await core.find_many(KEYS)
        assert values == [b"g9" if shard_of(key, count) < done else b"g12" for key in KEYS]
    assert [shard.proofs for shard in (*step.old, *step.new)] == [1] * 2 * count
    assert core.count("endpoints_broken") == 0


async def test_a_step_whose_server_is_down_is_not_taken_and_says_of_which_shard(core: Core, step: Step) -> None:
    await core.serve(step.table({1, 2, 3}))
    await step.new[1].stop()
    core.cutover.offer(step.table({2, 3}, version=2))
    await soon(lambda: any(told["why"] for told in core.cutover.status()["endpoints"]), "it has been tried")
    status = core.cutover.status()
    assert (status["tableVersion"], status["shardGenerations"]) == (1, {"g9": 3, "g12": 1})
    assert status["error"] == "version 2 waits for an endpoint to be verified for shard 1"
    [told] = status["endpoints"]
    assert (told["generation"], told["shard"], told["endpoint"]) == ("g12", 1, str(step.new[1].address))
    assert await core.find_many(KEYS) == [b"g12" if shard_of(key) == 0 else b"g9" for key in KEYS]
    await step.new[1].start()
    await soon(lambda: core.cutover.status()["tableVersion"] == 2, "it is taken once the server is up")
    assert await core.find(keys_of(1)[0]) == b"g12"


async def test_of_the_shards_that_were_never_reached_so_many_are_reported(core: Core) -> None:
    core.cutover.offer(table(entry([[f"127.0.0.1:{port}"] for port in range(1, 30)])))
    await soon(lambda: core.cutover.status()["tableVersion"] == 1, "it is in effect")
    assert len(core.cutover.status()["unreachedShards"]) == 20


async def test_a_step_whose_server_serves_another_generation_is_not_taken(core: Core, step: Step) -> None:
    """The address of a deleted server may belong to another one by now."""
    old, new = step.entries
    await core.serve(table(old))
    swapped = {**new, "shards": [old["shards"][0], *new["shards"][1:]]}
    core.cutover.offer(table(mixed(swapped, old, {1, 2, 3}), version=2))
    await soon(lambda: core.count("proofs_failed"), "the proof has failed")
    assert core.cutover.status()["tableVersion"] == 1
    assert await core.find_many(KEYS) == [b"g9"] * len(KEYS)


async def test_a_server_of_the_new_generation_does_not_pass_for_one_that_the_table_still_names_old(
    core: Core, step: Step
) -> None:
    old, new = step.entries
    await core.serve(table(old))
    swapped = {**old, "shards": [*old["shards"][:3], new["shards"][3]]}
    core.cutover.offer(table(mixed(new, swapped, {1, 2, 3}), version=2))
    await soon(lambda: core.count("proofs_failed"), "the proof has failed")
    status = core.cutover.status()
    assert (status["tableVersion"], status["error"]) == (
        1,
        "version 2 waits for an endpoint to be verified for shard 3",
    )
    assert await core.find_many(KEYS) == [b"g9"] * len(KEYS)


async def test_no_two_generations_have_the_same_tag_and_all_routers_have_one() -> None:
    def tags(routing_table: RoutingTable) -> list[str]:
        core = Core()
        core.cutover.offer(routing_table)
        live = core.lookups.live
        assert live is not None
        found = [shard.generation.etag for shard in live.active.shards]
        core.close()
        return found

    def one(generation: str = "g12", **members: Any) -> dict[str, Any]:
        return entry([["127.0.0.1:1"]] * 2, generation, **members)

    def of(**members: str) -> dict[str, Any]:
        return {"dataset": {"namespace": "default", "name": "sample", "uid": "local", **members}}

    whole = tags(table(one()))
    assert whole == tags(table(one(rollout="r9", records=7), version=9)), "as after a restart on other servers"
    assert re.fullmatch('"g12-[0-9a-f]{16}"', whole[0])
    others = [
        *(one("g13"), one(builtAt=OLDER), one(content="a"), one(content="b"), one(valueFormat="json")),
    ]
    found = {tag for other in others for tag in tags(table(other))}
    found |= {tags(table(one(), **of(**change)))[0] for change in ({"uid": "x"}, {"name": "x"}, {"namespace": "x"})}
    assert (len(found), whole[0] in found) == (8, False)
    mixture = mixed(one("g13"), one("g12"), {1})
    assert tags(table(mixture)) == [tags(table(one("g13")))[0], whole[1]], "each shard has its own generation's"
