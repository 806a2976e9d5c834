"""An operator in a thread of its own, with its own event loop: kopf cancels every other task of its loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import aiohttp
from support.ports import free_port

from lookupdb_operator.main import OperatorOptions, run
from lookupdb_operator.model import Config, Observed, Plan

PATIENCE = 60.0
"""Seconds until a test gives up on an idle machine."""


def options(**changes: Any) -> OperatorOptions:
    """Options of an operator whose image and store are never used."""
    config = Config(image="lookupdb:test", store="s3://lookupdb", cluster="", **changes.pop("config", {}))
    settings: dict[str, Any] = {
        "namespace": "lookupdb",
        "host": "127.0.0.1",
        "port": free_port(),
        "store_environment": {"AWS_REGION": "eu"},
    }
    return OperatorOptions(config=config, **{**settings, **changes})


_started: list[Running] = []


class Running:
    """A running operator."""

    def __init__(self, chosen: OperatorOptions, decide: Callable[[Observed, Config, datetime], Plan] | None) -> None:
        self._stop = threading.Event()
        self._options = chosen
        self._more: dict[str, Any] = {"decide": decide} if decide else {}
        self.error: BaseException | None = None
        _started.append(self)
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(run(self._options, stop=self._stop, **self._more))
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        """Start it; the result shows in the cluster."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def stop(self) -> None:
        """Stop it, and close the client session that kopf leaves open when it is stopped during startup."""
        self._stop.set()
        _started.remove(self)
        await asyncio.to_thread(self._thread.join, PATIENCE)
        assert not self._thread.is_alive(), "the operator does not stop"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    async def ask(self, path: str) -> tuple[int, str]:
        """Request ``path`` of its own port."""
        url = f"http://127.0.0.1:{self._options.port}{path}"
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(url) as response:
                    return response.status, await response.text()
            except aiohttp.ClientError:
                return 0, ""  # the port is not open yet


@contextlib.asynccontextmanager
async def operating(
    chosen: OperatorOptions, decide: Callable[[Observed, Config, datetime], Plan] | None = None
) -> AsyncIterator[Running]:
    """Run an operator until the block ends."""
    operator = Running(chosen, decide)
    operator.start()
    try:
        yield operator
        if operator.error:
            raise operator.error
    finally:
        await operator.stop()


async def until(
    condition: Callable[[], Any], what: str, show: Callable[[], Any] = lambda: "", *, every: float = 0.02
) -> Any:
    """Poll until ``condition``, which may be a coroutine function, returns something true, and return that. Polls are
    counted, not seconds: on a loaded machine both they and the operator are slow."""
    for _ in range(round(PATIENCE / every)):
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if error := next((operator.error for operator in _started if operator.error), None):
            raise AssertionError(f"waited for {what} in vain: the operator has ended\n{show()}") from error
        await asyncio.sleep(every)
    raise AssertionError(f"waited for {what} in vain\n{show()}")
