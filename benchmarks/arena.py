"""Everything that rows compare, made when a row first asks for it and ended with the run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks import datasets
from benchmarks.datasets import Generation, Pairs
from benchmarks.load import generator
from benchmarks.machine import LOAD_CORE, SERVER_CORE
from benchmarks.peers import flask, lookupdb, nutcracker, redis, webdis
from benchmarks.processes import Cost, Server, measured
from benchmarks.settings import Settings

SHARDS: Final = 4
"""Behind the router and behind nutcracker."""
_LARGE: Final = (".load", ".wrk", ".pickle", ".sqlite")
"""What is not worth keeping when a run is over; logs and settings are."""

Running = tuple[Server, int]
"""A server and its port."""


class Arena:
    """Servers and files of one run. Servers are started idle beside each other; one is loaded at a time."""

    def __init__(self, settings: Settings, folder: Path, say: Callable[[str], None]) -> None:
        self.settings, self.folder, self.say = settings, folder, say
        self.costs: dict[str, list[Cost]] = {}
        """What was built or loaded → what it cost, each time."""
        self._stack = ExitStack()
        self._shards: dict[str, Running] = {}
        self._generations: dict[str, Generation] = {}
        self.run = folder / "run"
        self.shards: tuple[Server, ...] = ()
        """Those behind ``router``."""
        self.redises: tuple[Server, ...] = ()
        """Those behind ``nutcracker``."""

    def __enter__(self) -> Self:
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stack.close()
        shutil.rmtree(self.run / "store", ignore_errors=True)
        for path in self.run.iterdir():
            if path.suffix in _LARGE:
                path.unlink()

    @cached_property
    def source(self) -> Path:
        """The recommendations."""
        self.say(f"generating {self.settings.rows:,} recommendations, unless that was done before")
        return datasets.source(self.folder / "data", "recommendations", self.settings.rows)

    @cached_property
    def pairs(self) -> Pairs:
        """Keys to ask for, and the answers."""
        return datasets.sample(self.source, self.settings.rows, self.settings.sample)

    @cached_property
    def program(self) -> Path:
        """The compiled load generator."""
        return generator.compiled(self.folder)

    def built(self, source: Path, kind: str = "recommendations", *, shards: int, compression: str) -> Generation:
        """A generation, built once a run. Its cost is in ``costs`` under its name."""
        manifest = datasets.manifest(self.run, kind, source, shards=shards, compression=compression)
        if manifest.stem not in self._generations:
            self.build(manifest)
            self._generations[manifest.stem] = datasets.generation(self.run / "store", manifest.stem)
        return self._generations[manifest.stem]

    def build(self, manifest: Path) -> Cost:
        """Build anew what ``manifest`` describes."""
        self.say(f"building {manifest.stem}")
        shutil.rmtree(self.run / "store" / "local" / "default" / f"{manifest.stem}-local", ignore_errors=True)
        cost = lookupdb.build(manifest, self.run / "store")
        self.costs.setdefault(manifest.stem, []).append(cost)
        return cost

    def generation(self, *, shards: int = 1, compression: str = "zstd") -> Generation:
        """The recommendations, built."""
        return self.built(self.source, shards=shards, compression=compression)

    def shard(self, compression: str) -> Running:
        """A server of all recommendations in one shard, on the server's core."""
        if compression not in self._shards:
            generation = self.generation(compression=compression)
            log = self.run / f"shard-{compression}.log"
            self._shards[compression] = self._keep(lookupdb.serve(generation, 0, log, SERVER_CORE))
        return self._shards[compression]

    @cached_property
    def redis(self) -> Running:
        """Redis with all recommendations. Which core it is on is up to the row."""
        running = self._keep(redis.start(self.run / "redis.log", None))
        self.load_redis(running[1])
        return running

    def load_redis(self, port: int) -> Cost:
        """Fill Redis by pipelined SET from Python."""
        redis.empty(port)
        return self.load("redis", str(port))

    def load(self, kind: str, target: str) -> Cost:
        """Run one of the loaders on the recommendations."""
        source = self.source
        self.say(f"loading {source.name} into {kind}")
        cost = measured([sys.executable, "-m", "benchmarks.peers.loaders", kind, str(source), target], timeout=300)
        self.costs.setdefault(kind, []).append(cost)
        return cost

    @cached_property
    def router(self) -> Running:
        """Our router on the server's core, its four shards on the load generator's."""
        generation = self.generation(shards=SHARDS)
        logs = [self.run / f"shard-{shard}.log" for shard in range(SHARDS)]
        shards = [self._keep(lookupdb.serve(generation, n, log, LOAD_CORE)) for n, log in enumerate(logs)]
        self.shards = tuple(server for server, _ in shards)
        ports = [port for _, port in shards]
        return self._keep(lookupdb.route(generation, ports, self.run / "router.log", SERVER_CORE))

    def start_webdis(self, name: str) -> Running:
        """webdis on the server's core, a fresh one for each row ``name``: after clients left in the middle of a
        request, it was seen to give their answers to the next client."""
        return self._keep(webdis.start(self.run / f"webdis-{name}.log", SERVER_CORE, self.redis[1]))

    @cached_property
    def flask(self) -> Running:
        """Flask on the server's core, with everything in its heap."""
        self.say("starting Flask, which reads the whole dataset")
        return self._keep(flask.start(self.run / "flask.log", SERVER_CORE, self.source))

    @cached_property
    def nutcracker(self) -> Running:
        """nutcracker on the server's core, its four Redis on the load generator's."""
        logs = [self.run / f"redis-{n}.log" for n in range(SHARDS)]
        backends = [self._keep(redis.start(log, LOAD_CORE)) for log in logs]
        self.redises = tuple(server for server, _ in backends)
        ports = [port for _, port in backends]
        running = self._keep(nutcracker.start(self.run / "nutcracker.log", SERVER_CORE, ports))
        self.say("filling four Redis through nutcracker")
        nutcracker.fill(running[1], self.source)
        return running

    def _keep(self, running: Running) -> Running:
        self._stack.callback(running[0].stop)
        return running
