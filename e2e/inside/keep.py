"""Keeps asking a router for one key with several tokens, and counts: ``python keep.py URL KEY``.

KEEP_TOKENS has the tokens, a JSON object by name. Each asks every 50 ms on a kept connection, and now and then on a new
one. SIGTERM ends it. Until then, ``GET /`` on port 8000 reports by token:

- ``kept``, the kept connection: the number of ``answers`` and of times it was ``opened``, its successive ``statuses``,
and the ``serials`` of certificates
- ``fresh``: status and serial of the ``latest`` answers on new connections
- ``faults``: no answer, a status other than 200 and 401, or the record of another key
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from functools import partial
from typing import Any

from client import Answer, Connection, parse_body

KEPT_SECONDS = 0.05
FRESH_SECONDS = 0.25
OPEN_SECONDS = 60.0
ASK_PORT = 8000
LATEST = 20
SAMPLES = 6


class Seen:
    """The answers to one token."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.answers = self.opened = 0
        self.statuses: list[int] = []
        self.serials: list[str] = []
        self.latest: deque[tuple[int, str]] = deque(maxlen=LATEST)
        self.faults: list[str] = []

    def note_kept(self, answer: Answer, connection: Connection) -> None:
        """Count one answer on the kept connection."""
        self.answers += 1
        self.opened = connection.opened
        if self.statuses[-1:] != [answer.status]:
            self.statuses.append(answer.status)
        if connection.serial not in ("", *self.serials):
            self.serials.append(connection.serial)
        self._judge("kept", answer)

    def note_fresh(self, answer: Answer, serial: str) -> None:
        """Count one answer on a new connection."""
        self.latest.append((answer.status, serial))
        self._judge("fresh", answer)

    def fail(self, where: str, why: str) -> None:
        """Count a fault."""
        if len(self.faults) < SAMPLES:
            self.faults.append(f"{where}: {why}"[:500])

    def _judge(self, where: str, answer: Answer) -> None:
        if answer.status not in (200, 401) or (answer.status == 200 and parse_body(answer).get("id") != self._key):
            self.fail(where, f"{answer.status} {answer.body[:300]!r}")

    def document(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        kept = {name: getattr(self, name) for name in ("answers", "opened", "statuses", "serials")}
        return {"kept": kept, "fresh": {"latest": list(self.latest)}, "faults": self.faults}


async def ask_kept(seen: Seen, url: str, key: str, token: str, stop: asyncio.Event) -> None:
    """Ask on one connection until ``stop``."""
    connection = Connection(url, token=token)
    await connection.open(OPEN_SECONDS)
    connection.opened = 1
    while not await _is_set(stop, KEPT_SECONDS):
        try:
            seen.note_kept(await connection.get(key), connection)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            seen.fail("kept", f"{type(error).__name__}: {error}")
    connection.close()


async def ask_fresh(seen: Seen, url: str, key: str, token: str, stop: asyncio.Event) -> None:
    """Ask on a new connection each time until ``stop``."""
    first = Connection(url, token=token)
    await first.open(OPEN_SECONDS)
    first.close()
    while not await _is_set(stop, FRESH_SECONDS):
        connection = Connection(url, token=token)
        try:
            answer = await connection.get(key)
            seen.note_fresh(answer, connection.serial)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            seen.fail("fresh", f"{type(error).__name__}: {error}")
        connection.close()


async def _is_set(stop: asyncio.Event, seconds: float) -> bool:
    """Wait this many seconds, and return whether ``stop`` was set meanwhile."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def main() -> None:
    """Run until SIGTERM."""
    url, key = sys.argv[1:3]
    tokens: dict[str, str] = json.loads(os.environ["KEEP_TOKENS"])
    stop, seen = asyncio.Event(), {name: Seen(key) for name in tokens}
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(partial(_serve, seen), "0.0.0.0", ASK_PORT)
    async with asyncio.TaskGroup() as group:
        for name, token in tokens.items():
            for ask in (ask_kept, ask_fresh):
                group.create_task(ask(seen[name], url, key, token, stop))
        await stop.wait()
    server.close()


async def _serve(seen: dict[str, Seen], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps({name: one.document() for name, one in seen.items()}).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(main())
