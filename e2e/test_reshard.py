"""A dataset gets more shards under load: no answer fails or mixes generations."""

from __future__ import annotations

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import find
from e2e.support.scenario import BRISK, PATIENT, Scenario

pytestmark = pytest.mark.under_load


def test_four_shards_become_seven_under_load(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=4, router=PATIENT, rollout=BRISK))
    scenario.wait_settled("records")

    with scenario.load("records", keys) as load:
        # New values make a mixed answer visible; new shards alone would not.
        scenario.source("records", version="new", records=2000)
        scenario.change("records", shards=7)
        status = scenario.wait_settled("records", generation="g2")
        load.wait_generation("g2", seconds=60)
        report = load.stop()

    record("reshard", "answers", report.answers)
    record("reshard", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="old", g2="new")
    assert status["shards"] == "7/7"
    rollout = status["rollouts"][0]["rollout"]
    sets = {found["metadata"]["name"] for found in find("statefulsets", scenario.namespace)}
    assert sets == {f"records-{rollout}-s{shard}" for shard in range(7)}
    scenario.check_version("records", keys, "new")
