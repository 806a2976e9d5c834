"""A cluster is lost, and its store is not: a new release with the same cluster id serves the same data, from manifests
with ``spec.adopt``, while the sweep keeps what is retained. It runs alone, and last: the release goes meanwhile."""

from __future__ import annotations

from typing import Final

from e2e.support import helm, release, store
from e2e.support.kubectl import find, until
from e2e.support.story import LDS, Story

SPEC: Final = {
    "shards": 2,
    "router": {"drainSeconds": 0},
    "rollout": {"drainSeconds": 0},
    "deletionPolicy": "Retain",
}


def test_a_new_cluster_serves_what_the_lost_one_had_in_the_store(story: Story) -> None:
    keys = story.source("records", version="kept", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    story.wait_settled("records", generation="g1")
    uid = story.resource("records")["metadata"]["uid"]
    store.sweep(f"note-{story.namespace}", grace="24h")  # as every night: it notes what is to be retained
    cluster, values = helm.cluster_id(), helm.values()

    helm.helm("uninstall", release.RELEASE, "--wait", "--timeout", "5m")
    story.delete(LDS, "records")
    story.delete("configmap", "records")
    until(lambda: not find("pods", story.namespace, "lookupdb.dev/dataset=records"), seconds=180, what="its pods gone")

    helm.install(release.RELEASE, release.NAMESPACE, {**values, "clusterId": cluster})
    release.operator_pod()
    store.sweep(f"sweep-{story.namespace}", grace="0s")
    store.sweep(f"sweep-again-{story.namespace}", grace="0s")
    story.apply(story.dataset("records", "records", adopt={"uid": uid}, **SPEC))
    assert story.wait_settled("records")["generations"][-1]["adoptedFrom"] == f"{uid}/g1"
    story.check_version("records", keys, "kept")
