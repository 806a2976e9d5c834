"""A dataset is split into more shards under load: no answer fails, none is of two generations."""

from __future__ import annotations

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import find
from e2e.support.story import BRISK, PATIENT, Story

pytestmark = pytest.mark.in_pairs


def test_four_shards_become_seven_under_load(story: Story) -> None:
    keys = story.source("records", version="old", records=2000)
    story.apply(story.dataset("records", "records", shards=4, router=PATIENT, rollout=BRISK))
    story.wait_settled("records")

    with story.load("records", keys) as load:
        # Other values, so that an answer of both generations shows: shards alone would leave all of them the same.
        story.source("records", version="new", records=2000)
        story.change("records", shards=7)
        status = story.wait_settled("records", generation="g2")
        load.wait_generation("g2", seconds=60)
        report = load.stop()

    record("reshard", "answers", report.answers)
    record("reshard", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="old", g2="new")
    assert status["shards"] == "7/7"
    rollout = status["rollouts"][0]["rollout"]
    sets = {found["metadata"]["name"] for found in find("statefulsets", story.namespace)}
    assert sets == {f"records-{rollout}-s{shard}" for shard in range(7)}
    story.check_version("records", keys, "new")
