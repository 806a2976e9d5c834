"""A dataset is rebuilt with other values under load: every answer is whole, of one generation or of the other."""

from __future__ import annotations

from typing import Final

from e2e.support.figures import BUSY, record
from e2e.support.story import PATIENT, Story

ANSWERS: Final = 100_000
CUTOVER_SECONDS: Final = 5


def test_a_rebuild_fails_and_mixes_nothing(story: Story) -> None:
    keys = story.source("records", version="old", records=2000)
    story.apply(story.dataset("records", "records", shards=4, router=PATIENT))
    story.wait_settled("records")

    with story.load("records", keys, per_second=1500) as load:
        load.wait_answers(ANSWERS // 4, seconds=300)
        story.source("records", version="new", records=2000)
        story.refresh("records")
        load.wait_generation("g2", seconds=240)
        story.wait_settled("records", generation="g2")
        load.wait_answers(ANSWERS, seconds=600)
        report = load.stop()

    record("rebuild", "answers", report.answers)
    record("rebuild", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    took = report.cutover_seconds("g1", "g2")
    record("rebuild", "first to last router on the new generation", took, "s", at_most=CUTOVER_SECONDS)
    record("rebuild", "slowest answer", report.longest, "s")
    report.check(g1="old", g2="new")
    assert report.answers >= ANSWERS
    assert took <= BUSY * CUTOVER_SECONDS
    story.check_version("records", keys, "new")
