"""Asks a router without pause, one by one and in batches, and counts faults: ``python load.py URL KEYS_FILE``.

The file holds a JSON array of keys that exist in every generation. A value is an object whose ``version`` is the same
for all records of a generation. SIGTERM ends it: the last line of its output is the summary. Until then, ``GET /`` on
port 8000 returns the summary so far. It counts:

- ``failed``: no answer, or a status other than 200
- ``mixed``: a batch, or a generation, with two versions
- ``wrong``: not the requested keys, or the record of another key
- ``back``: how often a connection went back to an older generation, once in each rollback

With LOAD_PER_SHARD=1, for a rollout shard by shard, a batch may come from several generations, which it has to list.
Then ``back`` counts keys that got an earlier value again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from client import Answer, Connection, parse_body

SINGLES = int(os.environ.get("LOAD_SINGLES", "12"))
BATCHES = int(os.environ.get("LOAD_BATCHES", "4"))
BATCH_KEYS = 50
PER_SECOND = float(os.environ.get("LOAD_PER_SECOND", "350"))
"""Answers a second, over all connections."""
PER_SHARD = os.environ.get("LOAD_PER_SHARD", "") == "1"
ASK_PORT = 8000
OPEN_SECONDS = 60.0
SAMPLES = 6
"""The number of samples kept of each kind of fault."""


class Summary:
    """The counts."""

    def __init__(self) -> None:
        self.began = time.time()
        self.answers = self.keys = self.failed = self.mixed = self.wrong = self.back = 0
        self.samples: dict[str, list[str]] = {}
        self.generations: dict[str, dict[str, Any]] = {}
        """Generation → times of the first and the last answer, number of answers, versions."""
        self.together: dict[str, dict[str, Any]] = {}
        """Batches of several generations: their names → number of answers, versions."""
        self.longest = 0.0

    def sample(self, kind: str, text: str) -> None:
        """Keep the first few of each kind, so that a hundred failures leave room for the one wrong answer."""
        held = self.samples.setdefault(kind, [])
        if len(held) < SAMPLES:
            held.append(f"{kind} after {time.time() - self.began:.3f} s: {text}"[:500])

    def count_generation(self, generation: str, version: Any) -> None:
        """Count one answer of ``generation``."""
        now = time.time()
        held = self.generations.setdefault(generation, {"first": now, "last": now, "answers": 0, "versions": []})
        held["last"] = now
        held["answers"] += 1
        if version not in held["versions"]:
            held["versions"].append(version)
            if len(held["versions"]) > 1:
                self.mixed += 1
                self.sample("mixed", f"generation {generation} answers versions {held['versions']}")

    def count_together(self, names: str, versions: set[str]) -> None:
        """Count one batch of several generations."""
        held = self.together.setdefault(names, {"answers": 0, "versions": []})
        held["answers"] += 1
        held["versions"] = sorted({*held["versions"], *versions})

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON; times are Unix time."""
        names = ("answers", "keys", "failed", "mixed", "wrong", "back", "generations", "together", "began", "longest")
        samples = [text for kind in ("wrong", "mixed", "back", "failed") for text in self.samples.get(kind, [])]
        counted = {name: getattr(self, name) for name in names}
        return counted | {"samples": samples, "connections": SINGLES + BATCHES, "now": time.time()}


class Asker:
    """The load of one connection."""

    def __init__(self, url: str, keys: list[str], summary: Summary, *, batch: bool) -> None:
        self._connection = Connection(url)
        self._keys, self._summary, self._batch = keys, summary, batch
        self._last = 0
        """The number of the last answer's generation."""
        self._had: dict[str, list[str]] = {}
        """Key → the versions that its value had, the current one last."""

    async def run(self, stop: asyncio.Event) -> None:
        """Ask at its share of the rate until ``stop``, once the node knows the router's Service."""
        await self._connection.open(OPEN_SECONDS)
        pause = (SINGLES + BATCHES) / PER_SECOND
        due = time.monotonic() + random.random() * pause
        while not stop.is_set():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + pause, time.monotonic() - 1)
            keys = (
                random.sample(self._keys, min(BATCH_KEYS, len(self._keys)))
                if self._batch
                else [random.choice(self._keys)]
            )
            began = time.monotonic()
            try:
                answer = await (self._connection.batch(keys) if self._batch else self._connection.get(keys[0]))
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._fail(f"{type(error).__name__}: {error}")
                continue
            self._summary.longest = max(self._summary.longest, time.monotonic() - began)
            self.judge(keys, answer)
        self._connection.close()

    def _fail(self, why: str) -> None:
        self._summary.answers += 1
        self._summary.failed += 1
        self._summary.sample("failed", f"{'batch' if self._batch else 'single'}: {why}")

    def judge(self, keys: list[str], answer: Answer) -> None:
        """Count one answer."""
        if answer.status != 200:
            return self._fail(f"{answer.status} {answer.body[:300]!r}")
        summary, body = self._summary, parse_body(answer)
        summary.answers += 1
        summary.keys += len(keys)
        found = body["found"] if self._batch else {keys[0]: body}
        names = body.get("generations") or [body["generation"]] if self._batch else [answer.generation]
        if (
            answer.generation not in ("", ", ".join(names))
            or set(found) != set(keys)
            or any(found[key].get("id", key) != key for key in keys)
        ):
            summary.wrong += 1
            summary.sample("wrong", f"asked {keys[:3]}…, found {str(body)[:300]}")
            return None
        versions = {value["version"] for value in found.values()}
        if len(versions) > len(names) or (len(names) > 1 and not PER_SHARD):
            summary.mixed += 1
            summary.sample("mixed", f"one batch of {', '.join(names)} holds versions {sorted(versions)}")
        if len(names) > 1:
            summary.count_together(", ".join(names), versions)
        else:
            for version in versions:
                summary.count_generation(names[0], version)
        if PER_SHARD:
            self._follow_keys({key: value["version"] for key, value in found.items()})
        else:
            self._follow_generation(int(names[0][1:]))
        return None

    def _follow_generation(self, number: int) -> None:
        if number < self._last:
            self._summary.back += 1
            self._summary.sample("back", f"a connection went from g{self._last} back to g{number}")
        self._last = number

    def _follow_keys(self, versions: dict[str, str]) -> None:
        for key, version in versions.items():
            had = self._had.setdefault(key, [version])
            if version != had[-1]:
                if version in had:
                    self._summary.back += 1
                    self._summary.sample("back", f"{key} went from {had[-1]} back to {version}")
                had.append(version)


async def main() -> None:
    """Run until SIGTERM."""
    url, keys = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    summary, stop = Summary(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(partial(_serve_summary, summary), "0.0.0.0", ASK_PORT)
    async with asyncio.TaskGroup() as group:
        for number in count():
            if number == SINGLES + BATCHES:
                break
            group.create_task(Asker(url, keys, summary, batch=number < BATCHES).run(stop))
    server.close()
    print(json.dumps(summary.document()), flush=True)


async def _serve_summary(summary: Summary, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps(summary.document()).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(main())
