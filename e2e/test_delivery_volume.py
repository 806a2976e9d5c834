"""A dataset's servers map their shards from a volume that shows the store: nothing is fetched, and what the volume does
not show is told, while what serves goes on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from e2e.support import release, store
from e2e.support.kubectl import Manifest, apply, delete, find, get
from e2e.support.story import BRISK, Story

pytestmark = pytest.mark.side_by_side

CLAIM: Final = "store-shown"
SHARDS: Final = 2


def test_servers_map_what_a_volume_shows_and_what_it_does_not_show_is_told(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    spec: dict[str, Any] = {"shards": SHARDS, "rollout": BRISK, "router": {"drainSeconds": 0}}
    story.apply(story.dataset("records", "records", **spec))
    story.wait_settled("records", generation="g1")
    with shown_store(story) as path:
        story.change("records", serving=delivery(path))
        story.wait_settled("records", generation="g1")
        story.check_version("records", keys, "v1")
        for pod in shard_pods(story):
            assert not pod["spec"].get("initContainers"), "nothing is fetched"
            assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"data", "tmp"}

        story.source("records", version="v2", records=300)
        story.refresh("records")
        story.wait_settled("records", generation="g2")
        story.check_version("records", keys, "v2")

        story.change("records", serving=delivery(f"{path}/nowhere"))
        degraded = story.wait_condition("records", "Degraded", "True", reason="NotOnVolume")
        assert "nowhere" in degraded["message"]
        story.check_version("records", keys, "v2")
        assert story.status("records")["lastGeneration"] == 2, "another delivery builds nothing"
        story.change("records", serving=delivery(path))
        story.wait_settled("records", generation="g2")

        story.change("records", serving={"delivery": {"type": "Fetch", "volume": None}})
        story.wait_settled("records", generation="g2")
        story.check_version("records", keys, "v2")
        assert all(pod["spec"]["initContainers"] for pod in shard_pods(story))


def delivery(path: str) -> Manifest:
    """Of a dataset whose volume shows the store at ``path``."""
    return {"delivery": {"type": "Volume", "volume": {"claimName": CLAIM, "path": path}}}


def shard_pods(story: Story) -> list[Manifest]:
    """Those of the one rollout that is left; what is being deleted does not count."""
    found = find("pods", story.namespace, "lookupdb.dev/dataset=records,app.kubernetes.io/component=shard")
    pods = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    assert len(pods) == SHARDS
    return pods


@contextmanager
def shown_store(story: Story) -> Iterator[str]:
    """A claim of the story's that shows the volume of the embedded store, which keeps objects as plain files. The
    path of the bucket within it."""
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
    name = f"{story.namespace}-{secrets.token_hex(2)}"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    shown = {
        **common,
        **source,
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": story.namespace, "name": CLAIM},
        **({"nodeAffinity": volume["spec"]["nodeAffinity"]} if "nodeAffinity" in volume["spec"] else {}),
    }
    apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": shown})
    try:
        request = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        story.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": request})
        yield f"buckets/{store_bucket()}"
    finally:
        delete("persistentvolume", name, None, "--wait=false")


def store_bucket() -> str:
    """The embedded store's one bucket: its init container makes the folder."""
    (maker,) = store.deployment()["spec"]["template"]["spec"]["initContainers"]
    (folder,) = (word for word in maker["command"] if word.startswith("/data/buckets/"))
    return str(folder).removeprefix("/data/buckets/")
