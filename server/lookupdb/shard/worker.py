"""A shard worker's life: map the shard, serve on the inherited socket, drain, end.

Every worker pays for each import here.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lookupdb.errors import CorruptFile, opening_error
from lookupdb.process import listeners
from lookupdb.process.worker import BEAT_SECONDS, WorkerBoot, run_worker
from lookupdb.shard.commands import WorkerContext
from lookupdb.shard.limits import OPEN_CONNECTIONS, ServerIdentity, ServerLimits
from lookupdb.shard.loop import WorkerLoop
from lookupdb.shardfile import ShardReader

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = BEAT_SECONDS
"""Interval of the sweep for idle and slow clients."""
QUIET_SECONDS: Final = 0.1
"""On shutdown, time for an idle client's request that is on its way."""
LINGER_SECONDS: Final = 2.0
"""On shutdown, time for clients to read their last replies."""


def main(boot: WorkerBoot) -> None:
    """Serve until SIGTERM and the drain that follows."""
    (listener,) = boot.listeners()
    context = _open_context(boot, listener)
    context.slot[OPEN_CONNECTIONS] = 0  # those of a previous worker are gone
    # Existing objects live as long as the process. Requests make no cycles, so collections may be rare.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its clients' sockets inherit it
    listener.listen(listeners.BACKLOG)
    loop = WorkerLoop(context, listener)
    is_stopping = _stop_on_sigterm(loop)
    beat = boot.make_heartbeat()
    beat()
    boot.report_ready(port=context.port)
    _serve(loop, context, is_stopping, beat)
    _drain(loop, context, boot.drain_seconds)


def _stop_on_sigterm(loop: WorkerLoop) -> Callable[[], bool]:
    """Make SIGTERM stop the loop. Return a function that says whether it has arrived."""
    has_come = False

    def stop(*_: object) -> None:
        nonlocal has_come
        has_come = True
        loop.stop()

    signal.signal(signal.SIGTERM, stop)
    # Without this, Python would keep waiting for events after its handler has run.
    signal.set_wakeup_fd(loop.bell, warn_on_full_buffer=False)
    return lambda: has_come


def _open_context(boot: WorkerBoot, listener: socket.socket) -> WorkerContext:
    config = boot.config
    path = Path(config["path"])
    try:
        size = path.stat().st_size
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    if size != config["bytes"]:
        # Touching a page beyond the end of a file kills the process, so a short file must not be mapped.
        raise CorruptFile(
            f"{path}: expected {config['bytes']} bytes as verified, found {size}",
            hint="shard files are immutable: never write to one that is served; fetch or build it again",
        )
    password_sha256 = config.get("password_sha256")
    identity = ServerIdentity(**config["identity"])
    return WorkerContext(
        shard=_open_shard(path, identity, config["dictionary_bytes"]),
        identity=identity,
        limits=ServerLimits(**config["limits"]),
        slot=boot.counters().slot(boot.index),
        password_sha256=None if password_sha256 is None else bytes.fromhex(password_sha256),
        port=listener.getsockname()[1],
        file_bytes=size,
    )


def _open_shard(path: Path, identity: ServerIdentity, dictionary_bytes: int) -> ShardReader:
    """Open the shard. Raises CorruptFile if its metadata differ from the manifest."""
    shard = ShardReader(path)
    meta = shard.meta
    for name, expected, found in (
        ("dataset", identity.dataset, meta.dataset),
        ("shard", identity.shard, meta.shard),
        ("shards", identity.shards, meta.shards),
        ("records", identity.records, meta.records),
        ("dictionary bytes", dictionary_bytes, shard.dictionary_bytes),
    ):
        if expected != found:
            raise CorruptFile(
                f"{path}: its index says {name} {expected}, the file {found}",
                hint="build the generation again",
            )
    return shard


def _serve(loop: WorkerLoop, context: WorkerContext, is_stopping: Callable[[], bool], beat: Callable[[], None]) -> None:
    """Serve until SIGTERM. Each second, send a heartbeat and cut off idle and slow clients."""
    while not is_stopping():
        loop.run(SWEEP_SECONDS)
        beat()
        loop.resume_accepting()
        loop.check_disk()
        _sweep(context)


def _sweep(context: WorkerContext) -> None:
    now = time.monotonic()
    for connection in list(context.connections.values()):
        connection.sweep(now)


def _drain(loop: WorkerLoop, context: WorkerContext, seconds: float) -> None:
    """Serve for ``seconds`` while endpoints notice; then send each client its last replies."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        loop.run(min(remaining, SWEEP_SECONDS))
        _sweep(context)
    loop.stop_accepting()
    for connection in list(context.connections.values()):
        connection.drain()
    loop.run(QUIET_SECONDS)
    for connection in list(context.connections.values()):
        connection.end()
    end = time.monotonic() + LINGER_SECONDS
    while context.connections and (remaining := end - time.monotonic()) > 0:
        loop.run(min(remaining, QUIET_SECONDS))
    for connection in list(context.connections.values()):
        connection.close()


def start() -> None:
    """Run a worker."""
    run_worker(main)
