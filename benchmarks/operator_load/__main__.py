"""``python -m benchmarks.operator_load``: measure the operator at several numbers of datasets, print and write the
section of docs/benchmarks.md."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.machine import BenchError
from benchmarks.processes import Server, free_port

_ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = _ROOT / ".bench" / "operator"
_QUIET_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster."""

    datasets: int
    shards: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase took the operator."""

    name: str
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    """The most that was resident since the operator started."""
    counts: dict[str, int]
    received_bytes: int
    """Of lists and watches."""


class Cluster:
    """A simulated cluster, and the operator that is started in it."""

    def __init__(self, size: Size, folder: Path) -> None:
        self.size = size
        self._folder = folder
        self._port, self._admin_port = free_port(), free_port()
        self._world = folder / f"{size.datasets}-{size.shards}-{size.replicas}.world"
        words = [sys.executable, "-m", "benchmarks.operator_load.simulator", str(self._port), str(self._admin_port)]
        words += [*map(str, dataclasses.astuple(size)), str(self._world)]
        self.is_settled = self._world.exists()
        self._server = Server(words, folder / "simulator.log", core=None)
        self._server.wait_for_port(self._port, 120)
        self._operator: Server | None = None

    def ask(self, verb: str, method: str = "GET") -> dict[str, Any]:
        """What the simulator answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/bench/{verb}", method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return dict(json.loads(response.read()))

    def start_operator(self, resync_seconds: float = 300.0) -> Server:
        """The operator's process."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "bench", "user": {"token": "of-a-benchmark"}}],
        }
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        options = ["--image", "lookupdb:1", "--store", "s3://lookupdb", "--store-env", "AWS_REGION=eu"]
        options += ["--namespace", "lookupdb", "--living-list", "living", "--host", "127.0.0.1"]
        options += ["--port", str(free_port()), "--resync-seconds", str(resync_seconds)]
        words = [sys.executable, "-m", "benchmarks.operator_load.launch", str(self._admin_port), *options]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self._operator = Server(words, self._folder / "operator.log", core=None, environment=environment)
        return self._operator

    def wait(self, condition: Callable[[dict[str, Any]], bool], what: str, seconds: float) -> None:
        """Until ``condition`` of the simulator's state holds."""
        assert self._operator

        def holds() -> bool:
            time.sleep(0.5)  # what is asked takes the simulator a while
            return condition(self.ask("state"))

        self._operator.wait_for(holds, what, seconds)

    def stop_operator(self) -> None:
        """End it."""
        if self._operator:
            self._operator.stop()
            self._operator = None

    def close(self) -> None:
        """End everything."""
        self.stop_operator()
        self._server.stop()


@contextmanager
def _phase(name: str, cluster: Cluster, operator: Server, phases: list[Phase]) -> Iterator[None]:
    began, cpu = time.monotonic(), operator.cpu_seconds()
    yield
    state = cluster.ask("state")
    phase = Phase(
        name,
        time.monotonic() - began,
        operator.cpu_seconds() - cpu,
        _peak(operator.pid),
        state["counts"],
        state["bytes"],
    )
    phases.append(phase)
    print(
        f"{cluster.size.datasets:4} datasets: {name:8} {phase.wall_seconds:6.1f} s, {phase.cpu_seconds:6.2f} CPU s, "
        f"{phase.peak_bytes / 2**20:4.0f} MiB, {phase.received_bytes / 2**20:.0f} MiB received, {phase.counts}",
        flush=True,
    )


def measure(size: Size, folder: Path, phases: list[str], patience: float) -> list[Phase]:
    """What each of ``phases`` costs an operator of a cluster of ``size``."""
    done: list[Phase] = []
    with ExitStack() as stack:
        cluster = Cluster(size, folder)
        stack.callback(cluster.close)
        if not cluster.is_settled:
            operator = cluster.start_operator()
            with _phase("install", cluster, operator, done):
                cluster.wait(_all_serve(size, "g1"), "every dataset served", patience)
            cluster.stop_operator()
            cluster.ask("keep", "POST")
        cluster.ask("forget", "POST")
        operator = cluster.start_operator()
        with _phase("start", cluster, operator, done):
            cluster.wait(lambda state: state["asked"] == size.datasets, "every dataset was looked at", patience)
            _wait_for_rest(operator)
        if "rest" in phases:
            with _phase("rest", cluster, operator, done):
                time.sleep(60)
        if "refresh" in phases:
            cluster.ask("forget", "POST")
            with _phase("refresh", cluster, operator, done):
                cluster.ask("refresh?value=now", "POST")
                cluster.wait(_all_serve(size, "g2"), "every dataset served what is new", patience)
        if "resync" in phases:
            cluster.stop_operator()
            operator = cluster.start_operator(resync_seconds=20)
            cluster.ask("forget", "POST")
            cluster.wait(lambda state: state["asked"] == size.datasets, "every dataset was looked at", patience)
            _wait_for_rest(operator)
            with _phase("resyncs", cluster, operator, done):
                time.sleep(60)
    return done


def _all_serve(size: Size, generation: str) -> Callable[[dict[str, Any]], bool]:
    return lambda state: state["settled"].get(generation) == size.datasets and state["quiet"] > 1


def _wait_for_rest(operator: Server) -> None:
    """Return when the operator does nothing any more."""
    before = -1.0
    while (now := operator.cpu_seconds()) - before > 0.1:
        before = now
        time.sleep(2)


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> int:
    """Run what the arguments ask for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_load", description=__doc__)
    parser.add_argument("--datasets", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--phases", nargs="+", default=["rest", "refresh", "resync"])
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for each phase")
    parser.add_argument("--worlds", type=Path, help="a folder in which settled clusters are kept between runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.worlds or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for datasets in arguments.datasets:
                size = Size(datasets, arguments.shards, arguments.replicas)
                measure(size, folder, arguments.phases, arguments.patience)
        except BenchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
