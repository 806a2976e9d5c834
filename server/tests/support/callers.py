"""Callers of `lookupdb.client` that ask at the same time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lookupdb.client import Client
from support.faulty_router import Asked, found_all


class Gate:
    """Answers a request once it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, connection: socket.socket, asked: Asked) -> bytes:
        assert self.opened.wait(60)
        return found_all(connection, asked)


@contextmanager
def calling(calls: list[Callable[[], Any]]) -> Iterator[list[Any]]:
    """Runs each in a thread of its own; what they return or raise is there behind the block."""
    outcomes: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            outcomes[place] = calls[place]()
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    yield outcomes
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def waiting(client: Client) -> int:
    return sum(len(combiner._queue) for combiner in client._link.combiners.values())
