"""A server that records requests and gives prepared responses, and a cluster client of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.cluster import Cluster
from operator_support.loopback import listening, without_authorities


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    """Gives the next of ``answers``, or an empty object."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    answers: list[web.Response] = field(default_factory=list)

    def then(self, body: Any, status: int = 200, **headers: str) -> None:
        self.answers.append(web.json_response(body, status=status, headers=headers))

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        query, headers = dict(request.query), {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(request.method, request.path, query, headers, body))
        return self.answers.pop(0) if self.answers else web.json_response({})


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with listening(server.handle) as server.port:
        yield server


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Server, Cluster]]:
    async with serving() as server:
        with without_authorities():
            api = Api(Configuration(host=f"http://127.0.0.1:{server.port}", api_key={"BearerToken": "Bearer t"}))
        cluster = Cluster(api, admin_port=server.port)
        try:
            yield server, cluster
        finally:
            await cluster.close()
            await api.close()
