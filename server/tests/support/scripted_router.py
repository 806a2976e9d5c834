"""A router that answers as a test says: the key of a GET says what, or a function of the body of a POST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import orjson

Respond = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def encode_answer(status: int, body: bytes = b"", generation: str = "g1", *more: str) -> bytes:
    """An answer on a connection that stays open."""
    named = [f"Lookupdb-Generation: {generation}"] if generation else []
    lines = [f"HTTP/1.1 {status} Whatever", *named, *more, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def encode_problem(status: int, kind: str, generation: str = "", **members: Any) -> bytes:
    """A problem of the router's."""
    problem = {"type": f"https://lookupdb.dev/problems/{kind}", "title": kind, "status": status, "detail": "it is so"}
    return encode_answer(status, orjson.dumps({**problem, **members}), generation)


FOUND = encode_answer(200, b'{"a": 1}')


class ScriptedRouter:
    """Records requests and counts connections."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.port = 0
        self.asked: list[str] = []
        """Keys of GET, bodies of POST."""
        self.heads: list[bytes] = []
        self.connections = self.open_connections = self.most_open_connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self.most_open_connections = max(self.most_open_connections, self.open_connections)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, _, _ = head.partition(b"\r\n")
                length = int((head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) or b"0")
                body = await reader.readexactly(length)
                target = line.split()[1].decode()
                asked = (
                    body.decode() if length else unquote(target.rpartition("/v1/lookup")[2][1:].removeprefix("key="))
                )
                self.asked.append(asked)
                self.heads.append(head)
                await self._respond(asked, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()


@asynccontextmanager
async def scripted_router(respond: Respond) -> AsyncIterator[ScriptedRouter]:
    """A router on a free port of this machine."""
    router = ScriptedRouter(respond)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await router.serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    router.port = server.sockets[0].getsockname()[1]
    try:
        yield router
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def answer_found(_: str, writer: asyncio.StreamWriter) -> None:
    """Any key is found."""
    writer.write(FOUND)
