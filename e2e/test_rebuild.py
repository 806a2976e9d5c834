"""A dataset is rebuilt with other values under load: every answer is whole, of one generation or of the other."""

from __future__ import annotations

from typing import Final

from e2e.support.figures import record
from e2e.support.load import Report
from e2e.support.story import PATIENT, Story

ANSWERS: Final = 100_000
CUTOVER_SECONDS: Final = 5
"""A goal, told with the figure; how fast the machine is decides nothing about the story."""


def test_a_rebuild_fails_and_mixes_nothing(story: Story) -> None:
    keys = story.source("records", version="old", records=2000)
    story.apply(story.dataset("records", "records", shards=4, router=PATIENT))
    story.settled("records")

    with story.load("records", keys, per_second=1500) as load:
        load.wait_answers(ANSWERS // 4, seconds=300)
        story.source("records", version="new", records=2000)
        story.refresh("records")
        load.wait_generation("g2", seconds=240)
        story.settled("records", generation="g2")
        load.wait_answers(ANSWERS, seconds=600)
        report = load.stop()

    _record(report)
    assert report.faultless, str(report)
    assert report.generations["g1"]["versions"] == ["old"]
    assert report.generations["g2"]["versions"] == ["new"]
    assert report.answers >= ANSWERS
    values = {answer.value["version"] for answer in story.lookup("records", keys, batch=500)}
    assert values == {"new"}


def _record(report: Report) -> None:
    record("rebuild", "answers", report.answers)
    record("rebuild", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    took = report.cutover_seconds("g1", "g2")
    record("rebuild", "first to last router on the new generation", took, "s", at_most=CUTOVER_SECONDS)
    record("rebuild", "slowest answer", report.longest, "s")
