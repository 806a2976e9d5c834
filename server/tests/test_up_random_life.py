"""A random life of `lookupdb up`: edits, commands, full disks and killed processes, while lookups must neither fail nor
mix. LOOKUPDB_LIFE_SECONDS=3600 lets it live for an hour."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import urllib3
from support.ports import free_port
from support.process_table import descendants, is_running
from support.up_stack import DEADLINE_SECONDS, Start, eventually, people, run_lookupdb, swap
from support.up_stack import MANIFEST as ONE_SERVER
from support.waiting import until

from lookupdb.process.memory import private_bytes

__all__ = ["people"]

SEED = int(os.environ.get("LOOKUPDB_LIFE_SEED", "20261128"))
SECONDS = float(os.environ.get("LOOKUPDB_LIFE_SECONDS", "0"))
"""It lives at least for a round in which everything happens once."""
MOST_BYTES = 4 << 20
"""The most bytes of the data folder: generations of 20 keys, and logs."""
MOST_MEMORY = 1 << 29
"""Private bytes of all processes, while two generations of three shards run. More run after fast cutovers: each starts
the drain time again."""
SOON_SECONDS = 15.0
"""Far more than an `up` needs to end, for a busy machine."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 240)]
KEYS = [f"key{number}" for number in range(20)]
MANIFEST = ONE_SERVER.replace("  shards: 1\n", "  shards: 2\n  replicas: 2\n").replace(": 5000", ": 20000")
BAD_SOURCES = ('email,title\nno,"end', "", "email,title\n", "x\n1\n", "email,title\na,1\na,2\n")
BAD_MANIFESTS = ("", "spec: [", "- 1\n", MANIFEST.replace("name: people", "name: people, annotations: 5"))


class Checker(threading.Thread):
    """Asks for all keys, again and again. While ``is_excused``, the router is away or may be."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/v1/lookup"
        self.pool = urllib3.PoolManager(maxsize=2)
        self.titles: set[str] = set()
        """The titles in all good sources so far."""
        self.is_excused = True
        self.is_over = False
        self.requests = 0
        self.problems: list[str] = []

    def ask(self, *expected: str) -> str:
        """What is wrong with an answer, whose titles are all ``expected`` or of good sources; empty for nothing."""
        try:
            answer = self.pool.request("POST", self.url, json={"keys": KEYS}, timeout=60, retries=False)
        except urllib3.exceptions.HTTPError as error:
            return f"failed: {error!r}"
        try:
            body = answer.json()
        except ValueError:
            return f"wrong: {answer.data[:500]!r}"
        titles = {value["title"] for value in body.get("found", {}).values()}
        is_whole = answer.status == 200 and len(body.get("found", {})) == len(KEYS)
        is_right = is_whole and len(titles) == 1 and titles <= (set(expected) or self.titles)
        return "" if is_right else f"wrong: {answer.data[:500]!r}"

    def run(self) -> None:
        while not self.is_over:
            was_excused = self.is_excused
            problem = self.ask()
            if not was_excused and not self.is_excused:
                self.requests += 1
                self.problems += [problem] if problem else []
            time.sleep(0.02)


class Life:
    """A running `up`, and what may happen to it."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.folder, self.random, self.version, self.manifest = folder, random.Random(SEED), 0, MANIFEST
        self.port = free_port()
        self.flags = ("--watch", "--watch-seconds", "0.2", "--port", str(self.port))
        self.start, self.checker = start, Checker(self.port)
        self.write_manifest()
        self.write_source()
        self.stack = start(*self.flags)
        self.await_lookups()
        self.checker.start()
        self.happenings = (self.write_source, self.write_bad_source, self.move_source, self.write_bad_manifest) + (
            *(self.command, self.command, self.kill_shard_server, self.kill_router, self.kill_any),
            *(self.kill_builder, self.kill_up, self.stop_up, self.edit_manifest, self.fill_disk),
        )

    def write_manifest(self) -> None:
        swap(self.folder / "people.yaml", self.manifest)

    def edit_manifest(self) -> None:
        shards, keep = self.random.randint(1, 3), self.random.randint(2, 4)
        self.manifest = MANIFEST.replace("shards: 2", f"shards: {shards}")
        self.manifest = self.manifest.replace("keepGenerations: 2", f"keepGenerations: {keep}")
        self.write_manifest()

    def write_source(self) -> None:
        self.version += 1
        self.checker.titles.add(f"v{self.version}")
        swap(self.folder / "people.csv", "email,title\n" + "".join(f"{key},v{self.version}\n" for key in KEYS))

    def write_bad_source(self) -> None:
        swap(self.folder / "people.csv", self.random.choice(BAD_SOURCES))

    def move_source(self) -> None:
        (self.folder / "people.csv").replace(self.folder / "away.csv")
        time.sleep(0.5)
        (self.folder / "people.csv").symlink_to(self.folder / "away.csv")

    def write_bad_manifest(self) -> None:
        swap(self.folder / "people.yaml", self.random.choice(BAD_MANIFESTS))
        time.sleep(0.5)
        self.write_manifest()

    def command(self) -> None:
        newest = self.stack.generations()[-1]
        words = self.random.choice((("rollback",), ("pin", newest), ("unpin",), ("refresh",), ("prune",), ("status",)))
        self.run(*words)

    def run(self, verb: str, *words: str) -> str:
        """Run the verb and return what it says."""
        done = run_lookupdb(verb, "people", *words, "--data", str(self.stack.data))
        assert "Traceback" not in done.stderr, done.stderr
        return f"{verb} {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"

    def has_replicas(self) -> bool:
        shards = [shard["shard"] for shard in self.stack.state["shards"] if is_running(shard["pid"])]
        return all(shards.count(shard) == 2 for shard in shards)

    def kill_shard_server(self) -> None:
        """One of two replicas."""
        eventually(self.has_replicas, "two replicas of each shard")
        os.kill(self.random.choice(self.stack.pids[1:]), signal.SIGKILL)
        time.sleep(3)

    @contextmanager
    def excused(self) -> Iterator[None]:
        self.checker.is_excused = True
        yield
        self.await_lookups()

    def await_lookups(self) -> None:
        eventually(lambda: self.stack.state["pid"] == self.stack.process.pid, "its up.json")
        eventually(lambda: not self.checker.ask(), f"right answers\n{self.stack.output}")
        self.checker.is_excused = False

    def kill_router(self) -> None:
        with self.excused():
            router = self.stack.pids[0]
            os.kill(router, signal.SIGKILL)
            eventually(lambda: self.stack.pids[0] != router, "another router")

    def kill_any(self) -> None:
        """A worker, a server or what starts them."""
        with self.excused():
            os.kill(self.random.choice(list(descendants(self.stack.process.pid))), signal.SIGKILL)
            time.sleep(1)

    def fill_disk(self) -> None:
        """No process can write into a file."""
        self.write_source()
        time.sleep(self.random.random())
        self.limit_files(0)
        time.sleep(2)
        self.run("status")
        self.limit_files(resource.RLIM_INFINITY)

    def limit_files(self, size: int) -> None:
        for pid in (self.stack.process.pid, *descendants(self.stack.process.pid)):
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def await_newest(self) -> None:
        """Nothing that has happened keeps the next good source from being served."""
        self.write_source()
        said = self.run("unpin")
        newest = f"v{self.version}"
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.checker.ask(newest):
            assert time.monotonic() < deadline, f"{newest}\n{said}{self.run('status')}{self.stack.output}"
            time.sleep(0.05)

    def bytes_on_disk(self) -> int:
        """The bytes of all files in the data folder."""
        used = 0
        for folder, _, files in os.walk(self.stack.data):  # unlike pathlib's, it passes over folders that vanish
            for name in files:
                with suppress(OSError):
                    used += Path(folder, name).lstat().st_size
        return used

    def memory(self) -> int:
        """The private bytes of all processes."""
        return sum(private_bytes(pid) or 0 for pid in (self.stack.process.pid, *descendants(self.stack.process.pid)))

    def kill_builder(self) -> None:
        self.write_source()
        time.sleep(self.random.random())
        for pid in descendants(self.stack.process.pid):
            with suppress(OSError):
                if "\0build\0" in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)

    def kill_up(self) -> None:
        self.end(signal.SIGKILL)

    def stop_up(self) -> None:
        self.end(signal.SIGINT)

    def end(self, number: signal.Signals) -> None:
        """End `up` perhaps while it builds, look for orphans, and start it again."""
        with self.excused():
            self.write_source()
            time.sleep(self.random.random())
            children = list(descendants(self.stack.process.pid))
            self.stack.stop(number)
            until(lambda: not any(map(is_running, children)), "no orphans", SOON_SECONDS)
            self.stack = self.start(*self.flags)


def test_no_lookup_fails_or_mixes_generations_in_a_random_life(people: Start, tmp_path: Path) -> None:
    life = Life(people, tmp_path)
    began = time.monotonic()
    while not life.checker.requests or time.monotonic() < began + SECONDS:
        for happen in life.random.sample(life.happenings, len(life.happenings)):
            happen()
            assert life.stack.process.poll() is None, life.stack.output
            assert life.checker.problems == [], happen
            time.sleep(life.random.random())
        life.await_newest()
        until(lambda: life.memory() < MOST_MEMORY, "the memory of two generations again")
        used, memory = life.bytes_on_disk(), life.memory() >> 20
        print(f"{time.monotonic() - began:.0f} s, {life.checker.requests} requests, {used} B, {memory} MiB")
        assert used < MOST_BYTES
    life.checker.is_over = True
    life.checker.join()
    assert life.checker.problems == []
    assert life.checker.requests > len(life.happenings)
