"""A shard that misbehaves on request: what no real shard server does, but a network, a bug or an attacker may.

async with ScriptedShard(identity, {b"a": b"1"}) as shard:
    shard.script = hold          # from now on, lookups are not answered
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import hiredis

from lookupdb.router.link import ShardIdentity
from lookupdb.router.server_connection import ServerAddress

Script = Callable[["ScriptedShard", list[bytes]], Awaitable[bytes]]


async def answer(shard: ScriptedShard, command: list[bytes]) -> bytes:
    """Answer as a real shard server does."""
    values = [shard.records.get(key) for key in command[1:]]
    bulks = [b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
    return bulks[0] if command[0] == b"GET" else b"*%d\r\n%b" % (len(bulks), b"".join(bulks))


async def hold(shard: ScriptedShard, command: list[bytes]) -> bytes:
    """Never answer."""
    await asyncio.Event().wait()
    return b""


def late(seconds: float) -> Script:
    """Answer after this many seconds."""

    async def script(shard: ScriptedShard, command: list[bytes]) -> bytes:
        await asyncio.sleep(seconds)
        return await answer(shard, command)

    return script


def saying(reply: bytes) -> Script:
    """Answer everything with ``reply``."""

    async def script(shard: ScriptedShard, command: list[bytes]) -> bytes:
        return reply

    return script


async def hang_up(shard: ScriptedShard, command: list[bytes]) -> bytes:
    """Close the connection in the middle of the answer."""
    shard.hang_up()
    return (await answer(shard, command))[:3]


class ScriptedShard:
    """Answers INFO with ``identity``, lookups as ``script`` says; ``asked`` lists the lookups."""

    def __init__(
        self, identity: ShardIdentity, records: Mapping[bytes, bytes], script: Script = answer, port: int = 0
    ) -> None:
        self.identity = identity
        self.records = records
        self.script = script
        self.asked: list[list[bytes]] = []
        self.proofs = 0
        self.silent = False
        """Accepts connections and sends nothing at all, not even its identity."""
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writer_of: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    @property
    def address(self) -> ServerAddress:
        """The address on which it listens."""
        return ServerAddress("127.0.0.1", self._port)

    async def __aenter__(self) -> ScriptedShard:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more and break all connections."""
        self._server.close()
        self.hang_up()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def write(self, data: bytes) -> None:
        """Send ``data`` on the connection whose command is being answered, before the script returns."""
        task = asyncio.current_task()
        assert task
        self._writer_of[task].write(data)

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self._writers.add(writer)
        self._writer_of[task] = writer
        parser = hiredis.Reader(notEnoughData=...)
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not ...:
                    writer.write(await self._reply(command))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            del self._writer_of[task]
            writer.close()

    async def _reply(self, command: list[bytes]) -> bytes:
        if self.silent:
            await asyncio.Event().wait()
        if command[0] == b"INFO":
            self.proofs += 1
            lines = "".join(f"{name}:{value}\r\n" for name, value in self.identity.members().items()).encode()
            return b"$%d\r\n%b\r\n" % (len(lines), lines)
        self.asked.append(command)
        return await self.script(self, command)
