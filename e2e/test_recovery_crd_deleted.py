"""The CRD is deleted with all datasets. A release upgrade restores it, and ``spec.adopt`` restores their data.

It runs alone and last, because all datasets of the cluster go.
"""

from __future__ import annotations

from typing import Final

from e2e.support import helm, release
from e2e.support.kubectl import find, kubectl, until
from e2e.support.scenario import LDS, Scenario

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_datasets_come_back_after_their_crd_was_deleted(scenario: Scenario) -> None:
    keys = scenario.source("records", version="kept", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    scenario.wait_settled("records", generation="g1")
    uid = scenario.resource("records")["metadata"]["uid"]

    kubectl("delete", "crd", LDS, "--timeout=180s", timeout=200)
    scenario.delete("configmap", "records")
    until(
        lambda: not find("pods", scenario.namespace, "lookupdb.dev/dataset=records"), seconds=180, what="its pods gone"
    )

    helm.upgrade(helm.values())
    kubectl("wait", "crd", LDS, "--for=condition=Established", "--timeout=60s")
    release.operator_pod()
    scenario.apply(scenario.dataset("records", "records", adopt={"uid": uid}, **SPEC))
    assert scenario.wait_settled("records")["generations"][-1]["adoptedFrom"] == f"{uid}/g1"
    scenario.check_version("records", keys, "kept")
