"""`python -m benchmarks.long_runs`: memory of a router under batches of mixed sizes, and of an operator over a day of
refreshes. Compares the C library's allocator with a preloaded one, side by side."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import datasets, memory
from benchmarks.operator_load import __main__ as operator_load
from benchmarks.operator_load.report import Size
from benchmarks.processes import Server, free_port
from lookupdb.process.memory import private_bytes

_ROWS: Final = 100_000
_HEAD: Final = "Host: x\r\nContent-Type: application/json\r\n"
_LARGEST_BATCH: Final = 1000
_CONNECTIONS: Final = 32
_OPERATOR: Final = Size(datasets=20, shards=8, replicas=2)
_PATIENCE: Final = 1200.0


def main() -> None:
    """Run one side of one kind in this process, or both sides of both kinds in children, and print Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_runs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="seconds of load on the router")
    parser.add_argument("--refreshes", type=int, default=24, help="refreshes of each of the operator's datasets")
    parser.add_argument("--preload", default="libjemalloc.so.2", metavar="LIBRARY", help="the other allocator")
    parser.add_argument("--side", nargs=2, metavar=("KIND", "LIBRARY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        kind, library = arguments.side
        amount = arguments.seconds if kind == "router" else arguments.refreshes
        print(json.dumps(_MEASURES[kind](library, amount)))
        return
    for kind in _MEASURES:
        sides = {name: _start_side(kind, library) for name, library in (("C library", ""), *[(arguments.preload,) * 2])}
        found = {name: json.loads(side.communicate()[0]) for name, side in sides.items()}
        print("\n".join(_markdown(kind, found)))


def _start_side(kind: str, library: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "benchmarks.long_runs", *sys.argv[1:], "--side", kind, library]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def _markdown(kind: str, sides: dict[str, dict[str, float]]) -> Iterator[str]:
    yield f"| {kind}, MB | {' | '.join(sides)} |"
    yield f"| --- |{' --- |' * len(sides)}"
    for what in next(iter(sides.values())):
        yield f"| {what} | {' | '.join(f'{side[what]:,.1f}' for side in sides.values())} |"


@contextmanager
def _preloaded(library: str) -> Iterator[None]:
    """Preload ``library`` in processes started meanwhile; "" is none."""
    with ExitStack() as stack:
        if library:
            os.environ["LD_PRELOAD"] = library
            stack.callback(os.environ.pop, "LD_PRELOAD")
        yield


def _router(library: str, seconds: float) -> dict[str, float]:
    """Ask a `lookupdb up` with four shards for this long."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work = Path(folder)
        source = datasets.source(work, "recommendations", _ROWS)
        keys = [json.loads(line)["customer"] for line in source.read_bytes().splitlines()]
        manifest = datasets.manifest(work, "recommendations", source, shards=4, compression="zstd")
        port = free_port()
        words = [sys.executable, "-m", "lookupdb", "up", "-f", str(manifest), "--port", str(port)]
        with _preloaded(library):
            up = Server([*words, "--data-dir", folder], work / "up.log", core=None)
        stack.callback(up.stop)
        up.wait_for(lambda: "Ctrl-C stops everything" in up.log.read_text(), "it answered", 120)
        (worker,) = _router_workers(up)
        idle = _private_megabytes(worker)
        samples, asked, refused = asyncio.run(_ask(port, keys, seconds, worker))
        time.sleep(3)
        quarter = max(1, len(samples) // 4)
        return {
            "idle": idle,
            "first quarter, mean": statistics.mean(samples[:quarter]),
            "last quarter, mean": statistics.mean(samples[-quarter:]),
            "most": max(samples),
            "asked no more": _private_megabytes(worker),
            "millions of keys answered": asked / 1e6,
            "batches refused": refused,
        }


async def _ask(port: int, keys: list[str], seconds: float, worker: int) -> tuple[list[float], int, int]:
    """Return the private memory of ``worker`` once a second, and the numbers of answered keys and of failed batches."""
    end = time.monotonic() + seconds
    clients = [asyncio.create_task(_client(port, keys, end, random.Random(number))) for number in range(_CONNECTIONS)]
    samples = []
    while time.monotonic() < end:
        await asyncio.sleep(1)
        samples.append(_private_megabytes(worker))
    counts = await asyncio.gather(*clients)
    return samples, sum(answered for answered, _ in counts), sum(refused for _, refused in counts)


async def _client(port: int, keys: list[str], end: float, chance: random.Random) -> tuple[int, int]:
    """Ask batches of 1 to 1,000 keys, small ones as often as large ones, over connections of limited life.

    Return the numbers of answered keys and of failed batches: a busy machine misses deadlines.
    """
    answered = refused = 0
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(chance.randint(5, 200)):
            size = int(math.exp(chance.uniform(0, math.log(_LARGEST_BATCH))))
            body = json.dumps({"keys": chance.choices(keys, k=size)})
            head = (
                f"POST /v1/lookup HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            writer.write(f"{head}\r\n\r\n{body}".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
            if answer.startswith(b"http/1.1 200 "):
                answered += size
            else:
                refused += 1
        writer.close()
    return answered, refused


def _operator(library: str, refreshes: int) -> dict[str, float]:
    """Run an operator in a simulated cluster whose datasets are refreshed this often."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = operator_load.Cluster(_OPERATOR, Path(folder))
        stack.callback(cluster.close)
        with _preloaded(library):
            pid = cluster.start_operator().pid
        owned = []
        for generation in range(1, refreshes + 2):
            if generation > 1:
                cluster.ask(f"refresh?value={generation}", "POST")
            serve = operator_load.all_serve(_OPERATOR, f"g{generation}")
            cluster.wait(serve, "every dataset served what is new", _PATIENCE)
            owned.append(_private_megabytes(pid))
        return {"all datasets installed": owned[0], f"after {refreshes} refreshes": owned[-1], "most": max(owned)}


_MEASURES: Final[dict[str, Any]] = {"router": _router, "operator": _operator}


def _router_workers(up: Server) -> list[int]:
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in memory.tree(up.pid)}
    return [pid for pid, command in commands.items() if b"lookupdb.router.worker" in command]


def _private_megabytes(pid: int) -> float:
    """Return the memory of a process. Raises ValueError if it has ended."""
    found = private_bytes(pid)
    if not found:
        raise ValueError(f"process {pid}, whose memory is measured, has ended")
    return found / 1e6


if __name__ == "__main__":
    main()
