"""With manual promotion, routers serve a candidate by name beside the active generation.

A rejected candidate goes; a promoted one serves.
"""

from __future__ import annotations

import json
from typing import Final

import pytest
from e2e.support import wrong_answers
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import Manifest, until
from e2e.support.scenario import BRISK, PATIENT, Scenario

pytestmark = pytest.mark.under_load

PROMOTE: Final = "lookupdb.dev/promote"
REJECT: Final = "lookupdb.dev/reject"
PROMOTION_SECONDS: Final = 5
NOT_SERVED: Final = 412


def test_a_candidate_is_asked_by_name_and_rejected_and_the_next_one_is_promoted(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=1000)
    scenario.apply(
        scenario.dataset("records", "records", shards=2, router=PATIENT, rollout=BRISK | {"promotion": "Manual"})
    )
    scenario.wait_settled("records", generation="g1")

    with scenario.load("records", keys) as load:
        _refresh(scenario, "second")
        rejected = _wait_candidate(scenario)
        _check_by_name(scenario, keys, rejected, "second")
        _check_by_name(scenario, keys, "g1", "old")
        assert _list_candidates(scenario) == [rejected]

        scenario.annotate("records", REJECT, rejected)
        scenario.wait_condition("records", "RolledOut", "True", reason="Rejected")
        scenario.wait_settled("records", generation="g1")
        assert {answer.status for answer in scenario.lookup("records", keys[:10], generation=rejected)} == {NOT_SERVED}
        assert _list_candidates(scenario) == []

        _refresh(scenario, "third")
        promoted = _wait_candidate(scenario)
        _check_by_name(scenario, keys, promoted, "third")
        assert load.report().generations.keys() == {"g1"}

        asked = load.now()
        scenario.annotate("records", PROMOTE, promoted)
        load.wait_generation(promoted, seconds=60)
        scenario.wait_settled("records", generation=promoted)
        assert _list_candidates(scenario) == []
        report = load.stop()

    took = report.generations["g1"]["last"] - asked
    record("promotion", "from the command to the last router on it", took, "s", at_most=PROMOTION_SECONDS)
    record("promotion", "failed, wrong or mixed answers", report.failed + report.wrong + report.mixed, at_most=0)
    record("promotion", "answers", report.answers)
    report.check(rollbacks=0, g1="old", **{promoted: "third"})
    assert took <= BUSY * PROMOTION_SECONDS
    scenario.check_version("records", keys, "third")


def _refresh(scenario: Scenario, version: str) -> None:
    scenario.source("records", version=version, records=1000)
    scenario.refresh("records")


def _wait_candidate(scenario: Scenario) -> str:
    """Wait until all routers know a candidate, and return its name."""

    def look() -> Manifest | None:
        status = scenario.status("records")
        candidate: Manifest = status["candidate"]
        assert status["table"]["candidate"]["generation"] == candidate["generation"]
        return candidate if status["table"].get("confirmedAt") else None

    scenario.wait_condition("records", "RolledOut", "False", reason="CandidateWaiting")
    return str(until(look, seconds=60, what="a candidate that routers have")["generation"])


def _check_by_name(scenario: Scenario, keys: list[str], generation: str, version: str) -> None:
    """Assert that requests for ``generation`` by name get its version, one by one and in batches."""
    for batch, asked in ((0, keys[::20]), (100, keys)):
        found = scenario.lookup("records", asked, batch=batch, generation=generation)
        answered = {(answer.status, answer.generation, (answer.value or {}).get("version")) for answer in found}
        expected = {(200, generation, version)}
        wrong_answers.check(
            {answer for answer in answered if answer[0] in (200, 404)} <= expected,
            f"{scenario.namespace}/records",
            f"answered {answered} for {generation}",
        )
        assert answered == expected


def _list_candidates(scenario: Scenario) -> list[str]:
    """Return the candidates that a router lists."""
    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
    document = json.loads(scenario.client_run("python", "-c", fetch, f"{scenario.url('records')}/v1/dataset"))
    return [str(generation) for generation in document["candidates"]]
