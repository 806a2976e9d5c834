"""Runs a long-running role: signals, admin port, preparation, sockets, workers, ready file.

``lookupdb serve`` and ``lookupdb route`` describe themselves as a ``Service``, and call ``run_service``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lookupdb import __version__
from lookupdb.process import launch, listeners
from lookupdb.process.admin import AdminPort, Collector
from lookupdb.process.supervisor import Fleet, Supervisor, WorkerState, reported_error

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a role. The ready file has ``ready_members`` and ``pid``, ``kernels`` and ``admin``."""

    fleet: Fleet
    ports: Sequence[Sequence[socket.socket]]
    """The fleet's sockets, grouped by port."""
    admin_listener: socket.socket
    ready_members: Mapping[str, Any]
    ready_file: Path | None = None
    prepare: Callable[[], Awaitable[None]] = field(default=partial(asyncio.sleep, 0))
    """Awaited before the workers start, while the admin port already reports that the service is not ready."""
    collectors: Callable[[Supervisor], Sequence[Collector]] = field(default=lambda _: ())
    status: Callable[[], Mapping[str, Any]] = field(default=dict)


async def run_service(service: Service) -> None:
    """Run ``service`` until SIGTERM or SIGINT and the drain that follows; a second signal ends it at once.

    Raises LookupdbError if preparation fails, a worker cannot be started, or a port is in use by now.
    """
    supervisor = Supervisor(service.fleet)
    preparation = asyncio.ensure_future(service.prepare())

    def stop() -> None:
        preparation.cancel()
        supervisor.drain()

    def describe() -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": supervisor.state,
            **service.ready_members,
            "workers": [worker.describe() for worker in supervisor.workers],
            **service.status(),
        }

    admin = AdminPort(
        explain_unready=lambda: _explain_unready(supervisor, preparation),
        status=describe,
        collectors=service.collectors(supervisor),
    )
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: supervisor.hang_up}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        server = await admin.start(service.admin_listener)
        announcement = asyncio.create_task(_announce(service, supervisor))
        try:
            await asyncio.wait((preparation,))
            if not preparation.cancelled():
                preparation.result()
                for sockets in service.ports:
                    listeners.listen(sockets)
            await supervisor.run()
        finally:
            announcement.cancel()
            if service.ready_file:
                service.ready_file.unlink(missing_ok=True)
            await server.cleanup()
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _announce(service: Service, supervisor: Supervisor) -> None:
    """Announce the ports once the service is ready: that is the only way to learn free ports."""
    await supervisor.wait_ready()
    ports = {**service.ready_members, "admin": listeners.bound_port(service.admin_listener)}
    kernels = supervisor.workers[0].report["kernels"]
    log.info("ready", extra={**ports, "kernels": kernels})
    if service.ready_file:
        launch.write(service.ready_file, {"pid": os.getpid(), "kernels": kernels, **ports})


def _explain_unready(supervisor: Supervisor, preparation: asyncio.Future[None]) -> str | None:
    match supervisor.state:
        case WorkerState.READY:
            return None
        case WorkerState.DRAINING:
            return "draining"
        case _ if not preparation.done():
            return "preparing"
        case _:
            unready_workers = [worker for worker in supervisor.workers if worker.state is not WorkerState.READY]
            reason = next((f": {error}" for worker in unready_workers if (error := reported_error(worker.report))), "")
            if any(worker.state is WorkerState.STALLED for worker in unready_workers):
                reason = ": its event loop does not run"
            return f"not ready: worker {', '.join(str(worker.index) for worker in unready_workers)}{reason}"
