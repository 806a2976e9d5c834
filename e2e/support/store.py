"""The embedded store of the installation under test: its pod, its credentials, its sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from e2e.support import release
from e2e.support.kubectl import Manifest, apply, delete, find, get, kubectl, patch, ready_pod, run_in, until
from e2e.support.pods import config_map

LIST: Final = """
import json, sys
from obstore.store import S3Store
store = S3Store.from_url(sys.argv[1])
print(json.dumps([object["path"] for page in store.list() for object in page]))
"""
"""Prints the path of every object of the store whose URL it is given."""
_CHECKSUMS: Final = """
import json, sys
from obstore.store import S3Store
index = S3Store.from_url(sys.argv[1]).get(sys.argv[2] + "/manifest.json").bytes()
print(json.dumps([shard["sha256"] for shard in json.loads(bytes(index))["shards"]]))
"""
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
"""Prints 200 if that address is the store's; raises otherwise."""
STORE: Final = f"app.kubernetes.io/instance={release.RELEASE},app.kubernetes.io/component=store"


def deployment() -> Manifest:
    """Return the store's Deployment."""
    (found,) = find("deployments", release.NAMESPACE, STORE)
    return found


def pod() -> Manifest:
    """Wait until the store's only pod is ready, and return it."""
    return ready_pod(release.NAMESPACE, STORE, "the store")


@contextmanager
def stopped() -> Iterator[None]:
    """Stop the store while the block runs."""
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
    """Wait until every gateway reaches the store by its Service. After another node's loss, a node may learn of the pod
    minutes late, and until then sends requests outside the cluster."""
    url = f"http://{service}.{release.NAMESPACE}.svc:7070"
    for found in find("pods", release.NAMESPACE, release.GATEWAY):
        gateway = found["metadata"]["name"]
        until(partial(_is_reached, url, gateway), seconds=600, what=f"{gateway} reaches {url}")


def _is_reached(url: str, gateway: str) -> bool:
    return run_in(gateway, release.NAMESPACE, "python", "-c", _KNOCK, url).strip() == "200"


def secret() -> Manifest:
    """Return the Secret with the store's credentials."""
    return get("secret", deployment()["metadata"]["name"], release.NAMESPACE)


@contextmanager
def other_credentials(**data: str) -> Iterator[None]:
    """Give the gateway other credentials than the store's while the block runs. Values are base64."""
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
    """Return the name of the ConfigMap of live datasets, which the sweep reads."""
    volumes = _sweeper()["template"]["spec"]["volumes"]
    return next(str(volume["configMap"]["name"]) for volume in volumes if "configMap" in volume)


def sweep(name: str, *, grace: str, only_namespace: str = "") -> str:
    """Run the chart's sweeper now, as a Job ``name`` with this grace (``24h``, ``0s``). Return its log.
    ``only_namespace`` is the only one that is swept."""
    spec = _sweeper()
    (container,) = spec["template"]["spec"]["containers"]
    flag = "--grace="
    container["args"] = [*(word for word in container["args"] if not word.startswith(flag)), f"{flag}{grace}"]
    if not only_namespace:
        return _run(name, spec)
    listed = json.loads(get("configmap", live_datasets_config_map(), release.NAMESPACE)["data"]["living.json"])
    narrowed = json.dumps(listed | {"namespaces": [only_namespace]})
    apply(config_map(name, {"living.json": narrowed}), namespace=release.NAMESPACE)
    for volume in spec["template"]["spec"]["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = name
    try:
        return _run(name, spec)
    finally:
        delete("configmap", name, release.NAMESPACE)


def paths(name: str) -> list[str]:
    """List every object in the store, with a Job ``name`` made from the sweeper's."""
    return _run_script(name, LIST)


def checksums(name: str, generation: str) -> list[str]:
    """Return the SHA-256 of each shard of the generation in this folder of the store, with a Job ``name``."""
    return _run_script(name, _CHECKSUMS, generation)


def remove(name: str, prefix: str, *, cluster: str = "") -> list[str]:
    """Remove every object whose path, after the id of its cluster, begins with ``prefix``, with a Job ``name``. Return
    the paths. ``cluster`` selects one cluster."""
    return _run_script(name, _REMOVE, prefix, cluster)


def copy(name: str, dataset: str, uid: str, *, cluster: str, to_cluster: str) -> list[tuple[str, str]]:
    """Copy a dataset (``namespace/name``) to another cluster's part of the store, with a Job ``name`` that has the
    store's credentials. Return outcome and generation of each copy."""
    spec = _sweeper()
    (container,) = spec["template"]["spec"]["containers"]
    url = _store_url(container)
    options = ["--cluster-id", cluster, "--to-cluster-id", to_cluster, "--dataset", dataset, "--uid", uid]
    container["args"] = ["copy", url, url, *options, "--json", "--progress", "none"]
    result = [json.loads(line) for line in _run(name, spec).splitlines() if line.startswith('{"outcome"')]
    return [(line["outcome"], line["generation"]) for line in result]


def _run_script(name: str, script: str, *arguments: str) -> list[str]:
    """Return what ``script`` prints, given the store's URL and ``arguments``."""
    spec = _sweeper()
    (container,) = spec["template"]["spec"]["containers"]
    container |= {"command": ["python", "-c", script], "args": [_store_url(container), *arguments]}
    found: list[str] = json.loads(_run(name, spec).splitlines()[-1])
    return found


def _store_url(sweeper: Manifest) -> str:
    """Return the store's URL from a sweeper's container."""
    return next(str(word).partition("=")[2] for word in sweeper["args"] if word.startswith("--store="))


def _sweeper() -> Manifest:
    """Return the Job of the chart's CronJob."""
    selector = f"app.kubernetes.io/instance={release.RELEASE},app.kubernetes.io/component=sweep"
    (cron,) = find("cronjobs", release.NAMESPACE, selector)
    spec: Manifest = cron["spec"]["jobTemplate"]["spec"]
    return spec


def _run(name: str, spec: Manifest) -> str:
    """Run a Job that must succeed, remove it, and return its log."""
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
    result = kubectl("logs", f"job/{name}", "--namespace", release.NAMESPACE) if status.get("failed") else ""
    assert not result, f"it failed: {result[-2000:]}"
    return bool(status.get("succeeded"))


def _scale(name: str, replicas: int) -> None:
    kubectl("scale", "deployment", name, "--namespace", release.NAMESPACE, f"--replicas={replicas}")
