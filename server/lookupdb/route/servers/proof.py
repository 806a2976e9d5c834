"""Opens a connection to an endpoint and has the endpoint prove what it serves, before it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import hiredis

from lookupdb.route.budget import RouterBudget
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.connection import ServerConnection
from lookupdb.route.servers.identity import QUESTION, ShardIdentity

_MAX_REPLIES: Final = 2


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
        replies.put_nowait(ConnectionError(why))
        on_lost(why)

    def on_reply(reply: Any) -> None:
        replies.put_nowait(reply)
        if replies.qsize() > _MAX_REPLIES:
            connection.close("tells more than it was asked")

    connection = await ServerConnection.open(address, on_reply, fail, budget)
    try:
        if password:
            connection.write(hiredis.pack_command(("AUTH", password)))  # type: ignore[arg-type]
            admitted = await _next(replies)
            if admitted != b"OK":
                which = identity.password or "password"
                raise NotProven(f"does not accept the {which}: {str(admitted)[:200]}")
        connection.write(QUESTION)
        answer = await _next(replies)
        if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOAUTH"):
            raise NotProven(f"wants a password, and the routing table names none: {str(answer)[:200]}")
        mismatch = identity.mismatch(answer)
        if mismatch:
            raise NotProven(mismatch)
        if not replies.empty():
            await _next(replies)
            raise NotProven("tells more than it was asked")
    except BaseException:
        connection.close("not proven")
        raise
    return connection


async def _next(replies: asyncio.Queue[Any]) -> Any:
    reply = await replies.get()
    if isinstance(reply, ConnectionError):
        raise reply
    return reply
