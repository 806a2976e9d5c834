"""A dataset is deleted and made again at once, under the same name, of other data: no answer comes from the old one."""

from __future__ import annotations

import re
from typing import Final

import pytest
from e2e.support.kubectl import get, kubectl
from e2e.support.story import LDS, Story

pytestmark = pytest.mark.side_by_side

FAST: Final = {"drainSeconds": 0}


def test_a_dataset_made_again_at_once_begins_anew(story: Story) -> None:
    for version in ("first", "second", "third"):
        keys = story.source("records", version=version, records=300)
        story.apply(story.dataset("records", "records", shards=2, router=FAST))
        story.wait_settled("records", generation="g1")
        story.check_version("records", keys, version)
        story.delete(LDS, "records")


def test_orphans_of_a_dataset_are_not_taken_for_the_next_ones_own(story: Story) -> None:
    keys = story.source("records", version="old", records=300)
    story.apply(story.dataset("records", "records", shards=2, router=FAST))
    story.wait_settled("records")
    story.delete(LDS, "records", "--cascade=orphan")

    story.source("records", version="new", records=300)
    story.apply(story.dataset("records", "records", shards=2, router=FAST))
    told = story.wait_condition("records", "Degraded", "True", reason="PredecessorOrphaned")
    assert story.condition("records", "Ready")["status"] == "False"
    command = re.search(r"kubectl (delete -n \S+ \S+ -l \S+)$", told["message"])
    assert command, told["message"]
    kubectl(*command[1].split())
    story.wait_settled("records", generation="g1")
    story.check_version("records", keys, "new")


def test_a_service_of_somebody_else_is_not_taken_from_them(story: Story) -> None:
    service = {
        "selector": {"app": "shop"},
        "ports": [{"name": "web", "port": 80, "targetPort": 8000, "protocol": "TCP"}],
    }
    name = {"name": "records-router"}
    story.apply({"apiVersion": "v1", "kind": "Service", "metadata": name, "spec": service})
    story.source("records", version="mine", records=300)
    story.apply(story.dataset("records", "records", shards=2, router=FAST))
    told = story.wait_condition("records", "Degraded", "True", reason="ApplyRefused")
    assert "Service records-router" in told["message"]
    found = get("service", "records-router", story.namespace)["spec"]
    assert (found["selector"], [port["targetPort"] for port in found["ports"]]) == ({"app": "shop"}, [8000])
    story.delete("service", "records-router")
    story.wait_settled("records")
