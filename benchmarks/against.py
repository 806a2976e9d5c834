"""`python -m benchmarks.against FOLDER`: compare Python's kernels here, those of another checkout, and Redis.

Shard servers of both serve the same files on the same core, in turns. The comparison is of processor time, which varies
less on a shared machine than a rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import datasets, memory
from benchmarks.arena import Arena, Running
from benchmarks.load import generator
from benchmarks.machine import SERVER_CORE
from benchmarks.processes import Server
from benchmarks.results import REDIS
from benchmarks.rows import shard
from benchmarks.settings import FULL

_HERE: Final = datasets.EXAMPLES.parent
_FOLDER: Final = _HERE / ".bench"
_BEFORE: Final = "before"
_NOW: Final = "now"


class Ask(NamedTuple):
    """A kind of load: a number of requests, and of keys in each."""

    title: str
    script: Path
    depth: int
    keys: int
    requests: int


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the other checkout (git worktree add FOLDER COMMIT)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rows", type=int, default=FULL.rows, help="number of recommendations")
    arguments = parser.parse_args()
    trees = {_BEFORE: arguments.folder.absolute(), _NOW: _HERE}
    settings = replace(FULL, rows=arguments.rows)
    print(
        "| CPU µs a key | before | now | before : now | now : Redis, before : Redis |\n| --- | --- | --- | --- | --- |"
    )
    with Arena(settings, _FOLDER, partial(print, file=sys.stderr, flush=True)) as arena, ExitStack() as stack:
        for compression in ("none", "zstd"):
            generation = arena.generation(compression=compression)
            sides = {name: _serve(arena, tree, generation, f"{compression}-{name}") for name, tree in trees.items()}
            for server, _ in sides.values():
                stack.callback(server.stop)
            arena.redis[0].pin(SERVER_CORE)
            for ask in _asks(arena):
                costs = _measure(arena, ask, {**sides, REDIS: arena.redis}, arguments.rounds)
                print(_line(f"{ask.title}, {compression}", costs), flush=True)


def _asks(arena: Arena) -> Iterator[Ask]:
    depth, batch = arena.settings.pipeline, arena.settings.batch
    yield Ask(f"pipelined by {depth}", shard.gets(arena), depth, 1, 80_000)
    yield Ask(f"MGET of {batch}", shard.mgets(arena), 1, batch, 1_000)


def _serve(arena: Arena, tree: Path, generation: datasets.Generation, name: str) -> Running:
    """Start a shard server of the code in ``tree``, with one worker and Python's kernels."""
    log = arena.run / f"{name}.log"
    ready = log.with_suffix(".ready")
    words = [sys.executable, "-m", "lookupdb", "serve", str(generation.folder), "--shard", "0", "--workers", "1"]
    words += ["--port", "0", "--admin-port", "0", "--ready-file", str(ready)]
    code = {"PYTHONPATH": f"{tree}/server:{tree}/operator", "LOOKUPDB_NATIVE": "0"}
    server = Server(words, log, core=SERVER_CORE, environment={**os.environ, **code})
    server.wait_for(ready.exists, "it was ready", 60)
    return server, json.loads(ready.read_text())["ports"][0]


def _measure(arena: Arena, ask: Ask, sides: dict[str, Running], rounds: int) -> dict[str, list[float]]:
    """Return side → microseconds a key, for each round. The order alternates, and the first round does not count."""
    costs: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            server, port = sides[side]
            before = _cpu_nanoseconds(server)
            connections = arena.settings.connections
            options = {"connections": connections, "depth": ask.depth, "requests": ask.requests}
            generator.run(arena.program, port, ask.script, **options)
            costs[side].append((_cpu_nanoseconds(server) - before) / 1000 / ask.requests / ask.keys)
    return {side: found[1:] for side, found in costs.items()}


def _cpu_nanoseconds(server: Server) -> int:
    return sum(
        int(path.read_text().split()[0])
        for pid in memory.tree(server.pid)
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def _line(title: str, costs: dict[str, list[float]]) -> str:
    """Print medians; ratios are medians of the rounds' ratios."""

    def ratio(side: str, other: str) -> float:
        return statistics.median(mine / theirs for mine, theirs in zip(costs[side], costs[other], strict=True))

    before, now = (
        f"{statistics.median(costs[side]):.2f} ({min(costs[side]):.2f} to {max(costs[side]):.2f})"
        for side in (_BEFORE, _NOW)
    )
    to_redis = f"{ratio(_NOW, REDIS):.2f}, {ratio(_BEFORE, REDIS):.2f}"
    return f"| {title} | {before} | {now} | {ratio(_BEFORE, _NOW):.2f} | {to_redis} |"


if __name__ == "__main__":
    main()
