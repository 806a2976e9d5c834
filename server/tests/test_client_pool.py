"""The connections of a client: served in turn, given back whatever interrupts a caller, and closed."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import threading
import time
from types import FrameType

import pytest
from support.callers import calling
from support.clients import Kind
from support.faulty_router import Asked, found_all, scripted
from support.waiting import until

from lookupdb.client import Client
from lookupdb.client.async_transport import AsyncConnectionPool
from lookupdb.client.core import ConnectionFailure
from lookupdb.client.settings import check_settings
from lookupdb.client.sync_transport import ConnectionLease, ConnectionPool

pytestmark = pytest.mark.long
pytest_plugins = ["support.client_fixtures"]

CALLERS = 20


def delay(connection: socket.socket, asked: Asked) -> bytes:
    time.sleep(0.001)
    return found_all(connection, asked)


def test_callers_that_wait_for_a_connection_are_served_in_turn(kind: Kind) -> None:
    served: list[int] = []
    with scripted(otherwise=delay) as router, calling(kind, router.url, max_connections=1, timeout=60) as client:

        def ask(number: int) -> None:
            while len(served) < CALLERS * 10:
                client.get_many(["a"])
                served.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert min(served.count(number) for number in range(CALLERS)) >= 5, served


async def test_who_is_called_when_its_time_is_over_lets_the_next_one_go() -> None:
    with scripted() as router:
        loop = asyncio.get_running_loop()
        pool = AsyncConnectionPool(loop, check_settings(router.url, {"max_connections": 1}))
        connection = await pool.acquire(loop.time() + 60)
        ends_at = loop.time() + 0.05
        late = asyncio.ensure_future(pool.acquire(ends_at))
        next_one = asyncio.ensure_future(pool.acquire(loop.time() + 60))
        loop.call_at(ends_at - 1e-6, pool.release, connection)  # at one turn of the loop with the timeout
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 - until both are due
        acquired = await asyncio.wait_for(next_one, 30)
        with pytest.raises(ConnectionFailure):
            await late
        pool.release(acquired)
        pool.close()
        await pool.wait_closed()


class Interruption(BaseException):
    """Raised by a signal handler."""


def interrupt(_: int, __: FrameType | None) -> None:
    raise Interruption


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets, interrupted in their close
def test_a_caller_that_is_interrupted_anywhere_leaves_nothing_behind() -> None:
    """By a signal handler that raises: thousands of times, of which some hit between any two instructions."""
    with scripted() as router, Client(router.url) as client:
        before = signal.signal(signal.SIGALRM, interrupt)
        source = random.Random(1)
        interruptions = 0
        end = time.monotonic() + 4
        try:
            while time.monotonic() < end:
                try:
                    signal.setitimer(signal.ITIMER_REAL, source.uniform(5e-5, 6e-4))
                    while True:
                        client.get("a")
                except Interruption:
                    interruptions += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert interruptions > 500
        link = client._link
        assert client.get("a") == "a"
        assert len(link._pool._in_use) == 0
        assert all(len(combiner._leaders) == len(combiner._queue) == 0 for combiner in link.combiners.values())


def test_a_seat_that_nobody_remembers_is_free() -> None:
    """Callers that already wait get it too, although the one that should have woken them is gone."""
    with scripted() as router:
        pool = ConnectionPool(check_settings(router.url, {"max_connections": 1}))
        lost = ConnectionLease()
        connection = pool.acquire(lost, time.monotonic() + 60)
        acquired: list[object] = []

        def wait() -> None:
            lease = ConnectionLease()
            acquired.append(pool.acquire(lease, time.monotonic() + 60))
            pool.release(lease)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: pool._waiters, "it waits")
        del lost
        waiter.join(60)
        assert acquired
        connection.close()
        pool.close()


def test_a_connection_that_is_given_back_while_the_pool_is_closed_is_closed() -> None:
    with scripted() as router:
        pool = ConnectionPool(check_settings(router.url, {}))
        lease = ConnectionLease()
        connection = pool.acquire(lease, time.monotonic() + 60)

        class Lock:
            """A lock that closes the pool just before it is taken the first time."""

            def __init__(self) -> None:
                self.lock, self.is_first = threading.Lock(), True

            def __enter__(self) -> None:
                if self.is_first:
                    self.is_first = False
                    pool.close()
                self.lock.acquire()

            def __exit__(self, *_: object) -> None:
                self.lock.release()

        pool._lock = Lock()  # type: ignore[assignment]
        pool.release(lease)
        assert not connection.is_open
        assert pool._idle == []
