"""Delivery by image on a cluster without image volumes: conditions report it, nothing is pushed, serving continues."""

from __future__ import annotations

from typing import Any, Final

import pytest
from e2e.support.kubectl import Manifest, find, until
from e2e.support.scenario import BRISK, Scenario

pytestmark = pytest.mark.side_by_side

SHARDS: Final = 2
IMAGE: Final = {"type": "Image", "image": {"repository": "registry.invalid/lookups"}}


def test_a_cluster_without_image_volumes_is_told_and_what_serves_goes_on(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    spec: dict[str, Any] = {"shards": SHARDS, "rollout": BRISK, "router": {"drainSeconds": 0}}
    scenario.apply(scenario.dataset("records", "records", **spec))
    scenario.wait_settled("records", generation="g1")
    before = sets(scenario)

    scenario.change("records", serving={"delivery": IMAGE})
    degraded = until(lambda: find_degraded(scenario), seconds=300, what="why the images are not served")
    if degraded["reason"] != "ImageVolumesMissing":
        pytest.skip(f"this cluster has image volumes: {degraded['reason']}, {degraded['message']}")
    assert scenario.condition("records", "RolledOut")["reason"] == "ImageVolumesMissing"
    assert scenario.condition("records", "Ready")["status"] == "True"
    scenario.check_version("records", keys, "v1")
    assert sets(scenario) == before, "no server is made, and none goes"
    assert not find("jobs", scenario.namespace, "app.kubernetes.io/component=pusher"), "nothing is pushed"

    scenario.source("records", version="v2", records=300)
    scenario.refresh("records")  # built, and queued
    scenario.change("records", serving={"delivery": {"type": "Fetch", "image": None}})
    scenario.wait_settled("records")
    scenario.check_version("records", keys, "v2")


def sets(scenario: Scenario) -> set[str]:
    """Return the uids of all StatefulSets of the dataset."""
    return {
        found["metadata"]["uid"] for found in find("statefulsets", scenario.namespace, "lookupdb.dev/dataset=records")
    }


def find_degraded(scenario: Scenario) -> Manifest | None:
    """Return Degraded of the current spec, or None while it is not True."""
    found = scenario.condition("records", "Degraded")
    return found if found["current"] and found["status"] == "True" else None
