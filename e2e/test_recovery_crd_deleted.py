"""The CRD is deleted, and with it every dataset: an upgrade of the release brings it back, and the manifests, with
``spec.adopt``, what they served. It runs alone, and last: all datasets of the cluster go."""

from __future__ import annotations

from typing import Final

from e2e.support import helm, release
from e2e.support.kubectl import find, kubectl, until
from e2e.support.story import LDS, Story

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_datasets_come_back_after_their_crd_was_deleted(story: Story) -> None:
    keys = story.source("records", version="kept", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    story.wait_settled("records", generation="g1")
    uid = story.resource("records")["metadata"]["uid"]

    kubectl("delete", "crd", LDS, "--timeout=180s", timeout=200)
    story.delete("configmap", "records")
    until(lambda: not find("pods", story.namespace, "lookupdb.dev/dataset=records"), seconds=180, what="its pods gone")

    helm.upgrade(helm.values())
    kubectl("wait", "crd", LDS, "--for=condition=Established", "--timeout=60s")
    release.operator_pod()
    story.apply(story.dataset("records", "records", adopt={"uid": uid}, **SPEC))
    assert story.wait_settled("records")["generations"][-1]["adoptedFrom"] == f"{uid}/g1"
    story.check_version("records", keys, "kept")
