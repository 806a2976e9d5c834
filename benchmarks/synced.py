"""`python -m benchmarks.synced`: eight workers of a machine read the copy of `lookupdb sync`.

A generation is built in an S3 server (moto's, slower than a real one; ``make .venv/.test`` installs it), announced,
synced, and mapped by forked workers, which ask for all keys in turn. Then the next generation is announced, and the
time until every worker answers from it is measured. At the end, compares the memory of all processes with that of a
dict of the same records in one worker. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from benchmarks import datasets, memory

_LOOKUPDB: Final = (sys.executable, "-m", "lookupdb")
_NAME: Final = "recommendations"
_RECORD_BYTES: Final = 459
"""The bytes of a line of the source."""
_SECONDS: Final = 1800
_ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synced", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100, metavar="N", help="size of the source")
    parser.add_argument("--workers", type=int, default=8, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lookupdb-synced-") as scratch, _s3_server(Path(scratch)) as store:
        _Measurement(Path(scratch), store, options.megabytes * 10**6 // _RECORD_BYTES, options.workers).run()


class _Measurement:
    def __init__(self, scratch: Path, store: str, records: int, workers: int) -> None:
        self._scratch, self._store, self._records, self._workers = scratch, store, records, workers
        self._folder = scratch / "synced"

    def run(self) -> None:
        source = datasets.source(self._scratch, _NAME, self._records)
        self._build(source)
        self._announce("g1", 1)
        with _process("sync", self._folder, *self._where(), "--admin-port", "0") as sync:
            link = self._folder / "default" / self._name / "current"
            _wait(link.exists, "the first generation is synced")
            pids = [self._fork(source, worker) for worker in range(self._workers)]
            try:
                self._wait_seen("g1")
                self._build(source)
                announced = time.time()
                self._announce("g2", 2)
                seen = self._wait_seen("g2")
                self._report(source, sync.pid, pids, max(seen) - announced)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    @property
    def _name(self) -> str:
        return f"{_NAME}-{self._records}-none-4"

    def _where(self) -> Sequence[str]:
        return ("--store", self._store, "--dataset", self._name)

    def _build(self, source: Path) -> None:
        manifest = datasets.manifest(self._scratch, _NAME, source, shards=4, compression="none")
        command = [*_LOOKUPDB, "build", "-f", str(manifest), "--store", self._store]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | _ENVIRONMENT)

    def _announce(self, generation: str, version: int) -> None:
        """Announce a generation, as a cutover does."""
        from lookupdb.manifest import ANNOUNCEMENT_NOTE, Announcement
        from lookupdb.store import StoreAddress, open_store

        now = datetime.datetime.now(datetime.UTC).isoformat()
        note = Announcement("default", self._name, "local", generation, version, now)
        dataset = open_store(self._store).dataset_at(StoreAddress("local", "default", self._name, "local"))
        dataset.write_note(ANNOUNCEMENT_NOTE, note.to_json())

    def _fork(self, source: Path, worker: int) -> int:
        """A worker that asks for all keys again and again, and writes when it first sees a generation."""
        pid = os.fork()
        if pid:
            return pid
        with contextlib.suppress(KeyboardInterrupt):
            self._follow(source, worker)
        os._exit(1)

    def _follow(self, source: Path, worker: int) -> None:
        import lookupdb

        mapping = lookupdb.open(self._folder / "default" / self._name)
        seen = ""
        while True:
            with source.open("rb") as lines:
                for line in lines:
                    assert mapping[orjson.loads(line)["customer"]]
                    if mapping.generation != seen:
                        seen = mapping.generation
                        (self._scratch / f"{seen}-{worker}").write_text(str(time.time()))
            (self._scratch / f"{seen}-{worker}-all").touch()

    def _wait_seen(self, generation: str) -> list[float]:
        """Wait until all have read all of ``generation``, and return when each first saw it."""
        files = [self._scratch / f"{generation}-{worker}" for worker in range(self._workers)]
        done = [file.with_name(f"{file.name}-all") for file in files]
        _wait(lambda: all(file.exists() for file in done), f"all workers have read {generation}")
        return [float(file.read_text()) for file in files]

    def _report(self, source: Path, sync: int, pids: Sequence[int], seconds: float) -> None:
        files = sum(file.stat().st_size for file in (self._folder / "default" / self._name / "g2").glob("*.lmdb"))
        of_workers = sum(memory.proportional(pid) for pid in pids)
        of_sync = memory.proportional(sync)
        of_dict = self._measure_dict(source)
        dicts = of_dict * self._workers
        print(
            f"| {self._workers} workers, {self._records:,} records, files of {files / 1e6:,.0f} MB | |\n| --- | --- |"
        )
        print(f"| from the announcement until all answer from the next generation | {seconds:.2f} s |")
        print(f"| memory of all workers, mapped files included | {of_workers / 1e6:,.0f} MB |")
        print(f"| of lookupdb sync | {of_sync / 1e6:,.0f} MB |")
        print(f"| of a worker with the records in a dict | {of_dict / 1e6:,.0f} MB |")
        print(f"| (workers + sync) / {self._workers} such dicts | {(of_workers + of_sync) / dicts:.3f} |")

    def _measure_dict(self, source: Path) -> int:
        """Return the bytes of a process that holds the records in a dict."""
        program = (
            "import json, sys\n"
            "records = {}\n"
            "for line in open(sys.argv[1], 'rb'):\n"
            "    record = json.loads(line)\n"
            "    records[record['customer']] = record['products']\n"
            "print(flush=True)\n"
            "sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", program, str(source)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            return memory.proportional(process.pid)


@contextlib.contextmanager
def _s3_server(scratch: Path) -> Iterator[str]:
    """Start moto's server with a bucket. Return its URL as a store's, and the environment for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    os.environ.update(_ENVIRONMENT, AWS_ENDPOINT_URL=url)
    log = (scratch / "s3.log").open("wb")
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            _wait(lambda: _is_made(f"{url}/lookups"), "the bucket is made")
            yield "s3://lookups"
        finally:
            server.terminate()


def _is_made(bucket: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _process(verb: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [*_LOOKUPDB, verb, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def _wait(holds: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + _SECONDS
    while not holds():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"waited in vain: {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
