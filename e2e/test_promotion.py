"""With manual promotion a new generation waits beside what serves, and answers who asks for it by name, through the
same routers; rejected it goes, promoted it serves."""

from __future__ import annotations

import json
from typing import Final

from e2e.support import wrong_answers
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import Manifest, until
from e2e.support.story import BRISK, PATIENT, Story

PROMOTE: Final = "lookupdb.dev/promote"
REJECT: Final = "lookupdb.dev/reject"
PROMOTION_SECONDS: Final = 5
NOT_SERVED: Final = 412


def test_a_candidate_is_asked_by_name_and_rejected_and_the_next_one_is_promoted(story: Story) -> None:
    keys = story.source("records", version="old", records=1000)
    story.apply(story.dataset("records", "records", shards=2, router=PATIENT, rollout=BRISK | {"promotion": "Manual"}))
    story.wait_settled("records", generation="g1")

    with story.load("records", keys) as load:
        _refresh(story, "second")
        rejected = _wait_candidate(story)
        _check_by_name(story, keys, rejected, "second")
        _check_by_name(story, keys, "g1", "old")
        assert _list_candidates(story) == [rejected]

        story.annotate("records", REJECT, rejected)
        story.wait_condition("records", "RolledOut", "True", reason="Rejected")
        story.wait_settled("records", generation="g1")
        assert {answer.status for answer in story.lookup("records", keys[:10], generation=rejected)} == {NOT_SERVED}
        assert _list_candidates(story) == []

        _refresh(story, "third")
        promoted = _wait_candidate(story)
        _check_by_name(story, keys, promoted, "third")
        assert load.report().generations.keys() == {"g1"}

        asked = load.now()
        story.annotate("records", PROMOTE, promoted)
        load.wait_generation(promoted, seconds=60)
        story.wait_settled("records", generation=promoted)
        assert _list_candidates(story) == []
        report = load.stop()

    took = report.generations["g1"]["last"] - asked
    record("promotion", "from the command to the last router on it", took, "s", at_most=PROMOTION_SECONDS)
    record("promotion", "failed, wrong or mixed answers", report.failed + report.wrong + report.mixed, at_most=0)
    record("promotion", "answers", report.answers)
    report.check(rollbacks=0, g1="old", **{promoted: "third"})
    assert took <= BUSY * PROMOTION_SECONDS
    story.check_version("records", keys, "third")


def _refresh(story: Story, version: str) -> None:
    story.source("records", version=version, records=1000)
    story.refresh("records")


def _wait_candidate(story: Story) -> str:
    """Wait until a generation waits for promotion, and all routers know it; its name."""

    def look() -> Manifest | None:
        status = story.status("records")
        candidate: Manifest = status["candidate"]
        assert status["table"]["candidate"]["generation"] == candidate["generation"]
        return candidate if status["table"].get("confirmedAt") else None

    story.wait_condition("records", "RolledOut", "False", reason="CandidateWaiting")
    return str(until(look, seconds=60, what="a candidate that routers have")["generation"])


def _check_by_name(story: Story, keys: list[str], generation: str, version: str) -> None:
    """Assert that ``generation`` answers who asks for it by name, with its version, one by one and in batches."""
    for batch, asked in ((0, keys[::20]), (100, keys)):
        found = story.lookup("records", asked, batch=batch, generation=generation)
        answered = {(answer.status, answer.generation, (answer.value or {}).get("version")) for answer in found}
        expected = {(200, generation, version)}
        wrong_answers.check(
            {answer for answer in answered if answer[0] in (200, 404)} <= expected,
            f"{story.namespace}/records",
            f"answered {answered} for {generation}",
        )
        assert answered == expected


def _list_candidates(story: Story) -> list[str]:
    """The candidates that a router lists."""
    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
    document = json.loads(story.client_run("python", "-c", fetch, f"{story.url('records')}/v1/dataset"))
    return [str(generation) for generation in document["candidates"]]
