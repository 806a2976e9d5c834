"""A gateway in the test's event loop, before a real S3 server; and whoever signs tokens."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from yarl import URL

from lookupdb_operator.api.client import Api
from lookupdb_operator.gateway.service import Gateway, GatewayOptions
from operator_support.kube import Kube, serving
from operator_support.running import until

MIB = 1 << 20
AUDIENCE = "lookupdb-store:lookupdb/lookupdb"
CLUSTER = "cluster-uid"
"""Of the API server in memory."""
Object = dict[str, Any]


@dataclass(frozen=True)
class Signer:
    """A key of service accounts, and its id."""

    key_id: str
    algorithm: str
    key: Any

    def public(self) -> Object:
        """As the API server tells it."""
        algorithm = RSAAlgorithm if self.algorithm == "RS256" else ECAlgorithm
        members = algorithm.to_jwk(self.key.public_key(), as_dict=True)
        members.pop("key_ops", None)
        return {**members, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}

    def public_pem(self) -> bytes:
        return bytes(
            self.key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def sign(self, claims: Mapping[str, Any], headers: Mapping[str, Any] | None = None) -> str:
        return jwt.encode(dict(claims), self.key, self.algorithm, headers={"kid": self.key_id, **(headers or {})})

    def token(self, namespace: str = "team", **changes: Any) -> str:
        """A token as the API server makes it, but for ``changes``; None leaves a claim out."""
        claims = {**claims_of(namespace), **changes}
        return self.sign({name: value for name, value in claims.items() if value is not None})


def claims_of(namespace: str, now: float | None = None) -> Object:
    """What the API server says about a pod's service account."""
    began = int(time.time() if now is None else now)
    return {
        "aud": [AUDIENCE],
        "exp": began + 600,
        "iat": began,
        "nbf": began,
        "iss": "https://kubernetes.default.svc",
        "jti": "7b6ed2a4-0000-4000-8000-000000000000",
        "kubernetes.io": {
            "namespace": namespace,
            "pod": {"name": "people-g1-build", "uid": "u1"},
            "serviceaccount": {"name": "default", "uid": "u2"},
        },
        "sub": f"system:serviceaccount:{namespace}:default",
    }


@cache
def rsa_signer(key_id: str = "rsa-1", bits: int = 2048) -> Signer:
    """Made once a process: making RSA keys is slow."""
    return Signer(key_id, "RS256", rsa.generate_private_key(public_exponent=65537, key_size=bits))


@cache
def ec_signer(key_id: str = "ec-1") -> Signer:
    return Signer(key_id, "ES256", ec.generate_private_key(ec.SECP256R1()))


def jwks(*signers: Signer) -> Object:
    return {"keys": [signer.public() for signer in signers]}


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
        """Of a problem."""
        assert self.headers["Content-Type"].startswith("application/problem+json"), self
        assert self.json["status"] == self.status
        return str(self.json["kind"])

    @property
    def lines(self) -> list[Any]:
        return [orjson.loads(line) for line in self.body.splitlines()]


@dataclass
class Standing:
    """A gateway, and a client of it."""

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
        """The answer to a request whose target is sent as it is, with a good token of ``namespace`` unless another is
        given; "" sends none."""
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
        """All that is answered to ``data`` until the gateway closes the connection; with ``close`` the client does,
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
    """The head of a request, to the byte."""
    shown = f"Authorization: Bearer {rsa_signer().token() if token is None else token}"
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: gateway", shown, *lines, "", ""]).encode("latin-1")


@contextlib.asynccontextmanager
async def standing(folder: Path, store: str, **options: Any) -> AsyncIterator[Standing]:
    """A gateway that is ready, before the bucket ``store`` of this process's environment."""
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
