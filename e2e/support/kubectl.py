"""kubectl as functions, each with a deadline. A failure raises kubectl's message."""

from __future__ import annotations

import atexit
import functools
import http.client
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from e2e.support.command import CommandFailed, run

Manifest = dict[str, Any]
"""A Kubernetes object, as JSON."""

T = TypeVar("T")

CALL_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.7
_VERSIONS: Final = {
    **dict.fromkeys(("configmaps", "events", "persistentvolumeclaims", "pods", "secrets", "services"), "api/v1"),
    **dict.fromkeys(("daemonsets", "deployments", "statefulsets"), "apis/apps/v1"),
    **dict.fromkeys(("cronjobs", "jobs"), "apis/batch/v1"),
}
"""Kinds that scenarios poll, and the API that lists them: they are read by ``raw``."""


def kubectl(*arguments: str, stdin: str | None = None, timeout: float = CALL_SECONDS) -> str:
    """Return the standard output of ``kubectl ARGUMENTS``. Raises CommandFailed."""
    return run(["kubectl", *arguments], stdin=stdin, timeout=timeout)


def apply(*manifests: Manifest, namespace: str | None = None) -> None:
    """``kubectl apply`` all of them, in ``namespace`` unless they name another."""
    documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    kubectl("apply", *_in(namespace), "-f", "-", stdin=documents)


def get(kind: str, name: str, namespace: str | None = None) -> Manifest:
    """Return one object. Raises CommandFailed if there is none."""
    found: Manifest = json.loads(kubectl("get", kind, name, *_in(namespace), "-o", "json"))
    return found


def find(kind: str, namespace: str | None = None, selector: str = "") -> list[Manifest]:
    """Return all objects of one or more kinds (``pods,jobs``) that the label selector selects."""
    if namespace and kind in _VERSIONS:
        path = f"/{_VERSIONS[kind]}/namespaces/{namespace}/{kind}?{urlencode({'labelSelector': selector})}"
        listed = json.loads(raw(path))
        header = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        for item in listed["items"]:
            item["metadata"].pop("managedFields", None)  # as kubectl does: an object with them cannot be applied
        return [{**header, **item} for item in listed["items"]]
    flags = ["--selector", selector] if selector else []
    found: list[Manifest] = json.loads(kubectl("get", kind, *_in(namespace), *flags, "-o", "json"))["items"]
    return found


def find_everywhere(kind: str, selector: str = "") -> list[Manifest]:
    """Return all objects of a kind in all namespaces."""
    flags = ["--selector", selector] if selector else []
    found: list[Manifest] = json.loads(kubectl("get", kind, "--all-namespaces", *flags, "-o", "json"))["items"]
    return found


def ready_pod(namespace: str, selector: str, what: str) -> Manifest:
    """Wait until the only pod that the label selector selects is ready, and return it. Terminating pods do not
    count."""

    def look() -> Manifest | None:
        pods = [pod for pod in find("pods", namespace, selector) if "deletionTimestamp" not in pod["metadata"]]
        assert len(pods) == 1, [pod["metadata"]["name"] for pod in pods]
        conditions = {condition["type"]: condition["status"] for condition in pods[0]["status"].get("conditions", [])}
        return pods[0] if conditions.get("Ready") == "True" else None

    return until(look, seconds=120, what=f"one ready pod of {what}")


def patch(kind: str, name: str, change: Manifest, namespace: str | None = None) -> None:
    """Apply a JSON merge patch."""
    kubectl("patch", kind, name, *_in(namespace), "--type", "merge", "--patch", json.dumps(change))


def delete(kind: str, name: str, namespace: str | None = None, *flags: str) -> None:
    """``kubectl delete``, if it exists; waits unless a flag says otherwise."""
    kubectl("delete", kind, name, *_in(namespace), "--ignore-not-found", *flags, timeout=180)


def run_in(pod: str, namespace: str, *command: str, stdin: str | None = None, timeout: float = 120) -> str:
    """Return the standard output of a command in a pod's first container."""
    flags = ["-i"] if stdin is not None else []
    return kubectl("exec", *flags, pod, *_in(namespace), "--", *command, stdin=stdin, timeout=timeout)


def raw(path: str) -> str:
    """``GET path`` at the API server, which also proxies to pods and services. Scenarios poll with it: it takes a
    fraction of the processor time of a kubectl."""
    try:
        connection = http.client.HTTPConnection(proxy_address(), timeout=CALL_SECONDS)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
    except (OSError, http.client.HTTPException):
        return kubectl("get", "--raw", path)
    if answer.status >= http.client.BAD_REQUEST:
        raise CommandFailed(f"GET {path}: {answer.status} {body}")
    return body


def until(look: Callable[[], T | None], *, seconds: float, what: str) -> T:
    """Call ``look`` until it returns something true, and return that. While it raises AssertionError (such as
    CommandFailed), try again. After ``seconds``, raise AssertionError with ``what`` and the last error."""
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            found = look()
        except (AssertionError, KeyError, IndexError) as error:
            found, last = None, f"; last: {type(error).__name__}: {error}"
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}{last}"
        time.sleep(POLL_SECONDS)


@functools.cache
def proxy_address() -> str:
    """Start ``kubectl proxy``, which ends with this process, and return its host:port; empty if it does not start."""
    proxy = subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
    atexit.register(proxy.terminate)
    assert proxy.stdout
    return proxy.stdout.readline().rpartition(" ")[2].strip()  # Starting to serve on 127.0.0.1:41555


def _in(namespace: str | None) -> list[str]:
    return ["--namespace", namespace] if namespace else []
