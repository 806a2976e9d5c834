"""A shard worker's life: map the shard, answer on the inherited socket, drain, end.

``python -m lookupdb.serve.worker``, started by the supervisor. What is imported here is paid for in every worker.
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

from lookupdb.errors import CorruptFile
from lookupdb.runtime import listeners
from lookupdb.runtime.worker import BEAT_SECONDS, Boot, run
from lookupdb.serve.limits import Limits
from lookupdb.serve.loop import Loop
from lookupdb.serve.session import Host, Identity
from lookupdb.shardfile import ShardReader

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = BEAT_SECONDS
"""How often idle and slow clients are looked for."""
QUIET_SECONDS: Final = 0.1
"""When the worker ends, an idle client is given so long for a request that is on its way."""
LINGER_SECONDS: Final = 2.0
"""When the worker ends, clients have so long to take their last replies."""


def main(boot: Boot) -> None:
    """Serve until SIGTERM and the drain that follows."""
    (listener,) = boot.listeners()
    host = _host(boot, listener)
    host.slot[-1] = 0  # open connections: those of a worker that died are gone
    # What exists now lives as long as the process; requests make no cycles, so collections may be rare.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its clients' sockets inherit it
    listener.listen(listeners.BACKLOG)
    loop = Loop(host, listener)
    asked_to_stop = _on_sigterm(loop)
    beat = boot.heartbeat()
    beat()
    boot.ready(port=host.port)
    _serve(loop, host, asked_to_stop, beat)
    _drain(loop, host, boot.drain_seconds)


def _on_sigterm(loop: Loop) -> Callable[[], bool]:
    """Let SIGTERM stop the loop; whether it has come."""
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        loop.stop()

    signal.signal(signal.SIGTERM, stop)
    # Python alone would wait on for events once the handler has run.
    signal.set_wakeup_fd(loop.bell, warn_on_full_buffer=False)
    return lambda: asked


def _host(boot: Boot, listener: socket.socket) -> Host:
    config = boot.config
    path = Path(config["path"])
    size = path.stat().st_size
    if size != config["bytes"]:
        # Touching a page behind the end of a file kills the process: never map a file that is too short.
        raise CorruptFile(
            f"{path}: expected {config['bytes']} bytes as verified, found {size}",
            hint="shard files are immutable: never write to one that is served; fetch or build it again",
        )
    password = config.get("password")
    identity = Identity(**config["identity"])
    return Host(
        shard=_open(path, identity, config["dictionary_bytes"]),
        identity=identity,
        limits=Limits(**config["limits"]),
        slot=boot.counters().slot(boot.index),
        password=None if password is None else password.encode(),
        port=listener.getsockname()[1],
        file_bytes=size,
    )


def _open(path: Path, identity: Identity, dictionary_bytes: int) -> ShardReader:
    """The shard, which must say of itself what the manifest says of it."""
    shard = ShardReader(path)
    meta = shard.meta
    for name, expected, found in (
        ("dataset", identity.dataset, meta.dataset),
        ("shard", identity.shard, meta.shard),
        ("shards", identity.shards, meta.shards),
        ("records", identity.records, meta.records),
        ("dictionary bytes", dictionary_bytes, len(shard.dictionary)),
    ):
        if expected != found:
            raise CorruptFile(
                f"{path}: the manifest says {name} {expected}, the file {found}",
                hint="build the generation again",
            )
    return shard


def _serve(loop: Loop, host: Host, stopping: Callable[[], bool], beat: Callable[[], None]) -> None:
    """Until it is asked to stop. Once a second the supervisor is told, and idle and slow clients are looked for."""
    while not stopping():
        loop.run(SWEEP_SECONDS)
        beat()
        loop.accept()
        _sweep(host)


def _sweep(host: Host) -> None:
    now = time.monotonic()
    for connection in list(host.connections.values()):
        connection.sweep(now)


def _drain(loop: Loop, host: Host, seconds: float) -> None:
    """Serve on for so long, while endpoints notice; then let every client have the replies to what has arrived."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        loop.run(min(left, SWEEP_SECONDS))
        _sweep(host)
    loop.refuse()
    for connection in list(host.connections.values()):
        connection.drain()
    loop.run(QUIET_SECONDS)
    for connection in list(host.connections.values()):
        connection.end()
    end = time.monotonic() + LINGER_SECONDS
    while host.connections and (left := end - time.monotonic()) > 0:
        loop.run(min(left, QUIET_SECONDS))
    for connection in list(host.connections.values()):
        connection.close()


if __name__ == "__main__":
    run(main)
