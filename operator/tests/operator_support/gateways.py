"""A gateway in the test's event loop, in front of a real S3 server."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from support.signers import AUDIENCE, ec_signer, jwks, rsa_signer
from yarl import URL

from lookupdb_operator.cluster.client import Api
from lookupdb_operator.gateway.service import Gateway, GatewayOptions
from operator_support.kube import Kube, serving
from operator_support.running import until

MIB = 1 << 20
CLUSTER = "cluster-uid"
"""The API server in memory."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def kind(self) -> str:
        """The kind of a problem."""
        assert self.headers["Content-Type"].startswith("application/problem+json"), self
        assert self.json["status"] == self.status
        return str(self.json["kind"])

    @property
    def lines(self) -> list[Any]:
        return [orjson.loads(line) for line in self.body.splitlines() if line]


@dataclass
class Standing:
    """A gateway and a client of it."""

    gateway: Gateway
    kube: Kube
    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        assert self.gateway.server
        return self.gateway.server.port

    async def ask(
        self,
        method: str,
        target: str,
        *,
        token: str | None = None,
        namespace: str = "team",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request with its target unchanged. The token is a good one of ``namespace`` unless another is given;
        "" sends none."""
        token = rsa_signer().token(namespace) if token is None else token
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        url = URL(f"http://127.0.0.1:{self.port}{target}", encoded=True)
        request = self.session.request(
            method,
            url,
            data=io.BytesIO(body) if isinstance(body, bytes) else body,
            headers={**shown, **(headers or {})},
            allow_redirects=False,
        )
        async with request as response:
            return Answer(response.status, response.headers, await response.read())

    async def admin(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.gateway.admin_port}{path}") as response:
            return response.status, await response.text()

    async def send(self, data: bytes, *, seconds: float = 20, close: bool = False) -> bytes:
        """Return everything the gateway sends until it closes the connection. With ``close``, the client closes
        first."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            await writer.drain()
            if close:
                return b""
            async with asyncio.timeout(seconds):
                return await reader.read()
        finally:
            writer.close()


def head(method: str, target: str, *lines: str, token: str | None = None) -> bytes:
    """Return the exact head of a request."""
    shown = f"Authorization: Bearer {rsa_signer().token() if token is None else token}"
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: gateway", shown, *lines, "", ""]).encode("latin-1")


@contextlib.asynccontextmanager
async def standing(folder: Path, store: str, **options: Any) -> AsyncIterator[Standing]:
    """Start a gateway for the bucket ``store`` of this process's environment, and wait until it is ready."""
    async with serving(folder) as kube:
        kube.jwks = jwks(rsa_signer(), ec_signer())
        settings = {"audiences": (AUDIENCE,), "port": 0, "admin_port": 0, "notice_seconds": 0.0, "drain_seconds": 5.0}
        chosen = GatewayOptions(store=store, **{**settings, **options})
        gateway = Gateway(chosen, await Api.connect(str(folder / "kubeconfig")))
        try:
            await gateway.start()
            await until(lambda: not gateway.explain_unready(), "a gateway that is ready")
            async with aiohttp.ClientSession(auto_decompress=False) as session:
                yield Standing(gateway, kube, session)
        finally:
            await gateway.drain()
            await gateway.close()
