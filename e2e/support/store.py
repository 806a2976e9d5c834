"""The embedded store of the installation under test: its pod, its credentials, its sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from e2e.support import release
from e2e.support.kubectl import Manifest, apply, delete, find, get, kubectl, patch, ready_pod, run_in, until

LIST: Final = """
import json, sys
from obstore.store import S3Store
store = S3Store.from_url(sys.argv[1])
print(json.dumps([object["path"] for page in store.list() for object in page]))
"""
"""Prints the path of every object of the store whose URL it is given."""
_REMOVE: Final = """
import json, sys
from obstore.store import S3Store
store = S3Store.from_url(sys.argv[1])
paths = [object["path"] for page in store.list() for object in page]
places = [(path, *path.split("/", 1)) for path in paths if "/" in path]
prefix, cluster = sys.argv[2:]
paths = [path for path, of, rest in places if cluster in ("", of) and rest.startswith(prefix)]
store.delete(paths)
print(json.dumps(paths))
"""
_KNOCK: Final = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1] + "/healthz", timeout=5).status)
"""
"""Prints 200 where the store of that address is reached; raises where something else answers, or nothing."""
STORE: Final = f"app.kubernetes.io/instance={release.RELEASE},app.kubernetes.io/component=store"


def deployment() -> Manifest:
    """Of the store."""
    (found,) = find("deployments", release.NAMESPACE, STORE)
    return found


def pod() -> Manifest:
    """The store's one ready pod; waits for it."""
    return ready_pod(release.NAMESPACE, STORE, "the store")


@contextmanager
def stopped() -> Iterator[None]:
    """While the block runs, no store does; afterwards it runs again."""
    name = deployment()["metadata"]["name"]
    try:
        _scale(name, 0)
        until(lambda: not find("pods", release.NAMESPACE, STORE), seconds=120, what="the store's pod gone")
        yield
    finally:
        _scale(name, 1)
        pod()
        _wait_reached(name)


def _wait_reached(service: str) -> None:
    """Until every gateway reaches the store by its Service. A node may learn minutes after the loss of another that a
    Service has a pod again; until then it sends what is meant for it out of the cluster, where anybody may answer."""
    url = f"http://{service}.{release.NAMESPACE}.svc:7070"
    for found in find("pods", release.NAMESPACE, release.GATEWAY):
        gateway = found["metadata"]["name"]
        until(partial(_is_reached, url, gateway), seconds=600, what=f"{gateway} reaches {url}")


def _is_reached(url: str, gateway: str) -> bool:
    return run_in(gateway, release.NAMESPACE, "python", "-c", _KNOCK, url).strip() == "200"


def secret() -> Manifest:
    """With the store's credentials."""
    return get("secret", deployment()["metadata"]["name"], release.NAMESPACE)


@contextmanager
def other_credentials(**data: str) -> Iterator[None]:
    """While the block runs, the gateway has these credentials and the store its own. Values are base64."""
    held = secret()
    name = held["metadata"]["name"]
    try:
        patch("secret", name, {"data": data}, release.NAMESPACE)
        release.restart_gateway()
        yield
    finally:
        patch("secret", name, {"data": held["data"]}, release.NAMESPACE)
        release.restart_gateway()


def live_datasets_config_map() -> str:
    """The name of the ConfigMap with the living datasets, which the sweep reads."""
    volumes = _sweeper()["template"]["spec"]["volumes"]
    return next(str(volume["configMap"]["name"]) for volume in volumes if "configMap" in volume)


def sweep(name: str, *, grace: str) -> str:
    """Runs the chart's sweeper now, as a Job ``name``, with this grace (``24h``, ``0s``); its log."""
    spec = _sweeper()
    (container,) = spec["template"]["spec"]["containers"]
    flag = "--grace="
    container["args"] = [*(word for word in container["args"] if not word.startswith(flag)), f"{flag}{grace}"]
    return _run(name, spec)


def paths(name: str) -> list[str]:
    """Every object in the store, listed by a Job ``name`` that looks like the sweeper."""
    return _run_script(name, LIST)


def remove(name: str, prefix: str, *, cluster: str = "") -> list[str]:
    """Removes every object whose path begins with ``prefix`` after its cluster's id, of all clusters or of ``cluster``,
    by a Job ``name``; their paths."""
    return _run_script(name, _REMOVE, prefix, cluster)


def copy(name: str, dataset: str, uid: str, *, cluster: str, to_cluster: str) -> list[tuple[str, str]]:
    """Copies a dataset (``namespace/name``) from one cluster's part of the store into another's, by a Job ``name`` that
    has the store's credentials; what became of which generation."""
    spec = _sweeper()
    (container,) = spec["template"]["spec"]["containers"]
    url = _store_url(container)
    options = ["--cluster-id", cluster, "--to-cluster-id", to_cluster, "--dataset", dataset, "--uid", uid]
    container["args"] = ["copy", url, url, *options, "--json", "--progress", "none"]
    told = [json.loads(line) for line in _run(name, spec).splitlines() if line.startswith('{"outcome"')]
    return [(line["outcome"], line["generation"]) for line in told]


def _run_script(name: str, script: str, *arguments: str) -> list[str]:
    """What ``script`` prints, to which the store's URL and ``arguments`` are given."""
    spec = _sweeper()
    (container,) = spec["template"]["spec"]["containers"]
    container |= {"command": ["python", "-c", script], "args": [_store_url(container), *arguments]}
    found: list[str] = json.loads(_run(name, spec).splitlines()[-1])
    return found


def _store_url(sweeper: Manifest) -> str:
    """Where the container of a sweeper finds the store."""
    return next(str(word).partition("=")[2] for word in sweeper["args"] if word.startswith("--store="))


def _sweeper() -> Manifest:
    """The Job that the chart's CronJob makes."""
    selector = f"app.kubernetes.io/instance={release.RELEASE},app.kubernetes.io/component=sweep"
    (cron,) = find("cronjobs", release.NAMESPACE, selector)
    spec: Manifest = cron["spec"]["jobTemplate"]["spec"]
    return spec


def _run(name: str, spec: Manifest) -> str:
    """The log of a Job, which must succeed and is removed."""
    try:
        apply(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec},
            namespace=release.NAMESPACE,
        )
        until(lambda: _ended(name), seconds=180, what=f"the end of Job {name}")
        return kubectl("logs", f"job/{name}", "--namespace", release.NAMESPACE)
    finally:
        delete("job", name, release.NAMESPACE)


def _ended(name: str) -> bool:
    status = get("job", name, release.NAMESPACE)["status"]
    told = kubectl("logs", f"job/{name}", "--namespace", release.NAMESPACE) if status.get("failed") else ""
    assert not told, f"it failed: {told[-2000:]}"
    return bool(status.get("succeeded"))


def _scale(name: str, replicas: int) -> None:
    kubectl("scale", "deployment", name, "--namespace", release.NAMESPACE, f"--replicas={replicas}")
