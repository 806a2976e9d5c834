"""`python -m benchmarks.allocator`: memory of all processes with the C library's allocator, and with another.

Builds, serves and asks in turns: with the default allocator, and with another one of this machine preloaded. With
`--image` everything happens inside a container, the asking too (`--inside`): no network, a read-only root, all files in
memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks import datasets, generators, memory
from benchmarks.peers import lookupdb
from benchmarks.processes import free_port
from lookupdb.process.memory import private_bytes

_ROWS: Final = 200_000
_LOOKUPDB: Final = (sys.executable, "-m", "lookupdb")
_PRELOADED: Final = "/measure/allocator.so"
_HEAD: Final = "Host: x\r\nContent-Type: application/json\r\n"
_DOCKER: Final = (
    "docker run --rm --network none --read-only --tmpfs /tmp:size=2g --entrypoint python3 --env PYTHONPATH=/measure"
)


def main() -> None:
    """Measure both sides and print Markdown. Inside the container, measure one and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocator", description=__doc__.splitlines()[0])
    parser.add_argument("--image", help="run this image with docker; by default this Python")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="repetitions of each side")
    parser.add_argument("--preload", default="/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", help="the other allocator")
    parser.add_argument("--inside", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(_Measurement(arguments.inside).run()))
        return
    image, preload = arguments.image, arguments.preload
    sides = {"as it is": "", Path(preload).name: preload}
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for number in range(arguments.repetitions):
        for side, library in sides.items():
            print(f"{number + 1} of {arguments.repetitions}: {image or 'here'}, {side}", file=sys.stderr)
            results[side].append(_run_image(image, library) if image else _run_here(library))
    print(_markdown(results))


def _run_here(library: str) -> Any:
    lookupdb.compile_bytecode()
    environment = {**os.environ, **({"LD_PRELOAD": library} if library else {})}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.allocator", "--inside", folder]
        return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True, env=environment).stdout)


def _run_image(image: str, library: str) -> Any:
    mounts = [f"--volume={datasets.EXAMPLES.parent / name}:/measure/{name}:ro" for name in ("benchmarks", "examples")]
    if library:
        mounts += [f"--volume={library}:{_PRELOADED}:ro", "--env", f"LD_PRELOAD={_PRELOADED}"]
    words = [*_DOCKER.split(), *mounts, image, "-m", "benchmarks.allocator", "--inside", "/tmp"]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)


def _markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return circumstances and table. A cell has the median of the repetitions, and the least and greatest in
    brackets."""
    (name, ours), (other, theirs) = results.items()
    lines = [f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {os.cpu_count()} cores, {len(ours)} of each side"]
    lines += [*(f"{side}: {runs[0]['versions']}" for side, runs in results.items()), ""]
    lines += [f"| MB | {name} | {other} | ratio |", "| --- | --- | --- | --- |"]
    for what in ours[0]["bytes"]:
        sides = [[run["bytes"][what] / 1e6 for run in runs] for runs in (ours, theirs)]
        cells = [f"{statistics.median(side):.1f} ({min(side):.1f} to {max(side):.1f})" for side in sides]
        ratio = statistics.median(sides[0]) / statistics.median(sides[1])
        lines.append(f"| {what} | {cells[0]} | {cells[1]} | {ratio:.2f} |")
    return "\n".join(lines)


class _Measurement:
    """Measure one side in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()

    def run(self) -> dict[str, Any]:
        """Build, serve, ask, and read the memory of all processes."""
        source = datasets.source(self._folder, "recommendations", _ROWS)
        keys = [json.loads(line)["customer"] for line in source.read_bytes().splitlines()]
        manifest = datasets.manifest(self._folder, "recommendations", source, shards=4, compression="zstd")
        found = {"build of examples/airports.yaml, peak": self._build(datasets.EXAMPLES / "airports.yaml")}
        found[f"build of {_ROWS:,} recommendations, peak"] = self._build(manifest)
        words = [*_LOOKUPDB, *f"up -f {manifest} --port {self._port} --data-dir {self._folder}".split()]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
            try:
                self._wait()
                found |= {f"{name}, not asked yet": size for name, size in _servers(up.pid)}
                asyncio.run(self._ask(keys))
                found |= {f"{name}, after 1,000,000 lookups": size for name, size in _servers(up.pid)}
            finally:
                up.terminate()
        return {"bytes": found, "versions": _versions()}

    def _build(self, manifest: Path) -> int:
        """Return the peak memory, in bytes, of a build into the store that `up` then serves."""
        words = [*_LOOKUPDB, *f"build -f {manifest} --store {self._folder}/store --progress none --json".split()]
        return int(json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)["peakMemoryBytes"])

    def _wait(self) -> None:
        """Wait until the router answers, but not forever: the requests will then show the error."""
        for _ in range(1200):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v1/dataset", timeout=5):
                return
            time.sleep(0.1)

    async def _ask(self, keys: list[str]) -> None:
        """Ask for 900,000 keys in batches of 100, then 100,000 alone, over 32 connections. Every key must be found."""
        rng = random.Random(generators.SEED)
        batches = (json.dumps({"keys": rng.choices(keys, k=100)}) for _ in range(9_000))
        posts = (f"POST /v1/lookup HTTP/1.1\r\n{_HEAD}Content-Length: {len(it)}\r\n\r\n{it}" for it in batches)
        gets = (f"GET /v1/lookup/{rng.choice(keys)} HTTP/1.1\r\n{_HEAD}\r\n" for _ in range(100_000))
        requests = iter([*posts, *gets])
        await asyncio.gather(*(self._connection(requests) for _ in range(32)))

    async def _connection(self, requests: Iterator[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for request in requests:
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            is_batch = request.startswith("POST")
            if b" 200 " not in head[:16] or (is_batch and not body.rstrip().endswith(b'"missing":[]}')):
                raise ValueError(head + body[-200:])
        writer.close()


def _servers(up: int) -> Iterator[tuple[str, int]]:
    """Return private bytes: the mean of the four shard servers, each a supervisor and a worker, and the router's
    two."""
    sizes: dict[str, list[int]] = {}
    for pid in list(memory.tree(up))[1:]:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = f"{'router' if b'route' in words else 'shard server'}'s "
        name += "supervisor" if b"--ready-file" in words else "worker"
        sizes.setdefault(name, []).append(private_bytes(pid) or 0)
    yield from ((name, round(statistics.mean(sizes[name]))) for name in sorted(sizes, reverse=True))


def _versions() -> str:
    """Return the versions of Python, and of the allocator that this process has mapped."""
    found = re.search(r"Package: libc6\n(?:.+\n)*?Version: (\S+)", Path("/var/lib/dpkg/status").read_text())
    library = os.environ.get("LD_PRELOAD", "")
    is_mapped = library and str(Path(library).resolve()) in Path("/proc/self/maps").read_text()
    preloaded = f"{Path(library).name} preloaded, " if is_mapped else ""
    return f"{preloaded}libc6 {found[1] if found else ''}, Python {sys.version.split()[0]}"


if __name__ == "__main__":
    main()
