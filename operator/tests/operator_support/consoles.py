"""Parts of a console of a cluster: datasets and pods in an API server in memory, and a router on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from plugin_samples import body

from lookupdb_operator import names
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.console.service import ClusterSource
from operator_support.kube import Kube, Object
from operator_support.running import until

OURS = "lookupdb:console"
AIRPORTS = "lookupdb:airports"


def dataset(name: str = "airports", namespace: str = "shop", router: Any = None, **status: Any) -> Object:
    made = body(name, spec={"router": router or {}}, **status)
    made["metadata"] |= {"namespace": namespace, "uid": f"uid-of-{namespace}-{name}"}
    return made


def with_accounts(audience: str, *subjects: str) -> Object:
    """Return ``spec.router`` that admits these service accounts."""
    return {"auth": {"serviceAccounts": {"audience": audience, "subjects": list(subjects)}}}


def pod(name: str, component: str, namespace: str = "shop", of: str = "airports", **labels: str) -> Object:
    own = {names.DATASET: of, names.DATASET_UID: f"uid-of-{namespace}-{of}", names.COMPONENT: component, **labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": own},
        "spec": {"containers": []},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class Router:
    """A router and its admin port. It records what it receives."""

    def __init__(self) -> None:
        self.received: list[web.Request] = []
        self.answer = web.Response(
            body=b'{"name":"John"}', content_type="application/json", headers={"Lookupdb-Generation": "g12"}
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.received.append(request)
        if request.path == "/metrics":
            return web.Response(text="lookupdb_router_private_bytes 7\n")
        answer = self.answer
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


@contextlib.asynccontextmanager
async def sourcing(kube: Kube, folder: Path, namespaces: tuple[str, ...] = ()) -> AsyncIterator[ClusterSource]:
    """Watch the API server in memory, whose kubeconfig is in ``folder``."""
    api = await Api.connect(str(folder / "kubeconfig"))
    source = ClusterSource(api, namespaces)
    task = asyncio.create_task(source.run())
    try:
        await until(lambda: source.is_synced, "everything listed")
        yield source
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()
        await api.close()
