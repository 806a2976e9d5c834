"""The open loop of one sender, against a router that does as the test says: requests leave by the clock, latencies
count from the intended time, and each request comes to exactly one end."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import orjson
import pytest
from support.ports import free_port
from support.scripted_router import (
    FOUND,
    ScriptedRouter,
    answer_found,
    encode_answer,
    encode_problem,
    scripted_router,
)
from support.waiting import soon

from lookupdb.load.plan import FAILURE_KINDS, LoadPlan, SenderPlan, Tally, make_profile, make_target
from lookupdb.load.result import LatencyHistogram
from lookupdb.load.sender import READ_BYTES, LoadConnection, Sender


def _plan(port: int, keys: list[str], *, rate: float = 100, duration: float = 1.0, **changes: Any) -> SenderPlan:
    load = LoadPlan(
        profile=make_profile(rate, rate, ramp=0, duration=duration, warmup=changes.pop("warmup", 0)),
        arrivals="uniform",
        warmup=0,
        batch=1,
        partial=False,
        hit_ratio=1.0,
        distribution="uniform",
        seed=1,
        max_in_flight=64,
        processes=1,
        timeout=5.0,
    )
    load = dataclasses.replace(load, **changes)
    target = make_target(f"http://127.0.0.1:{port}", "a-token", None, ["X-Team: search"])
    return SenderPlan(load, target, 0, None, keys)


async def _send(plan: SenderPlan) -> Tally:
    sender = Sender(plan, None)
    await sender.open_first()
    await sender.run(time.monotonic())
    return sender.tally


def _ends(tally: Tally) -> int:
    """Count the requests that have ended."""
    failures = sum(sum(tally.failures[kind].values()) for kind in FAILURE_KINDS)
    return tally.answered + failures + tally.timeouts + tally.unsent


async def test_all_requests_are_sent_and_answered() -> None:
    async with scripted_router(answer_found) as router:
        tally = await _send(_plan(router.port, ["a", "b c", "d/e", ".."]))
    assert (tally.scheduled, tally.answered, tally.found, tally.missing) == (100, 100, 100, 0)
    assert len(tally.latencies) == len(tally.lags) == 100
    assert set(router.asked) == {"a", "b c", "d/e", ".."}
    assert tally.generations["g1"]["answers"] == 100
    assert tally.failures == {kind: {} for kind in FAILURE_KINDS}
    assert b"Authorization: Bearer a-token\r\n" in router.heads[0]
    assert b"X-Team: search\r\n" in router.heads[0]
    assert router.connections < 100, "connections are kept"


async def test_what_is_sent_while_it_warms_up_does_not_count() -> None:
    async with scripted_router(answer_found) as router:
        plan = _plan(router.port, ["a"], duration=0.5)
        plan = dataclasses.replace(plan, load=dataclasses.replace(plan.load, warmup=0.3))
        tally = await _send(plan)
    assert len(router.asked) == 50
    assert tally.scheduled == tally.answered == len(tally.latencies) == pytest.approx(20, abs=1)


async def test_a_router_that_stalls_is_charged_for_all_that_it_keeps_waiting() -> None:
    """Coordinated omission: a closed loop would have sent one request into the stall, and shown 1 slow request of all.
    Here a request is due every 5 ms of that second, and each waits until the second is over."""
    stall_begins, stall_ends = 1.0, 2.0
    began = time.monotonic()

    async def stall(_: str, writer: asyncio.StreamWriter) -> None:
        into = time.monotonic() - began
        if stall_begins <= into < stall_ends:
            await asyncio.sleep(stall_ends - into)
        writer.write(FOUND)

    async with scripted_router(stall) as router:
        tally = await _send(_plan(router.port, ["a"], rate=200, duration=3.0, max_in_flight=4))
    assert tally.scheduled == tally.answered == 600
    histogram = LatencyHistogram()
    histogram.record(tally.latencies)
    slow = [value for value in tally.latencies if value > 100_000]
    assert len(slow) >= 140, "all that were to be sent in the first nine tenths of the stall; a busy machine adds some"
    p80, p99 = (value or 0 for value in histogram.percentiles((80.0, 99.0)))
    assert p99 > 850_000
    assert p80 > 200_000
    assert tally.held_back > 100, "only four were in flight, the others waited and were counted"
    assert max(tally.lags) < 500_000, "the sender itself went on by the clock"


async def _respond_by_key(key: str, writer: asyncio.StreamWriter) -> None:
    match key:
        case "found":
            writer.write(encode_answer(200, b'{"a":1}', "g1" if time.monotonic() % 1 < 0.5 else "g2"))
        case "missing":
            writer.write(encode_problem(404, "missing", "g1"))
        case "lost":
            writer.write(encode_problem(404, "no-such-resource"))
        case "down":
            writer.write(encode_problem(503, "unavailable", "g1", reason="Unreachable", shard=2))
        case "late":
            writer.write(encode_problem(503, "unavailable", "g1", reason="Deadline", shard=2))
        case "proxy":
            writer.write(encode_answer(503, b"<html>", ""))
        case "denied":
            writer.write(encode_problem(401, "unauthenticated"))
        case "reset":
            writer.transport.abort()
            raise ConnectionResetError
        case "closed":
            writer.close()
            raise ConnectionResetError
        case "cut":
            writer.write(FOUND[:-3])
            writer.close()
            raise ConnectionResetError
        case "noise":
            writer.write(b"+PONG\r\n")
        case "twice":
            writer.write(FOUND + FOUND)
        case "more":
            writer.write(FOUND + FOUND[:20])
        case "anybody":
            writer.write(encode_answer(200, b"hello", ""))
        case "last":
            writer.write(encode_answer(200, b"{}", "g1", "Connection: close"))
            writer.close()
            raise ConnectionResetError
        case "silent":
            await asyncio.sleep(60)


KINDS: dict[str, tuple[str, str]] = {
    "lost": ("httpErrors", "404 no-such-resource"),
    "down": ("unavailable", "Unreachable"),
    "late": ("unavailable", "Deadline"),
    "proxy": ("httpErrors", "503"),
    "denied": ("httpErrors", "401 unauthenticated"),
    "closed": ("broken", "closed"),
    "cut": ("broken", "closed"),
    "noise": ("broken", "not HTTP"),
    "twice": ("broken", "unasked data"),
    "more": ("broken", "unasked data"),
    "anybody": ("invalid", "200 without a generation"),
}


@pytest.mark.parametrize("key", KINDS)
async def test_each_failure_is_counted_for_what_it_is(key: str) -> None:
    async with scripted_router(_respond_by_key) as router:
        tally = await _send(_plan(router.port, [key], duration=0.3))
    kind, label = KINDS[key]
    assert tally.failures[kind] == {label: 30}
    assert (_ends(tally), tally.answered, tally.missing, tally.latencies) == (30, 0, 0, [])
    assert tally.unavailable_keys == (30 if kind == "unavailable" else 0)
    assert len(tally.failure_latencies) == 30


class Owner:
    """Asks again as soon as it has an answer."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.kept_bytes = 0

    def take_answer(self, connection: LoadConnection, status: int, generation: bytes, body: bytes) -> None:
        self.told.append(body)
        if connection.is_open:
            connection.send(b"")

    def lose(self, connection: LoadConnection, label: str) -> None:
        self.told.append(label.encode())


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("following", [FOUND, FOUND[:20], b"H", None])
async def test_what_follows_an_answer_does_not_answer_the_next_request(following: bytes | None, is_full: bool) -> None:
    """After a piece as large as one read of the loop, it may be the next piece of the same turn."""
    owner = Owner()
    ours, router = socket.socketpair()
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: LoadConnection(cast(Sender, owner)), sock=ours
    )
    with router:
        connection.send(b"")
        size = READ_BYTES - len(encode_answer(200, b"", "g1")) - 5
        whole = encode_answer(200, b"x" * size, "g1") if is_full else FOUND
        assert (len(whole) == READ_BYTES) is is_full
        for piece in [whole, following or b""] if is_full else [whole + (following or b"")]:
            if piece:
                connection.data_received(piece)
        await soon(lambda: owner.told, "the owner has an answer")
        if following:
            assert owner.told == [b"unasked data"]
        else:
            assert owner.told[0] == whole[-len(owner.told[0]) :]
            connection.abort("done")
            await soon(lambda: owner.told[1:], "the owner learns of its end")
            assert owner.told[1:] == [b"done"]


async def test_a_connection_that_is_reset_is_broken() -> None:
    async with scripted_router(_respond_by_key) as router:
        tally = await _send(_plan(router.port, ["reset"], duration=0.3))
    assert sum(tally.failures["broken"].values()) == 30
    assert set(tally.failures["broken"]) <= {"reset", "closed"}


async def test_found_and_missing_are_answers_and_several_generations_are_seen() -> None:
    async with scripted_router(_respond_by_key) as router:
        tally = await _send(_plan(router.port, ["found", "missing"], duration=1.2))
    assert tally.found + tally.missing == tally.answered == 120
    assert min(tally.found, tally.missing) > 30
    assert set(tally.generations) == {"g1", "g2"}
    assert all(span["firstSeconds"] < span["lastSeconds"] <= 2 for span in tally.generations.values())


async def test_a_router_that_closes_after_each_answer_is_asked_on_new_connections() -> None:
    async with scripted_router(_respond_by_key) as router:
        tally = await _send(_plan(router.port, ["last"], duration=0.5))
    assert tally.answered == 50
    assert router.connections >= 50


async def test_new_connections_for_closed_ones_stay_within_the_limit() -> None:
    async def close_later(_: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        await _respond_by_key("last", writer)

    async with scripted_router(close_later) as router:
        tally = await _send(_plan(router.port, ["a"], rate=600, duration=0.5, timeout=0.5, max_in_flight=4))
    assert tally.answered > 20
    assert router.most_open_connections == 4


async def test_what_is_not_answered_in_time_is_counted_with_the_time_that_it_waited() -> None:
    async with scripted_router(_respond_by_key) as router:
        tally = await _send(_plan(router.port, ["silent"], rate=400, duration=0.5, timeout=0.4, max_in_flight=2))
    assert tally.timeouts >= 2, "as many as were in flight at first"
    assert tally.unsent > 0, "others waited for a connection until their time was up"
    assert _ends(tally) == tally.scheduled == 200 == len(tally.latencies)
    assert min(tally.latencies) >= 390_000
    assert tally.held_back >= tally.unsent


async def test_a_router_that_is_asked_for_more_than_it_can_answers_as_much_as_it_can() -> None:
    """A request that waits for a connection until its time is nearly up is not sent: its answer would come too late."""

    async def take_time(_: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        writer.write(FOUND)

    async with scripted_router(take_time) as router:
        tally = await _send(_plan(router.port, ["a"], rate=600, duration=3, timeout=1.0, max_in_flight=4))
    assert tally.answered > 250, "it can answer 200 a second"
    assert tally.unsent > 500
    assert _ends(tally) == tally.scheduled == len(tally.latencies) == 1800
    assert sum(value == 1_000_000 for value in tally.latencies) >= tally.unsent


async def test_a_router_that_is_gone_fails_each_request_at_once() -> None:
    tally = await _send(_plan(free_port(), ["a"], duration=0.5))
    assert tally.failures["broken"] == {"refused": 50}
    assert max(tally.failure_latencies) < 1_000_000


async def test_a_router_that_comes_back_is_asked_again() -> None:
    port = free_port()
    running = asyncio.ensure_future(_send(_plan(port, ["a"], duration=1.5)))
    await asyncio.sleep(0.5)
    router = ScriptedRouter(answer_found)
    async with await asyncio.start_server(router.serve, "127.0.0.1", port) as server:
        tally = await running
        server.close()
    assert tally.failures["broken"]["refused"] > 10
    assert tally.answered > 50
    assert _ends(tally) == tally.scheduled == 150


async def test_stopping_ends_it_with_what_is_in_flight() -> None:
    async with scripted_router(answer_found) as router:
        sender = Sender(_plan(router.port, ["a"], duration=60), None)
        running = asyncio.ensure_future(sender.run(time.monotonic()))
        await soon(lambda: sender.tally.answered >= 10, "ten answers")
        sender.stop(1.0)
        await asyncio.wait_for(running, 5)
    assert 10 <= _ends(sender.tally) == sender.tally.scheduled < 1000


# Batches


def _answer_batch(judge: Callable[[list[str]], dict[str, Any]], generation: str = "g1") -> Any:
    async def respond(body: str, writer: asyncio.StreamWriter) -> None:
        keys = orjson.loads(body)["keys"]
        answer = {"generation": generation, **judge(keys)}
        writer.write(encode_answer(200, orjson.dumps(answer), generation))

    return respond


async def _send_batches(respond: Callable[[str, asyncio.StreamWriter], Awaitable[None]], **changes: Any) -> Tally:
    keys = [str(number) for number in range(100)]
    async with scripted_router(respond) as router:
        return await _send(_plan(router.port, keys, duration=0.3, batch=20, **changes))


async def test_of_a_batch_keys_are_counted() -> None:
    tally = await _send_batches(_answer_batch(lambda keys: {"found": dict.fromkeys(keys[5:], 1), "missing": keys[:5]}))
    assert (tally.answered, tally.found, tally.missing) == (30, 450, 150)


async def test_a_batch_that_is_answered_in_part_is_no_answer() -> None:
    tally = await _send_batches(
        _answer_batch(lambda keys: {"found": dict.fromkeys(keys[2:], 1), "missing": [], "unavailable": keys[:2]}),
        partial=True,
    )
    assert (tally.answered, tally.found, tally.missing, tally.unavailable_keys) == (0, 540, 0, 60)
    assert tally.failures["unavailable"] == {"Partial": 30}


async def test_a_key_that_is_not_spoken_of_is_not_missing() -> None:
    tally = await _send_batches(_answer_batch(lambda keys: {"found": dict.fromkeys(keys[1:], 1), "missing": []}))
    assert (tally.answered, tally.missing) == (0, 0)
    assert tally.failures["invalid"] == {"200 without all keys": 30}


async def test_answers_out_of_several_generations_are_counted() -> None:
    tally = await _send_batches(_answer_batch(lambda keys: {"found": dict.fromkeys(keys, 1), "missing": []}, "g1, g2"))
    assert (tally.answered, tally.mixed) == (30, 30)
    assert list(tally.generations) == ["g1, g2"]


async def test_a_batch_whose_shard_is_down_has_only_unavailable_keys() -> None:
    async def respond(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_problem(503, "unavailable", "g1", reason="QueueFull"))

    tally = await _send_batches(respond)
    assert (tally.unavailable_keys, tally.missing, tally.found) == (600, 0, 0)
    assert tally.failures["unavailable"] == {"QueueFull": 30}


async def test_keys_that_are_made_up_are_the_rest_of_the_hit_ratio() -> None:
    asked: list[str] = []

    async def respond(body: str, writer: asyncio.StreamWriter) -> None:
        asked.extend(orjson.loads(body)["keys"])
        await _answer_batch(lambda keys: {"found": {}, "missing": keys})(body, writer)

    await _send_batches(respond, hit_ratio=0.75)
    made_up = [key for key in asked if key.startswith("lookupdb-load-")]
    assert len(made_up) / len(asked) == pytest.approx(0.25, abs=0.08)
    assert len(set(made_up)) == len(made_up)


async def test_labels_that_a_server_makes_up_do_not_fill_memory() -> None:
    numbers = itertools.count()

    async def respond(_: str, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        writer.write(encode_problem(500, f"{'x' * 500}{number}", f"g{number}"))

    async with scripted_router(respond) as router:
        tally = await _send(_plan(router.port, ["a"], duration=1))
    assert sum(tally.failures["httpErrors"].values()) == 100
    assert max(map(len, tally.failures["httpErrors"])) < 100

    async def rename(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_answer(200, b"{}", f"g{next(numbers)}"))

    async with scripted_router(rename) as router:
        tally = await _send(_plan(router.port, ["a"], duration=1))
    assert len(tally.generations) <= 51
    assert sum(span["answers"] for span in tally.generations.values()) == 100
