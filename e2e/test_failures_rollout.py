"""Whatever keeps new servers from getting ready: it has a reason, a sentence and one Event; what served serves on, and
a corrected spec is rolled out at once, in place of what is stuck."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support import fault as faults
from e2e.support.fault import DATASET, Fault
from e2e.support.figures import record
from e2e.support.kubectl import find
from e2e.support.story import Story

pytestmark = pytest.mark.side_by_side

FAULTS: Final = faults.pod_faults("serving")
SHARDS: Final = "app.kubernetes.io/component=shard"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_rollout_that_is_stuck_says_why_and_its_correction_is_rolled_out(shared_story: Story, fault: Fault) -> None:
    story = shared_story
    story.apply(faults.QUOTA)
    before = faults.ensure_serving(story)
    served, old = faults.read_answers(story), before["rollouts"][0]["rollout"]
    earlier_warnings = faults.count_warnings(story, fault.reason)

    story.change(DATASET, **fault.broken)
    faults.check_shown(story, fault, earlier_warnings, ("RolledOut", "False"))
    assert faults.read_answers(story) == served
    assert story.status(DATASET)["table"]["rollout"] == old

    corrected = time.monotonic()
    memory = 256 + faults.parse_number(old)  # another template than all before
    story.change(
        DATASET,
        image=None,
        scheduling=None,
        serving={"resources": {"requests": None, "limits": {"memory": f"{memory}Mi"}}},
    )
    after = story.wait_settled(DATASET)
    record("failures-rollout", f"{fault.reason} corrected to serving", time.monotonic() - corrected, "s")
    new = after["rollouts"][0]["rollout"]
    assert faults.parse_number(new) > faults.parse_number(old) + 1, "the stuck rollout has had a number too"
    assert after["generation"] == before["generation"], "nothing is built for a change of servers"
    assert faults.read_answers(story) == served
    assert {item["metadata"]["name"] for item in find("statefulsets", story.namespace, SHARDS)} == {
        f"{DATASET}-{new}-s0"
    }
    assert faults.count_warnings(story, fault.reason) == earlier_warnings + 1
