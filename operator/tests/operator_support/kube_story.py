"""Steps in the life of a dataset: apply it, get it from one step to the next, look at it."""

from __future__ import annotations

import asyncio
from typing import Any

from operator_support.kube import Kube, Object
from operator_support.kubelet import Kubelet
from operator_support.running import until


def dataset(name: str = "airports", namespace: str = "shop", **spec: Any) -> Object:
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"source": {"url": "example://airports.csv.gz"}, "key": {"columns": ["icao"]}, "shards": 2, **spec},
    }


def respecified(kube: Kube, **spec: Any) -> Object:
    """Return the current dataset with the spec of ``dataset(**spec)``."""
    return {**(kube.get("LookupDataset", "shop", "airports") or {}), "spec": dataset(**spec)["spec"]}


def status_of(kube: Kube, name: str = "airports") -> Object:
    return dict((kube.get("LookupDataset", "shop", name) or {}).get("status", {}))


def condition(kube: Kube, kind: str, name: str = "airports") -> Object:
    conditions = status_of(kube, name).get("conditions", [])
    return next(
        (condition for condition in conditions if condition["type"] == kind),
        {"status": "", "reason": "", "message": ""},
    )


def seen(kube: Kube) -> str:
    """Return what a person would look at."""
    lines = [
        f"{condition['type']}={condition['status']} {condition['reason']}: {condition['message']}"
        for condition in status_of(kube).get("conditions", [])
    ]
    lines += [" ".join(key) for key in sorted(kube.objects)]
    lines += [str(write) for write in kube.writes[-40:]]
    return "\n".join(lines)


async def step_to_build(kube: Kube) -> None:
    await until(lambda: kube.all("Job"), "a build", lambda: seen(kube))


async def step_to_servers(kube: Kube, kubelet: Kubelet, *, count: int = 2, **result: Any) -> None:
    """End the build with ``result``, and wait until there are ``count`` StatefulSets."""

    def has_servers() -> bool:
        kubelet.end_builds(**result)  # every time: a build whose Job is seen to end before its pod is seen runs again
        return len(kube.all("StatefulSet")) == count

    await until(has_servers, "shard servers", lambda: seen(kube))


async def step_to_table(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.start_routers()
    kubelet.start_servers()
    await until(lambda: kube.get("ConfigMap", "shop", "airports-routing-table"), "a table", lambda: seen(kube))


async def step_to_ready(kube: Kube) -> None:
    await until(lambda: condition(kube, "Ready")["status"] == "True", "Ready", lambda: seen(kube))


async def all_steps(kube: Kube, kubelet: Kubelet) -> None:
    await step_to_build(kube)
    await step_to_servers(kube, kubelet)
    await step_to_table(kube, kubelet)
    await step_to_ready(kube)


async def quiet(kube: Kube) -> None:
    """Return when nothing is written for a second."""
    writes = -1
    while writes != len(kube.writes):
        writes = len(kube.writes)
        for _ in range(10):
            await asyncio.sleep(0.1)
