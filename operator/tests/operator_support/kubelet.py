"""The cluster's controllers and kubelets, on the test's command: builds end, servers and routers get ready."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from aiohttp import web
from benchmarks.operator_load.api_protocol import build_result

from lookupdb.router.routing_table import digest_table
from lookupdb_operator import names
from operator_support.kube import Kube, Object
from operator_support.loopback import listening

READY: Final = [{"type": "Ready", "status": "True"}]


class Kubelet:
    """Makes pods and reports their state. Routers answer on ``admin_port`` of loopback from the table in ``kube``."""

    def __init__(self, kube: Kube, admin_port: int) -> None:
        self.kube = kube
        self.admin_port = admin_port
        self._suffixes = itertools.count(1)

    def end_builds(self, **result: Any) -> None:
        """End every running Job successfully, with ``result`` from its builder."""
        for job in self.kube.all("Job"):
            if not job.get("status"):
                self._end_build(job, result)

    def _end_build(self, job: Object, result: dict[str, Any]) -> None:
        message = build_result(job) | result
        ended = {"exitCode": message.get("exitCode", 0), "message": orjson.dumps(message).decode()}
        failed = message["outcome"] == "failed"
        status = {
            "phase": "Failed" if failed else "Succeeded",
            "containerStatuses": [{"name": "build", "state": {"terminated": ended}}],
        }
        self._pod(job, f"{job['metadata']['name']}-{next(self._suffixes)}", status)
        kind = "Failed" if failed else "Complete"
        self._tell(job, {"conditions": [{"type": kind, "status": "True"}], "failed" if failed else "succeeded": 1})

    def start_servers(self) -> None:
        """Make all pods of every StatefulSet ready."""
        for shards in self.kube.all("StatefulSet"):
            replicas = shards["spec"]["replicas"]
            for replica in range(replicas):
                self._pod(shards, f"{shards['metadata']['name']}-{replica}", self._running())
            self._tell(shards, {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas})

    def start_routers(self) -> None:
        """Make all pods of every Deployment ready."""
        for deployment in self.kube.all("Deployment"):
            name, replicas = f"{deployment['metadata']['name']}-5d8f", deployment["spec"].get("replicas", 1)
            for replica in range(replicas):
                self._pod(deployment, f"{name}-{replica}", self._running(), owner=("ReplicaSet", name))
            self._tell(deployment, {"replicas": replicas, "readyReplicas": replicas})

    def _running(self) -> Object:
        return {"phase": "Running", "podIP": "127.0.0.1", "conditions": READY}

    def _tell(self, item: Object, status: Object) -> None:
        meta = item["metadata"]
        now = self.kube.objects[item["kind"], meta["namespace"], meta["name"]]
        self.kube.put({**now, "status": {**status, "observedGeneration": now["metadata"]["generation"]}})

    def _pod(self, owner_of: Object, name: str, status: Object, owner: tuple[str, str] | None = None) -> None:
        meta, template = owner_of["metadata"], owner_of["spec"]["template"]
        there = self.kube.get("Pod", meta["namespace"], name)
        kind, owner_name = owner or (owner_of["kind"], meta["name"])
        reference = {"kind": kind, "name": owner_name, "uid": meta["uid"], "controller": True}
        self.kube.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    **(there or {}).get("metadata", {}),
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": template["metadata"]["labels"],
                    "ownerReferences": [reference],
                },
                "spec": template["spec"],
                "status": status,
            }
        )

    async def _admin(self, _request: web.Request) -> web.Response:
        tables = [item for item in self.kube.all("ConfigMap") if names.TABLE_FILE in item.get("data", {})]
        if not tables:
            return web.json_response({"workers": [{"report": {"tableVersion": None, "tableDigest": None}}]})
        text = tables[0]["data"][names.TABLE_FILE]
        report = {"tableVersion": orjson.loads(text)["version"], "tableDigest": digest_table(text.encode())}
        return web.json_response({"workers": [{"report": report}]})


@contextlib.asynccontextmanager
async def kubelet_of(kube: Kube) -> AsyncIterator[Kubelet]:
    """A kubelet for ``kube``, and the admin port of its routers."""
    kubelet = Kubelet(kube, 0)
    async with listening(kubelet._admin, "/status") as kubelet.admin_port:
        yield kubelet
