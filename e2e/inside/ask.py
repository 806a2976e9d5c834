"""Looks up keys and prints the answers: ``python ask.py URL < {"keys": [...], "batch": N}``, one JSON document back.

``{"answers": [[status, generation, value or null], ...]}``, in the order of the keys. For a status other than 200
and 404, the value is the router's message. Batch 0 asks one by one. With ``"generation": "g13"`` lookups insist on
that one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from client import Answer, Connection, parse_body

CONNECTIONS = 8
OPEN_SECONDS = 20


async def main() -> None:
    """Read requests from standard input, and print the answers."""
    url, asked = sys.argv[1], json.load(sys.stdin)
    keys: list[str] = asked["keys"]
    size: int = asked["batch"] or 1
    pieces = [(start, keys[start : start + size]) for start in range(0, len(keys), size)]
    answers: list[Any] = [None] * len(keys)
    work = iter(pieces)

    async def worker() -> None:
        connection = Connection(url, asked.get("generation", ""))
        await connection.open(OPEN_SECONDS)
        for start, piece in work:
            answers[start : start + len(piece)] = await (
                _batch(connection, piece) if asked["batch"] else _single(connection, piece[0])
            )
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(worker())
    json.dump({"answers": answers}, sys.stdout)


async def _single(connection: Connection, key: str) -> list[Any]:
    answer = await connection.get(key)
    return [[answer.status, answer.generation, parse_body(answer) if answer.status == 200 else _message(answer)]]


async def _batch(connection: Connection, keys: list[str]) -> list[Any]:
    answer = await connection.batch(keys)
    if answer.status != 200:
        return [[answer.status, answer.generation, _message(answer)]] * len(keys)
    body = parse_body(answer)
    found = body["found"]
    missing = set(body["missing"])
    if missing & set(found) or missing | set(found) != set(keys):
        raise AssertionError(f"found and missing are not the keys asked: {keys}, {answer.body[:500]!r}")
    return [[200 if key in found else 404, body["generation"], found.get(key)] for key in keys]


def _message(answer: Answer) -> str | None:
    return None if answer.status == 404 else answer.body[:1000].decode(errors="replace")


if __name__ == "__main__":
    asyncio.run(main())
