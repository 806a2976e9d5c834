"""A source of the console in memory, and a server of its pages in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from plugin_samples import body, router, server

from lookupdb.errors import LookupdbError
from lookupdb_operator.console.dataset import AbsentKey, Dataset, DatasetPods, FoundKey, Lookup, UnavailableKey
from lookupdb_operator.console.server import make_app, set_source
from lookupdb_operator.console.source import Difference, Elsewhere
from lookupdb_operator.console.watch import Watch
from lookupdb_operator.model import Pod

BOUNDS = ("0.001", "0.01", "+Inf")


def metrics(pod: Pod, lookups: float, counts: Sequence[float] = (0, 0, 0), failed: float = 0) -> str:
    """Return the metrics of a router or a shard server. ``counts`` are those up to each of ``BOUNDS``."""
    if pod.component == "router":
        prefix, kind, sample = "lookupdb_router", 'endpoint="lookup"', f"keys_found_total {lookups}"
    else:
        prefix, kind, sample = "lookupdb_shard", 'command="get"', f"lookups_total {lookups}"
    name, ok = f"{prefix}_request_duration_seconds", f'dataset="airports",{kind},outcome="ok"'
    buckets = "".join(
        f'{name}_bucket{{{ok},le="{bound}"}} {count}\n' for bound, count in zip(BOUNDS, counts, strict=True)
    )
    failures = f'{name}_count{{{kind},outcome="failed"}} {failed}\n'
    memory = f'{prefix}_private_bytes{{process="supervisor"}} 100\n{prefix}_private_bytes{{process="worker-0"}} 24\n'
    return f"# HELP x y\n{prefix}_{sample}\n{memory}{buckets}{name}_count{{{ok}}} {counts[-1]}\n{failures}"


class MemorySource:
    """Datasets, metrics and answers that a test sets."""

    def __init__(self, *views: DatasetPods) -> None:
        self.views = list(views)
        self.texts: dict[str, str] = {}
        """The metrics of each pod, by its name."""
        self.values: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.difference: Difference | Elsewhere | BaseException = Elsewhere("no comparison was set")
        self.read_at_once = self.most_at_once = 0

    def list_datasets(self) -> Sequence[DatasetPods]:
        return self.views

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        found = (view for view in self.views if (view.dataset.namespace, view.dataset.name) == (namespace, name))
        return next(found, None)

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        self.read_at_once += 1
        self.most_at_once = max(self.most_at_once, self.read_at_once)
        await asyncio.sleep(0)
        self.read_at_once -= 1
        if pod.name not in self.texts:
            raise LookupdbError("nothing listens")
        return self.texts[pod.name]

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        self.asked.append((key, generation))
        if key == "away":
            return UnavailableKey(key, "shard 1 is away")
        if key not in self.values:
            return AbsentKey(key, generation or "g12", "no record has it")
        return FoundKey(key, generation or "g12", self.values[key], True)

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        if isinstance(self.difference, BaseException):
            raise self.difference
        return self.difference


def one(name: str = "airports", *pods: Pod, **status: Any) -> DatasetPods:
    """Return a dataset, with the pods that it should have if none are given."""
    own = (*(server("r34", shard, replica) for shard in range(2) for replica in range(2)), router(0), router(1))
    return DatasetPods(Dataset.from_body(body(name, **status)), pods or own)


@contextmanager
def serving(source: MemorySource, hosts: Sequence[str] | None = None) -> Iterator[tuple[str, Watch]]:
    """Serve the console of ``source`` in a thread. Yields its address, and its watch, which nothing drives."""
    watch, ready, stop = Watch(source), threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        runner = web.AppRunner(make_app(watch, middlewares=[set_source(source)], hosts=hosts), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.update(url=f"http://127.0.0.1:{runner.addresses[0][1]}", loop=asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield found["url"], watch
    finally:
        found["loop"].call_soon_threadsafe(stop.set)
        thread.join(30)
