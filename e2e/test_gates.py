"""A source loses half of its records under load. The gate rejects the generation, one annotation overrides the gate,
and the next generation is judged again."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support.figures import record
from e2e.support.scenario import BRISK, PATIENT, Scenario

pytestmark = pytest.mark.under_load

DATASET: Final = "records"


def test_what_a_gate_refuses_does_not_serve_until_it_is_let_through(scenario: Scenario) -> None:
    keys = scenario.source(DATASET, version="old", records=2000)
    scenario.apply(scenario.dataset(DATASET, DATASET, shards=4, router=PATIENT, rollout=BRISK))
    scenario.wait_settled(DATASET, generation="g1")

    halved = keys[:1000]
    with scenario.load(DATASET, halved, per_second=500) as load:
        scenario.source(DATASET, version="new", records=1000)
        scenario.refresh(DATASET)
        found = scenario.wait_condition(DATASET, "Built", "False", reason="GateClosed")
        assert (
            "maxShrinkPercent: expected at most 20 % fewer records, found 1,000 where g1 has 2,000" in found["message"]
        )
        status = scenario.status(DATASET)
        assert (status["generation"], status["refused"]["generation"]) == ("g1", "g2")
        scenario.check_version(DATASET, keys, "old")

        began = time.monotonic()
        scenario.override_gates(DATASET, "g2")
        load.wait_generation("g2", seconds=240)
        record("gates", "override to the first router on the generation", time.monotonic() - began, "s")
        status = scenario.wait_settled(DATASET, generation="g2")
        report = load.stop()

    record("gates", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="old", g2="new")
    assert "maxShrinkPercent" in status["generations"][-1]["overridden"]
    assert "refused" not in status
    scenario.check_version(DATASET, halved, "new")

    scenario.source(DATASET, version="newer", records=400)
    scenario.refresh(DATASET)
    found = scenario.wait_condition(DATASET, "Built", "False", reason="GateClosed")
    assert "found 400 where g2 has 1,000" in found["message"]
    assert "names g2" not in found["message"], "the annotation may stay"
    assert scenario.status(DATASET)["generation"] == "g2"
