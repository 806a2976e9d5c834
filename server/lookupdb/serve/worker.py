"""A shard worker's life: map the shard, answer on the inherited socket, drain, end.

``python -m lookupdb.serve.worker``, started by the supervisor. What is imported here is paid for in every worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from pathlib import Path
from typing import Final

import uvloop

from lookupdb.errors import CorruptFile
from lookupdb.runtime.worker import Boot, run
from lookupdb.serve.connection import Connection
from lookupdb.serve.limits import Limits
from lookupdb.serve.session import Host, Identity
from lookupdb.shardfile import Shard

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
"""How often idle and slow clients are looked for."""
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
    uvloop.run(_serve(boot, host, listener))


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
        shard=_open(path, identity),
        identity=identity,
        limits=Limits(**config["limits"]),
        slot=boot.counters().slot(boot.index),
        password=None if password is None else password.encode(),
        port=listener.getsockname()[1],
        file_bytes=size,
    )


def _open(path: Path, identity: Identity) -> Shard:
    """The shard, which must say of itself what the manifest says of it."""
    shard = Shard(path)
    meta = shard.meta
    for name, expected, found in (
        ("dataset", identity.dataset, meta.dataset),
        ("shard", identity.shard, meta.shard),
        ("shards", identity.shards, meta.shards),
        ("records", identity.records, meta.records),
    ):
        if expected != found:
            raise CorruptFile(
                f"{path}: the manifest says {name} {expected}, the file {found}",
                hint="build the generation again",
            )
    return shard


async def _serve(boot: Boot, host: Host, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    server = await loop.create_server(lambda: Connection(host), sock=listener, backlog=4096)
    sweeping = asyncio.create_task(_sweep(host))
    boot.ready(port=host.port)
    await asked_to_stop.wait()
    await asyncio.sleep(boot.drain_seconds)
    server.close()
    await _finish(host)
    sweeping.cancel()


async def _sweep(host: Host) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = time.monotonic()
        for connection in list(host.connections):
            connection.sweep(now)


async def _finish(host: Host) -> None:
    """Let every client have the replies to what has arrived, then close its connection."""
    for connection in list(host.connections):
        connection.finish()
    if host.connections:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(host.deserted.wait(), LINGER_SECONDS)
    for connection in list(host.connections):
        connection.abort()
    await asyncio.sleep(0)


if __name__ == "__main__":
    run(main)
