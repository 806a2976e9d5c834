"""``python -m benchmarks.operator_load``: measure the operator at several numbers of datasets, print the section of
docs/measurements.md, and write it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.machine import BenchError
from benchmarks.operator_load import report
from benchmarks.operator_load.report import Phase, Size
from benchmarks.processes import Server, free_port

_ROOT: Final = Path(__file__).parents[2]
_REPORT: Final = _ROOT / "docs" / "measurements.md"
_RESYNC_SECONDS: Final = 20.0
_RESYNCS: Final = 3
AT_ONCE: Final = 50
"""Concurrent builds, and rollouts. A simulated cluster has room for them; the default would only take longer."""


class Cluster:
    """A simulated cluster, and its operator."""

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

    @property
    def operator(self) -> Server:
        """The running operator."""
        assert self._operator, "no operator was started"
        return self._operator

    def ask(self, verb: str, method: str = "GET") -> dict[str, Any]:
        """Return the simulator's answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/bench/{verb}", method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return dict(json.loads(response.read()))

    def schedule(self, expression: str) -> None:
        """Give every dataset the schedule ``expression``, or none if it is empty."""
        self.ask(f"schedule?value={urllib.parse.quote(expression)}", "POST")

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
        options += ["--max-concurrent-builds", str(AT_ONCE), "--max-concurrent-rollouts", str(AT_ONCE)]
        words = [sys.executable, "-m", "benchmarks.operator_load.launch", str(self._admin_port), *options]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self._operator = Server(words, self._folder / "operator.log", core=None, environment=environment)
        return self._operator

    def wait(self, condition: Callable[[dict[str, Any]], bool], what: str, seconds: float) -> None:
        """Wait until ``condition`` of the simulator's state holds."""

        def holds() -> bool:
            time.sleep(0.5)  # the simulator takes a while to answer
            return condition(self.ask("state"))

        self.operator.wait_for(holds, what, seconds)

    def stop_operator(self) -> None:
        """End the operator."""
        if self._operator:
            self._operator.stop()
            self._operator = None

    def close(self) -> None:
        """End everything."""
        self.stop_operator()
        self._server.stop()


@contextmanager
def _phase(
    name: str, cluster: Cluster, operator: Server, phases: dict[str, Phase], resyncs: float = 0
) -> Iterator[None]:
    began, cpu = time.monotonic(), operator.cpu_seconds()
    yield
    wall, spent, state = time.monotonic() - began, operator.cpu_seconds() - cpu, cluster.ask("state")
    phases[name] = Phase(wall, spent, _peak(operator.pid), sum(state["objects"].values()), resyncs)
    print(
        f"{cluster.size.datasets:4} datasets: {name:8} {wall:6.1f} s, {spent:6.2f} CPU s, "
        f"{_peak(operator.pid) / 2**20:4.0f} MiB, {state['bytes'] / 2**20:.0f} MiB received, {state['counts']}",
        flush=True,
    )


def measure(size: Size, folder: Path, wanted: list[str], patience: float) -> dict[str, Phase]:
    """Return the costs of an operator's start in a cluster of ``size``, and of the phases ``wanted``."""
    done: dict[str, Phase] = {}
    with ExitStack() as stack:
        cluster = Cluster(size, folder)
        stack.callback(cluster.close)
        if not cluster.is_settled:
            with _phase("install", cluster, cluster.start_operator(), done):
                cluster.wait(all_serve(size, "g1"), "every dataset served", patience)
            cluster.stop_operator()
            cluster.ask("keep", "POST")
        with _phase("start", cluster, _started(cluster), done):
            _wait_for_looks(cluster, patience)
        if "refresh" in wanted:
            cluster.ask("forget", "POST")
            with _phase("refresh", cluster, cluster.operator, done):
                cluster.ask("refresh?value=now", "POST")
                cluster.wait(all_serve(size, "g2"), "every dataset served what is new", patience)
        if "checks" in wanted:
            cluster.ask("forget", "POST")
            with _phase("checks", cluster, cluster.operator, done):
                cluster.schedule(_slots_from(time.time() + 60))
                cluster.wait(lambda state: state["checked"] == size.datasets, "every source was checked", patience)
            cluster.schedule("")
            _wait_for_rest(cluster.operator)
        if "resync" in wanted:
            cluster.stop_operator()
            operator = _started(cluster, resync_seconds=_RESYNC_SECONDS)
            _wait_for_looks(cluster, patience)
            with _phase("resyncs", cluster, operator, done, resyncs=_RESYNCS):
                time.sleep(_RESYNC_SECONDS * _RESYNCS)
    return done


def _started(cluster: Cluster, resync_seconds: float = 300.0) -> Server:
    cluster.ask("forget", "POST")
    return cluster.start_operator(resync_seconds)


def _slots_from(moment: float) -> str:
    """Return the schedule with a slot every ten minutes, one of them in the minute after ``moment``."""
    begin = int(moment // 60 + 1) % 10
    return f"{','.join(str(begin + ten) for ten in range(0, 60, 10))} * * * *"


def _wait_for_looks(cluster: Cluster, patience: float) -> None:
    """Wait until every dataset was checked, its routers were asked, and the operator is idle."""
    datasets = cluster.size.datasets
    cluster.wait(lambda state: state["asked"] == datasets, "every dataset was looked at", patience)
    _wait_for_rest(cluster.operator)


def all_serve(size: Size, generation: str) -> Callable[[dict[str, Any]], bool]:
    """Return the predicate that says whether every dataset serves ``generation``."""
    return lambda state: state["settled"].get(generation) == size.datasets and state["quiet"] > 1


def _wait_for_rest(operator: Server) -> None:
    """Wait until the operator is idle."""
    before = -1.0
    while (now := operator.cpu_seconds()) - before > 0.1:
        before = now
        time.sleep(2)


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _phases(arguments: argparse.Namespace, size: Size) -> list[str]:
    is_refreshed = arguments.refresh_at_most is None or size.datasets <= arguments.refresh_at_most
    return [phase for phase in arguments.phases if phase != "refresh" or is_refreshed]


def _command(words: list[str]) -> str:
    """Return the command that repeats the measurement, without the place of kept clusters."""
    if "--worlds" in words:
        place = words.index("--worlds")
        words = words[:place] + words[place + 2 :]
    options = " ".join(word for word in words if word != "--write")
    return f"make bench-operator OPTIONS='{options}'" if options else "make bench-operator"


def main() -> int:
    """Run what the arguments ask for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_load", description=__doc__)
    parser.add_argument("--datasets", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument(
        "--phases", nargs="+", default=["refresh", "checks", "resync"], help="phases after installation and start"
    )
    parser.add_argument("--refresh-at-most", type=int, metavar="DATASETS", help="skip refreshes of larger clusters")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for each phase")
    parser.add_argument("--worlds", type=Path, help="a folder to keep settled clusters between runs")
    parser.add_argument("--write", action="store_true", help="write the section of docs/measurements.md")
    arguments = parser.parse_args()
    sizes = [Size(datasets, arguments.shards, arguments.replicas) for datasets in arguments.datasets]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.worlds or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            measured = {size: measure(size, folder, _phases(arguments, size), arguments.patience) for size in sizes}
        except BenchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    written = report.section(measured, _command(sys.argv[1:]))
    print(written)
    if arguments.write:
        _REPORT.write_text(report.merged(_REPORT.read_text(), written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
