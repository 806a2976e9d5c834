"""A dataset is suspended: whatever is asked for, nothing changes, and what is deleted of what serves comes back."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support.kubectl import Manifest, find, until
from e2e.support.story import PATIENT, Story

pytestmark = pytest.mark.side_by_side

QUIET_SECONDS: Final = 20
SPEC: Final = {"shards": 2, "router": PATIENT | {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}
SHARDS: Final = "app.kubernetes.io/component=shard"


def test_nothing_changes_while_it_is_suspended_and_all_of_it_afterwards(story: Story) -> None:
    keys = story.source("records", version="old", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    before = story.wait_settled("records", generation="g1")

    with story.gentle_load("records", keys) as load:
        story.change("records", suspend=True)
        story.wait_condition("records", "RolledOut", "True", reason="Suspended")
        story.source("records", version="new", records=300)
        story.refresh("records")
        story.change("records", shards=3)
        story.wait_condition("records", "RolledOut", "False", reason="Suspended")
        lost = _delete_servers(story, "--cascade=orphan", "--wait=false")
        _wait_servers(story, lost)

        time.sleep(QUIET_SECONDS)
        status = story.status("records")
        same = ("generation", "generations", "rollouts", "table", "lastGeneration", "phase")
        assert {name: status[name] for name in same} == {name: before[name] for name in same} | {"phase": "Suspended"}
        assert find("jobs", story.namespace) == []
        assert story.condition("records", "Ready")["status"] == "True"

        story.change("records", suspend=None)
        story.wait_condition("records", "RolledOut", "True", reason="UpToDate")
        assert story.wait_settled("records", generation="g2")["shards"] == "3/3"
        report = load.stop()

    report.check(g1="old", g2="new")
    story.check_version("records", keys, "new")


def test_servers_that_are_deleted_with_their_pods_come_back(story: Story) -> None:
    keys = story.source("records", version="old", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    story.wait_settled("records")
    story.change("records", suspend=True)
    story.wait_condition("records", "RolledOut", "True", reason="Suspended")

    lost = _delete_servers(story)
    _wait_servers(story, lost)
    story.wait_condition("records", "Ready", "True")
    story.check_version("records", keys, "old")


def _delete_servers(story: Story, *flags: str) -> Manifest:
    """Delete one shard's StatefulSet; returns it."""
    lost = find("statefulsets", story.namespace, SHARDS)[0]
    story.delete("statefulset", lost["metadata"]["name"], *flags)
    return lost


def _wait_servers(story: Story, lost: Manifest) -> None:
    """Wait until there is another StatefulSet of that name whose servers are ready."""

    def look() -> bool:
        name = lost["metadata"]["name"]
        sets = {item["metadata"]["name"]: item for item in find("statefulsets", story.namespace, SHARDS)}
        found = sets[name]
        assert found["metadata"]["uid"] != lost["metadata"]["uid"]
        return bool(found["status"].get("readyReplicas") == found["spec"]["replicas"])

    until(look, seconds=300, what=f"StatefulSet {lost['metadata']['name']} again, with its servers")
