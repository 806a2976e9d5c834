"""lookupdb itself: the build, shard servers, the router."""

from __future__ import annotations

import compileall
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import lookupdb
from benchmarks.datasets import Generation
from benchmarks.machine import BenchError
from benchmarks.processes import Cost, Server, measured
from benchmarks.results import OURS, PYTHON

_LOOKUPDB: Final = [sys.executable, "-m", "lookupdb"]
_BUILD_SECONDS: Final = 300
MEMORY_LIMIT: Final = "1GiB"

Kernels = Literal["native", "python"]
"""The kernels of a process. Native ones must exist: there is no silent fallback."""
KINDS: Final[dict[str, Kernels]] = {OURS: "native", PYTHON: "python"}
"""Side → its kernels."""


def compile_bytecode() -> None:
    """Compile lookupdb's bytecode, as in the image: a process that compiles keeps more memory.

    Raises BenchError.
    """
    if not compileall.compile_dir(Path(lookupdb.__file__).parent, quiet=1):
        raise BenchError("lookupdb's bytecode cannot be compiled: is its folder writable?")


def build(manifest: Path, store: Path, kernels: Kernels = "native") -> Cost:
    """`lookupdb build` within the default memory limit."""
    words = ["build", "-f", str(manifest), "--store", str(store), "--memory-limit", MEMORY_LIMIT]
    return measured([*_LOOKUPDB, *words], _BUILD_SECONDS, _environment(kernels))


def serve(
    generation: Generation,
    shard: int,
    log: Path,
    core: int | None,
    kernels: Kernels = "native",
    *,
    workers: int = 1,
    warm: str = "auto",
) -> tuple[Server, tuple[int, ...]]:
    """A shard server, and the ports of its workers."""
    ready = log.with_suffix(".ready")
    words = ["serve", str(generation.folder), "--shard", str(shard), "--workers", str(workers), "--warm", warm]
    words += ["--port", "0", "--admin-port", "0", "--ready-file", str(ready)]
    server, members = _start(words, ready, log, core, kernels)
    return server, tuple(members["ports"])


def route(
    generation: Generation,
    shard_ports: Sequence[int],
    log: Path,
    core: int,
    kernels: Kernels = "native",
    options: Sequence[str] = (),
) -> tuple[Server, int, int]:
    """Start a router with one worker over shard servers at ``shard_ports``. Return its HTTP port and its RESP port.
    ``options`` are further flags."""
    ready, table = log.with_suffix(".ready"), log.with_suffix(".table.json")
    table.write_text(json.dumps(_table(generation, shard_ports)))
    words = ["route", "--table", str(table), "--workers", "1", *options]
    words += ["--port", "0", "--resp-port", "0", "--admin-port", "0", "--ready-file", str(ready)]
    server, members = _start(words, ready, log, core, kernels)
    return server, members["port"], members["resp"]


def _environment(kernels: Kernels) -> dict[str, str]:
    return {**os.environ, "LOOKUPDB_NATIVE": "1" if kernels == "native" else "0"}


def _start(
    words: Sequence[str], ready: Path, log: Path, core: int | None, kernels: Kernels
) -> tuple[Server, dict[str, Any]]:
    ready.unlink(missing_ok=True)
    server = Server([*_LOOKUPDB, *words], log, core=core, environment=_environment(kernels))
    server.wait_for(ready.exists, "it was ready", 60)
    return server, json.loads(ready.read_text())


def _table(generation: Generation, shard_ports: Sequence[int]) -> dict[str, Any]:
    entry = {
        "generation": generation.generation,
        "rollout": "r1",
        "records": generation.records,
        "bytes": generation.file_bytes,
        "builtAt": generation.built_at,
        "normalize": list(generation.normalize),
        "valueFormat": generation.value_format,
        "shards": [{"endpoints": [f"127.0.0.1:{port}"]} for port in shard_ports],
    }
    return {
        "formatVersion": 1,
        "version": 1,
        "dataset": {"namespace": generation.namespace, "name": generation.name, "uid": generation.uid},
        "active": generation.generation,
        "generations": [entry],
    }
