"""Names of endpoints: resolved anew for each connection, and given up without a trace."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest
from support.routing import identity
from support.scripted_shard import ScriptedShard

from lookupdb.route.budget import RouterBudget
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.connection import ServerConnection

NOWHERE = ServerAddress("no such host", 7000)


async def _open(address: ServerAddress) -> ServerConnection:
    return await ServerConnection.open(address, lambda reply: None, lambda why: None, RouterBudget(1 << 20))


async def test_a_name_is_connected_to_by_whichever_of_its_addresses_answers() -> None:
    async with ScriptedShard(identity(), {}) as shard:  # listens on 127.0.0.1, localhost may be ::1 too
        connection = await _open(ServerAddress("localhost", shard.address.port))
        connection.close("done")


@pytest.mark.parametrize("host", [NOWHERE.host, "x" * 64 + ".svc"])
async def test_a_name_that_is_none_is_an_address_that_cannot_be_connected_to(host: str) -> None:
    with pytest.raises(OSError, match=r"not known|resolution|cannot be a name|No address"):
        await _open(ServerAddress(host, 7000))


async def test_a_resolver_that_answers_too_late_is_not_heard() -> None:
    unheard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await _open(NOWHERE)
    with pytest.raises(socket.gaierror):
        await _open(NOWHERE)  # resolvers answer in turn: the first one has by now
    gc.collect()
    await asyncio.sleep(0)
    assert unheard == []
