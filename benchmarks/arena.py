"""Servers and files that rows compare, made on first use and removed with the run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from benchmarks import datasets
from benchmarks.datasets import Generation, Pairs
from benchmarks.load import generator, secrets
from benchmarks.machine import LOAD_CORE, SERVER_CORE
from benchmarks.peers import flask, lookupdb, nutcracker, redis, webdis
from benchmarks.peers.lookupdb import Kernels
from benchmarks.processes import Cost, Server, measured
from benchmarks.settings import Settings

SHARDS: Final = 4
"""The number of shards behind the router, and behind nutcracker."""
_LARGE: Final = (".load", ".wrk", ".pickle", ".sqlite")
"""Files that are removed after a run; logs and settings stay."""

Running = tuple[Server, int]
"""A server and its port."""


class Routed(NamedTuple):
    """A router, its port and its RESP port, with its shard servers and their ports."""

    server: Server
    port: int
    shards: tuple[Server, ...]
    shard_ports: tuple[int, ...]
    resp_port: int


def cost_name(name: str, kernels: Kernels) -> str:
    """Return the name in ``Arena.costs`` of building ``name``."""
    return name if kernels == "native" else f"{name}, {kernels}"


class Arena:
    """Servers and files of one run. Idle servers may run beside each other; only one is loaded at a time."""

    def __init__(self, settings: Settings, folder: Path, say: Callable[[str], None]) -> None:
        self.settings, self.folder, self.say = settings, folder, say
        self.costs: dict[str, list[Cost]] = {}
        """Built or loaded data → their costs."""
        self._stack = ExitStack()
        self._shards: dict[tuple[str, Kernels], Running] = {}
        self._routers: dict[str, Routed] = {}
        self._generations: dict[str, Generation] = {}
        self.run = folder / "run"
        self.redises: tuple[Server, ...] = ()
        """The Redis servers behind ``nutcracker``."""

    def __enter__(self) -> Self:
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir(parents=True)
        lookupdb.compile_bytecode()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stack.close()
        for store in self.run.glob("store*"):
            shutil.rmtree(store, ignore_errors=True)
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
        """A generation, built once a run. ``costs`` has its cost under its name."""
        manifest = datasets.manifest(self.run, kind, source, shards=shards, compression=compression)
        if manifest.stem not in self._generations:
            self.build(manifest)
            self._generations[manifest.stem] = datasets.generation(self.run / "store", manifest.stem)
        return self._generations[manifest.stem]

    def build(self, manifest: Path, kernels: Kernels = "native") -> Cost:
        """Build the generation of ``manifest`` again. ``costs`` has its cost under ``cost_name``."""
        self.say(f"building {manifest.stem}, {kernels} kernels")
        store = self.run / ("store" if kernels == "native" else f"store-{kernels}")
        shutil.rmtree(store / "local" / "default" / f"{manifest.stem}-local", ignore_errors=True)
        cost = lookupdb.build(manifest, store, kernels)
        self.costs.setdefault(cost_name(manifest.stem, kernels), []).append(cost)
        return cost

    def generation(self, *, shards: int = 1, compression: str = "zstd") -> Generation:
        """The recommendations, built."""
        return self.built(self.source, shards=shards, compression=compression)

    @cached_property
    def text_source(self) -> Path:
        """The recommendations with products as text, the source of raw values."""
        return datasets.text_source(self.source)

    def raw_generation(self, *, shards: int, compression: str) -> Generation:
        """The recommendations, built with raw values."""
        manifest = datasets.raw_manifest(self.run, self.text_source, shards=shards, compression=compression)
        if manifest.stem not in self._generations:
            self.build(manifest)
            self._generations[manifest.stem] = datasets.generation(self.run / "store", manifest.stem)
        return self._generations[manifest.stem]

    def shard(self, compression: str, kernels: Kernels = "native") -> Running:
        """A server of all recommendations in one shard, with one worker, on the server's core."""
        name = compression, kernels
        if name not in self._shards:
            log = self.run / f"shard-{compression}-{kernels}.log"
            generation = self.generation(compression=compression)
            server, (port,) = lookupdb.serve(generation, 0, log, SERVER_CORE, kernels)
            self._shards[name] = self._keep((server, port))
        return self._shards[name]

    @cached_property
    def redis(self) -> Running:
        """Redis with all recommendations. The row chooses its core."""
        running = self._keep(redis.start(self.run / "redis.log", None))
        self.load_redis(running[1])
        return running

    def load_redis(self, port: int) -> Cost:
        """Fill Redis with pipelined SETs from Python."""
        redis.empty(port)
        return self.load("redis", str(port))

    def load(self, kind: str, target: str) -> Cost:
        """Run one of the loaders on the recommendations."""
        source = self.source
        self.say(f"loading {source.name} into {kind}")
        cost = measured([sys.executable, "-m", "benchmarks.peers.loaders", kind, str(source), target], timeout=300)
        self.costs.setdefault(kind, []).append(cost)
        return cost

    def router(self, kernels: Kernels = "native") -> Routed:
        """Our router on the server's core, its four shards on the load generator's, all with these kernels."""
        return self._route(kernels, self.generation(shards=SHARDS), SHARDS, kernels)

    def variant_router(self, *, shards: int, compression: str = "zstd", raw: bool = False) -> Routed:
        """Return the router variant with this many shards, compressed or not, of JSON or of raw values."""
        generate = self.raw_generation if raw else self.generation
        name = f"{'raw' if raw else 'json'}-{compression}-{shards}"
        return self._route(name, generate(shards=shards, compression=compression), shards, "native")

    def _route(self, name: str, generation: Generation, shard_count: int, kernels: Kernels) -> Routed:
        if name not in self._routers:
            shards, ports = [], []
            for number in range(shard_count):
                log = self.run / f"shard-{number}-{name}.log"
                server, (port,) = lookupdb.serve(generation, number, log, LOAD_CORE, kernels)
                self._keep((server, port))
                shards.append(server)
                ports.append(port)
            log = self.run / f"router-{name}.log"
            server, port, resp_port = lookupdb.route(generation, ports, log, SERVER_CORE, kernels)
            self._keep((server, port))
            self._routers[name] = Routed(server, port, tuple(shards), tuple(ports), resp_port)
        return self._routers[name]

    @cached_property
    def encrypted_router(self) -> Running:
        """A router with TLS and ``secrets.TOKEN`` over the same shards."""
        folder = self.run / "secrets"
        options, ports = secrets.write(folder), self.router().shard_ports
        log = self.run / "router-encrypted.log"
        server, port, _ = lookupdb.route(self.generation(shards=SHARDS), ports, log, SERVER_CORE, options=options)
        return self._keep((server, port))

    def start_webdis(self, name: str) -> Running:
        """webdis on the server's core, a fresh one for each row ``name``. If clients leave during a request, it may
        give their answers to the next client."""
        return self._keep(webdis.start(self.run / f"webdis-{name}.log", SERVER_CORE, self.redis[1]))

    @cached_property
    def flask(self) -> Running:
        """Flask on the server's core, with all data in its heap."""
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
