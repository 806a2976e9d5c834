"""The client that runs in pods waits until it is the router that answers. Needs no cluster."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest
from e2e.support.inside import import_inside

FOREIGN = b"HTTP/1.1 404 Not Found\r\nserver: x\r\ncontent-length: 0\r\n\r\n"
ROUTER = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """client.py, as in the pod."""
    return import_inside(monkeypatch, "client")


async def test_it_opens_once_the_router_answers_and_nobody_else(client: ModuleType) -> None:
    answers = [FOREIGN, b"", ROUTER]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /v1/dataset HTTP/1.1\r\n")
        writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = client.Connection(f"http://127.0.0.1:{port}")
    await connection.open(20)
    assert answers == []
    connection.close()
    server.close()


async def test_a_router_that_never_answers_is_told(client: ModuleType) -> None:
    with pytest.raises(TimeoutError):
        await client.Connection("http://127.0.0.1:1").open(0.3)
