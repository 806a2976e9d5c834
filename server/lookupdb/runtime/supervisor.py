"""The supervisor: keeps a fleet of workers running, and ends it in order.

It holds no data and answers no lookup, so that no client can hurt it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from typing import Final

from lookupdb.runtime.process import Fleet, WorkerProcess, WorkerState, reported_error
from lookupdb.runtime.worker import BEAT_SECONDS

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0
"""After its drain time a worker has so long to finish what has arrived; then it is killed."""


class Supervisor:
    """Runs ``fleet``: ``run()`` until ``drain()``. To be made and used within one event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.workers = [WorkerProcess(fleet, index) for index in range(len(fleet.configs))]
        self._draining = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def state(self) -> WorkerState:
        """READY while every worker is; DRAINING from the first call of ``drain`` on."""
        if self._draining.is_set():
            return WorkerState.DRAINING
        ready = all(worker.state is WorkerState.READY for worker in self.workers)
        return WorkerState.READY if ready else WorkerState.STARTING

    @property
    def pids(self) -> dict[str, int]:
        """The running workers' process ids, by name: ``worker-0``, …"""
        return {f"worker-{worker.index}": worker.pid for worker in self.workers if worker.pid}

    async def wait_ready(self) -> None:
        """Return when every worker has been ready once."""
        for worker in self.workers:
            await worker.ready.wait()

    async def run(self) -> None:
        """Keep all workers running until drained. Raises a worker's own error when it cannot be started."""
        tasks = [asyncio.create_task(self._keep(worker)) for worker in self.workers]
        checks = asyncio.create_task(self._check())
        try:
            await asyncio.gather(*tasks)
        finally:
            checks.cancel()
            self.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._deadline:
                self._deadline.cancel()

    def drain(self) -> None:
        """End the fleet: the first call lets the workers finish, the second kills them."""
        if self._draining.is_set():
            log.warning("asked to stop again: the workers are killed")
            self.kill()
            return
        self._draining.set()
        log.info("draining", extra={"seconds": self.fleet.drain_seconds})
        for worker in self.workers:
            worker.drain()
        self._deadline = asyncio.get_running_loop().call_later(self.fleet.drain_seconds + STOP_SECONDS, self._overdue)

    def kill(self) -> None:
        """End all workers at once."""
        for worker in self.workers:
            worker.send(signal.SIGKILL)

    def hang_up(self) -> None:
        """Pass SIGHUP on to the workers that are ready, if the fleet wants it."""
        for worker in self.workers:
            if self.fleet.forward_hangup and worker.state is WorkerState.READY:
                worker.send(signal.SIGHUP)

    def _overdue(self) -> None:
        log.warning("the drain time is over: workers that still run are killed", extra={"pids": self.pids})
        self.kill()

    async def _check(self) -> None:
        """Check every worker's heartbeat, once a second."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for worker in self.workers:
                worker.check(time.monotonic())

    async def _keep(self, worker: WorkerProcess) -> None:
        """Start ``worker`` whenever it has ended, until the fleet drains."""
        while not self._draining.is_set():
            status, ready_seconds = await worker.run_once()
            if self._draining.is_set():
                return
            delay = worker.restarts.note_end(ready_seconds)
            if delay is None:
                raise worker.failure(status)
            log.warning(
                "a worker ended and is started again",
                extra={
                    "worker": worker.index,
                    "status": status,
                    "delay": round(delay, 2),
                    **({"reason": reason} if (reason := reported_error(worker.report)) else {}),
                },
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), delay)
