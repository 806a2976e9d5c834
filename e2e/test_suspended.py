"""A suspended dataset ignores all changes, but replaces deleted servers."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support.kubectl import Manifest, find, until
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.side_by_side

QUIET_SECONDS: Final = 20
SPEC: Final = {"shards": 2, "router": PATIENT | {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}
SHARDS: Final = "app.kubernetes.io/component=shard"


def test_nothing_changes_while_it_is_suspended_and_all_of_it_afterwards(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    before = scenario.wait_settled("records", generation="g1")

    with scenario.gentle_load("records", keys) as load:
        scenario.change("records", suspend=True)
        scenario.wait_condition("records", "RolledOut", "True", reason="Suspended")
        scenario.source("records", version="new", records=300)
        scenario.refresh("records")
        scenario.change("records", shards=3)
        scenario.wait_condition("records", "RolledOut", "False", reason="Suspended")
        lost = _delete_servers(scenario, "--cascade=orphan", "--wait=false")
        _wait_servers(scenario, lost)

        time.sleep(QUIET_SECONDS)
        status = scenario.status("records")
        same = ("generation", "generations", "rollouts", "table", "lastGeneration", "phase")
        assert {name: status[name] for name in same} == {name: before[name] for name in same} | {"phase": "Suspended"}
        assert find("jobs", scenario.namespace) == []
        assert scenario.condition("records", "Ready")["status"] == "True"

        scenario.change("records", suspend=None)
        scenario.wait_condition("records", "RolledOut", "True", reason="UpToDate")
        assert scenario.wait_settled("records", generation="g2")["shards"] == "3/3"
        report = load.stop()

    report.check(g1="old", g2="new")
    scenario.check_version("records", keys, "new")


def test_servers_that_are_deleted_with_their_pods_come_back(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    scenario.wait_settled("records")
    scenario.change("records", suspend=True)
    scenario.wait_condition("records", "RolledOut", "True", reason="Suspended")

    lost = _delete_servers(scenario)
    _wait_servers(scenario, lost)
    scenario.wait_condition("records", "Ready", "True")
    scenario.check_version("records", keys, "old")


def _delete_servers(scenario: Scenario, *flags: str) -> Manifest:
    """Delete one shard's StatefulSet and return it."""
    lost = find("statefulsets", scenario.namespace, SHARDS)[0]
    scenario.delete("statefulset", lost["metadata"]["name"], *flags)
    return lost


def _wait_servers(scenario: Scenario, lost: Manifest) -> None:
    """Wait for a new StatefulSet of that name with ready servers."""

    def look() -> bool:
        name = lost["metadata"]["name"]
        sets = {item["metadata"]["name"]: item for item in find("statefulsets", scenario.namespace, SHARDS)}
        found = sets[name]
        assert found["metadata"]["uid"] != lost["metadata"]["uid"]
        return bool(found["status"].get("readyReplicas") == found["spec"]["replicas"])

    until(look, seconds=300, what=f"StatefulSet {lost['metadata']['name']} again, with its servers")
