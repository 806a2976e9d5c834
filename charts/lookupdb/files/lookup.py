"""Makes one real lookup through a dataset's router: the script of `helm test`, in a pod."""

import os
import queue
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT_SECONDS = 10
STRANGER_SECONDS = 30.0
"""Seconds to retry: for a moment after a Service is created, its address may lead somewhere else."""
GENERATION = "Lookupdb-Generation"
"""The header that a router answers with, whether it has the key or not."""
PORTS = (443, 80)
"""The usual ports of a router's Service, which has one of them. The other refuses connections, or does not answer."""
DEFAULT_PORTS = {"https": 443, "http": 80}
UNVERIFIED = ssl._create_unverified_context()  # noqa: S323 - as without TLS, the cluster's DNS says who answers


class StrangerError(Exception):
    """An answer that is not a router's."""


def main(dataset: str, namespaces: str, key: str, host: str = "") -> str | None:
    """Return why the lookup failed, as a sentence; None if it succeeded. The first of ``namespaces``, separated by
    commas, that answers counts."""
    unanswered = []
    for namespace in namespaces.split(","):
        name = host or f"{dataset}-router.{namespace}.svc"
        try:
            return ask_router(name, dataset, namespace, key)
        except StrangerError as error:
            return str(error)
        except OSError as error:
            unanswered.append(f"{name} ({error})")
    first = namespaces.split(",")[0]
    return (
        f"No dataset {dataset} in {namespaces.replace(',', ' or ')} answers: {', '.join(unanswered)}. Create one, e.g. "
        f"with kubectl apply -n {first} -f examples/airports.yaml, wait until it is Ready (kubectl get lds -A), "
        "or name the one that you have: helm upgrade --reuse-values --set "
        "test.namespace=…,test.dataset=…,test.key=…"
    )


def ask_router(name: str, dataset: str, namespace: str, key: str) -> str | None:
    """Call ``ask`` for the router at ``name``. Raises OSError if nothing answers, StrangerError if no router does."""
    ends_at = time.monotonic() + STRANGER_SECONDS
    while True:
        try:
            return ask(f"{find_router(name)}/v1/lookup/{urllib.parse.quote(key, safe='')}", dataset, namespace, key)
        except StrangerError:
            if time.monotonic() > ends_at:
                raise
        time.sleep(1)


def find_router(name: str) -> str:
    """Return the URL of the router at ``name``, a host with or without a port. No token is sent before it is known
    whether the router uses TLS. Raises OSError if nothing answers."""
    given = urllib.parse.urlsplit(f"//{name}")
    host = given.hostname or ""
    port = given.port or find_port(host)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        urllib.request.urlopen(f"http://{address}/v1/dataset", timeout=TIMEOUT_SECONDS).close()
        scheme = "http"
    except urllib.error.HTTPError as error:
        speaks_tls = error.code == 400 and b"use https" in error.read()
        scheme = "https" if speaks_tls else "http"
    return f"{scheme}://{address.removesuffix(f':{DEFAULT_PORTS[scheme]}')}"


def find_port(host: str) -> int:
    """Return the first of PORTS that takes a connection; all are tried at once. Raises OSError if none does."""
    outcomes: queue.SimpleQueue[tuple[int, OSError | None]] = queue.SimpleQueue()

    def connect(port: int) -> None:
        try:
            socket.create_connection((host, port), TIMEOUT_SECONDS).close()
        except OSError as error:
            outcomes.put((port, error))
        else:
            outcomes.put((port, None))

    for port in PORTS:
        threading.Thread(target=connect, args=(port,), daemon=True).start()
    refusals = []
    for _ in PORTS:
        port, refusal = outcomes.get()
        if refusal is None:
            return port
        refusals.append(f"port {port}: {refusal}")
    raise OSError(", ".join(refusals))


def ask(url: str, dataset: str, namespace: str, key: str) -> str | None:
    """Return why the router at ``url`` does not have ``key``; None if it has it. Raises OSError if nothing answers,
    StrangerError if what answers is not a router: that says nothing about the key."""
    try:
        request = urllib.request.Request(url)  # noqa: S310 - http
        if token := os.environ.get("LOOKUPDB_TOKEN", "").strip():
            if not token.isprintable() or " " in token:  # urllib would show it in its error
                return "the Secret that test.tokenSecret names holds no token in its key token"
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=UNVERIFIED) as response:  # noqa: S310 - http
            check_router(url, response.status, response.headers.get(GENERATION))
            print(url, response.headers[GENERATION], response.read().decode(errors="replace"))
            return None
    except urllib.error.HTTPError as error:
        body = error.read().decode(errors="replace")
        if error.code == 404:
            check_router(url, error.code, error.headers.get(GENERATION))
            return f"The dataset {dataset} in the namespace {namespace} serves, but has no key {key!r}: set test.key."
        return f"{url} answered {error.code}: {body}"


def check_router(url: str, status: int, generation: str | None) -> None:
    """Raises StrangerError unless the answer names its generation."""
    if not generation:
        raise StrangerError(f"what answers {url} with {status} is not a lookupdb router: it names no generation")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
