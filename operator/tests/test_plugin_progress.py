"""When what the plugin's verbs ask for is done, what came of it, and what it waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plugin_samples import HEALTHY, condition, dataset, generation

from lookupdb_operator.plugin import progress

CANDIDATE = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:00:00Z"}


def _conditions(rolled_out: Any) -> dict[str, Any]:
    return {"conditions": [*HEALTHY[:2], rolled_out, HEALTHY[3]]}


STARTING = condition("RolledOut", "False", "StartingServers", "r35 has 1/2 shards.")


@pytest.mark.parametrize(
    ("status", "is_done", "failure", "waits_for"),
    [
        pytest.param({"refreshed": "now"}, True, "", "", id="answered and served"),
        pytest.param({"refreshed": "before"}, False, "", "GenerationBuilt: Why.", id="not answered"),
        pytest.param(
            {"refreshed": "now", **_conditions(STARTING)},
            False,
            "",
            "StartingServers: r35 has 1/2 shards.",
            id="rolling out",
        ),
        pytest.param(
            {"refreshed": "now", "candidate": CANDIDATE, **_conditions(STARTING)}, True, "", "", id="a candidate"
        ),
        pytest.param(
            {
                "refreshed": "now",
                "candidate": CANDIDATE,
                "generations": [generation("g12"), generation("g13"), generation("g14", refresh="now")],
            },
            False,
            "",
            "g14 to be the candidate in place of g13",
            id="an earlier candidate",
        ),
        pytest.param(
            {"refreshed": "now", **_conditions(condition("RolledOut", "False", "RolledBack", "g9 serves."))},
            False,
            "RolledBack: g9 serves.",
            "",
            id="answered, and held back while another spec's data serves",
        ),
        pytest.param(
            {"failure": {"refresh": "now", "reason": "BadSource", "message": "no file"}},
            False,
            "BadSource: no file",
            "",
            id="failed",
        ),
        pytest.param(
            {"failure": {"refresh": "now", "reason": "WaitingForSource", "message": "no success file"}},
            False,
            "",
            "GenerationBuilt: Why.",
            id="the source is not there yet, which is no failure",
        ),
        pytest.param(
            {"failure": {"refresh": "before", "reason": "BadSource", "message": "no file"}},
            False,
            "",
            "GenerationBuilt: Why.",
            id="an earlier one failed",
        ),
    ],
)
def test_how_far_a_refresh_is(status: dict[str, Any], is_done: bool, failure: str, waits_for: str) -> None:
    found = progress.judge_refresh(dataset(**status), "now")
    assert (found.is_done, found.failure, found.waits_for) == (is_done, failure, waits_for)


PINNED = _conditions(condition("RolledOut", "True", "Pinned", "spec.generation pins g12; g13 is built, and waits."))


def test_a_refresh_whose_data_wait_behind_a_pin_fails_and_says_what_to_do() -> None:
    built = [generation("g11"), generation("g12"), generation("g13", refresh="now")]
    found = progress.judge_refresh(dataset({"generation": "g12"}, refreshed="now", generations=built, **PINNED), "now")
    assert not found.is_done
    assert found.failure == (
        "Pinned: spec.generation pins g12; g13 is built, and waits."
        " kubectl lookupdb unpin -n shop airports lets newer data serve"
    )


@pytest.mark.parametrize(("truth", "reason"), [("True", "Draining"), ("False", "StartingServers")])
def test_a_pin_holds_back_what_was_built_also_while_what_is_pinned_rolls_out(truth: str, reason: str) -> None:
    """As after a rollback: what served before drains, and the condition says that first."""
    built = [generation("g12"), generation("g13", refresh="now")]
    status = {"refreshed": "now", "generations": built, **_conditions(condition("RolledOut", truth, reason))}
    found = progress.judge_refresh(dataset({"generation": "g12"}, **status), "now")
    assert not found.is_done
    assert found.failure == (
        "Pinned: spec.generation pins g12; g13 is built, and waits."
        " kubectl lookupdb unpin -n shop airports lets newer data serve"
    )


def test_a_refresh_that_finds_the_source_as_it_is_in_what_is_pinned_is_answered() -> None:
    known = [generation("g11"), generation("g12", refresh="now")]
    status = {"refreshed": "now", "generations": known, **PINNED}
    assert progress.judge_refresh(dataset({"generation": "g12"}, **status), "now").is_done


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        pytest.param({"generations": [generation("g12", refresh="now")]}, "g12 serves", id="built"),
        pytest.param(
            {"generations": [generation("g11", refresh="now")], "generation": "g11"},
            "the source has not changed: g11 serves on",
            id="unchanged",
        ),
        pytest.param(
            {"generations": [generation("g12"), generation("g13", refresh="now")], "candidate": CANDIDATE},
            "g13 is a candidate and waits for promotion, g12 serves",
            id="a candidate",
        ),
        pytest.param(
            {
                "generations": [generation("g11", refresh="now"), generation("g12")],
                **_conditions(condition("RolledOut", "True", "RolledBack", "g11 was rolled back from.")),
            },
            "the source has not changed: g12 serves on. g11 was rolled back from.",
            id="rolled back from",
        ),
        pytest.param({"generations": []}, "g12 serves", id="trimmed since"),
    ],
)
def test_what_came_of_a_refresh(status: dict[str, Any], outcome: str) -> None:
    found = progress.judge_refresh(dataset(refreshed="now", **status), "now", earlier=["g11"])
    assert (found.is_done, found.outcome) == (True, outcome)


@pytest.mark.parametrize(
    ("truth", "reason", "failed_refresh", "is_taken_up"),
    [
        pytest.param("True", "GenerationBuilt", None, False, id="all is as it was"),
        pytest.param("False", "BadSource", "before", False, id="an earlier one has failed"),
        pytest.param("False", "Building", "before", True, id="it is built"),
        pytest.param("False", "WaitingForTurn", None, True, id="others come first"),
        pytest.param("False", "WaitingForSource", "now", True, id="the success file is not there"),
    ],
)
def test_what_was_before_is_not_what_a_refresh_waits_for(
    truth: str, reason: str, failed_refresh: str | None, is_taken_up: bool
) -> None:
    failed = {"refresh": failed_refresh, "reason": "WaitingForSource" if failed_refresh == "now" else "BadSource"}
    status = {"conditions": [condition("Built", truth, reason)], "failure": failed if failed_refresh else None}
    assert progress.judge_refresh(dataset(**status), "now").is_taken_up == is_taken_up


def test_no_operator_has_looked_at_a_dataset_without_conditions() -> None:
    assert not progress.judge_refresh(dataset(conditions=None), "now").is_taken_up


def test_what_was_before_a_change_of_the_spec_is_neither_waited_for_nor_the_end_of_it() -> None:
    unobserved = replace(dataset({"generation": "g11"}, refreshed="now", generations=[]), generation=2)
    for found in (progress.judge_active(unobserved, "g11"), progress.judge_refresh(unobserved, "now")):
        assert (found.is_done, found.is_taken_up) == (False, False)
    observed = replace(unobserved, generation=1)
    assert progress.judge_active(observed, "g11").is_taken_up
    assert progress.judge_refresh(observed, "now").is_done


def test_a_promotion_is_taken_up_when_nothing_waits_for_it_any_more() -> None:
    assert not progress.judge_active(dataset(candidate=CANDIDATE), "g13").is_taken_up
    assert progress.judge_active(dataset({"suspend": True}, candidate=CANDIDATE), "g13").is_taken_up
    assert progress.judge_active(dataset(), "g13").is_taken_up


def test_a_rollback_is_done_when_every_router_has_confirmed_it() -> None:
    assert progress.judge_active(dataset(), "g12").is_done
    assert not progress.judge_active(dataset(), "g11").is_done
    unconfirmed = {name: value for name, value in dataset().status["table"].items() if name != "confirmedAt"}
    assert not progress.judge_active(dataset(table=unconfirmed), "g12").is_done


def test_a_rollback_is_not_done_while_shards_answer_from_another_generation() -> None:
    """As when it begins in the middle of a rollout shard by shard: the status still calls g12 the active generation."""
    older = {"rollout": "r34", "generation": "g12", "workers": 1, "shardRanges": "1"}
    midway = {**dataset().status["table"], "rollout": "r35", "generation": "g13", "parts": [older]}
    for name in ("g12", "g13"):
        assert not progress.judge_active(dataset(table=midway), name).is_done
    renewed = {**dataset().status["table"], "rollout": "r35", "parts": [older]}
    assert progress.judge_active(dataset(table=renewed), "g12").is_done, "another pod template, and the same data"
