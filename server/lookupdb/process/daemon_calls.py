"""Calls that may take for ever, in threads that nothing waits for: a signal ends who waits for the call at once.

A library that waits in native code holds Python's signal handlers up for as long, and a pool's thread holds up the end
of the program.
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
    """Return what ``function`` returns, or raise what it raises; TimeoutError when it takes more than ``seconds``.

    A signal's handler may raise meanwhile, in the main thread. Then, and after a timeout, the call goes on by itself,
    and its outcome is dropped.
    """
    return _start(function, *arguments).result(seconds)


def iterate_interruptibly(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items``; each is waited for as ``call_interruptibly`` does."""
    iterator, end = iter(items), object()
    while (item := call_interruptibly(next, iterator, end)) is not end:
        yield cast(T, item)


async def call_in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """The same for a task: when it is cancelled, the call goes on by itself."""
    import asyncio  # here: most who call have no event loop

    return await asyncio.wrap_future(_start(partial(function, *arguments, **options)))


def are_unfinished() -> bool:
    """Whether a call still goes on. It must not come back while the interpreter is torn down: ``end_at_once``."""
    return any(thread.is_alive() for thread in tuple(_unfinished))


def end_at_once(code: int) -> NoReturn:
    """End the program with ``code``, without Python's own end. What a standard stream does not take is dropped."""
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
