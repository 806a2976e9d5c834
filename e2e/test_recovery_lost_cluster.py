"""A cluster is lost but not its store: a new release with the same cluster id serves the data through ``spec.adopt``.

It runs alone and last, because it removes the release.
"""

from __future__ import annotations

from typing import Final

from e2e.support import helm, release, store
from e2e.support.kubectl import find, until
from e2e.support.scenario import LDS, Scenario

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}, "deletionPolicy": "Retain"}


def test_a_new_cluster_serves_what_the_lost_one_had_in_the_store(scenario: Scenario) -> None:
    keys = scenario.source("records", version="kept", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    scenario.wait_settled("records", generation="g1")
    uid = scenario.resource("records")["metadata"]["uid"]
    store.sweep(f"note-{scenario.namespace}", grace="24h")  # the nightly sweep, which notes the datasets to retain
    cluster, values = helm.cluster_id(), helm.values()

    helm.helm("uninstall", release.RELEASE, "--wait", "--timeout", "5m")
    scenario.delete(LDS, "records")
    scenario.delete("configmap", "records")
    until(
        lambda: not find("pods", scenario.namespace, "lookupdb.dev/dataset=records"), seconds=180, what="its pods gone"
    )

    helm.install(release.RELEASE, release.NAMESPACE, {**values, "clusterId": cluster})
    release.operator_pod()
    store.sweep(f"sweep-{scenario.namespace}", grace="0s")
    store.sweep(f"sweep-again-{scenario.namespace}", grace="0s")
    scenario.apply(scenario.dataset("records", "records", adopt={"uid": uid}, **SPEC))
    assert scenario.wait_settled("records")["generations"][-1]["adoptedFrom"] == f"{uid}/g1"
    scenario.check_version("records", keys, "kept")
