"""Lists of live datasets that a sweep refuses, and whose datasets it sweeps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.sweeps import Place, run

from lookupdb.cli.stores import sweep as verb
from lookupdb.errors import UsageError
from lookupdb.store.sweep import MARK_NOTE


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"cluster": "c2"}, "it belongs to cluster 'c2', expected c1"),
            ({"cluster": 7}, "cluster is 7, expected str"),
            ({"formatVersion": 2}, "format version 2; this lookupdb reads 1"),
            ({"datasets": None}, "datasets is None, expected list"),
            ({"datasets": [{"namespace": "team", "name": "people", "uid": "1", "keep": 0}]}, "keep is 0"),
            ({"datasets": [{"namespace": "team", "name": "people", "uid": "1"}]}, "it has no member 'keep'"),
            ({"datasets": [{"namespace": "..", "name": "people", "uid": "1", "keep": 1}]}, "cannot be part of"),
            (
                {"datasets": [{"namespace": "t", "name": "p", "uid": "1", "keep": 1, "protect": ["newest"]}]},
                "g1, g2",
            ),
            ({"datasets": [{"namespace": "t", "name": "p", "uid": "1", "keep": 1, "adopt": 7}]}, "uid is 7"),
            ({"datasets": [{"namespace": "t", "name": "p", "uid": "1", "keep": 1, "adopt": "../x"}]}, "uid begins"),
        ],
    )
    def test_a_living_list_that_is_not_one(self, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        people = place.publish(place.dataset("people"), "g1")
        place.living(people, **changes)
        error = run(place).exception
        assert isinstance(error, UsageError)
        assert "is not the list of live datasets of this cluster" in error.message
        assert said in error.message
        assert people.read_note(MARK_NOTE) is None

    @pytest.mark.parametrize(
        ("written", "said"),
        [
            (
                "2020-01-01T00:00:00Z",
                r"was written at 2020-01-01T00:00:00\+00:00, \d+\.\d hours ago: expected at most 1 h",
            ),
            ("2120-01-01T00:00:00Z", "in the future: expected at most 1 hours ago"),
            (None, "does not say when it was written"),
            ("yesterday", "does not say when it was written"),
        ],
    )
    def test_a_living_list_that_is_old(self, tmp_path: Path, written: str | None, said: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        people = place.publish(place.dataset("people"), "g1")
        place.living(writtenAt=written)
        error = run(place, "--max-age", "1h").exception
        assert isinstance(error, UsageError)
        assert re.search(said, error.message)
        assert people.read_note(MARK_NOTE) is None

    def test_a_living_list_that_is_not_there_or_cut_short(self, tmp_path: Path) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        assert "cannot be read: No such file" in str(run(place).exception)
        place.list.write_text('{"formatVersion": 1, "clus')
        assert isinstance(run(place).exception, UsageError)

    @pytest.mark.parametrize("text", ['{"formatVersion": 1}', '{"cluster": 7}', "[]", ""])
    def test_a_list_that_does_not_say_whose_it_is(self, tmp_path: Path, text: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        place.list.write_text(text)
        words = ["--store", place.url, "--living", str(place.list)]
        assert isinstance(CliRunner().invoke(verb, words, standalone_mode=False).exception, UsageError)

    @pytest.mark.parametrize("grace", ["24", "1y", "-1h", ""])
    def test_a_grace_period_that_is_none(self, tmp_path: Path, grace: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        assert "is not a duration" in str(run(place, "--grace", grace).exception)


def test_without_a_cluster_the_lists_own_is_swept(tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "store"), None)
    people = place.publish(place.dataset("people"), "g1")
    place.living()
    words = ["--store", place.url, "--living", str(place.list)]
    result = CliRunner().invoke(verb, words, standalone_mode=False)
    assert result.exception is None, result.exception
    assert people.read_note(MARK_NOTE) is not None
