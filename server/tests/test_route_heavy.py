"""Heavy work beside light work: batches of large values do not make lookups of small ones wait, let alone fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.batches import make_keys
from support.cpu_time import worked_seconds
from support.fleets import Shards, fleet, fleet_entry
from support.http import Client, request
from support.replicas import serve_replicas
from support.routers import Router, routing
from support.routing import LIMITS, Answer, Core, table_file
from support.scripted_shard import Script, ScriptedShard, answer, hold
from support.shards import write_generation
from support.waiting import soon

from lookupdb import shardfile
from lookupdb.keys import file_name
from lookupdb.router.batch_keys import UNAVAILABLE
from lookupdb.router.lane import Lane
from lookupdb.router.lookups import Problem

pytestmark = pytest.mark.long

LARGE = [f"large{number}" for number in range(60)]
SMALL = {f"small{number}": str(number).encode() for number in range(200)}
RECORDS = {key.encode(): value for key, value in SMALL.items()} | dict.fromkeys(
    map(str.encode, LARGE), b"x" * 1_000_000
)


async def serve(
    stack: AsyncExitStack, *scripts: Script, deadline: int = 20_000, budget: int = 256 << 20
) -> tuple[Core, list[ScriptedShard]]:
    """A core with one shard, whose replicas follow ``scripts``."""
    limits = replace(LIMITS, deadline_milliseconds=deadline)
    return await serve_replicas(stack, RECORDS, *scripts, limits=limits, budget_bytes=budget)


def slowly(bytes_a_second: int) -> Script:
    """Answer large replies at this rate, small ones at once."""

    async def script(shard: ScriptedShard, command: list[bytes]) -> bytes:
        reply = await answer(shard, command)
        if len(reply) < 100_000:
            return reply
        step = bytes_a_second // 50
        for start in range(0, len(reply), step):
            shard.write(reply[start : start + step])
            await asyncio.sleep(0.02)
        return b""

    return script


async def warm_up(core: Core) -> Lane:
    """Make the router see large values once, and wait for its lane for large work."""
    assert isinstance(await core.find_many(LARGE[:2]), list)
    lane = core.lookups.live.active.shards[0].endpoints[0]._large  # type: ignore[union-attr]
    await asyncio.sleep(0)
    core.find_many(LARGE[:2])
    await soon(lambda: lane.is_usable, "the lane for large work is there")
    return lane


async def test_parts_are_sized_by_the_values_that_came_lately(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=60_000)
    await warm_up(core)
    shard.asked.clear()
    assert await core.find_many(LARGE) == [b"x" * 1_000_000] * 60
    assert max(len(command) - 1 for command in shard.asked) == 1


async def test_a_small_lookup_does_not_wait_for_a_large_batch(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=60_000)
    await warm_up(core)
    shard.script = slowly(200_000)
    heavy = core.find_many(LARGE[:10])
    await soon(lambda: shard.asked[-1] == [b"GET", b"large0"], "the large batch has begun")
    loop = asyncio.get_running_loop()
    for key, value in list(SMALL.items())[:50]:
        began = loop.time()
        assert await core.find(key) == value
        assert loop.time() - began < 5
    assert not heavy.future.done()


async def test_answers_slower_than_the_deadline_cost_only_those_that_wait_for_them(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=4000)
    await warm_up(core)
    shard.script = slowly(200_000)
    heavy = core.find_many(LARGE[:5])
    strangers = []
    while not heavy.future.done():
        strangers += [core.find(key) for key in list(SMALL)[:10]]
        await asyncio.sleep(0.01)
    assert isinstance(await heavy, Problem)
    told = [await stranger for stranger in strangers]
    assert len(told) > 100
    assert not [each for each in told if isinstance(each, Problem)]
    assert core.count("endpoints_broken") == 0


async def never_large(shard: ScriptedShard, command: list[bytes]) -> bytes:
    """Answer small lookups alone."""
    if any(key.startswith(b"large") for key in command[1:]):
        await asyncio.Event().wait()
    return await answer(shard, command)


class TestALaneForLargeWorkThatBreaks:
    """Its queued work keeps waiting, because in the other lane it would delay small work."""

    async def test_costs_small_work_nothing_although_large_work_is_never_answered(self, stack: AsyncExitStack) -> None:
        core, [shard] = await serve(stack, answer, deadline=3000)
        await warm_up(core)
        assert isinstance(await core.find_many(LARGE[:20]), list)
        shard.script = never_large
        heavies = [core.find_many(LARGE[:20]) for _ in range(3)]
        strangers = []
        while core.count("endpoints_broken") < 3:
            heavies = [core.find_many(LARGE[:20]) if heavy.future.done() else heavy for heavy in heavies]
            strangers += [core.find(key) for key in list(SMALL)[:10]]
            await asyncio.sleep(0.01)
        told = [await stranger for stranger in strangers]
        assert len(told) > 100
        assert not [each for each in told if isinstance(each, Problem)]

    async def test_is_made_again_for_what_was_asked_meanwhile(self, stack: AsyncExitStack) -> None:
        core, [shard] = await serve(stack, answer, deadline=20_000)
        lane = await warm_up(core)
        for _ in range(5):
            shard.asked.clear()
            batch = core.find_many(LARGE[:20])
            await soon(lambda: bool(shard.asked), "it has begun")
            lane.link.break_connection("broken")
            assert await core.find_many(LARGE[20:40]) == [b"x" * 1_000_000] * 20
            assert await batch == [b"x" * 1_000_000] * 20
        assert core.budget.used == 0

    async def test_leaves_its_work_to_the_other_lane_if_it_cannot_be_made_again(self, stack: AsyncExitStack) -> None:
        core, [shard] = await serve(stack, answer, deadline=20_000)
        lane = await warm_up(core)
        shard._server.close()  # connections that there are go on
        lane.link.break_connection("broken")
        assert await core.find_many(LARGE[:5]) == [b"x" * 1_000_000] * 5
        assert await core.find_many(LARGE[:5]) == [b"x" * 1_000_000] * 5

    async def test_does_not_keep_from_another_replica_what_waits_for_one_that_is_gone(
        self, stack: AsyncExitStack
    ) -> None:
        core, shards = await serve(stack, answer, answer, deadline=20_000)
        for _ in range(5):
            await core.find_many(LARGE)
        batches = [core.find_many(LARGE[:20]) for _ in range(4)]
        await asyncio.sleep(0)
        await shards[0].stop()
        for batch in batches:
            assert await batch == [b"x" * 1_000_000] * 20
        assert core.budget.used == 0


async def test_a_large_answer_that_nobody_waits_for_any_more_is_skipped_and_its_connection_kept(
    stack: AsyncExitStack,
) -> None:
    core, [shard] = await serve(stack, answer, deadline=4000)
    await warm_up(core)
    proofs = shard.proofs
    shard.script = slowly(200_000)
    assert isinstance(await core.find("large1"), Problem)
    shard.script = answer
    await soon(lambda: core.budget.used == 0, "nothing is held")
    assert await core.find("small1") == b"1"
    assert (shard.proofs, core.count("endpoints_broken")) == (proofs, 0)


async def test_values_that_came_for_a_request_that_was_given_up_are_counted_until_their_reply_ends(
    stack: AsyncExitStack,
) -> None:
    core, [shard] = await serve(stack, slowly(3_500_000), deadline=4000)
    heavy = core.find_many(LARGE[:20])  # one part, because no value was seen yet
    assert isinstance(await heavy, Problem)
    assert core.budget.used > 1_000_000
    await soon(lambda: core.budget.used == 0, "the reply has ended")
    assert len(shard.asked) == 1


async def test_a_batch_of_requests_takes_turns_with_another(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=60_000)
    await warm_up(core)
    shard.asked.clear()
    one, other = core.find_many(LARGE[:30]), core.find_many(LARGE[30:34])
    assert isinstance(await other, list)
    assert not one.future.done()
    assert isinstance(await one, list)


async def test_a_batch_over_the_limit_is_told_so_at_once_and_the_rest_is_not_asked_for(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=60_000, budget=20 << 20)
    await warm_up(core)
    shard.asked.clear()
    assert await core.find_many(LARGE) == 10 << 20
    assert len(shard.asked) < 14
    assert core.budget.used == 0
    assert await core.find("small1") == b"1"


async def test_a_reply_larger_than_the_budget_is_not_kept(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=60_000, budget=10 << 20)
    values = [core.find(key) for key in LARGE]  # one batch, because no value was seen yet
    told = [await value for value in values]
    assert len(shard.asked) == 1
    overloaded = [each for each in told if isinstance(each, Problem)]
    assert {problem.reason for problem in overloaded} == {"Overloaded"}
    assert 3 <= len(told) - len(overloaded) <= 8
    assert core.budget.used == 0
    assert core.count("endpoints_broken") == 0


async def test_a_request_whose_client_has_gone_is_not_asked_for_any_further(stack: AsyncExitStack) -> None:
    core, [shard] = await serve(stack, answer, deadline=60_000)
    await warm_up(core)
    shard.asked.clear()
    has_gone = asyncio.Event()

    async def wait_at_the_tenth(shard: ScriptedShard, command: list[bytes]) -> bytes:
        if len(shard.asked) >= 10:
            await has_gone.wait()
        return await answer(shard, command)

    shard.script = wait_at_the_tenth
    told = Answer()
    gather = core.lookups.find_many(make_keys(LARGE), told)
    assert gather
    await soon(lambda: core.budget.used > 2_000_000, "values have come")
    gather.abandon()
    has_gone.set()
    assert await core.find_many(LARGE[:1]) == [b"x" * 1_000_000]
    assert len(shard.asked) < 40
    assert core.budget.used == 0
    assert not told.future.done()


async def test_of_a_request_that_is_done_nothing_is_kept_while_others_are_waited_for(stack: AsyncExitStack) -> None:
    core, _ = await serve(stack, hold, deadline=20_000)
    core.find("stalled")  # what comes after it stays in queues until it is done
    told = Answer()
    gather = core.lookups.find_many(make_keys([f"key{number}" for number in range(500)]), told)
    assert gather
    slices = list(gather._slices)
    assert sum(len(shard_slice.keys) for shard_slice in slices) == 500
    gone = weakref.ref(told)
    gc.disable()
    try:
        gather.abandon()
        del told
        assert gone() is None, "nothing waits for the garbage collector"
    finally:
        gc.enable()
    assert not any(len(shard_slice.keys) for shard_slice in slices)


async def test_when_the_budget_is_used_up_batches_are_refused_before_lookups(stack: AsyncExitStack) -> None:
    core, _ = await serve(stack, answer)
    budget = core.budget
    for used, batch, lookup in ((0, "found", "found"), (0.6, "refused", "found"), (1.1, "refused", "refused")):
        budget.used = int(used * budget.limit)
        many, one = await core.find_many(["small1"]), await core.find("small1")
        assert ("refused" if isinstance(many, Problem) else "found") == batch
        assert ("refused" if isinstance(one, Problem) else "found") == lookup
    budget.used = 0


def damaged(*keys: bytes) -> Script:
    """Answer, but with an error for these keys, as a shard server does whose file is damaged there."""

    async def script(shard: ScriptedShard, command: list[bytes]) -> bytes:
        def element(key: bytes) -> bytes:
            if key in keys:
                return b"-ERR the value of this key is damaged\r\n"
            value = shard.records.get(key)
            return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)

        elements = b"".join(map(element, command[1:]))
        return elements if command[0] == b"GET" else b"*%d\r\n%b" % (len(command) - 1, elements)

    return script


class TestDamagedValues:
    KEYS = ("small1", "small2", "none", "small3", "large1")

    async def test_one_is_unavailable_and_everything_else_is_answered(self, stack: AsyncExitStack) -> None:
        core, _ = await serve(stack, damaged(b"small2"), deadline=20_000)
        expected = [b"1", UNAVAILABLE, None, b"3", b"x" * 1_000_000]
        assert await core.find_many(list(self.KEYS)) == expected
        assert await core.find_many(list(self.KEYS)) == expected, "also where the large lane is there"
        lookups = [core.find(key) for key in ("small1", "small2", "small3")]
        one, two, three = [await lookup for lookup in lookups]
        assert (one, three) == (b"1", b"3")
        assert isinstance(two, Problem)
        assert two.reason == "Damaged"
        assert "damaged" in two.detail
        assert core.count("endpoints_broken") == 0
        assert core.count("keys_damaged") == 3

    async def test_a_single_lookup_of_one_is_unavailable_and_says_why(self, stack: AsyncExitStack) -> None:
        core, [shard] = await serve(stack, damaged(b"small2"))
        problem = await core.find("small2")
        assert isinstance(problem, Problem)
        assert problem.reason == "Damaged"
        assert len(shard.asked) == 1, "the same file is not read again"

    async def test_another_replica_is_asked_once_for_it_alone(self, stack: AsyncExitStack) -> None:
        core, shards = await serve(stack, damaged(b"small2"), damaged(b"small2"))
        found = await core.find_many(["small1", "small2", "small3"])
        assert found == [b"1", UNAVAILABLE, b"3"]
        assert sorted(command for shard in shards for command in shard.asked) == [
            [b"GET", b"small2"],
            [b"MGET", b"small1", b"small2", b"small3"],
        ]

    @pytest.mark.parametrize("turn", range(4))
    async def test_a_replica_that_is_whole_answers_for_it(self, stack: AsyncExitStack, turn: int) -> None:
        core, _ = await serve(stack, damaged(b"small2", b"large1"), answer, deadline=20_000)
        values = [b"1", b"2", None, b"3", b"x" * 1_000_000]
        assert await core.find_many(list(self.KEYS)) == values
        assert await core.find("small2") == b"2"
        assert core.count("keys_unavailable") == 0

    async def test_while_both_replicas_are_asked_no_value_goes_to_a_wrong_key(self, stack: AsyncExitStack) -> None:
        core, _ = await serve(stack, damaged(b"small2"), damaged(b"small4"))
        core.lookups._watch.__self__._late = 0.0  # type: ignore[attr-defined]
        core.lookups._watch.__self__._is_hedge = True  # type: ignore[attr-defined]
        keys = list(SMALL)[:30]
        for _ in range(50):
            found = await core.find_many(keys)
            for key, value in zip(keys, found, strict=True):
                assert value in (SMALL[key], UNAVAILABLE)


# On real processes.


def test_a_damaged_shard_file_costs_the_damaged_key_alone(tmp_path: Path) -> None:
    values = {f"key{number}": b"value %d of the sample " % number * 9 for number in range(300)}
    generation = write_generation(tmp_path, values)
    with fleet(generation) as shards, routing(write_table(tmp_path, generation, shards)) as router:
        path = generation / file_name(0, 1)
        path.chmod(0o644)
        with path.open("r+b") as file:  # in place, as a failing disk does
            file.seek(path.read_bytes().index(shardfile.frame(values["key7"])))
            file.write(b"\xff\xff\xff")
        status, body = router.get("/v1/lookup/key7")
        assert (status, json.loads(body)["reason"]) == (503, "Damaged")
        assert "damaged" in json.loads(body)["detail"]
        for key, value in values.items():
            if key != "key7":
                assert router.get(f"/v1/lookup/{key}") == (200, value)
        with Client(socket.create_connection(("127.0.0.1", router.port))) as client:
            answer = client.post(json.dumps({"keys": [*values, "none"], "partial": True}).encode())
            document = json.loads(answer.body)
            assert answer.status == 200
            assert (document["unavailable"], document["missing"]) == (["key7"], ["none"])
            assert document["found"].keys() == values.keys() - {"key7"}
            refused = client.post(json.dumps({"keys": list(values)}).encode())
            assert (refused.status, refused.fields["retry-after"]) == (503, "1")
            assert json.loads(refused.body)["reason"] == "Damaged"


def write_table(home: Path, generation: Path, shards: Shards) -> Path:
    path = home / "table.json"
    path.write_bytes(table_file(fleet_entry(generation, shards)))
    return path


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    home = tmp_path_factory.mktemp("heavy")
    records = SMALL | dict.fromkeys(LARGE, b'"' + b"x" * 1000000 + b'"')
    generation = write_generation(home, records, shards=2, value_format="json")
    with fleet(generation) as shards:
        table = write_table(home, generation, shards)
        with routing(table, "--deadline-ms", "20000") as router:  # a busy machine may be late
            yield router


async def test_one_heavy_client_leaves_the_others_their_pace_and_fails_none_of_their_requests(router: Router) -> None:
    """A wait is measured in the router's processor time, because a busy machine delays the router as well."""
    (pid,) = (worker["pid"] for worker in router.status()["workers"])
    with heavy_client(router, LARGE[:50]) as client:
        windows = [await ask(router, 1, lambda: worked_seconds(pid)) for _ in range(4)]
        assert client.poll() is None, "it was busy all the time"
    p99 = [statistics.quantiles(times, n=100)[98] * 1000 for times in windows]
    print("ms that the router worked while one lookup of a hundred waited, beside batches of 50 MB", p99)
    assert min(p99) < 40, "it does not wait for a batch, which is 50 ms of work and more"


_HEAVY = """
import socket, sys
port, message = int(sys.argv[1]), sys.stdin.buffer.read()
client, buffer = socket.create_connection(("127.0.0.1", port)), bytearray(1 << 20)
client.sendall(message)
while client.recv_into(buffer):
    pass
"""


@contextlib.contextmanager
def heavy_client(router: Router, keys: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that asks for all of ``keys`` at once, again and again, and reads the answers as fast as it can."""
    body = json.dumps({"keys": keys}).encode()
    message = request("/v1/lookup", f"Content-Length: {len(body)}", method="POST") + body
    with subprocess.Popen([sys.executable, "-c", _HEAVY, str(router.port)], stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(message * 1000)
        process.stdin.close()
        try:
            yield process
        finally:
            process.kill()


async def ask(router: Router, seconds: float, clock: Callable[[], float]) -> list[float]:
    """Look small keys up on eight connections for a while. Return how long each took by ``clock``. All answers must be
    right."""

    async def client(number: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        times: list[float] = []
        keys = list(SMALL)[number::8]
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(times) < 5:
            key = keys[len(times) % len(keys)]
            began = clock()
            writer.write(request(f"/v1/lookup/{key}"))
            assert await read_answer(reader) == SMALL[key]
            times.append(clock() - began)
        writer.close()
        return times

    return [taken for times in await asyncio.gather(*map(client, range(8))) for taken in times]


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200 "), head
    return await reader.readexactly(int(head.lower().partition("content-length: ")[2].partition("\r\n")[0]))
