"""Both clients with one interface: the asyncio client has a loop, which runs during its calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal

from lookupdb.client import AsyncClient, AsyncLookups, Client, LookupResults

Kind = Literal["sync", "async"]
KINDS: tuple[Kind, ...] = ("sync", "async")


class BlockingClient:
    """Calls either client and returns its result."""

    def __init__(self, client: Any, runner: asyncio.Runner | None) -> None:
        self.client = client
        self._runner = runner

    def _call(self, name: str, *words: Any, **options: Any) -> Any:
        if self._runner is None:
            return getattr(self.client, name)(*words, **options)

        async def call() -> Any:
            value = getattr(self.client, name)(*words, **options)
            return await value if inspect.isawaitable(value) else value

        return self._runner.run(call())

    def get(self, key: Any, default: Any = None) -> Any:
        return self._call("get", key, default)

    def __getitem__(self, key: Any) -> Any:
        return self._call("__getitem__", key)

    def has(self, key: Any) -> bool:
        has: bool = self._call("has", key)
        return has

    def lookup(self, key: Any) -> Any:
        return self._call("lookup", key)

    def get_many(self, keys: Any, **options: Any) -> LookupResults:
        results: LookupResults = self._call("get_many", keys, **options)
        return results

    def dataset(self) -> Any:
        return self._call("dataset")

    def at(self, generation: str) -> BlockingClient:
        return BlockingClient(self.client.at(generation), self._runner)


Ask = Callable[[BlockingClient], Any]
ASKS: list[Ask] = [lambda client: client.get("a"), lambda client: client.get_many(["a", "b"])]
"""One key, and several: in requests of two kinds."""


@contextlib.contextmanager
def blocking(kind: Kind, url: str, **options: Any) -> Iterator[BlockingClient]:
    """A client of ``kind``, closed at the end of the block."""
    if kind == "sync":
        with Client(url, **options) as client:
            yield BlockingClient(client, None)
        return
    with asyncio.Runner() as runner:
        asynchronous: AsyncLookups = AsyncClient(url, **options)
        client_of_loop = BlockingClient(asynchronous, runner)
        try:
            yield client_of_loop
        finally:
            client_of_loop._call("close")
