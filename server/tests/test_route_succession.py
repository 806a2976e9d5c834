"""Which routing table may follow which, and when it takes effect."""

from __future__ import annotations

import pytest
from support.routing import entry, mixed, table

from lookupdb.router.cutover import awaited_shards, may_ask_for_previous, may_still_ask_for_previous
from lookupdb.router.routing_table import (
    RoutingTable,
    describe_contradiction,
    diagnose_refusal,
    tells_contradiction,
)

A, B = "10.0.0.1:7000", "10.0.0.2:7000"
OTHER = {"namespace": "default", "name": "sample", "uid": "made again"}


@pytest.mark.parametrize(
    ("new", "current", "sentence"),
    [
        pytest.param(table(entry([[A]])), None, None, id="the first"),
        pytest.param(table(entry([[B]]), version=3), table(entry([[A]]), version=2), None, id="newer"),
        pytest.param(table(entry([[A]])), table(entry([[A]])), None, id="the same again"),
        pytest.param(table(entry([[B]])), table(entry([[A]])), "in effect with other content", id="same version"),
        pytest.param(
            table(entry([[A]]), version=1), table(entry([[A]]), version=2), "is older than version 2", id="rollback"
        ),
        pytest.param(
            table(entry([[A]]), dataset=OTHER), table(entry([[A]]), version=9), None, id="another dataset starts again"
        ),
    ],
)
def test_versions_only_grow(new: RoutingTable, current: RoutingTable | None, sentence: str | None) -> None:
    why = diagnose_refusal(new, current)
    assert (why is None) if sentence is None else (why and sentence in why)


def test_who_has_another_table_of_the_same_version_says_so_in_words_that_are_known_again() -> None:
    why = diagnose_refusal(table(entry([[B]]), version=5), table(entry([[A]]), version=5))
    assert why
    assert describe_contradiction(5) in why
    assert describe_contradiction(15) not in why
    assert tells_contradiction(why)
    older = diagnose_refusal(table(entry([[A]]), version=1), table(entry([[A]]), version=2))
    assert older
    assert not tells_contradiction(older)


def test_a_router_of_one_dataset_takes_no_table_of_another() -> None:
    own, other = table(entry([[A]])), table(entry([[A]]), dataset=OTHER, version=9)
    sentence = (
        "it is the table of default/sample with uid 'made again', and this router serves the dataset with uid 'local'"
    )
    for current in (None, own):
        assert diagnose_refusal(own, current, "local") is None
        assert diagnose_refusal(other, current, "local") == sentence
    old = diagnose_refusal(own, table(entry([[A]]), version=2), "local")
    assert old
    assert "is older than version 2" in old


ONE, TWO = table(entry([[A], [A]]), version=1), table(entry([[B], [B]]), version=2)
NEXT = table(entry([[B], [B]], "g2"), version=2)
STEP = table(mixed(entry([[B], [B]], "g2"), entry([[A], [A]]), {1}), version=2)
BACK = table(mixed(entry([[A], [A]]), entry([[B], [B]], "g2"), {0}), version=3)
OTHERS = table(entry([[B], [B]]), dataset=OTHER)
MORE = table(entry([[B], [B], [B]]), version=2)


def test_what_a_table_waits_for() -> None:
    for new, proven, current, current_proven, awaited in (
        (ONE, [False, False], None, [], []),
        (NEXT, [True, True], ONE, [True, True], []),
        (NEXT, [True, False], ONE, [True, True], [1]),
        (NEXT, [True, False], ONE, [True, False], [1]),
        (TWO, [True, False], ONE, [True, True], [1]),
        (TWO, [True, False], ONE, [False, False], []),
        (TWO, [True, False], ONE, [True, False], []),
        (OTHERS, [True, False], ONE, [False, False], [1]),
        (MORE, [True, False, False], ONE, [False, False], [1, 2]),
        (STEP, [True, True], ONE, [True, True], []),
        (STEP, [False, True], ONE, [True, True], [0]),
        (STEP, [False, True], ONE, [False, True], [0]),
        (STEP, [True, False], ONE, [True, True], [1]),
        (STEP, [True, False], ONE, [True, False], []),
        (NEXT, [False, True], STEP, [False, True], []),
        (NEXT, [True, False], STEP, [True, False], [1]),
        (BACK, [False, False], STEP, [False, False], []),
        (ONE, [False, True], STEP, [True, True], [0]),
        (ONE, [True, False], STEP, [True, False], []),
    ):
        assert awaited_shards(new, proven, current, current_proven) == awaited


@pytest.mark.parametrize(
    ("new", "old", "may_ask"),
    [
        pytest.param(NEXT, ONE, True, id="another generation"),
        pytest.param(TWO, ONE, False, id="the same one, of other servers"),
        pytest.param(table(entry([[B]], "g2"), entry([[A]]), version=2), ONE, False, id="the new table names it"),
        pytest.param(table(entry([[B]], "g2"), dataset=OTHER), ONE, False, id="another dataset"),
        pytest.param(STEP, ONE, False, id="shard by shard: the new table has no whole one"),
        pytest.param(NEXT, STEP, False, id="shard by shard: nor had the old one"),
    ],
)
def test_the_generation_before_may_be_asked_for_if_it_was_whole_and_of_the_same_dataset(
    new: RoutingTable, old: RoutingTable, may_ask: bool
) -> None:
    assert may_ask_for_previous(new, old) is may_ask


NEXT_ELSEWHERE = table(entry([[B]], "g2"), version=3)


@pytest.mark.parametrize(
    ("new", "old", "may_ask"),
    [
        pytest.param(NEXT_ELSEWHERE, NEXT, True, id="the same generation, of other servers"),
        pytest.param(table(entry([[B]], "g3"), version=4), NEXT, False, id="another generation"),
        pytest.param(table(entry([[B]], "g2"), entry([[A]]), version=4), NEXT, False, id="the new table names it"),
        pytest.param(STEP, NEXT, False, id="shard by shard"),
    ],
)
def test_it_may_be_asked_for_while_the_generation_is_the_same(
    new: RoutingTable, old: RoutingTable, may_ask: bool
) -> None:
    assert may_still_ask_for_previous(new, old, ONE) is may_ask
