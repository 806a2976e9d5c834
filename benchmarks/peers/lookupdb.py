"""lookupdb itself: the build, shard servers, the router."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.datasets import Generation
from benchmarks.processes import Cost, Server, measured

_LOOKUPDB: Final = [sys.executable, "-m", "lookupdb"]
_BUILD_SECONDS: Final = 300
MEMORY_LIMIT: Final = "1GiB"


def build(manifest: Path, store: Path) -> Cost:
    """`lookupdb build` within the default memory limit."""
    words = ["build", "-f", str(manifest), "--store", str(store), "--memory-limit", MEMORY_LIMIT]
    return measured([*_LOOKUPDB, *words], _BUILD_SECONDS)


def serve(generation: Generation, shard: int, log: Path, core: int) -> tuple[Server, int]:
    """A shard server with one worker, and that worker's port."""
    ready = log.with_suffix(".ready")
    words = ["serve", str(generation.folder), "--shard", str(shard), "--workers", "1"]
    words += ["--port", "0", "--admin-port", "0", "--ready-file", str(ready)]
    server, members = _start(words, ready, log, core)
    port: int = members["ports"][0]
    return server, port


def route(generation: Generation, shard_ports: Sequence[int], log: Path, core: int) -> tuple[Server, int]:
    """A router with one worker, over shard servers at ``shard_ports``, and its HTTP port."""
    ready, table = log.with_suffix(".ready"), log.with_suffix(".table.json")
    table.write_text(json.dumps(_table(generation, shard_ports)))
    words = ["route", "--table", str(table), "--workers", "1"]
    words += ["--port", "0", "--admin-port", "0", "--ready-file", str(ready)]
    server, members = _start(words, ready, log, core)
    port: int = members["port"]
    return server, port


def _start(words: Sequence[str], ready: Path, log: Path, core: int) -> tuple[Server, dict[str, Any]]:
    ready.unlink(missing_ok=True)
    server = Server([*_LOOKUPDB, *words], log, core=core)
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
