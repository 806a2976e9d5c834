"""The operator as it runs: real kopf, real client, an API server in memory. One story a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operator_support.kube import Kube, Object, serving
from operator_support.kubelet import Kubelet, kubelet_of
from operator_support.running import operating, options, until

pytestmark = pytest.mark.timeout(240)  # a story has many steps, each of which may take its patience


@pytest.fixture
async def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    async with serving(tmp_path) as server:
        yield server


@pytest.fixture
async def kubelet(kube: Kube) -> AsyncIterator[Kubelet]:
    async with kubelet_of(kube) as made:
        yield made


def dataset(name: str = "airports", namespace: str = "shop", **spec: Any) -> Object:
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"source": {"url": "example://airports.csv.gz"}, "key": {"columns": ["icao"]}, "shards": 2, **spec},
    }


def status_of(kube: Kube, name: str = "airports") -> Object:
    return dict((kube.get("LookupDataset", "shop", name) or {}).get("status", {}))


def condition(kube: Kube, kind: str, name: str = "airports") -> Object:
    conditions = status_of(kube, name).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {"status": "", "reason": "", "message": ""})


def seen(kube: Kube) -> str:
    """What a person would look at."""
    lines = [
        f"{condition['type']}={condition['status']} {condition['reason']}: {condition['message']}"
        for condition in status_of(kube).get("conditions", [])
    ]
    lines += [" ".join(key) for key in sorted(kube.objects)]
    lines += [str(write) for write in kube.writes[-40:]]
    return "\n".join(lines)


async def step_to_build(kube: Kube) -> None:
    await until(lambda: kube.all("Job"), "a build", lambda: seen(kube))


async def step_to_servers(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.end_builds()
    await until(lambda: len(kube.all("StatefulSet")) == 2, "shard servers", lambda: seen(kube))


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
    """Nothing is written for a while."""
    writes = -1
    while writes != len(kube.writes):
        writes = len(kube.writes)
        for _ in range(15):
            await asyncio.sleep(0.1)


async def test_from_applied_to_ready_and_then_nothing_more_is_written(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset())
    chosen = options(admin_port=kubelet.admin_port)
    async with operating(chosen):
        await all_steps(kube, kubelet)
        await quiet(kube)
    settled = len(kube.writes)
    async with operating(chosen) as operator:
        await until(lambda: ("WATCH", "/api/v1/pods") in kube.reads[-60:], "watches", lambda: seen(kube))
        await quiet(kube)
    assert kube.writes[settled:] == []
