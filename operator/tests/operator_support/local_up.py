"""The API server of a `lookupdb up` with the dataset shop/airports, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from plugin_samples import body

from lookupdb.up.run_state import RunFolder
from lookupdb_operator import names
from lookupdb_operator.console.source import PodClient
from lookupdb_operator.local.api import ADMIN, OBJECTS, LocalApi
from lookupdb_operator.local.server import ApiServer


def load(folder: RunFolder) -> LocalApi:
    """Return an API server that continues with the objects in ``folder``."""
    api = LocalApi()
    api.add_folder("shop", "airports", folder.path / OBJECTS)
    return api


def get_dataset(api: LocalApi) -> dict[str, Any]:
    """Return the dataset in ``api``."""
    return api.all(names.DATASET_KIND)[0]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The run folder of the dataset. Its path is longer than the address of a socket can be."""
    return RunFolder(tmp_path / ("deep" * 30), "shop", "airports")


@pytest.fixture
def api(folder: RunFolder) -> LocalApi:
    """An API server that nothing listens for."""
    api = load(folder)
    api.put(body())
    return api


@pytest.fixture
async def running(folder: RunFolder, api: LocalApi) -> AsyncIterator[LocalApi]:
    """The API server of an `up` that runs, with a router whose admin port answers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /metrics HTTP/1.1\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nlookupdb_router_requests_total 5\n")
        writer.close()

    admin = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{admin.sockets[0].getsockname()[1]}"
    labels = {names.DATASET: "airports", names.DATASET_UID: "local", names.COMPONENT: names.ROUTER}
    meta = {"namespace": "shop", "name": "airports-router-0", "labels": labels, "annotations": {ADMIN: address}}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}, "status": {}})
    pods = PodClient()
    server = ApiServer(api, pods)
    with folder.lock():
        async with server.listening([folder.path / OBJECTS]):
            yield api
    await pods.close()
    admin.close()
