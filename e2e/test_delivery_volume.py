"""Servers map their shards from a volume that shows the store, and fetch nothing.

If the volume lacks a generation, conditions report it and serving continues.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from e2e.support import release, store
from e2e.support.kubectl import Manifest, apply, delete, find, get
from e2e.support.scenario import BRISK, Scenario

pytestmark = pytest.mark.side_by_side

CLAIM: Final = "store-shown"
SHARDS: Final = 2


def test_servers_map_what_a_volume_shows_and_what_it_does_not_show_is_told(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    spec: dict[str, Any] = {"shards": SHARDS, "rollout": BRISK, "router": {"drainSeconds": 0}}
    scenario.apply(scenario.dataset("records", "records", **spec))
    scenario.wait_settled("records", generation="g1")
    with shown_store(scenario) as path:
        scenario.change("records", serving=delivery(path))
        scenario.wait_settled("records", generation="g1")
        scenario.check_version("records", keys, "v1")
        for pod in shard_pods(scenario):
            assert not pod["spec"].get("initContainers"), "nothing is fetched"
            assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"data", "tmp"}

        scenario.source("records", version="v2", records=300)
        scenario.refresh("records")
        scenario.wait_settled("records", generation="g2")
        scenario.check_version("records", keys, "v2")

        scenario.change("records", serving=delivery(f"{path}/nowhere"))
        degraded = scenario.wait_condition("records", "Degraded", "True", reason="NotOnVolume")
        assert "nowhere" in degraded["message"]
        scenario.check_version("records", keys, "v2")
        assert scenario.status("records")["lastGeneration"] == 2, "another delivery builds nothing"
        scenario.change("records", serving=delivery(path))
        scenario.wait_settled("records", generation="g2")

        scenario.change("records", serving={"delivery": {"type": "Fetch", "volume": None}})
        scenario.wait_settled("records", generation="g2")
        scenario.check_version("records", keys, "v2")
        assert all(pod["spec"]["initContainers"] for pod in shard_pods(scenario))


def delivery(path: str) -> Manifest:
    """Return a dataset whose volume shows the store at ``path``."""
    return {"delivery": {"type": "Volume", "volume": {"claimName": CLAIM, "path": path}}}


def shard_pods(scenario: Scenario) -> list[Manifest]:
    """Return the shard pods of the one rollout; pods that are being deleted do not count."""
    found = find("pods", scenario.namespace, "lookupdb.dev/dataset=records,app.kubernetes.io/component=shard")
    pods = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    assert len(pods) == SHARDS
    return pods


@contextmanager
def shown_store(scenario: Scenario) -> Iterator[str]:
    """Create a claim that shows the embedded store's volume, which keeps objects as plain files. Return the bucket's
    path."""
    (data,) = (
        volume for volume in store.deployment()["spec"]["template"]["spec"]["volumes"] if volume["name"] == "data"
    )
    claim = get("persistentvolumeclaim", data["persistentVolumeClaim"]["claimName"], release.NAMESPACE)
    volume = get("persistentvolume", claim["spec"]["volumeName"])
    source = {kind: volume["spec"][kind] for kind in ("hostPath", "local") if kind in volume["spec"]}
    if not source:
        pytest.skip(
            f"the store's volume {volume['metadata']['name']} is no folder of a node, which another one could show"
        )
    name = f"{scenario.namespace}-{secrets.token_hex(2)}"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    shown = {
        **common,
        **source,
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": scenario.namespace, "name": CLAIM},
        **({"nodeAffinity": volume["spec"]["nodeAffinity"]} if "nodeAffinity" in volume["spec"] else {}),
    }
    apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": shown})
    try:
        request = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        scenario.apply(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": request}
        )
        yield f"buckets/{store_bucket()}"
    finally:
        delete("persistentvolume", name, None, "--wait=false")


def store_bucket() -> str:
    """Return the embedded store's one bucket. Its init container creates the folder."""
    (maker,) = store.deployment()["spec"]["template"]["spec"]["initContainers"]
    (folder,) = (word for word in maker["command"] if word.startswith("/data/buckets/"))
    return str(folder).removeprefix("/data/buckets/")
