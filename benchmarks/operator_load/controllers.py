"""Simulated controllers and kubelets: Jobs succeed, servers and routers get ready, each pod in the steps that a watch
sees of a real one."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

import orjson

from benchmarks.operator_load.api_protocol import build_result, check_result
from benchmarks.operator_load.store import Object, Store
from lookupdb_operator import names

STEP_SECONDS: Final = 0.3
"""Seconds between two steps of a pod; at most twice that."""
_MOMENT: Final = "2026-01-01T00:00:00Z"
_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class Controllers:
    """Reacts to objects of ``store`` that are created, scaled or deleted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses = len(store.objects["Pod"])
        self.routers: dict[str, tuple[str, str]] = {}
        """Address → namespace and dataset of every router."""
        self.is_source_unchanged = False
        """True if builders find the source unchanged."""
        for namespace, name in store.objects["Pod"]:
            self._note_router(store.get("Pod", namespace, name) or {})

    @property
    def busy(self) -> int:
        """The number of objects that are changing state."""
        return len(self._tasks)

    def written(self, item: Object, *, is_new: bool) -> None:
        """React to ``item``, which the operator created or changed."""
        match item["kind"]:
            case "StatefulSet" | "Deployment" | "Job" if is_new:
                task = asyncio.create_task(self._run(item))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run(self, owner: Object) -> None:
        kind, meta = owner["kind"], owner["metadata"]
        if kind == "Job":
            pods = [f"{meta['name']}-{meta['uid'][:5]}"]
        elif kind == "Deployment":
            pods = [f"{meta['name']}-5d8f7c-{index}" for index in range(owner["spec"].get("replicas", 2))]
        else:
            pods = [f"{meta['name']}-{ordinal}" for ordinal in range(owner["spec"]["replicas"])]
        await asyncio.gather(*(self._start(owner, name, pods) for name in pods))
        if kind == "Job":
            self._tell(owner, {"succeeded": 1, "conditions": [_condition("Complete", True)]})

    async def _start(self, owner: Object, name: str, pods: list[str]) -> None:
        namespace, pod = owner["metadata"]["namespace"], Object()
        for step in range(5):
            await asyncio.sleep(STEP_SECONDS * random.uniform(0.5, 2))
            if (namespace, owner["metadata"]["name"]) not in self._store.objects[owner["kind"]]:
                return
            found = _pod(owner, name) if step == 0 else self._store.get("Pod", namespace, name)
            if found is None:
                return
            pod = found
            pod["status"] = self._status(owner, pod, step)
            self._store.put(pod)
        self._note_router(pod)
        if owner["kind"] != "Job":
            ready = sum(_is_ready(self._store.get("Pod", namespace, pod)) for pod in pods)
            self._tell(owner, {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready})

    def _status(self, owner: Object, pod: Object, step: int) -> Object:
        ended = owner["kind"] == "Job" and step == 4
        truths = {"PodScheduled": step > 0, "PodReadyToStartContainers": step > 1, "Initialized": step > 2}
        ready = step == 4 and not ended
        before = pod.get("status", {}).get("podIP", "")
        state: Object = {"waiting": {"reason": "PodInitializing"}} if step < 3 else {"running": {"startedAt": _MOMENT}}
        if ended:
            state = {
                "terminated": {
                    "exitCode": 0,
                    "reason": "Completed",
                    "message": orjson.dumps(self._result(owner)).decode(),
                }
            }
        return {
            "phase": "Succeeded" if ended else "Running" if step > 2 else "Pending",
            "podIP": before or (self._address() if step > 1 else ""),
            "hostIP": "10.0.0.1",
            "qosClass": "Burstable",
            "startTime": _MOMENT,
            "conditions": [_condition(kind, truths.get(kind, ready)) for kind in _CONDITIONS],
            "containerStatuses": [
                _container(container, state, ready) for container in pod["spec"]["containers"] if step > 0
            ],
            "initContainerStatuses": [
                _container(container, {"running": {"startedAt": _MOMENT}}, step > 2)
                for container in pod["spec"].get("initContainers", ())
                if step > 0
            ],
        }

    def _result(self, job: Object) -> Object:
        return check_result(job) if self.is_source_unchanged else build_result(job)

    def _address(self) -> str:
        self._addresses += 1
        number = self._addresses % 0xFE_FFFF + 0x1_0001
        return f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    def _note_router(self, pod: Object) -> None:
        labels = pod["metadata"].get("labels", {})
        if labels.get(names.COMPONENT) == names.ROUTER:
            self.routers[pod["status"]["podIP"]] = pod["metadata"]["namespace"], labels[names.DATASET]

    def _tell(self, owner: Object, status: Object) -> None:
        meta = owner["metadata"]
        if now := self._store.get(owner["kind"], meta["namespace"], meta["name"]):
            self._store.put({**now, "status": {**status, "observedGeneration": now["metadata"]["generation"]}})


def _pod(owner: Object, name: str) -> Object:
    meta, template = owner["metadata"], owner["spec"]["template"]
    kind, owner_name = owner["kind"], meta["name"]
    if kind == "Deployment":
        kind, owner_name = "ReplicaSet", f"{owner_name}-5d8f7c"
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "uid": meta["uid"], "controller": True}
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**template["metadata"]["labels"], "statefulset.kubernetes.io/pod-name": name},
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [reference],
        },
        "spec": {**template["spec"], "nodeName": f"node-{hash(name) % 100}", "schedulerName": "default-scheduler"},
    }
    pod["metadata"]["managedFields"] = managed_fields(pod, "kube-controller-manager")
    return pod


def managed_fields(item: Object, manager: str) -> list[Object]:
    """Return the size of a real API server's managed fields."""
    fields = {member: item[member] for member in ("spec", "data") if member in item}
    about = {member: item["metadata"][member] for member in ("labels", "annotations") if member in item["metadata"]}
    owners = item["metadata"].get("ownerReferences", ())
    entry = {"apiVersion": item["apiVersion"], "fieldsType": "FieldsV1", "manager": manager, "time": _MOMENT}
    ours = _fields({"metadata": about, **fields})
    ours["f:metadata"]["f:ownerReferences"] = {f'k:{{"uid":"{owner["uid"]}"}}': {} for owner in owners}
    return [{**entry, "operation": "Apply", "fieldsV1": ours}]


def _fields(value: Any) -> Object:
    if isinstance(value, dict):
        return {f"f:{name}": _fields(member) for name, member in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict) and "name" in value[0]:
        return {f'k:{{"name":"{item["name"]}"}}': {".": {}, **_fields(item)} for item in value}
    return {}


def _container(container: Object, state: Object, ready: bool) -> Object:
    image = container["image"]
    return {
        "name": container["name"],
        "image": image,
        "imageID": f"{image}@sha256:{'0' * 64}",
        "containerID": f"containerd://{'0' * 64}",
        "ready": ready,
        "restartCount": 0,
        "started": ready,
        "state": state,
        "lastState": {},
    }


def _condition(kind: str, truth: bool) -> Object:
    return {"type": kind, "status": str(truth), "lastProbeTime": None, "lastTransitionTime": _MOMENT}


def _is_ready(pod: Object | None) -> bool:
    conditions = (pod or {}).get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
