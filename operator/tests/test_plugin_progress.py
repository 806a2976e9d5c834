"""Progress of the plugin's changes: when they are done, their outcome, and what they wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plugin_samples import HEALTHY, condition, dataset, generation

from lookupdb_operator import names
from lookupdb_operator.console.dataset import Dataset
from lookupdb_operator.plugin import changes

WITH_G13 = [generation("g12"), generation("g13")]
CANDIDATE = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:00:00Z"}


def _conditions(rolled_out: Any) -> dict[str, Any]:
    return {"conditions": [*HEALTHY[:2], rolled_out, HEALTHY[3]]}


def _refreshing(spec: Any = None, **status: Any) -> Dataset:
    """A dataset with the requested refresh "now"."""
    return replace(dataset(spec, **status), annotations={names.REFRESH: "now"})


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
    found = changes.judge_refresh(_refreshing(**status), "now")
    assert (found.is_done, found.failure, found.waits_for) == (is_done, failure, waits_for)


PINNED = _conditions(condition("RolledOut", "True", "Pinned", "spec.generation pins g12; g13 is built, and waits."))


def test_a_refresh_whose_data_wait_behind_a_pin_fails_and_says_what_to_do() -> None:
    built = [generation("g11"), generation("g12"), generation("g13", refresh="now")]
    found = changes.judge_refresh(
        _refreshing({"generation": "g12"}, refreshed="now", generations=built, **PINNED), "now"
    )
    assert not found.is_done
    assert found.failure == (
        "Pinned: spec.generation pins g12; g13 is built, and waits."
        " kubectl lookupdb unpin -n shop airports lets newer generations serve"
    )


@pytest.mark.parametrize(("truth", "reason"), [("True", "Draining"), ("False", "StartingServers")])
def test_a_pin_holds_back_what_was_built_also_while_what_is_pinned_rolls_out(truth: str, reason: str) -> None:
    """Happens after a rollback: the old servers drain, and the condition says that first."""
    built = [generation("g12"), generation("g13", refresh="now")]
    status = {"refreshed": "now", "generations": built, **_conditions(condition("RolledOut", truth, reason))}
    found = changes.judge_refresh(_refreshing({"generation": "g12"}, **status), "now")
    assert not found.is_done
    assert found.failure == (
        "Pinned: spec.generation pins g12; g13 is built, and waits."
        " kubectl lookupdb unpin -n shop airports lets newer generations serve"
    )


def test_a_refresh_that_finds_the_source_as_it_is_in_what_is_pinned_is_answered() -> None:
    known = [generation("g11"), generation("g12", refresh="now")]
    status = {"refreshed": "now", "generations": known, **PINNED}
    assert changes.judge_refresh(_refreshing({"generation": "g12"}, **status), "now").is_done


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        pytest.param({"generations": [generation("g12", refresh="now")]}, "g12 serves", id="built"),
        pytest.param(
            {"generations": [generation("g11", refresh="now")], "generation": "g11"},
            "the source has not changed; g11 keeps serving",
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
            "the source has not changed; g12 keeps serving. g11 was rolled back from.",
            id="rolled back from",
        ),
        pytest.param({"generations": []}, "g12 serves", id="trimmed since"),
    ],
)
def test_what_came_of_a_refresh(status: dict[str, Any], outcome: str) -> None:
    found = changes.judge_refresh(_refreshing(refreshed="now", **status), "now", earlier=["g11"])
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
    assert changes.judge_refresh(_refreshing(**status), "now").is_taken_up == is_taken_up


def _annotated(found: Dataset, value: str) -> Dataset:
    return replace(found, annotations={names.REFRESH: value})


LATER = {
    "refreshed": "later",
    "generations": [generation("g12"), generation("g14", refresh="later")],
    "generation": "g14",
}


def test_a_build_for_a_later_refresh_answers_this_one_too_and_no_build_that_began_before() -> None:
    """Happens if `up --watch` sees the source change just before or after a command asks for a refresh."""
    for status in ({"refreshed": "before", "refreshedBy": 12}, {"refreshed": "now"}, {**LATER, "refreshedBy": 14}):
        found = changes.judge_refresh(_annotated(dataset(**status), "later"), "now", ["g12"], last=13)
        assert (found.is_done, found.failure) == (status["refreshed"] != "before", "")
    assert found.outcome == "g14 serves"
    rolling_out = dataset(**LATER, refreshedBy=14, **_conditions(STARTING))
    assert not changes.judge_refresh(_annotated(rolling_out, "later"), "now", last=13).is_done


def test_a_refresh_that_was_set_back_to_an_answered_one_is_waited_for_no_longer() -> None:
    found = changes.judge_refresh(_annotated(dataset(**LATER, refreshedBy=13), "later"), "now", last=13)
    assert not found.is_done
    now = "changed to later, which an earlier build has answered"
    assert found.failure == f"the refresh was withdrawn: the annotation lookupdb.dev/refresh was {now}"


@pytest.mark.parametrize(
    ("reason", "failure"), [("BadSource", "BadSource: no file"), ("WaitingForSource", "")], ids=["failed", "waits"]
)
def test_a_refresh_fails_with_the_later_one_that_has_replaced_it(reason: str, failure: str) -> None:
    failed = {"refresh": "later", "reason": reason, "message": "no file"}
    status = {"failure": failed, "conditions": [condition("Built", "False", reason)]}
    found = changes.judge_refresh(_annotated(dataset(**status), "later"), "now", last=13)
    assert (found.failure, found.is_taken_up) == (failure, True)


def test_a_refresh_whose_annotation_was_taken_away_is_waited_for_no_longer() -> None:
    found = changes.judge_refresh(dataset(refreshed="before"), "now")
    assert not found.is_done
    assert found.failure == ("the refresh was withdrawn: the annotation lookupdb.dev/refresh was removed")
    assert changes.judge_refresh(dataset(refreshed="now"), "now").is_done, "it was answered before"


def test_a_refresh_whose_build_has_begun_is_waited_for_whatever_was_asked_for_since() -> None:
    building = dataset(refreshed="before", build={"generation": "g13", "refresh": "now"})
    for value in ("later", ""):
        assert changes.judge_refresh(_annotated(building, value), "now").failure == ""
    assert changes.judge_refresh(_annotated(dataset(refreshed="before"), "now"), "now").failure == ""
    assert changes.judge_refresh(_annotated(dataset(refreshed="now"), "later"), "now").is_done


def test_no_operator_has_looked_at_a_dataset_without_conditions() -> None:
    assert not changes.judge_refresh(_refreshing(conditions=None), "now").is_taken_up


def test_what_was_before_a_change_of_the_spec_is_neither_waited_for_nor_the_end_of_it() -> None:
    unobserved = replace(dataset({"generation": "g11"}, refreshed="now", generations=[]), generation=2)
    for found in (changes.judge_active(unobserved, "g11"), changes.judge_refresh(unobserved, "now")):
        assert (found.is_done, found.is_taken_up) == (False, False)
    observed = replace(unobserved, generation=1)
    assert changes.judge_active(observed, "g11").is_taken_up
    assert changes.judge_refresh(observed, "now").is_done


WAITING = condition("RolledOut", "False", "CandidateWaiting", "r35 waits for promotion.")


def test_a_promotion_is_taken_up_when_nothing_waits_for_it_any_more() -> None:
    waiting = {"candidate": CANDIDATE, **_conditions(WAITING)}
    assert not changes.judge_active(dataset(**waiting), "g13").is_taken_up
    assert changes.judge_active(dataset({"suspend": True}, **waiting), "g13").is_taken_up
    assert changes.judge_active(dataset(), "g13").is_taken_up
    starting = dataset(candidate=CANDIDATE, **_conditions(STARTING))  # promoted, and its servers are not ready
    assert changes.judge_active(starting, "g13").is_taken_up


@pytest.mark.parametrize("reason", ["WaitingForTurn", "StartingServers", "Confirming", "Draining"])
def test_a_promotion_waits_for_what_comes_first_and_not_for_the_operator(reason: str) -> None:
    """For example, the operator's image is new, a server of the candidate is not ready, and no slot is free."""
    first = _conditions(condition("RolledOut", "False", reason, "Three before it."))
    found = changes.judge_promotion(_promoted("g13", candidate=CANDIDATE, **first), "g13")
    assert (found.is_taken_up, found.failure) == (True, "")
    assert found.waits_for == f"{reason}: Three before it."


def _promoted(generation: str, spec: Any = None, **status: Any) -> Dataset:
    """A dataset with a candidate, whose annotation promotes ``generation``."""
    found = dataset({"rollout": {"promotion": "Manual"}, **(spec or {})}, generations=WITH_G13, **status)
    return replace(found, annotations={names.PROMOTE: generation} if generation else {})


@pytest.mark.parametrize("status", [{"candidate": CANDIDATE}, {}], ids=["not looked at", "about to be rolled out"])
@pytest.mark.parametrize(
    ("promoted", "now"),
    [("", "the annotation lookupdb.dev/promote was removed"), ("g12", "g12 is promoted instead now")],
    ids=["taken away", "replaced"],
)
def test_a_promotion_that_was_taken_back_is_waited_for_no_longer(promoted: str, now: str, status: Any) -> None:
    found = changes.judge_promotion(_promoted(promoted, **status), "g13")
    assert (found.is_done, found.failure) == (False, f"g13 is not promoted any more: {now}")


def test_what_takes_effect_needs_no_promotion_any_more() -> None:
    replacing = {"table": {**_table("g13")["table"], "parts": [{"rollout": "r34", "generation": "g12"}]}}
    for spec, status in (({}, replacing), ({"generation": "g13"}, {}), ({"rollout": {"promotion": "Auto"}}, {})):
        assert changes.judge_promotion(_promoted("", spec, **status), "g13").failure == ""


def test_a_promotion_waits_for_the_spec_to_be_corrected_and_not_for_the_operator() -> None:
    broken = _conditions(condition("RolledOut", "False", "InvalidSpec", "spec.shards: wrong."))
    found = changes.judge_promotion(dataset(candidate=CANDIDATE, generations=WITH_G13, **broken), "g13")
    assert (found.is_taken_up, found.waits_for) == (True, "InvalidSpec: spec.shards: wrong.")


NEWER = {"generation": "g14", "rollout": "r36", "since": "2026-01-02T11:00:00Z"}
MARK = {"generation": "g13", "fingerprint": "of-g13", "content": "c"}


def _table(generation: str) -> dict[str, Any]:
    return {"table": {**dataset().status["table"], "generation": generation}}


@pytest.mark.parametrize(
    ("spec", "status", "failure"),
    [
        pytest.param({}, {"candidate": CANDIDATE}, "", id="a candidate still"),
        pytest.param({}, {}, "", id="promoted, and about to be rolled out"),
        pytest.param({"suspend": True}, {"candidate": CANDIDATE}, "", id="suspended"),
        pytest.param({"generation": "g13"}, {}, "", id="pinned itself"),
        pytest.param({"generation": "g12"}, {}, "Pinned: spec.generation pins g12, and g13 waits", id="pinned"),
        pytest.param({}, {"rejected": [MARK]}, "Rejected: g13 was rejected, and g12 serves", id="rejected"),
        pytest.param({}, {"candidate": NEWER}, "g14 is the candidate now, in place of g13", id="a newer candidate"),
        pytest.param(
            {},
            {"generations": [generation("g12")]},
            "the store holds no g13 any more: it holds g12",
            id="trimmed since",
        ),
    ],
)
def test_a_promotion_that_cannot_take_effect_any_more_is_waited_for_no_longer(
    spec: Any, status: dict[str, Any], failure: str
) -> None:
    found = changes.judge_promotion(dataset(spec, **{"generations": WITH_G13, **status}), "g13")
    assert (found.is_done, found.failure) == (False, failure)


def test_a_promotion_that_takes_effect_is_done_whatever_waits_behind_it() -> None:
    confirming = {"table": {**_table("g13")["table"], "confirmedAt": ""}}
    for status, is_done in ((_table("g13"), True), (confirming, False)):
        found = changes.judge_promotion(dataset(candidate=NEWER, generations=WITH_G13, **status), "g13")
        assert (found.is_done, found.failure) == (is_done, "")


@pytest.mark.parametrize(
    ("spec", "status", "failure"),
    [
        pytest.param({"generation": "g11"}, {}, "", id="on the way"),
        pytest.param({}, {}, "g11 is no longer pinned: the pin was removed", id="unpinned"),
        pytest.param(
            {"generation": "g10"},
            {},
            "g11 is no longer pinned: g10 is pinned instead",
            id="another one is pinned",
        ),
        pytest.param(
            {"generation": "g11"},
            {"generations": [generation("g12")]},
            "the store holds no g11 any more: it holds g12",
            id="trimmed since",
        ),
        pytest.param(
            {"generation": "g11"},
            {"generations": [generation("g12")], "build": {"generation": "g11"}},
            "",
            id="built again",
        ),
        pytest.param(
            {"generation": "g11"},
            _conditions(condition("RolledOut", "False", "GenerationMissing", "g11 is not there.")),
            "GenerationMissing: g11 is not there.",
            id="its files are gone",
        ),
    ],
)
def test_a_rollback_that_cannot_come_any_more_is_waited_for_no_longer(
    spec: Any, status: dict[str, Any], failure: str
) -> None:
    found = changes.judge_rollback(dataset(spec, **status), "g11")
    assert (found.is_done, found.failure) == (False, failure)


def test_a_rollback_that_serves_is_done() -> None:
    assert changes.judge_rollback(dataset({"generation": "g12"}), "g12").is_done
    unobserved = replace(dataset({"generation": "g9"}), generation=2)
    assert changes.judge_rollback(unobserved, "g9").failure == "", "the status is of before"


def test_a_removed_pin_is_done_when_what_is_desired_serves_or_is_held_back() -> None:
    held_back = _conditions(condition("RolledOut", "False", "RolledBack", "g13 was rolled back."))
    for status in ({}, held_back):
        assert changes.judge_unpin(dataset(**status)) == changes.ChangeProgress(True, outcome="g12 serves")
    mark = {"generation": "g13", "fingerprint": "of-g13", "content": "c"}
    stored = [generation("g12", servedBy=7), generation("g13")]
    found = changes.judge_unpin(dataset(generations=stored, rolledBack=[mark], **held_back))
    further = (
        "g13 is held back until source or spec changes: kubectl lookupdb pin -n shop airports g13 serves it anyway"
    )
    assert (found.is_done, found.outcome) == (True, f"g12 serves; {further}")
    found = changes.judge_unpin(dataset(**_conditions(STARTING)))
    assert (found.is_done, found.failure, found.is_taken_up) == (False, "", True)
    pinned = _conditions(condition("RolledOut", "True", "Pinned", "g11 is pinned."))
    assert not changes.judge_unpin(replace(dataset(**pinned), generation=2)).is_taken_up, "the status is of before"
    assert changes.judge_unpin(dataset({"generation": "g9"})).failure == "g9 is pinned again"


def test_a_rollback_is_done_when_every_router_has_confirmed_it() -> None:
    assert changes.judge_active(dataset(), "g12").is_done
    assert not changes.judge_active(dataset(), "g11").is_done
    unconfirmed = {name: value for name, value in dataset().status["table"].items() if name != "confirmedAt"}
    assert not changes.judge_active(dataset(table=unconfirmed), "g12").is_done


def test_a_rollback_is_not_done_while_shards_answer_from_another_generation() -> None:
    """Happens if it begins during a shard-by-shard rollout: the status still calls g12 the active generation."""
    older = {"rollout": "r34", "generation": "g12", "workers": 1, "shardRanges": "1"}
    midway = {**dataset().status["table"], "rollout": "r35", "generation": "g13", "parts": [older]}
    for name in ("g12", "g13"):
        assert not changes.judge_active(dataset(table=midway), name).is_done
    renewed = {**dataset().status["table"], "rollout": "r35", "parts": [older]}
    assert changes.judge_active(dataset(table=renewed), "g12").is_done, "another pod template, and the same data"
