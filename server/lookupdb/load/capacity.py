"""How many requests a second this process can send and read: tried before anything is sent to the router.

The sender's own requests and connections are used, over this machine's loopback, with a canned answer in the router's
place. What counts is processor time, so that neighbours on the machine make little difference. The other side costs
time too; so the figure is rather too low than too high.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from lookupdb.load.connection import LoadConnection
from lookupdb.load.key_choice import KeyChooser
from lookupdb.load.requests import RequestMaker, make_requests, seeded
from lookupdb.load.sender_plan import SenderPlan

TRIAL_SECONDS: Final = 0.15
_TRIAL_CONNECTIONS: Final = 8
_LEAST_REQUESTS: Final = 20
_ENCRYPTION_FACTOR: Final = 0.5
"""TLS costs about as much again."""


class _CannedPeer(asyncio.Protocol):
    """Answers whatever comes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, _: bytes) -> None:
        self._transport.write(self._answer)


class _Trial:
    """Asks again as soon as it is answered."""

    def __init__(self, requests: RequestMaker) -> None:
        self._make = requests.make
        self.answers = 0
        self.end = 0.0
        self.ended = asyncio.Event()

    def has_room(self, _: int) -> bool:
        return True

    def give_back(self, _: int) -> None:
        pass

    def send(self, connection: LoadConnection) -> None:
        request, connection.keys = self._make()
        connection.send(request)

    def take_answer(self, connection: LoadConnection, _: int, __: bytes, ___: bytes) -> None:
        self.answers += 1
        if time.monotonic() < self.end or self.answers < _LEAST_REQUESTS:
            self.send(connection)
        else:
            self.ended.set()

    def lose(self, _: LoadConnection, __: str) -> None:
        self.ended.set()


async def measure_capacity(plan: SenderPlan) -> float:
    """Requests a second of one processor."""
    load, loop = plan.load, asyncio.get_running_loop()
    chooser = KeyChooser(len(plan.keys), load.distribution, load.hit_ratio, seeded("trial", load.seed, plan.process))
    trial = _Trial(make_requests(plan.target, plan.keys, chooser, load.batch, partial=load.partial))
    answer = plan.sample_answer.encode("latin-1")
    server = await loop.create_server(lambda: _CannedPeer(answer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ends = [
        await loop.create_connection(lambda: LoadConnection(trial), "127.0.0.1", port)
        for _ in range(_TRIAL_CONNECTIONS)
    ]
    began = time.process_time()
    trial.end = time.monotonic() + TRIAL_SECONDS
    for _, connection in ends:
        trial.send(connection)
    await trial.ended.wait()
    seconds = time.process_time() - began
    for transport, _ in ends:
        transport.abort()
    server.close()
    factor = _ENCRYPTION_FACTOR if plan.target.is_encrypted else 1.0
    return trial.answers / max(seconds, 1e-6) * factor
