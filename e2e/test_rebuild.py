"""A rebuild with other values under load: each answer comes completely from one generation."""

from __future__ import annotations

from typing import Final

from e2e.support.figures import BUSY, record
from e2e.support.scenario import PATIENT, Scenario

ANSWERS: Final = 100_000
CUTOVER_SECONDS: Final = 5


def test_a_rebuild_fails_and_mixes_nothing(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=4, router=PATIENT))
    scenario.wait_settled("records")

    with scenario.load("records", keys, per_second=1500) as load:
        load.wait_answers(ANSWERS // 4, seconds=300)
        scenario.source("records", version="new", records=2000)
        scenario.refresh("records")
        load.wait_generation("g2", seconds=240)
        scenario.wait_settled("records", generation="g2")
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
    scenario.check_version("records", keys, "new")
