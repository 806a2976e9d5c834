"""Timeouts of callers that ask together: each has its own, and the request carries the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Sequence

import pytest
from support.callers import Gate, calling, outcomes
from support.clients import Kind
from support.faulty_router import CLOSE, Asked, answer, batch, found_all, scripted
from support.waiting import until

from lookupdb.client import AsyncClient, Client, Unavailable, sync_transport
from lookupdb.client.async_transport import AsyncCombiner
from lookupdb.client.core import ClientCore, SharedAnswer, may_leave_together
from lookupdb.client.settings import check_settings
from lookupdb.client.wire import MISSING, KeyAnswer

pytest_plugins = ["support.client_fixtures"]


@pytest.mark.usefixtures("patient")
def test_each_caller_has_its_own_timeout(kind: Kind) -> None:
    gate = Gate()
    with scripted(otherwise=gate) as router, calling(kind, router.url, timeout=0.5) as client:
        began = time.monotonic()
        early = client.start("get", "early")
        until(lambda: router.asked, "it is under way")
        time.sleep(0.25)
        late = client.start("get", "late")
        told = outcomes([early, late])
        assert [getattr(outcome, "reason", None) for outcome in told] == ["Deadline", "Deadline"]
        assert [getattr(outcome, "keys", None) for outcome in told] == [("early",), ("late",)]
        assert 0.7 < time.monotonic() - began < 10
        gate.opened.set()
        assert client.get("again") == "again"


@pytest.mark.usefixtures("patient")
def test_a_leader_whose_time_is_over_takes_nobody_elses() -> None:
    """A follower whose leader's time is over asks for all keys, with the rest of its own time."""
    slow = threading.Event()

    def hang(connection: socket.socket, asked: Asked) -> bytes:
        assert slow.wait(60)
        return CLOSE

    def delay(connection: socket.socket, asked: Asked) -> bytes:
        time.sleep(0.4)
        return found_all(connection, asked)

    with scripted(hang, delay) as router, calling("sync", router.url, timeout=1.5, retries=0) as client:
        began = time.monotonic()
        lookups = []
        for name, after in (("first", 0.0), ("early", 0.1), ("late", 1.2)):
            time.sleep(max(0.0, began + after - time.monotonic()))
            lookups.append(client.start("get", name))
        first, early, late = outcomes(lookups)
        slow.set()
    assert isinstance(first, Unavailable)
    assert isinstance(early, Unavailable)
    assert late == "late"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (5.0, 5.0, True),  # one caller, or several of one turn
        (4.0, 5.0, True),
        (2.5, 5.0, True),
        (2.4, 5.0, False),  # a caller with little time left does not end the others' requests
        (0.0, 5.0, False),
        (-1.0, 5.0, False),
        (-1.0, -1.0, False),
    ],
)
def test_who_may_leave_together(first: float, last: float, expected: bool) -> None:
    assert may_leave_together(100.0, 100.0 + first, 100.0 + last) is expected


@pytest.mark.usefixtures("patient")
def test_callers_with_little_time_left_leave_before_those_with_much(kind: Kind) -> None:
    """So the router answers before each caller gives up, and none is late because of another's shard."""
    gate = Gate()
    with scripted(gate) as router, calling(kind, router.url, timeout=6) as client:
        lookups = [client.start("get", "first")]
        until(lambda: router.asked, "the first is under way")
        lookups.append(client.start("get", "early"))
        until(lambda: client.waiting == 1, "it waits")
        time.sleep(4)
        lookups += client.start_all("get", ["late", "later"])
        until(lambda: client.waiting == 3, "all wait")
        gate.opened.set()
        assert outcomes(lookups) == ["first", "early", "late", "later"]
    _, alone, together = router.asked
    assert alone.target == "/v1/lookup/early"
    assert int(alone.fields["lookupdb-deadline-ms"]) <= 2000
    assert sorted(together.keys) == ["late", "later"]
    assert int(together.fields["lookupdb-deadline-ms"]) > 2500


@pytest.mark.usefixtures("patient")
def test_the_router_learns_the_deadline_of_the_first_of_those_who_leave_together(kind: Kind) -> None:
    gate = Gate()
    with scripted(gate) as router, calling(kind, router.url, timeout=8) as client:
        client.start("get", "first")
        until(lambda: router.asked, "the first is under way")
        client.start("get", "early")
        until(lambda: client.waiting == 1, "it waits")
        time.sleep(1)
        late = client.start("get", "late")
        until(lambda: client.waiting == 2, "both wait")
        gate.opened.set()
        assert late.result(60) == "late"
    assert router.asked[1].keys == ["early", "late"]
    assert int(router.asked[1].fields["lookupdb-deadline-ms"]) < 6000


async def test_coroutines_that_are_late_before_they_leave_keep_nobody_from_leaving() -> None:
    loop = asyncio.get_running_loop()
    asked: list[tuple[list[str], float, float]] = []

    async def ask(keys: Sequence[str], deadline: float, answer_by: float) -> SharedAnswer:
        asked.append(([*keys], deadline - loop.time(), answer_by - loop.time()))
        return SharedAnswer(keys, [((key,), KeyAnswer(key, "g1")) for key in keys])

    combiner = AsyncCombiner(ask, ClientCore(check_settings("http://router", {"max_keys": 100})))
    late = [combiner.find(key, loop.time()) for key in ("a", "b")]
    fine = [combiner.find(key, loop.time() + 60) for key in ("c", "d")]
    assert [(await future).take(key).value for future, key in zip(fine, ("c", "d"), strict=True)] == ["c", "d"]
    await asyncio.gather(*late, return_exceptions=True)
    ((keys, deadline, answer_by),) = asked
    assert keys == ["a", "b", "c", "d"]
    assert deadline > 50
    assert answer_by > 50


def test_whom_the_router_has_told_of_a_deadline_asks_no_second_time() -> None:
    of_router = Unavailable("", keys=("a",), reason="Deadline", detail="", shard=1)
    of_leader = Unavailable("", keys=("a",), reason="Deadline", detail="")
    assert not SharedAnswer(["a"], [(["a"], of_router)]).is_late("a")
    assert SharedAnswer(["a"], [(["a"], of_leader)]).is_late("a")


def test_callers_of_one_missing_key_share_its_answer() -> None:
    shared = SharedAnswer(["a", "a"], [(["a"], KeyAnswer(MISSING, "g1"))])
    assert [shared.take("a"), shared.take("a")] == [KeyAnswer(MISSING, "g1")] * 2


@pytest.mark.usefixtures("patient")
def test_a_lookup_of_several_generations_is_asked_again_alone_and_has_one_timeout(kind: Kind) -> None:
    """It names the generation of its own shard."""
    gate = Gate()

    def mixed(_: socket.socket, asked: Asked) -> bytes:
        if asked.method == "GET":
            return answer("x", generation="g12")
        time.sleep(1)
        return batch(dict.fromkeys(asked.keys, "x"), unavailable=[], generation="g12, g13")

    with scripted(gate, otherwise=mixed) as router, calling(kind, router.url, timeout=20) as client:
        client.start("get", "z")
        until(lambda: router.asked, "the first is under way")
        lookups = [client.start("lookup", "a"), client.start("get", "b")]
        until(lambda: client.waiting == 2, "both wait")
        gate.opened.set()
        assert outcomes(lookups) == [("x", True, "g12"), "x"]
        post, last = router.asked[1:]
        assert (post.method, last.method, last.target) == ("POST", "GET", "/v1/lookup/a")
        told, told_last = (int(asked.fields["lookupdb-deadline-ms"]) for asked in (post, last))
        assert told <= 20_000 * 0.85
        assert told_last <= min(told, 19_000 * 0.85), "a second was gone"


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_a_deadline_that_passes_before_the_first_step_of_connecting_is_a_timeout_at_most(seconds: float) -> None:
    """This is not the caller's fault: with a timeout of a few milliseconds it happens all the time."""
    with scripted() as router, socket.socket() as connecting:
        settings = check_settings(router.url, {})
        with contextlib.suppress(TimeoutError):
            opened = sync_transport._open(
                connecting, ("127.0.0.1", router._port), None, settings, time.monotonic() + seconds
            )
            assert opened.gettimeout() == settings.timeout


async def test_a_request_that_is_sent_again_behind_its_time_has_what_is_left() -> None:
    """One caller of a batch has little time left. The others still wait for an answer, also on another connection."""
    with scripted(CLOSE, found_all, CLOSE) as router:
        with Client(router.url, timeout=60) as client:
            now = time.monotonic()
            answer_of_threads = await asyncio.to_thread(client._ask_batch, ["a", "b"], now + 60, now - 0.001)
        async with AsyncClient(router.url, timeout=60) as asynchronous:
            asynchronous._link.enter()
            now = asyncio.get_running_loop().time()
            answer_of_coroutines = await asynchronous._ask_batch(["a", "b"], now + 60, now - 0.001)
        assert answer_of_threads.take("a").value == answer_of_coroutines.take("a").value == "a"
        assert [asked.fields["lookupdb-deadline-ms"] for asked in router.asked] == ["49152"] * 4
