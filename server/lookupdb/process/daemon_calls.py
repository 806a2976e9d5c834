"""Calls that may never return, in threads that nothing waits for, so that a signal ends the waiting at once.

A library that blocks in native code delays Python's signal handlers, and a pool's thread delays the end of the program.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

T = TypeVar("T")

_unfinished: set[threading.Thread] = set()


def call_interruptibly(function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
    """Return or raise what ``function`` does, or TimeoutError after ``seconds``.

    A signal handler may raise in the main thread meanwhile. Then, and after a timeout, the call continues, and its
    outcome is dropped.
    """
    return _start(function, *arguments).result(seconds)


def iterate_interruptibly(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items``, waiting for each as ``call_interruptibly`` does."""
    iterator, end = iter(items), object()
    while (item := call_interruptibly(next, iterator, end)) is not end:
        yield cast(T, item)


async def call_in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call ``function`` in a thread for a task. If the task is cancelled, the call continues."""
    import asyncio  # here, because most callers have no event loop

    return await asyncio.wrap_future(_start(partial(function, *arguments, **options)))


def are_unfinished() -> bool:
    """Return whether a call is still running. It must not return during interpreter shutdown: use ``end_at_once``."""
    return any(thread.is_alive() for thread in tuple(_unfinished))


def end_at_once(code: int) -> NoReturn:
    """End the program with ``code``, without Python's shutdown. Output that a standard stream refuses is dropped."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _start(function: Callable[..., T], *arguments: Any) -> Future[T]:
    outcome: Future[T] = Future()

    def run() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(function(*arguments))
            except BaseException as error:  # raised where it is waited for
                outcome.set_exception(error)
        _unfinished.discard(thread)

    thread = threading.Thread(target=run, name="call", daemon=True)
    _unfinished.add(thread)
    thread.start()
    return outcome
