"""What a running `lookupdb up` serves over HTTP besides lookups: its API server, and the console.

``ApiServer`` answers commands, and `kubectl` and Kubernetes' clients (`lookupdb up --kubeconfig FILE`), on a port of
loopback. Its address contains a token that changes with each `up`, and is in FILE and in the folder of each dataset's
objects, which only the user can read. The token is not in a header, because `kubectl` sends credentials over HTTPS
alone, and this port needs no certificate. Requests run in `up`'s event loop one by one, so no edit is lost.
Datasets are those of the manifests: none can be deleted, and nothing can be created.

The console's datasets are those of the API server (``LocalSource``). Its lookups go through the router, which forwards
the console's pages to this process.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import orjson
from aiohttp import web

from lookupdb.errors import LookupdbError, UsageError
from lookupdb.process import launch, listeners
from lookupdb.up.run_state import shorten_name
from lookupdb_operator import names
from lookupdb_operator.cluster.api import JSON, ApiError, Conflict, NotFound, Refused, Unauthorized, Unreachable
from lookupdb_operator.cluster.workloads import parse_pod
from lookupdb_operator.console.dataset import Dataset, DatasetPods, Lookup
from lookupdb_operator.console.server import LOOPBACK, make_app, set_source
from lookupdb_operator.console.source import Difference, Elsewhere, PodClient
from lookupdb_operator.console.watch import Watch
from lookupdb_operator.local.api import ADDRESS, LocalApi, parse_local
from lookupdb_operator.local.kubelet import HOST, child_environment
from lookupdb_operator.model import Pod

log = logging.getLogger(__name__)

_METRICS: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/:]+):[0-9]+/proxy/metrics")
_CODES: Final = ((Unauthorized, 401), (NotFound, 404), (Conflict, 409), (Unreachable, 503), (Refused, 422))
_MAX_BODY_BYTES: Final = 4 << 20
_HEADER: Final = {"apiVersion": "v1", "kind": "Config", "current-context": "lookupdb"}
_VERBS: Final = ("get", "list", "create", "update", "patch", "delete")
_MAX_COMPARISONS: Final = 2
"""Number of comparisons of generations that run at the same time; others wait."""
_SAMPLES: Final = "20"
_MAX_DIFFERENCE_BYTES: Final = 8 << 20


@asynccontextmanager
async def _serving(app: web.Application, listener: socket.socket) -> AsyncIterator[None]:
    """Serve ``app`` on ``listener`` until the block ends."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()


class ApiServer:
    """Answers requests that have the token: from ``api``, and those for the metrics of a pod from ``pods``."""

    def __init__(self, api: LocalApi, pods: PodClient) -> None:
        self._api = api
        self._pods = pods
        self._prefix = f"/{secrets.token_urlsafe(32)}"

    @asynccontextmanager
    async def listening(self, folders: Iterable[Path]) -> AsyncIterator[str]:
        """Listen until the block ends. Yield the address, which is in ``folders`` for commands."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._serve)
        listener = listeners.bind(HOST, 0)
        url = f"http://{HOST}:{listeners.bound_port(listener)}{self._prefix}"
        async with _serving(app, listener):
            for folder in folders:
                try:
                    launch.write(folder / ADDRESS, {"url": url})
                except OSError as error:
                    log.warning("commands cannot reach this `lookupdb up`: %s cannot be written: %s", folder, error)
            yield url

    async def _serve(self, request: web.Request) -> web.Response:
        target = request.rel_url.raw_path
        shown, path = target[: len(self._prefix)], target[len(self._prefix) :]
        content_type = request.headers.get("Content-Type", JSON)
        try:
            if not hmac.compare_digest(shown.encode(), self._prefix.encode()):
                raise Unauthorized("", "this is not the token of this `lookupdb up`")
            is_dataset = f"/{names.DATASET_KIND.plural}" in path
            if request.method == "POST" or (
                request.method == "DELETE" if is_dataset else "apply-patch" in content_type
            ):
                raise Refused(
                    "", "the datasets are those of the manifests of `lookupdb up`, and nothing else can be created"
                )
            if request.method == "GET" and (document := _discover(path, self._prefix)) is not None:
                return _render(document)
            if found := _METRICS.fullmatch(unquote(path)):
                if (address := self._api.find_admin(found[1], found[2])) is None:
                    raise NotFound("", f"no pod {found[2]} runs")
                return web.Response(text=await self._pods.read_metrics(address))
            body = orjson.loads(text) if (text := await request.read()) else None
            if isinstance(body, list):
                raise Refused("", "expected a merge patch (kubectl patch --type=merge), found a list")
            result = await self._api.request(
                request.method, path, subject="", query=request.query, body=body, content_type=content_type
            )
        except ApiError as error:
            return _refuse(error)
        except LookupdbError as error:
            return _refuse(Unreachable("", error.message))
        except Exception as error:
            return _refuse(Refused("", f"it is not a valid request: {type(error).__name__}: {error}"))
        return _render(result)


def _render(result: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(result), content_type=JSON)


def _refuse(error: ApiError) -> web.Response:
    """Return the answer that reports ``error``."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    reason, message = type(error).__name__, error.message
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return _render({**status, "code": code}, code)


@contextmanager
def writing_kubeconfig(path: Path, server: str) -> Iterator[None]:
    """Write a file for `kubectl` about the API server at ``server``; remove it when the block ends. Raises
    UsageError."""
    with suppress(OSError):  # then writing it reports why
        if (present := path.read_bytes()) and not present.startswith(orjson.dumps(_HEADER)[:-1]):
            raise UsageError(
                f"--kubeconfig {path} exists, and no `lookupdb up` has written it",
                hint="give a new file: `up` writes it, and removes it when it ends",
            )
    named = {
        "clusters": [{"name": "lookupdb", "cluster": {"server": server}}],
        "contexts": [{"name": "lookupdb", "context": {"cluster": "lookupdb", "user": ""}}],
    }
    content = orjson.dumps({**_HEADER, **named})
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(
            f"--kubeconfig {path} cannot be written: {error.strerror}", hint="give another file"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_bytes() == content:  # else another `up` has replaced it
                path.unlink()


def _discover(path: str, prefix: str) -> dict[str, Any] | None:
    """Return the document at ``path`` about versions and kinds; None if it is about neither."""
    groups = sorted({kind.api_version for kind in names.ALL if "/" in kind.api_version})
    versions = [{"groupVersion": group, "version": group.partition("/")[2]} for group in groups]
    match path.strip("/"):
        case "version":
            return {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
        case "api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case "apis":
            listed = [
                {"name": found["groupVersion"].partition("/")[0], "versions": [found], "preferredVersion": found}
                for found in versions
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case "openapi/v3":
            about = f"apis/{names.API_VERSION}"
            return {"paths": {about: {"serverRelativeURL": f"{prefix}/openapi/v3/{about}"}}}
    if path.startswith("/openapi/v3/"):
        return _describe_patch()
    version = path.strip("/").removeprefix("apis/").removeprefix("api/")
    kinds = [kind for kind in names.ALL if kind.api_version == version]
    if not kinds:
        return None
    resources = [
        {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "kind": kind.name,
            "namespaced": True,
            "verbs": _VERBS,
            "shortNames": ("lds",) if kind == names.DATASET_KIND else (),
        }
        for kind in kinds
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _describe_patch() -> dict[str, Any]:
    """Return the part of the schema from which `kubectl apply` sees that this server checks fields itself."""
    group, _, version = names.API_VERSION.partition("/")
    about = {"group": group, "version": version, "kind": names.KIND}
    patch = {
        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
        "x-kubernetes-group-version-kind": about,
        "x-kubernetes-action": "patch",
        "responses": {},
    }
    path = f"/apis/{names.API_VERSION}/namespaces/{{namespace}}/{names.DATASET_KIND.plural}/{{name}}"
    info = {"title": "lookupdb", "version": "1"}
    return {"openapi": "3.0.0", "info": info, "paths": {path: {"patch": patch}}}


class LocalSource:
    """The datasets of a running `up`. ``find_url`` returns the address of a dataset's router."""

    def __init__(self, api: LocalApi, data: Path, find_url: Callable[[str, str], str], pods: PodClient) -> None:
        self._api, self._data = api, data
        self._find_url = find_url
        self._client = pods
        self._comparisons = asyncio.Semaphore(_MAX_COMPARISONS)

    def list_datasets(self) -> Sequence[DatasetPods]:
        """See ``ConsoleSource``."""
        described = map(self._describe, self._api.all(names.DATASET_KIND))
        return sorted(described, key=lambda found: (found.dataset.namespace, found.dataset.name))

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """See ``ConsoleSource``."""
        body = self._api.get(names.DATASET_KIND, namespace, name)
        return None if body is None else self._describe(body)

    def _describe(self, body: Mapping[str, Any]) -> DatasetPods:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        pods = (
            parse_pod(pod)
            for pod in self._api.all(names.POD)
            if pod["metadata"]["namespace"] == namespace and pod["metadata"]["labels"].get(names.DATASET) == name
        )
        dataset = parse_local(body, self._find_url(namespace, name), self._data)
        return DatasetPods(dataset, tuple(sorted(pods, key=lambda pod: pod.name)))

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """See ``ConsoleSource``."""
        address = self._api.find_admin(dataset.namespace, pod.name)
        if address is None:
            raise LookupdbError(f"pod {pod.name} does not run")
        return await self._client.read_metrics(address)

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        """See ``ConsoleSource``."""
        url = self._find_url(dataset.namespace, dataset.name)
        target = f"{url}{'' if '/v1/' in url else '/v1'}/lookup"
        return await self._client.look_up(dataset, target, key, generation)

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """See ``ConsoleSource``. A separate process compares, so that it can be ended."""
        command, name = dataset.command("diff", before, after), shorten_name(dataset.namespace, dataset.name)
        arguments = ["diff", name, before, after, "--data", str(self._data), "--json", "--samples", _SAMPLES]
        async with self._comparisons:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "lookupdb", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=child_environment(),
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


@asynccontextmanager
async def serving_console(source: LocalSource, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the console on ``listener`` until the block ends."""
    watch = Watch(source)
    scrapes = asyncio.create_task(watch.run(), name="console")
    try:
        async with _serving(make_app(watch, middlewares=[set_source(source)], hosts=LOOPBACK), listener):
            yield
    finally:
        scrapes.cancel()
