"""How fast and how large the console is with 500 datasets of 16 shards: `python -m benchmarks.console`.

Its source is made up but full: every dataset has a status with history, 32 servers and two routers, and each scrape
returns a whole answer. The console runs in a process of its own and scrapes for ``--minutes`` before pages are
measured, while it goes on scraping.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import urllib3

PAGE_SECONDS: Final = 0.3
MEMORY_BYTES: Final = 100 << 20
REQUESTS: Final = 60
_GENERATIONS: Final = 5
_REPLICAS: Final = 2
_BOUNDS: Final = (
    *(5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf),
)


def _make_status(number: int, shards: int) -> dict[str, Any]:
    moment = "2026-01-02T10:00:00Z"
    kinds = ("Ready", "Built", "RolledOut", "Degraded")
    degraded = "True" if number % 17 == 0 else "False"
    conditions = [
        {
            "type": kind,
            "status": degraded if kind == "Degraded" else "True",
            "reason": "Serving",
            "message": f"g5 serves 28,298 records at http://set-{number}-router.shop.svc.",
            "lastTransitionTime": moment,
        }
        for kind in kinds
    ]
    generations = [
        {
            "generation": f"g{one}",
            "content": "c" * 64,
            "fingerprint": "f" * 64,
            "records": 28_298 * number,
            "bytes": 12_900_000,
            "largestShardBytes": 6_450_000,
            "shards": shards,
            "normalize": ["strip"],
            "valueFormat": "json",
            "builtAt": moment,
            "servedBy": one,
        }
        for one in range(1, _GENERATIONS + 1)
    ]
    builds = [
        {
            "generation": f"g{one}",
            "outcome": "built",
            "reason": "Built",
            "startedAt": moment,
            "finishedAt": moment,
            "records": 28_298,
            "seconds": 12,
            "message": "built it: 28,298 records, 12 s",
        }
        for one in range(1, 11)
    ]
    rollout = {"rollout": "r5", "generation": "g5", "startedAt": moment, "named": _REPLICAS}
    table = {"version": 7, "rollout": "r5", "generation": "g5", "confirmedAt": moment, "writtenAt": moment}
    return {
        "phase": "Ready",
        "generation": "g5",
        "records": 28_298 * number,
        "builtAt": moment,
        "conditions": conditions,
        "shards": f"{shards}/{shards}",
        "endpoint": f"http://set-{number}-router.shop.svc",
        "table": table,
        "generations": generations,
        "builds": builds,
        "rollouts": [rollout],
        "observedGeneration": 1,
    }


class FullSource:
    """A source of ``datasets``, each with two routers and ``shards`` of two replicas."""

    def __init__(self, datasets: int, shards: int) -> None:
        from lookupdb_operator.console.dataset import Dataset, DatasetPods
        from lookupdb_operator.model import Pod

        self._views: dict[tuple[str, str], DatasetPods] = {}
        for number in range(datasets):
            namespace, name = f"team-{number % 10}", f"set-{number:04}"
            pods = [
                Pod(f"{name}-r5-s{shard}-{replica}", f"{number}-{shard}-{replica}", "shard", "10.0.0.1", "r5", shard)
                for shard in range(shards)
                for replica in range(_REPLICAS)
            ]
            pods += [
                Pod(f"{name}-router-{replica}", f"{number}-{replica}", "router", "10.0.0.1") for replica in range(2)
            ]
            ready = tuple(_as_ready(pod) for pod in pods)
            dataset = Dataset(namespace, name, f"uid-{number}", "1", {}, _make_status(number, shards), 1)
            self._views[namespace, name] = DatasetPods(dataset, ready)
        self._sorted = [self._views[key] for key in sorted(self._views)]
        self._router = _make_metrics("lookupdb_router", "endpoint", ("lookup", "batch", "other"))
        self._shard = _make_metrics("lookupdb_shard", "command", ("get", "mget", "exists", "other"))
        self.scrapes = 0

    def list_datasets(self) -> Sequence[Any]:
        """Return all datasets."""
        return self._sorted

    def find_dataset(self, namespace: str, name: str) -> Any:
        """Return a dataset."""
        return self._views.get((namespace, name))

    async def read_metrics(self, _dataset: Any, pod: Any) -> str:
        """Return metrics whose counts grow."""
        await asyncio.sleep(0.001)
        self.scrapes += 1
        return (self._router if pod.component == "router" else self._shard).replace("COUNT", str(1000 + self.scrapes))

    async def look_up(self, _dataset: Any, key: str, generation: str | None) -> Any:
        """Find every key."""
        from lookupdb_operator.console.dataset import FoundKey

        return FoundKey(key, generation or "g5", b'{"name":"John"}', True)

    async def compare(self, _dataset: Any, _before: str, _after: str) -> Any:
        """Compare nothing."""
        from lookupdb_operator.console.source import Elsewhere

        return Elsewhere("it is made up")


def _as_ready(pod: Any) -> Any:
    from dataclasses import replace

    return replace(pod, ready=True, phase="Running")


def _make_metrics(prefix: str, label: str, kinds: Sequence[str]) -> str:
    """Return an answer of the size that real ones have, with 12 histograms."""
    lines = [f"{prefix}_{name}_total COUNT" for name in ("keys_found", "keys_missing", "lookups", "commands", "errors")]
    lines += [f'{prefix}_private_bytes{{process="worker-{number}"}} 12000000' for number in range(2)]
    lines += [f"{prefix}_file_bytes 6450000", f"{prefix}_resident_bytes 6450000"]
    lines += [f"{prefix}_other_{number}_total COUNT" for number in range(60)]
    for kind in kinds:
        for outcome in ("ok", "refused", "failed"):
            name = f"{prefix}_request_duration_seconds"
            labels = f'namespace="shop",dataset="",protocol="http",{label}="{kind}",outcome="{outcome}"'
            lines += [f'{name}_bucket{{{labels},le="{bound}"}} COUNT' for bound in _BOUNDS]
            lines += [f"{name}_count{{{labels}}} COUNT", f"{name}_sum{{{labels}}} 1.5"]
    return "\n".join(f"# HELP x\n{line}" for line in lines) + "\n"


def _serve(pipe: Connection, datasets: int, shards: int) -> None:
    asyncio.run(_run_console(pipe, datasets, shards))


async def _run_console(pipe: Connection, datasets: int, shards: int) -> None:
    from aiohttp import web

    from lookupdb_operator.console.server import make_app, set_source
    from lookupdb_operator.console.watch import Watch

    source = FullSource(datasets, shards)
    watch = Watch(source)
    runner = web.AppRunner(make_app(watch, middlewares=[set_source(source)]), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scrapes = asyncio.create_task(watch.run())
    pipe.send(runner.addresses[0][1])
    await asyncio.to_thread(pipe.recv)
    scrapes.cancel()
    pipe.send(source.scrapes)
    await runner.cleanup()


def _read_memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure the console, print the figures, and fail if one is beyond its limit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--datasets", type=int, default=500)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=8.0, help="time to scrape everything before measuring")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(theirs, options.datasets, options.shards))
    process.start()
    assert process.pid is not None
    failed, most = [], 0
    try:
        pool = urllib3.PoolManager(retries=False)
        url = f"http://127.0.0.1:{ours.recv()}"
        ends_at = time.monotonic() + 60 * options.minutes
        while time.monotonic() < ends_at:
            time.sleep(1)
            most = max(most, _read_memory(process.pid))
        print(f"{options.datasets} datasets of {options.shards} shards, {_REPLICAS} replicas")
        for path in ("/", "/?sort=lookups&page=3", "/?q=set-01", "/datasets/team-7/set-0007", "/live.json"):
            seconds = []
            for _ in range(REQUESTS):
                began = time.perf_counter()
                answer = pool.request("GET", url + path)
                seconds.append(time.perf_counter() - began)
                assert answer.status == 200, answer.data
                time.sleep(0.05)
            p95 = statistics.quantiles(seconds, n=20)[18]
            print(f"{path:<28} p95 {1000 * p95:6.1f} ms, {len(answer.data):,} bytes")
            if p95 > PAGE_SECONDS:
                failed.append(f"{path} took {1000 * p95:.0f} ms, the limit is {1000 * PAGE_SECONDS:.0f} ms")
            most = max(most, _read_memory(process.pid))
        times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        print(f"resident memory of the process, at most {most / (1 << 20):.1f} MiB")
        ours.send("end")
        print(f"{ours.recv():,} scrapes, {used:.1f} s of processor time")
    finally:
        process.terminate()
        process.join()
    if most > MEMORY_BYTES:
        failed.append(f"the process has {most / (1 << 20):.1f} MiB, the limit is {MEMORY_BYTES >> 20} MiB")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
