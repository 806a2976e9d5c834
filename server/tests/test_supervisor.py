"""The supervisor with real worker processes: it starts, restarts, drains and gives up as documented."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.process_table import is_running
from support.waiting import soon, until

from lookupdb import native
from lookupdb.errors import CorruptFile, LookupdbError
from lookupdb.process import listeners
from lookupdb.process.supervisor import LONGEST_DELAY, Fleet, LivenessLimits, Restarts, Supervisor, WorkerState
from lookupdb.process.worker import BEAT_SECONDS, Counters

TESTS = str(Path(__file__).parent)


HANGS_SOON = LivenessLimits(stale_seconds=2.5, hung_seconds=5.0)


def fleet(
    workers: int = 1,
    drain_seconds: float = 0.0,
    liveness: LivenessLimits = LivenessLimits(),  # noqa: B008 - it cannot change
    **config: str,
) -> Fleet:
    sockets = [listeners.bind("127.0.0.1", 0) for _ in range(workers)]
    for listener in sockets:
        listener.listen(8)
    return Fleet(
        module="support.sample_worker",
        configs=[{"greeting": f"worker {index}", **config} for index in range(workers)],
        sockets=[[listener] for listener in sockets],
        counters=Counters(("connections",), workers),
        drain_seconds=drain_seconds,
        environment={"PYTHONPATH": TESTS},
        liveness=liveness,
    )


@contextlib.asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(fleet)
    task = asyncio.create_task(supervisor.run())
    try:
        await asyncio.wait_for(supervisor.wait_ready(), 60)
        yield supervisor
    finally:
        if supervisor.state is not WorkerState.DRAINING:
            supervisor.drain()
        supervisor.kill()
        await task
        for sockets in fleet.sockets:
            sockets[0].close()


async def run_to_its_end(fleet: Fleet) -> None:
    try:
        await Supervisor(fleet).run()
    finally:
        fleet.sockets[0][0].close()


def ask(listener: socket.socket) -> int:
    with socket.create_connection(listener.getsockname(), timeout=60) as client:
        return int(client.makefile().readline())


async def test_every_worker_serves_its_own_socket_and_says_when_it_is_ready() -> None:
    async with running(fleet(workers=2)) as supervisor:
        assert supervisor.state is WorkerState.READY
        pids = [await asyncio.to_thread(ask, sockets[0]) for sockets in supervisor.fleet.sockets]
        assert pids == list(supervisor.pids.values())
        assert [worker.report["greeting"] for worker in supervisor.workers] == ["worker 0", "worker 1"]
        assert {worker.report["kernels"] for worker in supervisor.workers} == {native.kind()}


async def test_a_killed_worker_is_back_on_its_socket_and_goes_on_counting() -> None:
    async with running(fleet()) as supervisor:
        listener = supervisor.fleet.sockets[0][0]
        first = await asyncio.to_thread(ask, listener)
        os.kill(first, signal.SIGKILL)
        second = await asyncio.to_thread(ask, listener)
        assert second != first
        assert supervisor.workers[0].restarts.count == 1
        assert supervisor.fleet.counters.total("connections") == 2


async def test_draining_ends_the_workers_and_starts_none_again() -> None:
    async with running(fleet()) as supervisor:
        supervisor.drain()
        assert supervisor.state is WorkerState.DRAINING
        await soon(lambda: not supervisor.pids, "no worker runs")


async def test_a_second_signal_kills_workers_that_do_not_end() -> None:
    async with running(fleet(drain_seconds=60, fault="deaf")) as supervisor:
        supervisor.drain()
        await asyncio.sleep(0.05)
        assert supervisor.pids
        supervisor.drain()
        await soon(lambda: not supervisor.pids, "no worker runs")


async def test_a_worker_that_cannot_start_ends_the_service_with_its_own_error() -> None:
    with pytest.raises(CorruptFile, match="shard 3 is damaged\n  fetch it again"):
        await run_to_its_end(fleet(fault="corrupt"))


async def test_a_worker_that_dies_without_a_word_is_named() -> None:
    with pytest.raises(LookupdbError, match=r"worker 0 \(support.sample_worker\) ended with status 7"):
        await run_to_its_end(fleet(fault="exit"))


async def test_a_worker_that_hangs_is_not_ready_then_killed_and_another_one_serves() -> None:
    async with running(fleet(workers=2, liveness=HANGS_SOON)) as supervisor:
        stopped, other = supervisor.workers
        pid = stopped.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        await soon(lambda: stopped.state is WorkerState.STALLED, "the worker is not ready")
        assert supervisor.state is WorkerState.STARTING
        assert stopped.pid == pid
        await soon(lambda: supervisor.state is WorkerState.READY, "another one serves")
        assert stopped.pid != pid
        assert await asyncio.to_thread(ask, supervisor.fleet.sockets[0][0]) == stopped.pid
        assert (stopped.kills, stopped.restarts.count) == (1, 1)
        assert (other.kills, other.restarts.count) == (0, 0)


async def test_a_worker_that_goes_on_in_time_is_ready_again_and_not_killed() -> None:
    async with running(fleet(liveness=LivenessLimits(stale_seconds=2.5))) as supervisor:
        (worker,) = supervisor.workers
        pid = worker.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        await soon(lambda: worker.state is WorkerState.STALLED, "the worker is not ready")
        os.kill(pid, signal.SIGCONT)
        await soon(lambda: worker.state is WorkerState.READY, "the worker is ready again")
        assert (worker.pid, worker.kills, worker.restarts.count) == (pid, 0, 0)


async def test_a_supervisor_that_is_late_itself_kills_nobody() -> None:
    """Happens when a container was paused: nothing ran for much longer than a worker may be silent."""
    # A judgement adds at most the time of two beats. The time watched before may be almost one beat.
    limits = LivenessLimits(stale_seconds=3.5, hung_seconds=5.0)
    async with running(fleet(liveness=limits)) as supervisor:
        (worker,) = supervisor.workers
        pid = worker.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(limits.hung_seconds + 1)  # noqa: ASYNC251 - that the supervisor's loop stands still is what is tested
        worker.check(time.monotonic())
        assert worker.state is WorkerState.READY
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(2 * BEAT_SECONDS)
        await soon(lambda: worker.state is WorkerState.READY, "the worker is ready, or is so again")
        assert (worker.pid, worker.kills) == (pid, 0)


def test_workers_end_when_their_supervisor_is_killed() -> None:
    """The supervisor here is a process of its own, so that it can be killed."""
    program = (
        "import asyncio, test_supervisor as t\n"
        "async def main():\n"
        "    async with t.running(t.fleet()) as supervisor:\n"
        "        print(supervisor.pids['worker-0'], flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=TESTS, stdout=subprocess.PIPE) as process:
        assert process.stdout
        worker = int(process.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        process.kill()
        process.wait()
    until(lambda: not is_running(worker), "the worker has ended")


def test_restarts_back_off_to_a_bound_and_never_end_once_ready() -> None:
    restarts = Restarts()
    delays = [restarts.note_end(ready_seconds=0.1) for _ in range(20)]
    assert None not in delays
    assert delays == sorted(delays)  # type: ignore[type-var]
    assert delays[0] == 0.05
    assert delays[-1] == LONGEST_DELAY


def test_a_steady_run_makes_the_next_restart_quick() -> None:
    restarts = Restarts()
    for _ in range(8):
        restarts.note_end(ready_seconds=0.1)
    assert restarts.note_end(ready_seconds=31) == 0.05


def test_a_worker_never_ready_is_given_up() -> None:
    restarts = Restarts()
    assert [restarts.note_end(None) for _ in range(3)] == [0.05, 0.1, None]
