"""What the plugin's verbs ask for, and when it is done."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_samples import HEALTHY, condition, dataset, generation

from lookupdb.errors import LookupdbError
from lookupdb_operator.plugin import changes
from lookupdb_operator.plugin.changes import NotPossible

CANDIDATE = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:00:00Z"}
MARK = {"generation": "g11", "fingerprint": "of-g11", "content": "c"}


@pytest.mark.parametrize("verb", ["promote", "reject"])
@pytest.mark.parametrize("given", [None, "g13"])
def test_the_candidate_is_promoted_or_rejected_by_its_name(verb: str, given: str | None) -> None:
    change = getattr(changes, verb)(dataset(candidate=CANDIDATE), given)
    assert change == {"metadata": {"annotations": {f"lookupdb.dev/{verb}": "g13"}}}


@pytest.mark.parametrize("verb", ["promote", "reject"])
def test_who_means_another_one_is_told(verb: str) -> None:
    with pytest.raises(NotPossible, match="g13 is the candidate of shop/airports, not g12"):
        getattr(changes, verb)(dataset(candidate=CANDIDATE), "g12")
    with pytest.raises(NotPossible, match="no candidate"):
        getattr(changes, verb)(dataset(), None)


@pytest.mark.parametrize(
    ("status", "given", "to"),
    [
        pytest.param({}, None, "g11", id="the one before the active one"),
        pytest.param({}, "g11", "g11", id="the one that is named"),
        pytest.param({}, "g12", "g12", id="also the active one: it stays"),
        pytest.param(
            {"generations": [generation(f"g{n}", fingerprint=f"f{n}", servedBy=n) for n in (9, 11, 12)]}
            | {"rolledBack": [MARK]},
            None,
            "g9",
            id="not one that was rolled back from itself",
        ),
    ],
)
def test_a_rollback_pins(status: dict[str, Any], given: str | None, to: str) -> None:
    change = changes.roll_back(dataset(**status), given)
    assert change == {"metadata": {"resourceVersion": "1"}, "spec": {"generation": to}}, (
        "of what was seen, or not at all"
    )


@pytest.mark.parametrize(
    ("status", "given", "told"),
    [
        ({}, "g10", "holds no g10 of shop/airports: it holds g11, g12"),
        ({"generations": [generation("g12", servedBy=7)]}, None, "nothing to go back to: g12 is active.* it holds g12"),
        ({"generations": None, "generation": None, "table": None}, None, "nothing is active.* it holds none"),
        (
            {"generations": [generation("g11"), generation("g12", servedBy=7)]},
            None,
            "is known to have served and was not rolled back from; it holds g11, g12",
        ),
    ],
)
def test_there_may_be_nothing_to_go_back_to(status: dict[str, Any], given: str | None, told: str) -> None:
    with pytest.raises(NotPossible, match=told):
        changes.roll_back(dataset(**status), given)


def test_a_second_rollback_names_what_it_goes_back_to() -> None:
    """It may be the first one, asked for again: nobody goes back two generations by accident."""
    generations = [generation(f"g{n}", fingerprint=f"f{n}", servedBy=n) for n in (10, 11, 12)]
    back = {"generations": generations, "generation": "g11", "rolledBack": [MARK | {"generation": "g12"}]}
    pinned = dataset({"generation": "g11"}, **back)
    with pytest.raises(NotPossible, match="shop/airports is pinned to g11 already") as refused:
        changes.roll_back(pinned, None)
    assert refused.value.hint is not None
    assert (
        "unpin -n shop airports goes forward again, --to g10 goes back to what served before g11" in refused.value.hint
    )
    assert changes.roll_back(pinned, "g10")["spec"] == {"generation": "g10"}


def test_a_status_of_another_version_is_no_ground_for_a_rollback() -> None:
    with pytest.raises(LookupdbError, match="is not one that this version reads"):
        changes.roll_back(dataset(table={"version": "seven"}), None)


def test_what_was_promoted_before_it_was_built_has_its_annotation_taken_away_first() -> None:
    early = generation("g13", prematurePromotion="g13")
    waiting = dataset(candidate=CANDIDATE, generations=[generation("g12"), early])
    assert changes.is_premature(waiting, "g13")
    assert changes.withdraw_promotion() == {"metadata": {"annotations": {"lookupdb.dev/promote": None}}}
    assert not changes.judge_withdrawal(waiting, "g13").is_done
    seen = dataset(candidate=CANDIDATE, generations=[generation("g12"), generation("g13")])
    assert changes.judge_withdrawal(seen, "g13").is_done


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
    progress = changes.judge_refresh(dataset(**status), "now")
    assert (progress.is_done, progress.failure, progress.waits_for) == (is_done, failure, waits_for)


PINNED = _conditions(condition("RolledOut", "True", "Pinned", "spec.generation pins g12; g13 is built, and waits."))


def test_a_refresh_whose_data_wait_behind_a_pin_fails_and_says_what_to_do() -> None:
    built = [generation("g11"), generation("g12"), generation("g13", refresh="now")]
    progress = changes.judge_refresh(
        dataset({"generation": "g12"}, refreshed="now", generations=built, **PINNED), "now"
    )
    assert not progress.is_done
    assert progress.failure == (
        "Pinned: spec.generation pins g12; g13 is built, and waits."
        " kubectl lookupdb unpin -n shop airports lets newer data serve"
    )


@pytest.mark.parametrize(("truth", "reason"), [("True", "Draining"), ("False", "StartingServers")])
def test_a_pin_holds_back_what_was_built_also_while_what_is_pinned_rolls_out(truth: str, reason: str) -> None:
    """As after a rollback: what served before drains, and the condition says that first."""
    built = [generation("g12"), generation("g13", refresh="now")]
    status = {"refreshed": "now", "generations": built, **_conditions(condition("RolledOut", truth, reason))}
    progress = changes.judge_refresh(dataset({"generation": "g12"}, **status), "now")
    assert not progress.is_done
    assert progress.failure == (
        "Pinned: spec.generation pins g12; g13 is built, and waits."
        " kubectl lookupdb unpin -n shop airports lets newer data serve"
    )


def test_a_refresh_that_finds_the_source_as_it_is_in_what_is_pinned_is_answered() -> None:
    known = [generation("g11"), generation("g12", refresh="now")]
    status = {"refreshed": "now", "generations": known, **PINNED}
    assert changes.judge_refresh(dataset({"generation": "g12"}, **status), "now").is_done


def test_a_rollback_is_done_when_every_router_has_confirmed_it() -> None:
    assert changes.judge_active(dataset(), "g12").is_done
    assert not changes.judge_active(dataset(), "g11").is_done
    unconfirmed = {name: value for name, value in dataset().status["table"].items() if name != "confirmedAt"}
    assert not changes.judge_active(dataset(table=unconfirmed), "g12").is_done


def test_a_rollback_is_not_done_while_shards_answer_from_another_generation() -> None:
    """As when it begins in the middle of a rollout shard by shard: the status still calls g12 the active generation."""
    older = {"rollout": "r34", "generation": "g12", "workers": 1, "shardRanges": "1"}
    midway = {**dataset().status["table"], "rollout": "r35", "generation": "g13", "parts": [older]}
    for name in ("g12", "g13"):
        assert not changes.judge_active(dataset(table=midway), name).is_done
    renewed = {**dataset().status["table"], "rollout": "r35", "parts": [older]}
    assert changes.judge_active(dataset(table=renewed), "g12").is_done, "another pod template, and the same data"
