"""A dataset is deleted and recreated at once with other data: no answer comes from the old one."""

from __future__ import annotations

import re
from typing import Final

import pytest
from e2e.support.kubectl import get, kubectl
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

FAST: Final = {"drainSeconds": 0}


def test_a_dataset_made_again_at_once_begins_anew(scenario: Scenario) -> None:
    for version in ("first", "second", "third"):
        keys = scenario.source("records", version=version, records=300)
        scenario.apply(scenario.dataset("records", "records", shards=2, router=FAST))
        scenario.wait_settled("records", generation="g1")
        scenario.check_version("records", keys, version)
        scenario.delete(LDS, "records")


def test_orphans_of_a_dataset_are_not_taken_for_the_next_ones_own(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, router=FAST))
    scenario.wait_settled("records")
    scenario.delete(LDS, "records", "--cascade=orphan")

    scenario.source("records", version="new", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, router=FAST))
    result = scenario.wait_condition("records", "Degraded", "True", reason="PredecessorOrphaned")
    assert scenario.condition("records", "Ready")["status"] == "False"
    command = re.search(r"kubectl (delete -n \S+ \S+ -l \S+)$", result["message"])
    assert command, result["message"]
    kubectl(*command[1].split())
    scenario.wait_settled("records", generation="g1")
    scenario.check_version("records", keys, "new")


def test_a_service_of_somebody_else_is_not_taken_from_them(scenario: Scenario) -> None:
    service = {
        "selector": {"app": "shop"},
        "ports": [{"name": "web", "port": 80, "targetPort": 8000, "protocol": "TCP"}],
    }
    name = {"name": "records-router"}
    scenario.apply({"apiVersion": "v1", "kind": "Service", "metadata": name, "spec": service})
    scenario.source("records", version="mine", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, router=FAST))
    result = scenario.wait_condition("records", "Degraded", "True", reason="ApplyRefused")
    assert "Service records-router" in result["message"]
    found = get("service", "records-router", scenario.namespace)["spec"]
    assert (found["selector"], [port["targetPort"] for port in found["ports"]]) == ({"app": "shop"}, [8000])
    scenario.delete("service", "records-router")
    scenario.wait_settled("records")
