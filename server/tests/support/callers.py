"""Callers of `lookupdb.client` that ask at the same time: threads, or coroutines of a loop that runs in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from lookupdb.client import AsyncClient, Client
from support.clients import BlockingClient, Kind
from support.faulty_router import Asked, found_all


class Gate:
    """Answers a request once it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, connection: socket.socket, asked: Asked) -> bytes:
        assert self.opened.wait(60)
        return found_all(connection, asked)


class Callers(BlockingClient):
    """A client of either kind, and its callers: each call has a thread or a coroutine of its own."""

    def __init__(self, client: Any, submit: Callable[..., Future[Any]]) -> None:
        super().__init__(client, None)
        self._submit = submit

    def start(self, name: str, *words: Any, **options: Any) -> Future[Any]:
        """Call the method ``name``."""
        return self._submit(getattr(self.client, name), *words, **options)

    def start_all(self, name: str, words: Any) -> list[Future[Any]]:
        """Start one task for each of ``words``."""
        return [self.start(name, word) for word in words]

    def _call(self, name: str, *words: Any, **options: Any) -> Any:
        return self.start(name, *words, **options).result(60)

    @property
    def waiting(self) -> int:
        """The number of callers that wait to leave with a batch."""
        return sum(len(combiner._queue) for combiner in self.client._link.combiners.values())


@contextmanager
def calling(kind: Kind, url: str, **options: Any) -> Iterator[Callers]:
    """A client of ``kind`` that may be called often at a time. It is closed at the end of the block."""
    if kind == "sync":
        with ThreadPoolExecutor(128) as pool, Client(url, **options) as client:
            yield Callers(client, pool.submit)
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asynchronous = AsyncClient(url, **options)
    callers = Callers(
        asynchronous, lambda method, *words, **more: asyncio.run_coroutine_threadsafe(method(*words, **more), loop)
    )
    try:
        yield callers
    finally:
        callers._call("close")
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def outcomes(futures: list[Future[Any]]) -> list[Any]:
    """Return each future's result or exception."""
    return [future.exception(60) or future.result() for future in futures]
