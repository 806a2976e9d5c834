"""Starts gunicorn with the application in pre-forked workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import BenchError
from benchmarks.memory import tree
from benchmarks.processes import Server, free_port

import callers
import ways

_START_SECONDS: Final = 300
"""Long, because each worker may read the whole dataset first."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    port: int
    server: Server
    workers: tuple[int, ...]
    """The workers' pids."""


@contextmanager
def serving(name: str, folder: Path, workers: int) -> Iterator[Service]:
    """Run the application, which holds its records in the way ``name``, until the context ends. Raises BenchError."""
    port = free_port()
    words = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", str(workers)]
    words += ["--preload"] if ways.WAYS[name].is_preloaded else []
    words += ["--timeout", str(_START_SECONDS), "--graceful-timeout", "5", "--no-control-socket"]
    words += ["--log-level", "warning", "--chdir", str(Path(__file__).parent), "application:application"]
    environment = {**os.environ, "COW_WAY": name, "COW_FOLDER": str(folder)}
    server = Server(words, folder / f"{name}.log", core=None, environment=environment)
    try:
        server.wait_for_port(port, _START_SECONDS)
        yield Service(port, server, _wait_for_workers(server, port, workers))
    finally:
        server.stop()


def _wait_for_workers(server: Server, port: int, workers: int) -> tuple[int, ...]:
    """Return the pids of all workers once each has loaded the application. Each request is answered by one worker."""
    answered: set[int] = set()
    deadline = time.monotonic() + _START_SECONDS
    with ThreadPoolExecutor(2 * workers) as pool:
        while len(answered) < workers:
            answered.update(process["pid"] for process in pool.map(callers.get_process, [port] * 2 * workers))
            if time.monotonic() > deadline:
                raise BenchError(f"expected {workers} workers, {len(answered)} answer; see {server.log}")
    children = [pid for pid in tree(server.pid) if pid != server.pid]
    if sorted(children) != sorted(answered):
        raise BenchError(f"a worker has ended: {sorted(answered)} have answered, {sorted(children)} are running")
    return tuple(sorted(answered))
