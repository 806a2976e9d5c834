"""With two servers of each shard, losing one costs no answer, whether it stops gracefully or is killed."""

from __future__ import annotations

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import find, until
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.under_load

ABRUPT = ("--grace-period=0", "--force")


@pytest.mark.parametrize("flags", [(), ABRUPT], ids=["asked-to-go", "killed"])
def test_a_shard_pod_goes_and_comes_back_under_load(scenario: Scenario, flags: tuple[str, ...]) -> None:
    keys = scenario.source("records", version="same", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, replicas=2, router=PATIENT))
    rollout = scenario.wait_settled("records")["rollouts"][0]["rollout"]
    pod = f"records-{rollout}-s0-0"

    with scenario.load("records", keys) as load:
        uid = _uids(scenario)[pod]
        scenario.delete("pod", pod, *flags)
        until(lambda: _uids(scenario).get(pod, uid) != uid, seconds=240, what=f"another pod called {pod}")
        scenario.wait_settled("records")
        before = load.report().answers
        load.wait_answers(before + 4000, seconds=240)
        report = load.stop()

    kind = "killed" if flags else "asked to go"
    record("shard-pod", f"failed or mixed answers, one server {kind}", report.failed + report.mixed, at_most=0)
    record("shard-pod", f"slowest answer, one server {kind}", report.longest, "s")
    report.check(g1="same")
    assert scenario.wait_settled("records")["rollouts"][0]["rollout"] == rollout, "a pod that goes is no new rollout"


def _uids(scenario: Scenario) -> dict[str, str]:
    pods = find("pods", scenario.namespace, "app.kubernetes.io/component=shard")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
