"""The changes that the plugin's verbs request."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_samples import dataset, generation

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.console.dataset import NotPossible
from lookupdb_operator.plugin import changes

CANDIDATE = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:00:00Z"}
MARK = {"generation": "g11", "fingerprint": "of-g11", "content": "c"}


@pytest.mark.parametrize("given", [None, "g13"])
def test_the_candidate_is_promoted_or_rejected_by_its_name(given: str | None) -> None:
    assert changes.find_candidate(dataset(candidate=CANDIDATE), given) == "g13"
    assert changes.annotate(names.REJECT, "g13") == {"metadata": {"annotations": {"lookupdb.dev/reject": "g13"}}}


def test_who_means_another_one_gets_an_error() -> None:
    with pytest.raises(NotPossible, match="g13 is the candidate of shop/airports, not g12"):
        changes.find_candidate(dataset(candidate=CANDIDATE), "g12")
    with pytest.raises(NotPossible, match="no candidate"):
        changes.find_candidate(dataset(), None)


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
        (
            {"generations": [generation("g12", servedBy=7)]},
            None,
            "nothing to go back to: g12 is active, and the store holds no other one",
        ),
        (
            {"generations": None, "generation": None, "table": None},
            None,
            "nothing is active, and the store holds no other one",
        ),
        (
            {"generations": [generation("g11"), generation("g12", servedBy=7)]},
            None,
            "g12 is active; the others have not served, or were rolled back",
        ),
    ],
)
def test_there_may_be_nothing_to_go_back_to(status: dict[str, Any], given: str | None, told: str) -> None:
    with pytest.raises(NotPossible, match=told):
        changes.roll_back(dataset(**status), given)


def test_a_second_rollback_names_what_it_goes_back_to() -> None:
    """It may be the first one, repeated: nobody goes back two generations by accident."""
    generations = [generation(f"g{n}", fingerprint=f"f{n}", servedBy=n) for n in (10, 11, 12)]
    back = {"generations": generations, "generation": "g11", "rolledBack": [MARK | {"generation": "g12"}]}
    pinned = dataset({"generation": "g11"}, **back)
    with pytest.raises(NotPossible, match="shop/airports is pinned to g11 already") as refused:
        changes.roll_back(pinned, None)
    assert refused.value.hint is not None
    further = "kubectl lookupdb pin -n shop airports g10 goes back to the one before g11"
    assert f"unpin -n shop airports removes the pin, {further}" in refused.value.hint
    assert changes.roll_back(pinned, "g10")["spec"] == {"generation": "g10"}


def test_a_status_of_another_version_is_no_ground_for_a_rollback() -> None:
    with pytest.raises(LookupdbError, match="is not one that this version reads"):
        changes.roll_back(dataset(table={"version": "seven"}), None)


def test_what_was_promoted_before_it_was_built_needs_its_annotation_removed_first() -> None:
    early = generation("g13", prematurePromotion="g13")
    waiting = dataset(candidate=CANDIDATE, generations=[generation("g12"), early])
    with pytest.raises(NotPossible, match=r"lookupdb\.dev/promote named g13 before it was built"):
        changes.find_promotable(waiting, "g13")
    assert changes.find_candidate(waiting, "g13") == "g13"


def test_the_rejected_generation_is_overridden_by_its_name() -> None:
    found = dataset(refused=generation("g13", message="minRecords: expected at least 9, found 1"))
    assert [changes.find_rejected(found, given) for given in (None, "g13")] == ["g13", "g13"]
    early = dataset(refused=generation("g13", message="", prematureOverride="g13"))
    with pytest.raises(NotPossible, match=r"lookupdb\.dev/override-gates named g13 before it was built"):
        changes.find_rejected(early, None)
    with pytest.raises(NotPossible, match="that a gate has rejected is g13"):
        changes.find_rejected(found, "g12")
    with pytest.raises(NotPossible, match="no gate has rejected the newest generation of shop/airports"):
        changes.find_rejected(dataset(), None)
    with pytest.raises(NotPossible, match="no gate has rejected g12 of shop/airports"):
        changes.find_rejected(dataset(), "g12")
    accepted = generation("g12", overridden="minRecords: expected at least 9, found 1")
    for refused in (None, generation("g13", message="")):
        with pytest.raises(NotPossible, match="the gates of g12 of shop/airports are overridden already"):
            changes.find_rejected(dataset(generations=[accepted], refused=refused), "g12")


def test_what_a_gate_has_refused_is_no_rollback_and_how_to_let_it_through_is_said() -> None:
    refused = generation("g13", message="minRecords: expected at least 9, found 1")
    with pytest.raises(NotPossible, match="a gate has rejected g13 of shop/airports: minRecords: expected") as raised:
        changes.roll_back(dataset(refused=refused), "g13")
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("kubectl lookupdb override-gates -n shop airports g13 overrides the gate")
    assert raised.value.hint.endswith("the store also holds g11, g12")
