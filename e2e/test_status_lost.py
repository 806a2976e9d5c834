"""A dataset's status is wiped under load: serving continues, and so does the numbering."""

from __future__ import annotations

import json

import pytest
from e2e.support.kubectl import kubectl
from e2e.support.scenario import BRISK, LDS, PATIENT, Scenario

pytestmark = pytest.mark.under_load


def test_a_status_that_is_wiped_takes_nothing_from_what_serves(scenario: Scenario) -> None:
    keys = scenario.source("records", version="same", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, router=PATIENT, rollout=BRISK))
    before = scenario.wait_settled("records")

    with scenario.load("records", keys) as load:
        wiped = json.dumps([{"op": "remove", "path": "/status"}])
        kubectl(
            "patch",
            LDS,
            "records",
            "--namespace",
            scenario.namespace,
            "--subresource=status",
            "--type=json",
            f"--patch={wiped}",
        )
        after = scenario.wait_settled("records", generation="g2")
        load.wait_answers(load.report().answers + 2000, seconds=240)
        report = load.stop()

    assert after["rollouts"][0]["rollout"] == "r2"
    assert after["table"]["version"] > before["table"]["version"]
    report.check(g1="same", g2="same")
