"""`python -m benchmarks.delivery`: the cost of getting a shard to a server, by spec.serving.delivery.

Builds a generation of incompressible values. Serves its first shard from a store in a folder, each time with an empty
page cache: fetched into another folder or mapped in place, warmed or not. Then writes the images of all shards, and
pushes them to a local registry. Prints Markdown.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.processes import Cost, Server, measured

_LOOKUPDB: Final = (sys.executable, "-m", "lookupdb")
_TOOLS: Final = Path(__file__).parents[1] / ".tools" / "bin"
"""`make oras` puts it here."""
_VALUE_BYTES: Final = 768
_KEYS: Final = 1000
_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one server, and its first lookups."""

    fetch_seconds: float
    ready_seconds: float
    """The server's own time."""
    first_milliseconds: float
    """The first lookup."""
    median_microseconds: float
    """The first thousand lookups, one after the other."""
    slowest_milliseconds: float
    disk_bytes: int
    """Files beside the store."""


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024, metavar="N", help="size of the generation")
    parser.add_argument("--shards", type=int, default=4, metavar="N")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="repetitions of each way, in turns")
    parser.add_argument("--folder", type=Path, help="the store's folder, for example on a mount")
    parser.add_argument("--repository", help="HOST/PATH of a registry without TLS; by default one in memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lookupdb-delivery-") as scratch:
        folder = options.folder or Path(scratch)
        with tempfile.TemporaryDirectory(prefix="store-", dir=folder) as store:
            _Measurement(Path(scratch), Path(store), options).run()


class _Measurement:
    def __init__(self, scratch: Path, store: Path, options: argparse.Namespace) -> None:
        self._scratch = scratch
        self._store = store
        self._options = options
        self._keys: list[str] = []

    @property
    def _generation(self) -> Path:
        return self._store / "local" / "default" / "people-local" / "g1"

    def run(self) -> None:
        self._build()
        shard = next(self._generation.glob("shard-00000-*"))
        print(f"# a shard of {shard.stat().st_size:,} bytes, one of {self._options.shards}\n")
        ways: dict[str, Callable[[], Start]] = {
            "Fetch": lambda: self._fetch("auto"),
            "Volume": lambda: self._serve(self._generation, "auto"),
            "Fetch, not warmed": lambda: self._fetch("never"),
            "Volume, not warmed": lambda: self._serve(self._generation, "never"),
        }
        starts: dict[str, list[Start]] = {way: [] for way in ways}
        for _ in range(self._options.repetitions):
            for way, start in ways.items():
                _drop_pages(self._store)
                starts[way].append(start())
        _print_starts(starts)
        self._measure_images()

    def _build(self) -> None:
        """Build a generation of seeded records. Only keys of its first shard are asked for."""
        source = self._scratch / "people.csv"
        rows = self._options.megabytes * (1 << 20) // (_VALUE_BYTES * 4 // 3 + 40)
        chance = random.Random(1)
        with source.open("w") as file:
            file.write("id,text\n")
            for row in range(rows):
                file.write(f"key-{row},{base64.b64encode(chance.randbytes(_VALUE_BYTES)).decode()}\n")
        dataset = {
            "apiVersion": "lookupdb.dev/v1alpha1",
            "kind": "LookupDataset",
            "metadata": {"name": "people"},
            "spec": {
                "source": {"url": str(source)},
                "key": {"columns": ["id"]},
                "value": {"column": "text", "format": "raw", "compression": "none"},
                "shards": self._options.shards,
            },
        }
        manifest = self._scratch / "people.yaml"
        manifest.write_text(yaml.safe_dump(dataset))
        _run("build", "-f", str(manifest), "--generation", "g1", *self._place, "--progress", "none")
        source.unlink()
        self._keys = _choose_keys(rows, self._options.shards)

    @property
    def _place(self) -> Sequence[str]:
        return "--store", str(self._store)

    def _fetch(self, warm: str) -> Start:
        folder = self._scratch / "fetched"
        shutil.rmtree(folder, ignore_errors=True)
        words = ("--dataset", "people", "--generation", "g1", "--shard", "0", *self._place)
        cost = _run("fetch", str(folder), *words)
        return self._serve(folder, warm, cost.seconds, sum(file.stat().st_size for file in folder.iterdir()))

    def _serve(self, folder: Path, warm: str, fetch_seconds: float = 0.0, disk_bytes: int = 0) -> Start:
        ready = self._scratch / "ready.json"
        ready.unlink(missing_ok=True)
        words = ["serve", str(folder), "--shard", "0", "--warm", warm, "--port", "0", "--admin-port", "0"]
        words += ["--wait", "30", "--drain-seconds", "0", "--ready-file", str(ready)]
        began = time.monotonic()
        server = Server([*_LOOKUPDB, *words], self._scratch / "serve.log", core=None)
        try:
            server.wait_for(ready.exists, "it was ready", _SECONDS)
            seconds = time.monotonic() - began
            times = _ask(json.loads(ready.read_text())["ports"][0], self._keys)
        finally:
            server.stop()
        return Start(
            fetch_seconds=fetch_seconds,
            ready_seconds=seconds,
            first_milliseconds=1e3 * times[0],
            median_microseconds=1e6 * statistics.median(times),
            slowest_milliseconds=1e3 * max(times),
            disk_bytes=disk_bytes,
        )

    def _measure_images(self) -> None:
        os.environ["PATH"] = f"{_TOOLS}:{os.environ['PATH']}"
        layout = self._scratch / "layout"
        target = (*self._place, "--dataset", "people", "--progress", "none")
        _drop_pages(self._store)
        written = _run("image", "write", "g1", "--out", str(layout), *target)
        size = sum(file.stat().st_size for file in layout.rglob("*") if file.is_file())
        with _open_registry(self._options.repository) as repository:
            _drop_pages(self._store)
            words = ("image", "push", "g1", "--repository", repository, "--plain-http", *target)
            pushed, again = _run(*words), _run(*words)
        rows = (("image write", written), ("image push", pushed), ("image push, again", again))
        print(f"\nimages of all shards: {size:,} bytes\n\n| | seconds | peak memory, MiB |\n| --- | --- | --- |")
        for name, cost in rows:
            print(f"| {name} | {cost.seconds:.1f} | {cost.peak_bytes >> 20} |")


def _choose_keys(rows: int, shards: int) -> list[str]:
    from lookupdb.keys import shard_number

    chance = random.Random(2)
    keys: list[str] = []
    while len(keys) < min(_KEYS, rows // (2 * shards)):
        key = f"key-{chance.randrange(rows)}"
        if shard_number(key.encode(), shards) == 0:
            keys.append(key)
    return keys


def _run(*words: str) -> Cost:
    return measured([*_LOOKUPDB, *words], _SECONDS)


def _drop_pages(folder: Path) -> None:
    """Drop the files in ``folder`` from the page cache."""
    for path in folder.rglob("*.lmdb"):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _ask(port: int, keys: Sequence[str]) -> list[float]:
    """Return the seconds of each lookup, one after the other on one connection. Each key must be found."""
    times = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client, client.makefile("rb") as answers:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for key in keys:
            began = time.perf_counter()
            client.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key.encode()))
            size = int(answers.readline()[1:])
            assert size > 0, f"{key} is missing"
            answers.read(size + 2)
            times.append(time.perf_counter() - began)
    return times


def _open_registry(repository: str | None) -> AbstractContextManager[str]:
    """Return a repository, by default of an empty test registry."""
    from contextlib import contextmanager, nullcontext

    if repository is not None:
        return nullcontext(repository)
    sys.path.append(str(Path(__file__).parents[1] / "server" / "tests"))
    from support.registry import serve_registry

    @contextmanager
    def opened() -> Any:
        with serve_registry() as registry:
            registry.keeps_blobs = False
            yield f"{registry.host}/lookups"

    return opened()


def _print_starts(starts: dict[str, list[Start]]) -> None:
    print("| | fetched, s | then ready, s | first lookup, ms | median of 1,000, µs | slowest, ms | copied, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way, found in starts.items():
        middle = {name: statistics.median(getattr(start, name) for start in found) for name in Start.__slots__}
        print(
            f"| {way} | {middle['fetch_seconds']:.2f} | {middle['ready_seconds']:.2f}"
            f" | {middle['first_milliseconds']:.2f} | {middle['median_microseconds']:.0f}"
            f" | {middle['slowest_milliseconds']:.1f} | {middle['disk_bytes'] / 1e6:.0f} |"
        )


if __name__ == "__main__":
    main()
