"""A cluster without image volumes is asked for a delivery by image: conditions say so, nothing is pushed, and what
serves goes on."""

from __future__ import annotations

from typing import Any, Final

import pytest
from e2e.support.kubectl import Manifest, find, until
from e2e.support.story import BRISK, Story

pytestmark = pytest.mark.side_by_side

SHARDS: Final = 2
IMAGE: Final = {"type": "Image", "image": {"repository": "registry.invalid/lookups"}}


def test_a_cluster_without_image_volumes_is_told_and_what_serves_goes_on(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    spec: dict[str, Any] = {"shards": SHARDS, "rollout": BRISK, "router": {"drainSeconds": 0}}
    story.apply(story.dataset("records", "records", **spec))
    story.wait_settled("records", generation="g1")
    before = sets(story)

    story.change("records", serving={"delivery": IMAGE})
    degraded = until(lambda: told(story), seconds=300, what="why the images are not served")
    if degraded["reason"] != "ImageVolumesMissing":
        pytest.skip(f"this cluster has image volumes: {degraded['reason']}, {degraded['message']}")
    assert story.condition("records", "RolledOut")["reason"] == "ImageVolumesMissing"
    assert story.condition("records", "Ready")["status"] == "True"
    story.check_version("records", keys, "v1")
    assert sets(story) == before, "no server is made, and none goes"
    assert not find("jobs", story.namespace, "app.kubernetes.io/component=pusher"), "nothing is pushed"

    story.source("records", version="v2", records=300)
    story.refresh("records")  # is built, and waits
    story.change("records", serving={"delivery": {"type": "Fetch", "image": None}})
    story.wait_settled("records")
    story.check_version("records", keys, "v2")


def sets(story: Story) -> set[str]:
    """The uids of all StatefulSets of the dataset."""
    return {found["metadata"]["uid"] for found in find("statefulsets", story.namespace, "lookupdb.dev/dataset=records")}


def told(story: Story) -> Manifest | None:
    """What Degraded says of the present spec; None while it says nothing."""
    found = story.condition("records", "Degraded")
    return found if found["current"] and found["status"] == "True" else None
