"""Each stuck rollout has a reason, a message and one Event. Serving continues, and a corrected spec replaces the
rollout."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support import fault as faults
from e2e.support.fault import DATASET, Fault
from e2e.support.figures import record
from e2e.support.kubectl import find
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

FAULTS: Final = faults.pod_faults("serving")
SHARDS: Final = "app.kubernetes.io/component=shard"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_rollout_that_is_stuck_says_why_and_its_correction_is_rolled_out(
    shared_scenario: Scenario, fault: Fault
) -> None:
    scenario = shared_scenario
    scenario.apply(faults.QUOTA)
    before = faults.ensure_serving(scenario)
    served, old = faults.read_answers(scenario), before["rollouts"][0]["rollout"]
    earlier_warnings = faults.count_warnings(scenario, fault.reason)

    scenario.change(DATASET, **fault.broken)
    faults.check_shown(scenario, fault, earlier_warnings, ("RolledOut", "False"))
    assert faults.read_answers(scenario) == served
    assert scenario.status(DATASET)["table"]["rollout"] == old

    corrected = time.monotonic()
    memory = 256 + faults.parse_number(old)  # unlike all earlier templates
    scenario.change(
        DATASET,
        image=None,
        scheduling=None,
        serving={"resources": {"requests": None, "limits": {"memory": f"{memory}Mi"}}},
    )
    after = scenario.wait_settled(DATASET)
    record("failures-rollout", f"{fault.reason} corrected to serving", time.monotonic() - corrected, "s")
    new = after["rollouts"][0]["rollout"]
    assert faults.parse_number(new) > faults.parse_number(old) + 1, "the stuck rollout has had a number too"
    assert after["generation"] == before["generation"], "nothing is built for a change of servers"
    assert faults.read_answers(scenario) == served
    assert {item["metadata"]["name"] for item in find("statefulsets", scenario.namespace, SHARDS)} == {
        f"{DATASET}-{new}-s0"
    }
    assert faults.count_warnings(scenario, fault.reason) == earlier_warnings + 1
