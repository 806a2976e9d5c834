"""A dataset and its source are deleted. Recreated with ``spec.adopt``, it serves its retained data."""

from __future__ import annotations

from typing import Final

import pytest
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_a_dataset_made_again_adopts_what_the_deleted_one_has_left(scenario: Scenario) -> None:
    keys = scenario.source("records", version="kept", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    built = scenario.wait_settled("records", generation="g1")["generations"][0]
    uid = scenario.resource("records")["metadata"]["uid"]
    scenario.delete(LDS, "records")
    scenario.delete("configmap", "records")

    scenario.apply(scenario.dataset("records", "records", adopt={"uid": "00000000"}, **SPEC))
    result = scenario.wait_condition("records", "Degraded", "True", reason="AdoptionFailed")
    assert f"only with the uids {uid[:8]}" in result["message"]
    scenario.change("records", adopt={"uid": uid})
    adopted = scenario.wait_settled("records")["generations"][-1]
    assert adopted["adoptedFrom"] == f"{uid}/g1"
    assert (adopted["fingerprint"], adopted["builtAt"]) == (built["fingerprint"], built["builtAt"])
    scenario.check_version("records", keys, "kept")

    scenario.source("records", version="next", records=300)
    scenario.refresh("records")
    scenario.wait_settled("records")
    scenario.check_version("records", keys, "next")
