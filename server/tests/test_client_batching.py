"""Lookups of concurrent threads and coroutines leave together; one caller's failure is its own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.callers import Gate, calling, outcomes
from support.clients import Kind
from support.faulty_router import CLOSE, Asked, batch, found_all, problem, scripted
from support.waiting import soon, until

from lookupdb.client import AsyncClient, Client, RequestRefused, Unavailable, core
from lookupdb.client.core import MAX_FLIGHTS

pytest_plugins = ["support.client_fixtures"]


@pytest.mark.usefixtures("patient")
def test_who_comes_while_one_asks_leaves_with_all_others(kind: Kind) -> None:
    gate = Gate()
    with scripted(gate) as router, calling(kind, router.url, timeout=60) as client:
        first = client.start("get", "first")
        until(lambda: router.asked, "the first is under way")
        others = client.start_all("__getitem__", [f"k{n}" for n in range(63)])
        until(lambda: client.waiting == 63, "all others wait")
        assert len(router.asked) == 1
        gate.opened.set()
        assert outcomes([first, *others]) == ["first", *(f"k{n}" for n in range(63))]
        assert [asked.method for asked in router.asked] == ["GET", "POST"], "a lone one leaves at once, and alone"
        assert sorted(router.asked[1].keys) == sorted(f"k{n}" for n in range(63))
        assert b'"partial":true' in router.asked[1].body


async def test_coroutines_leave_together_at_the_end_of_the_turn() -> None:
    with scripted() as router:
        async with AsyncClient(router.url, timeout=60) as client:
            assert await asyncio.gather(*(client.get(f"k{n}") for n in range(1000))) == [f"k{n}" for n in range(1000)]
            assert [len(asked.keys) for asked in router.asked] == [1000]
            assert await client.get("alone") == "alone"
            assert router.asked[-1].method == "GET"


def test_a_slow_batch_does_not_hold_up_the_others(kind: Kind) -> None:
    gate = Gate()
    with scripted(*[gate] * (MAX_FLIGHTS - 1)) as router, calling(kind, router.url, timeout=60) as client:
        slow = []
        for number in range(MAX_FLIGHTS - 1):
            slow.append(client.start("get", f"slow-{number}"))
            until(lambda number=number: len(router.asked) > number, "it is under way")  # type: ignore[misc]
        assert client.waiting == 0, "nobody waits for the slow ones"
        assert client.get("fast") == "fast"
        assert not any(future.done() for future in slow)
        gate.opened.set()
        assert outcomes(slow) == [f"slow-{number}" for number in range(MAX_FLIGHTS - 1)]


def test_no_more_than_so_many_batches_are_under_way_and_who_waits_is_answered(kind: Kind) -> None:
    gate = Gate()
    with scripted(otherwise=gate) as router, calling(kind, router.url, timeout=60) as client:
        lookups = client.start_all("get", [f"k{n}" for n in range(64)])
        until(lambda: len(router.asked) == MAX_FLIGHTS or not client.waiting, "all that may have left")
        time.sleep(0.05)
        assert len(router.asked) <= MAX_FLIGHTS
        gate.opened.set()
        assert outcomes(lookups) == [f"k{n}" for n in range(64)]


@pytest.mark.usefixtures("patient")
def test_callers_wait_with_no_more_characters_of_keys_than_there_is_room_for(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MAX_WAITING_CHARACTERS", 100)
    with scripted() as router, calling(kind, router.url, timeout=60, max_keys=2) as client:
        for keys, refused in (
            (["k" * 150], "b"),
            (["0" * 40, "1" * 40], "c" * 40),
            ([f"{n}" * 30 for n in "345"], "d" * 30),
        ):
            gate = Gate()
            router.actions.append(gate)
            asked = len(router.asked)
            first = client.start("get", "first")
            until(lambda: len(router.asked) > asked, "the first is under way")  # noqa: B023
            waiting = client.start_all("get", keys)
            until(lambda: client.waiting == len(keys), "they wait: one alone, however long its key is")  # noqa: B023
            with pytest.raises(Unavailable, match=f"{len(keys)} lookups of this client are waiting already") as told:
                client.get(refused)
            assert (told.value.reason, told.value.keys) == ("ClientQueueFull", (refused,))
            gate.opened.set()
            assert outcomes([first, *waiting]) == ["first", *keys]
            assert client.client._link.combiners[None]._characters == 0, "what was answered takes no room"


@pytest.mark.usefixtures("patient")
async def test_a_coroutine_that_is_cancelled_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_WAITING_CHARACTERS", 100)
    with scripted() as router:
        async with AsyncClient(router.url, timeout=60) as client:
            lookup = asyncio.create_task(client.get("c" * 90))
            await asyncio.sleep(0)
            lookup.cancel()
            await asyncio.gather(lookup, return_exceptions=True)
            assert await client.get("d" * 90) == "d" * 90
            assert client._link.combiners[None]._characters == 0


def partly(connection: socket.socket, asked: Asked) -> bytes:
    """``down…`` is unavailable, ``none…`` missing, ``huge…`` too large, and spoils a batch that it is in."""
    if asked.method == "GET":
        key = asked.target.rpartition("/")[2]
        if key.startswith("none"):
            return problem("404 Not Found", "missing", generation="g1")
        if key.startswith("down"):
            return problem("503 Service Unavailable", "unavailable", "it is down", reason="Unreachable", shard=1)
        if key.startswith("huge"):
            return problem("413 Content Too Large", "answer-too-large", "too large")
        return found_all(connection, asked)
    keys = asked.keys
    if any(key.startswith("huge") for key in keys):
        return problem("413 Content Too Large", "answer-too-large", "too large")
    return batch(
        {key: [key] for key in keys if key.startswith("k")},
        [key for key in keys if key.startswith("none")],
        [key for key in keys if key.startswith("down")],
    )


def judge(key: str, outcome: object) -> None:
    if key.startswith("k"):
        assert outcome in (key, [key])
    elif key.startswith("none"):
        assert outcome == "default"
    elif key.startswith("down"):
        assert isinstance(outcome, Unavailable)
        assert outcome.keys == (key,)
    else:
        assert isinstance(outcome, RequestRefused)
        assert outcome.status == 413


MIXED = [f"{kind}{number}" for number in range(8) for kind in ("k", "none", "down", "huge")]


@pytest.mark.usefixtures("patient")
def test_each_caller_has_its_own_outcome(kind: Kind) -> None:
    gate = Gate()
    with scripted(gate, otherwise=partly) as router, calling(kind, router.url, timeout=60) as client:
        client.start("get", "k")
        until(lambda: router.asked, "the first is under way")
        lookups = [client.start("get", key, "default") for key in MIXED]
        until(lambda: client.waiting == len(MIXED), "all others wait")
        gate.opened.set()
        told = outcomes(lookups)
        for key, outcome in zip(MIXED, told, strict=True):
            judge(key, outcome)
        errors = [outcome for outcome in told if isinstance(outcome, BaseException)]
        assert len(set(map(id, errors))) == len(errors), "an error that two raise has the traces of both"
        assert len(router.asked) < 2 * len(MIXED)


async def test_keys_that_cannot_be_asked_for_disturb_nobody() -> None:
    with scripted() as router:
        async with AsyncClient(router.url) as client:
            bad: list[Any] = ["\udc80", 7, None, b"x"]
            outcomes = await asyncio.gather(*(client.get(key) for key in ["a", *bad, "b"]), return_exceptions=True)
            assert (outcomes[0], outcomes[-1]) == ("a", "b")
            assert [type(outcome) for outcome in outcomes[1:-1]] == [ValueError, TypeError, TypeError, TypeError]
            assert router.asked[0].keys == ["a", "b"]


async def test_no_two_callers_of_one_key_share_a_value_that_can_change() -> None:
    with scripted(otherwise=partly) as router:
        async with AsyncClient(router.url) as client:
            values = await asyncio.gather(client.get("k"), client.get("k"), client.get("k2"), client.get("k"))
            values[0].append("changed")
            assert [*values] == [["k", "changed"], ["k"], ["k2"], ["k"]]
            assert router.asked[0].keys == ["k", "k2"]


@pytest.mark.usefixtures("patient")
async def test_a_coroutine_that_is_cancelled_disturbs_nobody() -> None:
    gate, second = Gate(), Gate()
    with scripted(gate, second) as router:
        async with AsyncClient(router.url, timeout=60) as client:
            flying = [asyncio.create_task(client.get(f"a{n}")) for n in range(3)]
            await soon(lambda: router.asked, "they are under way")
            queued = [asyncio.create_task(client.get(f"b{n}")) for n in range(3)]
            await asyncio.sleep(0)
            flying[1].cancel()
            queued[1].cancel()
            gate.opened.set()
            second.opened.set()
            outcomes = await asyncio.gather(*flying, *queued, return_exceptions=True)
            assert [outcomes[n] for n in (0, 2, 3, 5)] == ["a0", "a2", "b0", "b2"]
            assert all(isinstance(outcomes[n], asyncio.CancelledError) for n in (1, 4))
            assert router.asked[1].keys == ["b0", "b2"], "it is not even asked for"


@pytest.mark.usefixtures("patient")
def test_whom_a_leader_leaves_behind_ask_again() -> None:
    """A leader that is interrupted (a signal, a timeout of gevent's) neither answers nor loses the others."""
    gate = Gate()
    fails = threading.Event()

    with scripted(gate) as router, calling("sync", router.url, timeout=60) as client:
        ask = client.client._ask_batch

        def interrupted(keys: Any, deadline: float, answer_by: float) -> Any:
            if not fails.is_set():
                fails.set()
                raise KeyboardInterrupt
            return ask(keys, deadline, answer_by)

        client.client._ask_batch = interrupted
        client.start("get", "first")
        until(lambda: router.asked, "the first is under way")
        lookups = client.start_all("get", [f"k{n}" for n in range(8)])
        until(lambda: client.waiting == 8, "all others wait")
        gate.opened.set()
        kinds = [type(outcome) for outcome in outcomes(lookups)]
        assert (kinds.count(KeyboardInterrupt), kinds.count(str)) == (1, 7)


def test_a_lookup_within_a_lookup_of_the_same_thread_does_not_wait_for_itself() -> None:
    """It may come from a signal handler, or from the function that names the trace."""
    with scripted() as router:
        inner: list[str] = []

        def trace() -> None:
            if not inner:
                inner.append("")
                inner[0] = client.get("inner")

        with Client(router.url, traceparent=trace) as client:
            assert client.get("outer") == "outer"
            assert inner == ["inner"]


def test_many_threads_and_many_coroutines_at_once() -> None:
    with scripted() as router:
        with Client(router.url, timeout=60) as client, ThreadPoolExecutor(64) as pool:

            def run(number: int) -> bool:
                return all(client.get(f"t{number}-{turn}") == f"t{number}-{turn}" for turn in range(30))

            async def run_coroutines() -> bool:
                async with AsyncClient(router.url, timeout=60) as asynchronous:

                    async def one(number: int) -> bool:
                        return all([await asynchronous.get(f"c{number}-{n}") == f"c{number}-{n}" for n in range(5)])

                    return all(await asyncio.gather(*map(one, range(1000))))

            futures = [pool.submit(run, number) for number in range(63)]
            futures.append(pool.submit(asyncio.run, run_coroutines()))
            assert all(future.result(120) for future in futures)
        assert router.connections <= 1 + 2 * MAX_FLIGHTS


@pytest.mark.usefixtures("patient")
async def test_a_batch_has_the_trace_of_its_first_caller_and_not_of_those_before() -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    gate = Gate()
    with scripted(otherwise=gate) as router:
        async with AsyncClient(router.url, timeout=60, traceparent=trace.get) as client:

            async def ask(name: str) -> Any:
                trace.set(f"trace-of-{name}")
                return await client.get(name)

            tasks = [asyncio.create_task(ask("a"))]
            await soon(lambda: router.asked, "the first is under way")
            tasks += [asyncio.create_task(ask(name)) for name in ("b", "c")]
            await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(*tasks)
    assert [asked.fields["traceparent"] for asked in router.asked] == ["trace-of-a", "trace-of-b"]


async def test_lookups_go_on_after_all_tasks_were_cancelled_at_whatever_step() -> None:
    """Programs that cancel their tasks may look something up before they end."""
    for steps in range(6):
        with scripted() as router:
            async with AsyncClient(router.url) as client:
                before = asyncio.all_tasks()
                lookup = asyncio.ensure_future(client.get("a"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                others = asyncio.all_tasks() - before
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                assert lookup.done()
                assert await asyncio.wait_for(client.get("b"), 60) == "b"


async def test_a_caller_that_was_not_cancelled_learns_that_the_request_was() -> None:
    gate = Gate()
    with scripted(otherwise=gate) as router:
        async with AsyncClient(router.url) as client:
            before = asyncio.all_tasks()
            lookup = asyncio.ensure_future(client.get("a"))
            await soon(lambda: router.asked, "it is under way")
            for task in asyncio.all_tasks() - before - {lookup}:
                task.cancel()
            with pytest.raises(RuntimeError, match="the task that asked was cancelled"):
                await lookup
            gate.opened.set()


@pytest.mark.parametrize("ask", [AsyncClient.get, lambda client, key: client.get_many([key, "a"])], ids=["one", "many"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_closing_ends_lookups_that_are_under_way_or_wait(ask: Callable[..., Any], retries: int) -> None:
    gate = Gate()
    with scripted(otherwise=gate) as router:
        client = AsyncClient(router.url, timeout=60, max_connections=1, retries=retries)
        first = asyncio.create_task(ask(client, "first"))
        await soon(lambda: router.asked, "the first is under way")
        second = asyncio.create_task(ask(client, "second"))
        await asyncio.sleep(0)
        await client.close()
        for lookup in (first, second, ask(client, "third")):
            with pytest.raises(RuntimeError, match="closed"):
                await lookup
        gate.opened.set()
        assert router.connections == 1, "no other was made"


def test_a_client_may_move_to_another_loop_but_not_be_in_two() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # connections stay open if a loop ends without closing them
        _move_between_loops()
        gc.collect()


def _move_between_loops() -> None:
    with scripted() as router:
        client = AsyncClient(router.url)
        assert asyncio.run(_get(client)) == "a"
        assert asyncio.run(_get(client)) == "a"
        assert router.connections == 2

        async def hold() -> None:
            await client.get("a")
            loop = asyncio.get_running_loop()
            with (
                ThreadPoolExecutor(1) as pool,
                pytest.raises(RuntimeError, match="belongs to one event loop at a time"),
            ):
                await loop.run_in_executor(pool, asyncio.run, _get(client))
            await client.close()

        asyncio.run(hold())


async def _get(client: AsyncClient) -> Any:
    return await client.get("a")


async def test_a_connection_lost_with_a_batch_is_replaced() -> None:
    with scripted(CLOSE) as router:
        async with AsyncClient(router.url) as client:
            assert await asyncio.gather(*(client.get(f"k{n}") for n in range(10))) == [f"k{n}" for n in range(10)]
            assert len(router.asked) == 2
