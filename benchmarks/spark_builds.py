"""Measure builds by engine: ``python -m benchmarks.spark_builds --rows 1000000`` (needs `make test-spark`'s packages).

It makes JSON lines of ten products for each customer, or CSV of one number for each, builds them with each engine, and
prints seconds, processor seconds of the driver and its children, the peak of resident memory of the driver (its Python
and its JVM), and that of the scratch on disk. With the master ``standalone``, the driver is alone: a master and two
workers of Spark are processes of their own, and the peak of all executors is printed too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

STANDALONE: Final = "standalone"
MASTERS: Final = ("", "local[2]", "local-cluster[2,1,1024]", STANDALONE)
"""Masters of Spark; an empty one means the local engine."""
_MANIFEST: Final = """\
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {{name: customers}}
spec:
  source: {{url: {source}}}
  key: {{columns: [customer]}}
  value: {{columns: [{value}]}}
  shards: {shards}
"""
_SAMPLE_SECONDS: Final = 0.1
_DISK_SECONDS: Final = 2.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def write_source(path: Path, rows: int) -> None:
    """Write ``rows`` rows of CSV or JSON lines, as the name of ``path`` says."""
    chance = random.Random(1)
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("customer,visits\n")
            file.writelines(f"customer-{number:09d},{chance.randrange(10**9)}\n" for number in range(rows))
            return
        for number in range(rows):
            products = [f"product-{chance.randrange(100_000):06d}" for _ in range(10)]
            file.write(json.dumps({"customer": f"customer-{number:09d}", "products": products}) + "\n")


@dataclass
class Usage:
    """What the processes of one build have used so far."""

    folder: Path
    peak_disk: int = 0
    peak_executors: int = 0
    """Bytes of executors' JVMs and their Python, all together. Pages that forks share count in each."""
    peak_python: int = 0
    peak_java: int = 0
    """Bytes of the driver's own processes."""
    peak_driver: int = 0
    """Bytes of both at once."""
    ticks: dict[int, int] = field(default_factory=dict)
    _disk_at: float = 0.0

    def sample(self, driver: int) -> None:
        """Look at all processes below ``driver``."""
        found = dict(_processes())
        python = found[driver][2] if driver in found else 0
        java = sum(size for parent, _, size in found.values() if parent == driver)
        self.peak_python, self.peak_java = max(self.peak_python, python), max(self.peak_java, java)
        self.peak_driver = max(self.peak_driver, python + java)
        for pid in _below(found, {driver}) | {driver} & found.keys():
            self.ticks[pid] = found[pid][1]
        daemons = {pid for pid, (parent, _, _) in found.items() if parent == os.getpid()} - {driver}
        self.peak_executors = max(self.peak_executors, sum(found[pid][2] for pid in _below(found, daemons)))
        if time.monotonic() - self._disk_at >= _DISK_SECONDS:
            self._disk_at = time.monotonic()
            self.peak_disk = max(self.peak_disk, sum(map(_disk_bytes, self.folder.glob("[!r]*"))))


def _below(found: Mapping[int, tuple[int, int, int]], roots: AbstractSet[int]) -> set[int]:
    """Return the processes below ``roots``."""
    children = {pid for pid, (parent, _, _) in found.items() if parent in roots}
    return children | _below(found, children) if children else children


def _disk_bytes(path: Path) -> int:
    """Return the disk space below ``path``, except for stores."""
    total = 0
    with contextlib.suppress(OSError):  # a file is gone
        for file in () if path.name.startswith("store") else path.rglob("*"):
            total += file.lstat().st_blocks * 512
    return total


def _processes() -> list[tuple[int, tuple[int, int, int]]]:
    """Return each process's parent, processor time in ticks and resident bytes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            parts = path.read_text().rpartition(")")[2].split()
            found.append(
                (int(path.parent.name), (int(parts[1]), int(parts[11]) + int(parts[12]), int(parts[21]) * _PAGE))
            )
    return found


@contextlib.contextmanager
def start_cluster(folder: Path) -> Iterator[str]:
    """Yield the URL of a master of Spark with two workers of one core and 1 GiB each, on this machine."""
    import pyspark

    program = f"{Path(pyspark.__file__).parent}/bin/spark-class"
    with socket.socket() as free, contextlib.ExitStack() as stack:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        url = f"spark://127.0.0.1:{port}"
        place = ["--host", "127.0.0.1", "--webui-port", "0"]
        worker = ["worker.Worker", *place, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), url]
        environment = {**os.environ, "SPARK_LOCAL_DIRS": str(folder), "SPARK_DAEMON_MEMORY": "256m"}
        for words in (["master.Master", *place, "--port", str(port)], worker, worker):
            command = [program, f"org.apache.spark.deploy.{words[0]}", *words[1:]]
            log = stack.enter_context((folder / "cluster.log").open("ab"))
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        yield url


def measure(folder: Path, master: str, conf: Sequence[str] = ()) -> list[str]:
    """Build once, print a row of the table, and return the SHA-256 of each shard."""
    if master == STANDALONE:
        own = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", f"spark.local.dir={folder}"]
        with start_cluster(folder) as url:
            return measure(folder, url, [*own, *conf])
    words = [sys.executable, "-m", "lookupdb", "build", "--json", "-f", str(folder / "data.yaml"), "--threads", "2"]
    words += [
        "--store",
        str(store := folder / f"store-{uuid.uuid4().hex}"),
        "--scratch",
        str(folder / "scratch"),
        "--progress",
        "none",
    ]
    words += ["--engine", "Spark", "--spark-master", master] if master else ["--engine", "Local"]
    words += [word for setting in conf for word in ("--spark-conf", setting)] if master else []
    began, usage = time.monotonic(), Usage(folder)
    with subprocess.Popen(words, stdout=subprocess.PIPE) as driver:
        while driver.poll() is None:
            usage.sample(driver.pid)
            time.sleep(_SAMPLE_SECONDS)
        assert driver.stdout
        report = driver.stdout.read()
    if driver.returncode:
        raise SystemExit(f"the build with {master or 'Local'} ended with {driver.returncode}")
    records, seconds = json.loads(report)["records"], time.monotonic() - began
    peaks = (usage.peak_python, usage.peak_java, usage.peak_driver, usage.peak_executors, usage.peak_disk)
    sizes = [f"{size / (1 << 20):,.0f}" for size in peaks]
    processor = sum(usage.ticks.values()) / _TICKS
    print(f"| {master or 'Local'} | {records:,} | {seconds:.1f} | {processor:.1f} | {' | '.join(sizes)} |", flush=True)
    (index,) = store.rglob("manifest.json")
    return [shard["sha256"] for shard in json.loads(index.read_bytes())["shards"]]


def main() -> None:
    """Measure each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--master", action="append", help="an empty one is the local engine; default: all")
    parser.add_argument("--format", choices=["jsonl", "csv"], default="jsonl")
    parser.add_argument("--spark-conf", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-builds-") as name:
        folder = Path(name)
        source, value = f"rows.{options.format}", "visits" if options.format == "csv" else "products"
        write_source(folder / source, options.rows)
        (folder / "data.yaml").write_text(_MANIFEST.format(source=source, value=value, shards=options.shards))
        size = (folder / source).stat().st_size
        print(f"{options.rows:,} rows, {size / (1 << 20):,.0f} MiB of {options.format}, {options.shards} shards\n")
        print("Memory of the driver (Python, JVM, both) and of all executors, and scratch on disk, in MiB:\n")
        print("| engine | records | seconds | processor seconds | Python | JVM | both | executors | scratch |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        masters = MASTERS if options.master is None else options.master
        files = [measure(folder, master, options.spark_conf) for master in masters]
    if any(sums != files[0] for sums in files):
        raise SystemExit("the engines have written different files")


if __name__ == "__main__":
    main()
