"""``kubectl scale`` up and down under load: routers use new servers only once they are ready, and leave old ones in
time."""

from __future__ import annotations

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, kubectl, until
from e2e.support.scenario import BRISK, LDS, PATIENT, Scenario

pytestmark = pytest.mark.under_load


def test_replicas_go_from_one_to_three_and_back_under_load(scenario: Scenario) -> None:
    keys = scenario.source("records", version="same", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, router=PATIENT, rollout=BRISK))
    rollout = scenario.wait_settled("records")["rollouts"][0]["rollout"]

    with scenario.load("records", keys) as load:
        for replicas in (3, 1):
            kubectl("scale", LDS, "records", "--namespace", scenario.namespace, f"--replicas={replicas}")
            status = _wait_scaled(scenario, replicas)
            before = load.report().answers
            load.wait_answers(before + 4000, seconds=240)
            assert status["rollouts"][0]["rollout"] == rollout, "replicas scale in place"
        report = load.stop()

    record("replicas", "answers", report.answers)
    record("replicas", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="same")


def _wait_scaled(scenario: Scenario, replicas: int) -> Manifest:
    """Wait until the routing table names this many servers of each shard, and no other pod is left."""

    def look() -> Manifest | None:
        status = scenario.wait_settled("records", seconds=1)
        assert (status["table"]["replicas"], status["replicas"]) == (replicas, replicas), status
        pods = find("pods", scenario.namespace, "app.kubernetes.io/component=shard")
        assert len(pods) == 2 * replicas, [pod["metadata"]["name"] for pod in pods]
        return status

    return until(look, seconds=300, what=f"{replicas} servers of each shard")
