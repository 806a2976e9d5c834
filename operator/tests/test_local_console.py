"""The console of `lookupdb up`: metrics and lookups, by HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from operator_support.loopback import listening
from plugin_samples import body, router

from lookupdb.errors import LookupdbError
from lookupdb_operator.console.dataset import Dataset, FoundKey
from lookupdb_operator.console.source import Elsewhere, PodClient
from lookupdb_operator.local.api import LocalApi
from lookupdb_operator.local.server import LocalSource

DATASET = Dataset.from_body(body())


@pytest_asyncio.fixture(name="source")
async def _source() -> AsyncIterator[LocalSource]:
    """A source whose router has values of as many bytes as the key says, and metrics of as many lines."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            return web.Response(text="lookupdb_router_private_bytes 7\n" * 50_000)
        size = int(request.query["key"])
        return web.Response(body=b"x" * size, headers={"Lookupdb-Generation": "g12"})

    async with listening(answer) as port:
        address = f"127.0.0.1:{port}"
        pods = PodClient()
        yield LocalSource(LocalApi(), Path(), lambda *_: f"http://{address}", lambda *_: address, pods)
        await pods.close()


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_a_value_is_whole(source: LocalSource, size: int) -> None:
    found = await source.look_up(DATASET, str(size), None)
    assert isinstance(found, FoundKey)
    assert len(found.value) == size


async def test_a_value_that_is_too_large_for_a_page_names_the_command(source: LocalSource) -> None:
    found = await source.look_up(DATASET, str((1 << 20) + 1), "g12")
    assert isinstance(found, Elsewhere)
    assert found.command.endswith("--generation g12 1048577")


async def test_metrics_are_whole(source: LocalSource) -> None:
    assert (await source.read_metrics(DATASET, router(0))).count("\n") == 50_000


async def test_a_server_that_ends_meanwhile_has_no_metrics() -> None:
    async def end(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with listening(end) as port:
        pods = PodClient()
        source = LocalSource(LocalApi(), Path(), lambda *_: "", lambda *_: f"127.0.0.1:{port}", pods)
        with pytest.raises(LookupdbError, match="does not answer"):
            await source.read_metrics(DATASET, router(0))
        await pods.close()
