"""Opens a connection to an endpoint and has the endpoint prove what it serves, before it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis

from lookupdb.route.budget import RouterBudget
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.connection import SURPLUS, ServerConnection
from lookupdb.route.servers.identity import QUESTION, ShardIdentity


class NotProven(Exception):
    """The endpoint does not serve what it should, or does not tell; the message says what was found."""


async def connect(
    address: ServerAddress,
    identity: ShardIdentity,
    password: str | None,
    on_lost: Callable[[str], None],
    budget: RouterBudget,
) -> ServerConnection:
    """A connection to ``address``, which has proven to be ``identity``. Raises NotProven or OSError.

    ``on_lost`` is the connection's; give it an ``on_reply`` and a ``sink`` at once.
    """
    replies: asyncio.Queue[Any] = asyncio.Queue()

    def fail(why: str) -> None:
        replies.put_nowait(NotProven(why) if why == SURPLUS else ConnectionError(why))
        on_lost(why)

    connection = await ServerConnection.open(address, lambda reply: None, fail, budget)
    dialogue = _Dialogue(connection, replies)
    try:
        if password:
            admitted = await dialogue.ask(hiredis.pack_command(("AUTH", password)))  # type: ignore[arg-type]
            if admitted != b"OK":
                which = identity.password or "password"
                raise NotProven(f"does not accept the {which}: {str(admitted)[:200]}")
        answer = await dialogue.ask(QUESTION)
        if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOAUTH"):
            raise NotProven(f"wants a password, and the routing table names none: {str(answer)[:200]}")
        mismatch = identity.mismatch(answer)
        if mismatch:
            raise NotProven(mismatch)
        dialogue.check_silence()
    except BaseException:
        connection.close("not proven")
        raise
    return connection


class _Dialogue:
    """One question after the other on ``connection``. What comes before it was asked for answers nothing."""

    def __init__(self, connection: ServerConnection, replies: asyncio.Queue[Any]) -> None:
        """``replies`` also has, as an exception, why there will be no more."""
        self._connection = connection
        self._replies = replies
        self._told = 0
        """Bytes until the end of the last reply."""
        connection.on_reply = self._on_reply

    def _on_reply(self, reply: Any) -> None:
        self._told = self._connection.received
        self._replies.put_nowait(reply)

    async def ask(self, question: bytes) -> Any:
        """The answer to ``question``. Raises NotProven and ConnectionError."""
        self.check_silence()
        self._connection.write(question)
        return self._take(await self._replies.get())

    def check_silence(self) -> None:
        """Nothing has come that was not asked for. Raises NotProven and ConnectionError."""
        if not self._replies.empty():
            self._take(self._replies.get_nowait())
            raise NotProven(SURPLUS)
        if self._connection.received != self._told:
            raise NotProven(SURPLUS)

    def _take(self, reply: Any) -> Any:
        if isinstance(reply, NotProven | ConnectionError):
            raise reply
        return reply
