"""The load counts all answers from the moment that it reaches the router. Needs no cluster."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType
from typing import Any

import pytest
from e2e.support.inside import import_inside

FOREIGN = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """load.py, as in the pod."""
    return import_inside(monkeypatch, "load")


async def test_it_begins_when_the_router_answers(load: ModuleType) -> None:
    summary = await _asked_once(load, [FOREIGN, b"", _found("the dataset"), _found("v1")])
    assert (summary.failed, list(summary.generations)) == (0, ["g1"])


async def test_after_that_what_anybody_else_answers_is_a_failure(load: ModuleType) -> None:
    summary = await _asked_once(load, [_found("the dataset"), FOREIGN])
    assert (summary.failed, list(summary.generations)) == (1, [])
    assert "404" in summary.samples["failed"][0]


def _found(version: str) -> bytes:
    body = json.dumps({"id": "a", "version": version}).encode()
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nLookupdb-Generation: g1\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _asked_once(load: ModuleType, answers: list[bytes]) -> Any:
    """Return the counts of one asker, which stops after all ``answers``."""
    stop, summary = asyncio.Event(), load.Summary()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()
        if not answers:
            stop.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60):
        await load.Asker(url, ["a"], summary, batch=False).run(stop)
    server.close()
    return summary
