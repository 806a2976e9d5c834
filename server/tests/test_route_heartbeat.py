"""Idle connections to shard servers that stand still: found out by a PING, before a lookup has to wait for one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from support.fleets import fleet, fleet_entry
from support.replicas import serve_replicas
from support.routers import Router, routing
from support.routing import LIMITS, Core, table_file
from support.scripted_shard import ScriptedShard, answer
from support.shards import Running, write_generation
from support.waiting import soon, until

from lookupdb.keys import shard_number
from lookupdb.router.server_connection import Heartbeat

RECORDS = {b"k%d" % i: b"v%d" % i for i in range(100)}


class Idle:
    """A connection of which nothing is asked."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.is_closed = False
        self.is_awaited = False
        self.pings: list[float] = []
        self.silent = 0

    def ping(self) -> bool:
        self.pings.append(asyncio.get_running_loop().time())
        self.is_awaited = not self.answers
        return True

    def close(self, why: str) -> None:
        assert why.startswith("did not answer PING")
        self.silent += 1
        self.is_awaited = False
        self.is_closed = True


def watched(heartbeat: Heartbeat, count: int, *, answers: bool = True) -> list[Idle]:
    idles = [Idle(answers=answers) for _ in range(count)]
    for idle in idles:
        heartbeat.watch(cast("Any", idle))
    return idles


class TestHeartbeat:
    @pytest.mark.parametrize("count", [1, 30])
    async def test_each_connection_is_looked_at_once_in_a_while(self, count: int) -> None:
        idles = watched(Heartbeat(look_seconds=0.2, silence_seconds=0.1), count)
        await soon(lambda: all(len(idle.pings) >= 3 for idle in idles), "each was looked at three times")
        looks = sorted(len(idle.pings) for idle in idles)
        assert looks[-1] - looks[0] <= 1, "they take turns"
        gaps = [later - earlier for idle in idles for earlier, later in zip(idle.pings, idle.pings[1:], strict=False)]
        assert min(gaps) > 0.1
        assert not any(idle.silent for idle in idles)

    async def test_one_that_does_not_answer_is_told_so_once(self) -> None:
        heartbeat = Heartbeat(look_seconds=0.05, silence_seconds=0.1)
        [dead], [alive] = watched(heartbeat, 1, answers=False), watched(heartbeat, 1)
        await soon(lambda: dead.silent, "it is given up")
        assert asyncio.get_running_loop().time() - dead.pings[0] > 0.07
        seen = len(alive.pings)
        await soon(lambda: len(alive.pings) > seen + 3, "the other is looked at all the same")
        assert (dead.silent, alive.silent) == (1, 0)

    async def test_an_answer_that_came_while_this_process_stood_still_counts(self) -> None:
        [idle] = watched(Heartbeat(look_seconds=0.01, silence_seconds=0.1), 1, answers=False)
        await soon(lambda: idle.pings, "it is asked")
        time.sleep(0.3)  # noqa: ASYNC251 - the whole process, as if it got no processor
        asyncio.get_running_loop().call_soon(setattr, idle, "is_awaited", False)  # as the socket is read now
        idle.answers = True
        seen = len(idle.pings)
        await soon(lambda: len(idle.pings) > seen + 5, "it is looked at further on")
        assert not idle.silent

    async def test_one_that_is_closed_is_forgotten_and_then_nothing_runs(self) -> None:
        heartbeat = Heartbeat(look_seconds=0.01, silence_seconds=0.02)
        [idle] = watched(heartbeat, 1)
        idle.is_closed = True
        await soon(lambda: heartbeat._timer is None, "the timer ends")
        assert not idle.pings
        [other] = watched(heartbeat, 1)
        await soon(lambda: other.pings, "it begins again")

    async def test_however_many_there_are_a_tick_looks_at_few(self) -> None:
        heartbeat = Heartbeat()
        idles = watched(heartbeat, 5000)
        heartbeat._tick()
        assert sum(len(idle.pings) for idle in idles) == 100
        heartbeat._tick()
        assert sum(len(idle.pings) for idle in idles) == 200
        assert max(len(idle.pings) for idle in idles) == 1


async def core_of(stack: AsyncExitStack, replicas: int, deadline: int = 20_000) -> tuple[Core, list[ScriptedShard]]:
    """A core that looks often, with one shard."""
    limits = replace(LIMITS, deadline_milliseconds=deadline)
    heartbeat = Heartbeat(look_seconds=0.05, silence_seconds=0.2)
    return await serve_replicas(stack, RECORDS, *[answer] * replicas, limits=limits, heartbeat=heartbeat)


class TestLookups:
    async def test_while_all_answer_nobody_notices(self, stack: AsyncExitStack) -> None:
        core, [shard] = await core_of(stack, 1)
        for _ in range(5):
            seen = shard.pings
            await soon(lambda seen=seen: shard.pings > seen, "it is asked PING")  # type: ignore[misc]
            assert await core.find("k1") == b"v1"
            assert await core.find_many(["k1", "none", "k2"]) == [b"v1", None, b"v2"]
        assert core.count("endpoints_broken") == 0
        assert shard.proofs == 1

    async def test_lookups_that_follow_a_ping_on_its_heels_get_their_own_answers(self, stack: AsyncExitStack) -> None:
        core, _ = await core_of(stack, 1)
        live = core.lookups.live
        assert live
        [endpoint] = live.active.shards[0].endpoints
        connection = endpoint._small._connection
        assert connection
        for _ in range(20):
            connection._received_before = connection.received
            connection.ping()
            asked = [core.find("k1"), core.find("none"), core.find_many(["k2", "k3"])]
            assert [await answer for answer in asked] == [b"v1", None, [b"v2", b"v3"]]
        assert core.count("endpoints_broken") == 0

    async def test_without_another_replica_they_wait_for_the_server(self, stack: AsyncExitStack) -> None:
        core, [shard] = await core_of(stack, 1)
        shard.pong = None
        await soon(lambda: shard.pings, "it is asked PING")
        assert await core.find("k1") == b"v1"
        assert core.count("endpoints_broken") > 0

    async def test_what_was_asked_meanwhile_is_answered_by_another_replica(self, stack: AsyncExitStack) -> None:
        core, [dead, alive] = await core_of(stack, 2)
        dead.pong = None
        await soon(lambda: dead.pings, "it is asked PING")
        assert await core.find_many(list(map(bytes.decode, RECORDS))) == list(RECORDS.values())
        assert alive.asked

    @pytest.mark.parametrize("pong", [b"-ERR what?\r\n", b"+PING\r\n", b"$4\r\nPONG\r\n"])
    async def test_one_that_answers_wrong_is_not_used(self, stack: AsyncExitStack, pong: bytes) -> None:
        core, [shard] = await core_of(stack, 1)
        shard.pong = pong
        await soon(lambda: core.count("endpoints_broken"), "it is found out")

    async def test_the_answer_may_come_in_pieces_and_with_a_list(self, stack: AsyncExitStack) -> None:
        core, [shard] = await core_of(stack, 1)
        shard.pong = b"+PO"
        await soon(lambda: shard.pings, "it is asked PING")
        answer = core.find("k1")
        [writer] = shard._writers
        writer.write(b"NG\r\n$2\r\nv1\r\n")
        assert await answer == b"v1"

    async def test_a_list_behind_it_is_checked_as_any(self, stack: AsyncExitStack) -> None:
        core, [shard] = await core_of(stack, 1)
        shard.pong = b"+PONG\r\n*4000000000\r\n$1\r\nx\r\n"
        await soon(lambda: core.count("endpoints_broken"), "it is closed")


KEYS = {f"k{i}": b"v%d" % i for i in range(100)}
"""In two shards."""


@contextlib.contextmanager
def standing_still(servers: list[Running]) -> Iterator[None]:
    """All processes of ``servers`` are stopped: sockets stay open, nobody reads them."""
    pids = []
    for server in servers:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.admin}/status") as answer:
            pids += [server.pid, *(worker["pid"] for worker in orjson.loads(answer.read())["workers"])]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def reported(router: Router) -> set[str]:
    """The endpoints that are not usable."""
    return {endpoint["endpoint"] for endpoints in router.reports("endpoints") for endpoint in endpoints}


@pytest.mark.long
def test_servers_that_stand_still_while_nobody_asks_cost_nobody_a_wait(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, KEYS, shards=2)
    path = tmp_path / "table.json"
    with fleet(generation, replicas=2) as shards:
        path.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(path, "--deadline-ms", "30000") as router:
            until(lambda: not reported(router), "all servers are connected to")
            stopped = [shards[0][0], *shards[1]]
            with standing_still(stopped):
                names = {f"127.0.0.1:{server.ports[0]}" for server in stopped}
                until(lambda: reported(router) == names, "they are found out")
                for key, value in KEYS.items():
                    began = time.monotonic()
                    status, body = router.get(f"/v1/lookup/{key}")
                    assert time.monotonic() - began < 10, "a third of the deadline"
                    if shard_number(key.encode(), 2):
                        assert (status, orjson.loads(body)["reason"]) == (503, "Unreachable")
                    else:
                        assert (status, body) == (200, value)
            until(lambda: not reported(router), "they are back")
            assert all(router.get(f"/v1/lookup/{key}") == (200, value) for key, value in KEYS.items())
