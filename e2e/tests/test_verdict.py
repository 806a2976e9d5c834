"""Wrong answers fail the scenarios, whatever a second run says. Needs no cluster."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from e2e.support import figures, load, run_scenarios, wrong_answers
from e2e.support.inside import import_inside

COUNTED = {"answers": 100, "keys": 100, "failed": 0, "mixed": 0, "wrong": 0, "back": 0, "samples": [], "longest": 0.1}
COUNTED |= {"connections": 16, "now": 3.0, "together": {}}
PARTS = [run_scenarios.NODE_LOST, run_scenarios.SIDE_BY_SIDE, run_scenarios.UNDER_LOAD, run_scenarios.ALONE]
GENERATIONS = {"g1": {"first": 1.0, "last": 2.5, "answers": 60, "versions": ["old"]}}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_answers, "FILE", tmp_path / "bench" / "wrong.json")
    monkeypatch.setattr(figures, "FILE", tmp_path / "bench" / "figures.json")


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """load.py, as in the pod."""
    return import_inside(monkeypatch, "load")


class TestSecondRun:
    @pytest.mark.parametrize(
        ("codes", "again", "expected"),
        [
            pytest.param([0, 0, 0, 0], True, 0, id="all pass"),
            pytest.param([0, 0, 0, 1], False, 1, id="one fails"),
            pytest.param([0, 1, 0, 0, 0], True, 0, id="one beside others is late, and not the second time"),
            pytest.param([0, 0, 0, 1, 0], True, 0, id="one alone is late, and not the second time"),
            pytest.param([1, 0, 0, 0, 0], True, 0, id="the lost node is late, and not the second time"),
            pytest.param([0, 1, 1, 0, 1, 0], True, 1, id="one fails twice, another once"),
            pytest.param([5, 5, 5, 0], True, 0, id="only scenarios that run alone were selected"),
            pytest.param([5, 5, 5, 5], True, 5, id="nothing was selected"),
        ],
    )
    def test_what_failed_runs_once_more_where_that_is_asked_for(
        self, codes: list[int], again: bool, expected: int
    ) -> None:
        scripted = ScriptedPytest(codes)
        assert run(scripted, again=again) == expected
        failed = [part for part, code in zip(PARTS, codes, strict=False) if code == 1] if again else []
        assert scripted.ran == [(part, False) for part in PARTS] + [(part, True) for part in failed]

    @pytest.mark.parametrize("codes", [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    @pytest.mark.parametrize("part", [1, 2, 3, 4])
    def test_a_wrong_answer_has_no_second_run(self, codes: list[int], part: int) -> None:
        scripted = ScriptedPytest(codes, wrong_in=part)
        assert run(scripted, again=True) == 1
        assert scripted.ran == [(part, False) for part in PARTS]

    def test_a_wrong_answer_in_the_second_run_is_not_forgiven_either(self) -> None:
        assert run(ScriptedPytest([0, 0, 0, 1, 0], wrong_in=5), again=True) == 1

    def test_what_one_part_failed_is_not_forgotten_by_another(self) -> None:
        assert len({part.cache for part in PARTS}) == len(PARTS)


class TestReports:
    def test_right_answers_are_what_they_are_expected_to_be(self) -> None:
        report = read()
        report.check(g1="old")
        assert (report.is_faultless, report.wrong_summary, wrong_answers.read_lines()) == (True, "", [])

    @pytest.mark.parametrize("fault", ["mixed", "wrong"])
    def test_mixed_and_wrong_answers_are_not_forgiven(self, fault: str) -> None:
        report = read(**{fault: 1, "samples": ["what it was"]})
        assert not report.is_faultless
        assert report.wrong_summary.endswith("of 100 answers: what it was")

    def test_each_connection_goes_back_once_when_a_dataset_is_rolled_back(self) -> None:
        read(back=32).check(g1="old", rollbacks=2)
        for back in (31, 33):
            with pytest.raises(AssertionError, match="times back"):
                read(back=back).check(g1="old", rollbacks=2)

    @pytest.mark.parametrize("fault", ["failed", "back"])
    def test_answers_that_did_not_come_fail_and_may_come_later(self, fault: str) -> None:
        report = read(**{fault: 1})
        with pytest.raises(AssertionError):
            report.check(g1="old")
        assert (report.wrong_summary, wrong_answers.read_lines()) == ("", [])

    def test_a_generation_that_answers_another_ones_values_is_wrong(self) -> None:
        with pytest.raises(AssertionError, match="expected"):
            read().check(g1="new")
        (line,) = wrong_answers.read_lines()
        assert json.loads(line)["where"] == "here/load"

    def test_a_generation_that_did_not_answer_yet_is_late(self) -> None:
        with pytest.raises(AssertionError, match="answered out of"):
            read().check(g1="old", g2="new")
        assert wrong_answers.read_lines() == []


class TestJudging:
    def test_a_batch_of_two_versions_is_mixed(self, inside: ModuleType) -> None:
        assert judged(inside, {"a": "old", "b": "new"})["mixed"] > 0

    def test_a_generation_that_changes_its_version_is_mixed(self, inside: ModuleType) -> None:
        assert judged(inside, {"a": "old", "b": "old"}, {"a": "new", "b": "new"})["mixed"] == 1

    def test_a_key_that_is_called_missing_is_wrong(self, inside: ModuleType) -> None:
        counted = judged(inside, {"a": "old"})
        assert (counted["wrong"], counted["mixed"]) == (1, 0)

    def test_a_rollback_is_counted_once_for_each_connection(self, inside: ModuleType) -> None:
        generations = ("g1", "g2", "g2", "g1", "g1", "g2")
        counted = judged(inside, *({"a": name, "b": name} for name in generations), generations=generations)
        assert (counted["back"], counted["mixed"]) == (1, 0)

    def test_a_batch_of_two_generations_is_mixed_unless_shards_change_one_by_one(
        self, inside: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert judged_together(inside, {"a": "old", "b": "new"})["mixed"] == 1
        monkeypatch.setattr(inside, "PER_SHARD", True)
        counted = judged_together(inside, {"a": "old", "b": "new"}, {"a": "new", "b": "new"})
        assert (counted["mixed"], counted["wrong"], counted["back"]) == (0, 0, 0)
        assert counted["together"] == {"g1, g2": {"answers": 2, "versions": ["new", "old"]}}

    def test_a_key_that_goes_back_is_counted_when_shards_change_one_by_one(
        self, inside: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inside, "PER_SHARD", True)
        answers = [{"a": old, "b": "old"} for old in ("old", "new", "old")]
        assert judged_together(inside, *answers)["back"] == 1

    def test_what_is_wrong_is_shown_however_much_has_failed(self, inside: ModuleType) -> None:
        summary = inside.Summary()
        for number in range(100):
            summary.sample("failed", str(number))
        summary.sample("wrong", "this one")
        samples = summary.document()["samples"]
        assert samples[0].endswith("this one")
        assert len(samples) == 1 + inside.SAMPLES


def test_missed_goals_are_listed() -> None:
    figures.record("scenario", "took", 31.0, "s", at_most=30)
    figures.record("scenario", "took", 30.0, "s", at_most=30)
    figures.record("scenario", "answers", 100)
    assert figures.describe_missed_goals(figures.read_lines()) == [
        "MISSED scenario: took = 31.00 s, the goal is at most 30"
    ]


class ScriptedPytest:
    """A fake pytest: ends with these codes, and records a wrong answer in run number ``wrong_in``."""

    def __init__(self, codes: list[int], wrong_in: int = 0) -> None:
        self._codes, self._wrong_in = codes, wrong_in
        self.ran: list[tuple[run_scenarios.Part, bool]] = []

    def __call__(self, part: run_scenarios.Part, only_failed: bool) -> int:
        self.ran.append((part, only_failed))
        if len(self.ran) == self._wrong_in:
            wrong_answers.record("here/records", "answered old, expected new")
        return self._codes[len(self.ran) - 1]


def run(scripted: ScriptedPytest, *, again: bool) -> int:
    """Run all parts; the lost node is back before other scenarios begin."""

    def wait_lost(scenario: Future[int]) -> None:
        wait([scenario])

    return run_scenarios.run_all(scripted, again=again, wait_lost=wait_lost)


def read(**counted: Any) -> load.Report:
    """Read a report of the load, as in its pod's log."""
    return load.read("here/load", json.dumps(COUNTED | {"generations": GENERATIONS, "began": 0.0} | counted))


def judged(inside: ModuleType, *batches: dict[str, str], generations: Sequence[str] = ()) -> dict[str, Any]:
    """Count batches of the keys a and b, answered with a version each, by ``generations`` or by g1."""
    summary = inside.Summary()
    asker = inside.Asker("http://127.0.0.1:1", ["a", "b"], summary, batch=True)
    for versions, generation in zip(batches, generations or ["g1"] * len(batches), strict=True):
        found = {key: {"id": key, "version": version} for key, version in versions.items()}
        body = json.dumps({"generation": generation, "found": found, "missing": sorted({"a", "b"} - set(found))})
        asker.judge(["a", "b"], importlib.import_module("client").Answer(200, generation, body.encode()))
    document: dict[str, Any] = summary.document()
    return document


def judged_together(inside: ModuleType, *batches: dict[str, str]) -> dict[str, Any]:
    """Count batches that g1 and g2 answered."""
    summary = inside.Summary()
    asker = inside.Asker("http://127.0.0.1:1", ["a", "b"], summary, batch=True)
    for versions in batches:
        found = {key: {"id": key, "version": version} for key, version in versions.items()}
        body = json.dumps({"generation": None, "generations": ["g1", "g2"], "found": found, "missing": []})
        asker.judge(["a", "b"], importlib.import_module("client").Answer(200, "g1, g2", body.encode()))
    document: dict[str, Any] = summary.document()
    return document
