"""Signers of the tokens of service accounts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "lookupdb-store:lookupdb/lookupdb"
Object = dict[str, Any]


@dataclass(frozen=True)
class Signer:
    """A key of service accounts, and its id."""

    key_id: str
    algorithm: str
    key: Any

    def public(self) -> Object:
        """The key as the API server publishes it."""
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
        """A token as the API server makes it, except for ``changes``; None leaves a claim out."""
        claims = {**claims_of(namespace), **changes}
        return self.sign({name: value for name, value in claims.items() if value is not None})


def claims_of(namespace: str, now: float | None = None) -> Object:
    """The API server's claims about a pod's service account."""
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
