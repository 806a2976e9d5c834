"""The console of `lookupdb up`: its datasets are those of the local API server, its lookups go through the router."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.up.run_state import shorten_name
from lookupdb_operator import names
from lookupdb_operator.cluster.workloads import parse_pod
from lookupdb_operator.console.answers import Lookup, UnavailableKey
from lookupdb_operator.console.dataset import Dataset, DatasetPods
from lookupdb_operator.console.source import Difference, Elsewhere, PodClient, render_get
from lookupdb_operator.local import process
from lookupdb_operator.local.advice import list_data_options, localize_advice
from lookupdb_operator.local.api import LocalApi
from lookupdb_operator.model import Pod

_MAX_COMPARISONS: Final = 2
"""Comparisons of generations at the same time; others wait."""
_SAMPLES: Final = "20"
_MAX_DIFFERENCE_BYTES: Final = 8 << 20
_VARIABLES: Final = frozenset({"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE"})


def parse_local(body: Mapping[str, Any], url: str, data: Path) -> Dataset:
    """Return a dataset of the data folder ``data`` as its user knows it: with its router's ``url``, if it runs, and
    with commands for `lookupdb`."""
    if url:
        meta = body["metadata"]
        endpoint = names.endpoint(meta["name"], meta["namespace"])
        body = orjson.loads(orjson.dumps(body).replace(endpoint.encode(), url.encode()))
    return Dataset.from_body(_with_our_advice(body, data), list_data_options(data))


def _with_our_advice(body: Mapping[str, Any], data: Path) -> dict[str, Any]:
    status = body.get("status") or {}
    conditions = [
        {**found, "message": localize_advice(found.get("message", ""), data)}
        for found in status.get("conditions") or ()
    ]
    return {**body, "status": {**status, **({"conditions": conditions} if conditions else {})}}


class LocalSource:
    """The datasets of a running `up`. ``find_url`` returns the address of a dataset's router,
    ``find_admin`` the address of the admin port of a pod, or None."""

    def __init__(
        self,
        api: LocalApi,
        data: Path,
        find_url: Callable[[str, str], str],
        find_admin: Callable[[str, str], str | None],
    ) -> None:
        self._api, self._data = api, data
        self._find_url, self._find_admin = find_url, find_admin
        self._client = PodClient()
        self._comparisons = asyncio.Semaphore(_MAX_COMPARISONS)

    def list_datasets(self) -> Sequence[DatasetPods]:
        """See ``ConsoleSource``."""
        bodies = sorted(self._api.all(names.DATASET_KIND), key=lambda body: tuple(_find_key(body)))
        return [self._describe(body) for body in bodies]

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """See ``ConsoleSource``."""
        body = self._api.get(names.DATASET_KIND, namespace, name)
        return None if body is None else self._describe(body)

    def _describe(self, body: Mapping[str, Any]) -> DatasetPods:
        namespace, name = _find_key(body)
        pods = (
            parse_pod(pod)
            for pod in self._api.all(names.POD)
            if pod["metadata"]["namespace"] == namespace and pod["metadata"]["labels"].get(names.DATASET) == name
        )
        dataset = parse_local(body, self._find_url(namespace, name), self._data)
        return DatasetPods(dataset, tuple(sorted(pods, key=lambda pod: pod.name)))

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """See ``ConsoleSource``."""
        address = self._find_admin(dataset.namespace, pod.name)
        if address is None:
            raise LookupdbError(f"pod {pod.name} does not run")
        return await self._client.read_metrics(address)

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        """See ``ConsoleSource``."""
        url = self._find_url(dataset.namespace, dataset.name)
        try:
            found = await self._client.look_up(f"{url}{'' if '/v1/' in url else '/v1'}/lookup", key, generation)
        except LookupdbError as error:
            return UnavailableKey(key, error.message)
        return Elsewhere(found, render_get(dataset, key, generation)) if isinstance(found, str) else found

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """See ``ConsoleSource``. A process of its own compares, so that it can be ended."""
        command, name = dataset.command("diff", before, after), shorten_name(dataset.namespace, dataset.name)
        arguments = ["diff", name, before, after, "--data", str(self._data), "--json", "--samples", _SAMPLES]
        async with self._comparisons:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "lookupdb", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=process.child_environment(_VARIABLES),
            )
            try:
                output, problem = await child.communicate()
            finally:
                if child.returncode is None:
                    child.kill()
        if child.returncode != 0:
            return Elsewhere(problem.decode(errors="replace")[-2000:], command)
        if len(output) > _MAX_DIFFERENCE_BYTES:
            return Elsewhere("The samples are too large for a page.", command)
        difference: Difference = orjson.loads(output)
        return difference

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _find_key(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def bind() -> socket.socket:
    """Return the socket of the console, on a free port of this machine. The router forwards to it."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def serving(source: LocalSource, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the console on ``listener`` until the block ends."""
    from aiohttp import web

    from lookupdb_operator.console.server import LOOPBACK, make_app, set_source
    from lookupdb_operator.console.watch import Watch

    watch = Watch(source)
    app = make_app(watch, middlewares=[set_source(source)], hosts=LOOPBACK)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    scrapes = asyncio.create_task(watch.run(), name="console")
    try:
        yield
    finally:
        scrapes.cancel()
        await runner.cleanup()
        await source.close()
