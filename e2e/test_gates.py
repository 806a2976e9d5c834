"""A source loses half of its records under load: nobody notices, what was refused is kept, and one annotation lets it
through; the next one is judged again."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support.figures import record
from e2e.support.story import BRISK, PATIENT, Story

pytestmark = pytest.mark.in_pairs

DATASET: Final = "records"


def test_what_a_gate_refuses_does_not_serve_until_it_is_let_through(story: Story) -> None:
    keys = story.source(DATASET, version="old", records=2000)
    story.apply(story.dataset(DATASET, DATASET, shards=4, router=PATIENT, rollout=BRISK))
    story.wait_settled(DATASET, generation="g1")

    halved = keys[:1000]
    with story.load(DATASET, halved, per_second=500) as load:
        story.source(DATASET, version="new", records=1000)
        story.refresh(DATASET)
        found = story.wait_condition(DATASET, "Built", "False", reason="GateClosed")
        assert (
            "maxShrinkPercent: expected at most 20 % fewer records, found 1,000 where g1 has 2,000" in found["message"]
        )
        status = story.status(DATASET)
        assert (status["generation"], status["refused"]["generation"]) == ("g1", "g2")
        story.check_version(DATASET, keys, "old")

        began = time.monotonic()
        story.override_gates(DATASET, "g2")
        load.wait_generation("g2", seconds=240)
        record("gates", "override to the first router on the generation", time.monotonic() - began, "s")
        status = story.wait_settled(DATASET, generation="g2")
        report = load.stop()

    record("gates", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="old", g2="new")
    assert "maxShrinkPercent" in status["generations"][-1]["overridden"]
    assert "refused" not in status
    story.check_version(DATASET, halved, "new")

    story.source(DATASET, version="newer", records=400)
    story.refresh(DATASET)
    found = story.wait_condition(DATASET, "Built", "False", reason="GateClosed")
    assert "found 400 where g2 has 1,000" in found["message"]
    assert "names g2, which is not what was refused" in found["message"]
    assert story.status(DATASET)["generation"] == "g2"
