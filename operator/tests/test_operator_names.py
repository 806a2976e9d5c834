"""Numbers in names."""

from __future__ import annotations

import pytest

from lookupdb_operator import names


@pytest.mark.parametrize(
    ("name", "number"),
    [("g12", 12), ("r999999999", 999_999_999), ("r1000000000", 0), ("g" + "9" * 5000, 0), ("g", 0), ("", 0), ("g٣", 0)],
)
def test_a_label_that_holds_more_than_a_number_of_a_status_is_no_such_name(name: str, number: int) -> None:
    """The next number would be too large for a status."""
    assert names.read_number(name) == number


@pytest.mark.parametrize(
    ("name", "rollout", "build"),
    [
        (names.rollout("a-r1", "r34"), "r34", ""),
        (names.shard_set("a-r1", "r34", 3), "r34", ""),
        (names.build("a-g1", "g12"), "", "g12"),
        (names.router("a-r1"), "", ""),
        (names.routing_table("a-g1"), "", ""),
        (names.network_policy("a-r1", names.SHARDS), "", ""),
        ("a-r0", "", ""),
        ("a-r1234567890", "", ""),
        ("a-g12-build-x", "", ""),
    ],
)
def test_a_name_says_of_which_rollout_or_build_an_object_is(name: str, rollout: str, build: str) -> None:
    assert (names.read_rollout(name), names.read_build(name)) == (rollout, build)


@pytest.mark.parametrize(("name", "number"), [("r34", 34), ("g100000000", 10**8), ("g100000001", 0), ("mine", 0)])
def test_a_number_is_recovered_from_a_label_while_that_leaves_numbers_to_come(name: str, number: int) -> None:
    assert names.recover_number(name) == number
