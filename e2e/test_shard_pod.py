"""With two servers of each shard, one that goes costs no answer: whether it is asked to go, or killed."""

from __future__ import annotations

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import find, until
from e2e.support.story import PATIENT, Story

pytestmark = pytest.mark.in_pairs

ABRUPT = ("--grace-period=0", "--force")


@pytest.mark.parametrize("flags", [(), ABRUPT], ids=["asked-to-go", "killed"])
def test_a_shard_pod_goes_and_comes_back_under_load(story: Story, flags: tuple[str, ...]) -> None:
    keys = story.source("records", version="same", records=2000)
    story.apply(story.dataset("records", "records", shards=2, replicas=2, router=PATIENT))
    rollout = story.wait_settled("records")["rollouts"][0]["rollout"]
    pod = f"records-{rollout}-s0-0"

    with story.load("records", keys) as load:
        uid = _uids(story)[pod]
        story.delete("pod", pod, *flags)
        until(lambda: _uids(story).get(pod, uid) != uid, seconds=240, what=f"another pod called {pod}")
        story.wait_settled("records")
        before = load.report().answers
        load.wait_answers(before + 4000, seconds=240)
        report = load.stop()

    kind = "killed" if flags else "asked to go"
    record("shard-pod", f"failed or mixed answers, one server {kind}", report.failed + report.mixed, at_most=0)
    record("shard-pod", f"slowest answer, one server {kind}", report.longest, "s")
    report.check(g1="same")
    assert story.wait_settled("records")["rollouts"][0]["rollout"] == rollout, "a pod that goes is no new rollout"


def _uids(story: Story) -> dict[str, str]:
    pods = find("pods", story.namespace, "app.kubernetes.io/component=shard")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
