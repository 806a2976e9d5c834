"""Access to lookups: Secrets with certificates and hashed tokens, service account tokens, and lookups over TLS."""

from __future__ import annotations

import json
from collections.abc import Sequence

from e2e.support import pods
from e2e.support.certificates import Identity
from e2e.support.kubectl import Manifest, kubectl, run_in

from lookupdb.router.access import hash_token


def secret(name: str, data: dict[str, str], kind: str = "Opaque") -> Manifest:
    """A Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": data}


def certificate(name: str, identity: Identity) -> Manifest:
    """Return the Secret of ``spec.router.tls``."""
    return secret(name, {"tls.crt": identity.certificate_pem, "tls.key": identity.key_pem}, "kubernetes.io/tls")


def clients(name: str, *tokens: str) -> Manifest:
    """Return the Secret of ``spec.router.auth.tokens`` that admits the client ``web`` with these tokens."""
    return secret(name, {"web": "\n".join(hash_token(token.encode()) for token in tokens) + "\n"})


def account_token(namespace: str, account: str, audience: str = "") -> str:
    """Return a token of a ServiceAccount, by default for the API server."""
    wanted = ["--audience", audience] if audience else []
    command = ("create", "token", account, "--namespace", namespace, "--duration", "10m", *wanted)
    return kubectl(*command).strip()


def ask(namespace: str, url: str, tokens: Sequence[str]) -> list[tuple[int, str]]:
    """Return status and body of ``GET url`` with each token, or without one if it is empty. The keeper's pod asks,
    which trusts only the scenario's authority."""
    shown = [{"Authorization": f"Bearer {token}"} if token else {} for token in tokens]
    asked = json.dumps({"requests": [{"method": "GET", "url": url, "headers": headers} for headers in shown]})
    result = run_in(pods.KEEPER, namespace, "python", "/inside/intrude.py", stdin=asked)
    return [(status, body) for status, body in json.loads(result)["answers"]]
