"""Shards as ranges of text."""

from __future__ import annotations

import random

import pytest

from lookupdb_operator.status import format_shards, parse_shards, select_shards, shorten_shards


@pytest.mark.parametrize(
    ("shards", "text"),
    [
        pytest.param((), "", id="none"),
        pytest.param((0,), "0", id="one"),
        pytest.param((3, 0, 1, 2), "0-3", id="neighbours, in any order"),
        pytest.param((0, 1, 2, 3, 8), "0-3,8", id="with a gap"),
        pytest.param((1022, 1023), "1022-1023", id="the last ones"),
    ],
)
def test_shards_are_written_as_ranges_and_read_again(shards: tuple[int, ...], text: str) -> None:
    assert format_shards(shards) == text
    assert parse_shards(text) == frozenset(shards)


def test_any_set_of_shards_is_read_as_it_was_written_and_has_a_bound_in_bytes() -> None:
    lots = random.Random(1)
    for _ in range(100):
        shards = frozenset(lots.sample(range(1024), lots.randrange(1025)))
        assert parse_shards(format_shards(shards)) == shards
    assert len(format_shards(range(0, 1024, 2))) < 2500


def test_what_is_not_written_so_is_refused() -> None:
    for text in ("3-1", "0-3,3", "1,0", "x", "-", "1-", ",", "0,1", "1024", "0-99999999999", "٣", "01"):
        with pytest.raises(ValueError, match="expected"):
            parse_shards(text)


def test_an_empty_text_of_a_rollout_is_all_of_its_shards() -> None:
    assert select_shards("", 4) == (0, 1, 2, 3)
    assert select_shards("1-2", 4) == (1, 2)
    assert select_shards("2-9", 4) == (2, 3)
    assert shorten_shards({0, 1}, 2) == ""
    assert shorten_shards({1}, 2) == "1"
