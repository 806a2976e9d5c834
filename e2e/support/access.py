"""Who may look up, as stories say it: Secrets with a router's certificate and with the hashes of tokens, tokens of
service accounts, and lookups over TLS that show one."""

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
    """The Secret of ``spec.router.tls``."""
    return secret(name, {"tls.crt": identity.certificate_pem, "tls.key": identity.key_pem}, "kubernetes.io/tls")


def clients(name: str, *tokens: str) -> Manifest:
    """The Secret of ``spec.router.auth.tokens`` that lets the client ``web`` in by these tokens."""
    return secret(name, {"web": "\n".join(hash_token(token.encode()) for token in tokens) + "\n"})


def account_token(namespace: str, account: str, audience: str = "") -> str:
    """A token of a ServiceAccount; without an audience it is for the API server."""
    wanted = ["--audience", audience] if audience else []
    command = ("create", "token", account, "--namespace", namespace, "--duration", "10m", *wanted)
    return kubectl(*command).strip()


def ask(namespace: str, url: str, tokens: Sequence[str]) -> list[tuple[int, str]]:
    """Status and body of ``GET url`` with each of the tokens, the empty one not shown, from the keeper's pod: it trusts
    the story's authority and no other."""
    shown = [{"Authorization": f"Bearer {token}"} if token else {} for token in tokens]
    asked = json.dumps({"requests": [{"method": "GET", "url": url, "headers": headers} for headers in shown]})
    told = run_in(pods.KEEPER, namespace, "python", "/inside/intrude.py", stdin=asked)
    return [(status, body) for status, body in json.loads(told)["answers"]]
