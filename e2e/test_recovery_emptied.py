"""The store loses the data of a serving dataset: it is rebuilt automatically while lookups continue."""

from __future__ import annotations

from typing import Final

import pytest
from e2e.support import store
from e2e.support.kubectl import find
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}
SHARDS: Final = "app.kubernetes.io/component=shard"


def test_a_generation_that_the_store_has_lost_is_built_again(scenario: Scenario) -> None:
    keys = scenario.source("records", version="same", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    scenario.wait_settled("records", generation="g1")
    uid = scenario.resource("records")["metadata"]["uid"]
    folder = f"{scenario.namespace}/records-{uid[:8]}/"

    gone = store.remove(f"empty-{scenario.namespace}", folder)
    assert any(path.endswith("manifest.json") for path in gone), gone
    scenario.check_version("records", keys, "same")
    # The loss shows only when a server has to fetch.
    scenario.delete("pod", find("pods", scenario.namespace, SHARDS)[0]["metadata"]["name"])
    scenario.wait_settled("records", generation="g2")
    scenario.check_version("records", keys, "same")
    assert scenario.resource("records")["metadata"]["uid"] == uid
    scenario.delete(LDS, "records", "--wait=false")
