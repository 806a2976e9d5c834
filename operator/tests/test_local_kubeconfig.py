"""`lookupdb up --kubeconfig FILE`: Kubernetes' own client reads and changes datasets by that file."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from lookupdb.errors import UsageError
from lookupdb_operator import names
from lookupdb_operator.cluster.api import APPLY_PATCH, JSON, MERGE_PATCH
from lookupdb_operator.console.source import PodClient
from lookupdb_operator.local.api import LocalApi
from lookupdb_operator.local.server import KubernetesServer

PEOPLE: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"namespace": "default", "name": "people"},
    "spec": {"source": {"url": "people.csv"}, "key": {"columns": ["email"]}},
}
OTHERS = {**PEOPLE, "metadata": {"namespace": "default", "name": "others"}}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"namespace": "default", "name": "web", "labels": {"app": "web"}},
    "spec": {"replicas": 1},
}
GROUP, VERSION = names.API_VERSION.split("/")


def use_client(path: Path) -> list[str]:
    """Read, change and fail to delete a dataset; return what happened."""
    connect: Any = config.new_client_from_config
    with connect(str(path)) as connection:
        datasets: Any = client.CustomObjectsApi(connection)
        about = (GROUP, VERSION, "default", names.DATASET_KIND.plural)
        listed = [item["metadata"]["name"] for item in datasets.list_namespaced_custom_object(*about)["items"]]
        change = {"spec": {"shards": 2, "router": {"replicas": 5}}}
        patched = datasets.patch_namespaced_custom_object(*about, "people", change)["spec"]
        with pytest.raises(client.ApiException) as refused:
            datasets.delete_namespaced_custom_object(*about, "people")
        with pytest.raises(client.ApiException) as invalid:
            datasets.patch_namespaced_custom_object(*about, "people", {"spec": {"shards": 0}})
        versions = client.CoreApi(connection).get_api_versions().versions
    return [*listed, *versions, patched["shards"], patched["router"]["replicas"], refused.value.status] + [
        invalid.value.status
    ]


def apply(url: str, item: dict[str, Any]) -> urllib.request.Request:
    """Return the request of `kubectl apply --server-side`."""
    return urllib.request.Request(url, json.dumps(item).encode(), {"Content-Type": APPLY_PATCH}, method="PATCH")


async def test_a_client_of_kubernetes_reads_and_changes_datasets(tmp_path: Path) -> None:
    api, path = LocalApi(), tmp_path / "kubeconfig"
    api.add_folder("default", "people", tmp_path / "objects")
    await api.request("POST", names.DATASET_KIND.path("default"), subject="people", body=PEOPLE)
    async with KubernetesServer(api, lambda *_: None, PodClient(), path).listening_on_port():
        assert path.stat().st_mode & 0o777 == 0o600
        assert await asyncio.to_thread(use_client, path) == ["people", "v1", 2, 1, 422, 422]
        address = json.loads(path.read_text())["clusters"][0]["cluster"]["server"]
        other = f"{address}{names.DATASET_KIND.path('default', 'others')}?fieldManager=kubectl"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(urllib.request.urlopen, apply(other, OTHERS))
        deployments = f"{address}{names.DEPLOYMENT.path('default')}"
        for request in (
            urllib.request.Request(deployments, json.dumps(DEPLOYMENT).encode(), {"Content-Type": JSON}),
            apply(f"{deployments}/web?fieldManager=kubectl", DEPLOYMENT),
        ):
            with pytest.raises(urllib.error.HTTPError, match="422"):
                await asyncio.to_thread(urllib.request.urlopen, request)
        assert api.all(names.DEPLOYMENT) == []
        for headers, body in (({"Content-Encoding": "gzip"}, b"no gzip"), ({}, b" " * (5 << 20))):
            request = urllib.request.Request(other, body, {"Content-Type": JSON, **headers}, method="PATCH")
            with pytest.raises(urllib.error.HTTPError, match="422") as refused:
                await asyncio.to_thread(urllib.request.urlopen, request)
            assert json.load(refused.value)["kind"] == "Status"
        people = f"{address}{names.DATASET_KIND.path('default', 'people')}"
        deep = b'{"spec":' + b'{"a":' * 900 + b"1" + b"}" * 901
        for patch in (b'{"metadata":{"name":"other"}}', b'{"metadata":{"labels":["a"]}}', deep):
            request = urllib.request.Request(people, patch, {"Content-Type": MERGE_PATCH}, method="PATCH")
            with pytest.raises(urllib.error.HTTPError, match="422"):
                await asyncio.to_thread(urllib.request.urlopen, request)
        assert [item["metadata"].get("labels") for item in api.all(names.DATASET_KIND)] == [None]
        metrics = f"{address}/api/v1/namespaces/default/pods/people-r1-s0-0%3A9090/proxy/metrics"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            await asyncio.to_thread(urllib.request.urlopen, metrics)
        assert json.load(refused.value)["message"] == "no pod people-r1-s0-0 runs"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(urllib.request.urlopen, f"{address.rpartition('/')[0]}/guessed/api")
    assert not path.exists()


async def test_only_a_file_of_an_up_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    server = KubernetesServer(LocalApi(), lambda *_: None, PodClient(), path)
    path.write_text("apiVersion: v1\nkind: Config\nclusters: [{name: production}]\n")
    with pytest.raises(UsageError, match="exists, and no `lookupdb up` has written it"):
        async with server.listening_on_port():
            pass
    assert "production" in path.read_text()
    path.write_bytes(b"")
    async with server.listening_on_port():
        left = path.read_bytes()
    path.write_bytes(left)  # of an `up` that was killed
    async with server.listening_on_port():
        assert path.read_bytes() != left
        path.write_text("of an `up` that began later")
    assert path.exists()
