"""A generation that a gate has rejected: it is kept, can be read, is rejected again without a build, or is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lookupdb import store
from lookupdb.builder.options import GenerationRefused
from lookupdb.cli import cli
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import GateClosed, GenerationExists, GenerationMissing, UsageError
from lookupdb.manifest import REFUSED_VERSION
from lookupdb.store import StoredDataset
from lookupdb.store.sweep import prune


class Project:
    """A source of 1,000 people that g1 was built from, and that is half as long now."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, folder / "people.yaml"
        (folder / "scratch").mkdir()
        self.rows(1000)
        self.describe()
        assert self.build().exit_code == 0
        self.rows(500)

    def rows(self, count: int, name: str = "name") -> None:
        lines = [f"p{number},{name} {number}\n" for number in range(count)]
        (self.folder / "people.csv").write_text("id,name\n" + "".join(lines))

    def describe(self, **spec: Any) -> None:
        full = {"source": {"url": "people.csv"}, "key": {"columns": ["id"]}, "shards": 2} | spec
        resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "people"}}
        self.manifest.write_text(yaml.safe_dump({**resource, "spec": full}))

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(cli, list(arguments), standalone_mode=False)

    def build(self, *arguments: str) -> Any:
        fixed = ("-f", str(self.manifest), "--store", self.store, "--scratch", str(self.folder / "scratch"))
        return self.run("build", *fixed, "--progress", "none", "--json", *arguments)

    def report(self, *arguments: str) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.build(*arguments).stdout.splitlines()[-1])
        return parsed

    @property
    def store(self) -> str:
        return str(self.folder / "store")

    @property
    def dataset(self) -> StoredDataset:
        return store.open_store(self.store).dataset(read_manifest(self.manifest))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_source_that_has_shrunk_by_half_is_refused_unless_something_else_is_said(project: Project) -> None:
    result = project.build()
    assert isinstance(result.exception, GateClosed)
    assert result.exception.exit_code == 4
    assert result.exception.message.startswith(
        "maxShrinkPercent: expected at most 20 % fewer records, found 500 where g1 has 1,000 (-50.0 %)\n  removed: 'p"
    )
    assert "g2 is in the store for inspection, and does not serve" in str(result.exception)
    project.describe(gates={"maxShrinkPercent": 50})
    assert project.report()["generation"] == "g3"


def test_it_is_in_the_store_and_nothing_takes_it_for_one_that_may_serve(project: Project) -> None:
    report = project.report()
    assert (report["outcome"], report["reason"], report["exitCode"]) == ("failed", "GateClosed", 4)
    assert (report["generation"], report["records"]) == ("g2", 500)
    assert report["fileBytes"] > 0
    dataset = project.dataset
    assert (dataset.generations(), dataset.refused_generations()) == (("g1",), ("g2",))
    assert (next(reversed(dataset.generations()), None), tuple(dataset.take_inventory().damaged)) == ("g1", ())
    refused = dataset.manifest("g2").refused
    assert refused is not None
    assert refused.active == "g1"
    members = json.loads((Path(dataset.url) / "g2" / "manifest.json").read_bytes())
    assert members["formatVersion"] == REFUSED_VERSION, "who does not know of refused ones must not serve it"


def test_it_can_be_looked_at(project: Project) -> None:
    project.build()
    shown = project.run("inspect", "g2", "--store", project.store)
    assert "refused        maxShrinkPercent: expected at most 20 % fewer records" in shown.stdout
    assert "500 in" in shown.stdout
    assert "removed  500" in project.run("diff", "g1", "g2", "--store", project.store).stdout


def test_the_same_is_refused_again_without_being_built(project: Project) -> None:
    first = project.report()
    again = project.report("--unless-refused", "g2")
    assert {**again, "seconds": 0, "peakMemoryBytes": 0} == {**first, "seconds": 0, "peakMemoryBytes": 0}
    assert project.report("--generation", "g7", "--unless-refused", "g2")["generation"] == "g2"
    assert project.report("--generation", "g2")["reason"] == "GateClosed", "its builder died before it could report"
    assert project.dataset.published_generations() == ("g1", "g2")


def test_what_is_not_the_same_any_more_is_built(project: Project) -> None:
    assert project.report("--unless-refused", "g1")["generation"] == "g2", "g1 was not refused"
    assert project.report("--unless-refused", "g9")["generation"] == "g3", "there is no g9"
    project.rows(501)
    assert project.report("--unless-refused", "g3")["generation"] == "g4"
    project.describe(gates={"minRecords": 600})
    assert project.report("--unless-refused", "g4")["generation"] == "g5"
    project.describe(shards=3)
    assert project.report("--unless-refused", "g5")["generation"] == "g6"
    assert project.report("--unless-refused", "g6", "--active", "g9")["generation"] == "g6", "compared with g1 again"
    assert project.dataset.refused_generations() == ("g2", "g3", "g4", "g5", "g6")
    project.rows(990)
    assert project.report("--unless-refused", "g6")["generation"] == "g7"


def test_refused_ones_are_compared_with_by_nobody(project: Project) -> None:
    project.report()
    project.rows(450)
    assert "found 450 where g1 has 1,000" in project.report()["message"]


def test_an_empty_one_is_not_kept(project: Project) -> None:
    project.rows(0)
    error = project.build().exception
    assert isinstance(error, GenerationRefused)
    assert error.manifest is None
    assert "an empty generation is not published" in str(error)
    assert project.dataset.published_generations() == ("g1",)


def test_rejected_rows_leave_a_generation_too(project: Project) -> None:
    with (project.folder / "people.csv").open("a") as file:
        file.write("".join(f"p{number},x\n" for number in range(500, 990)) + ",nobody\n")
    report = project.report()
    assert (report["generation"], report["records"], report["rejected"]) == ("g2", 990, 1)
    assert "row 991 of people.csv: the key is empty" in report["message"]


class TestOverride:
    def test_lets_that_one_through_without_a_build(self, project: Project) -> None:
        project.build()
        before = project.dataset.manifest("g2")
        (project.folder / "people.csv").unlink()
        report = project.report("--override-gates", "g2")
        assert (report["outcome"], report["generation"], report["records"]) == ("adopted", "g2", 500)
        assert report["message"].startswith("g2 passes despite:\nmaxShrinkPercent: expected at most 20 %")
        assert project.dataset.generations() == ("g1", "g2")
        after = project.dataset.manifest("g2")
        assert (after.refused, after.shards) == (None, before.shards)
        assert before.refused is not None
        assert after.overridden == before.refused.reasons, "it stays on record"
        assert project.report("--override-gates", "g2") == {**report, "seconds": pytest.approx(0, abs=60)} | {
            "peakMemoryBytes": pytest.approx(report["peakMemoryBytes"], rel=1)
        }

    def test_lets_no_later_one_through(self, project: Project) -> None:
        project.build()
        project.build("--override-gates", "g2")
        project.rows(100)
        assert "found 100 where g2 has 500" in project.report()["message"]

    def test_of_what_was_not_refused_is_a_mistake(self, project: Project) -> None:
        assert isinstance(project.build("--override-gates", "g1").exception, UsageError)
        assert isinstance(project.build("--override-gates", "g2").exception, GenerationMissing)

    def test_of_one_of_another_spec_is_a_mistake_too(self, project: Project) -> None:
        project.build()
        project.describe(shards=3)
        assert isinstance(project.build("--override-gates", "g2").exception, GenerationExists)
        assert project.dataset.refused_generations() == ("g2",)

    def test_one_that_serves_because_an_operator_has_overridden_it_is_what_a_source_is_compared_with(
        self, project: Project
    ) -> None:
        fingerprint = project.report()["fingerprint"]
        unless = ("--unless-fingerprint", fingerprint)
        assert project.report(*unless, "--active", "g1")["reason"] == "GateClosed"
        assert project.report(*unless, "--active", "g2")["outcome"] == "unchanged"
        project.rows(490)
        assert project.report("--active", "g2")["outcome"] == "built"


class TestMaxChangedPercent:
    def test_closes_for_other_values_under_the_same_keys(self, project: Project) -> None:
        project.rows(1000, "other")
        project.describe(gates={"maxChangedPercent": 20})
        message = project.report()["message"]
        assert "found 100.0 %: 0 added, 0 removed, 1,000 changed of 1,000 keys\n  changed: 'p" in message
        assert "other" not in message.partition("g2 is in the store")[0]

    @pytest.mark.parametrize("change", [{"shards": 5}, {"value": {"compression": "none"}}])
    def test_is_open_when_only_the_files_differ(self, project: Project, change: dict[str, Any]) -> None:
        project.rows(1000)
        project.describe(gates={"maxChangedPercent": 0}, **change)
        assert project.report()["outcome"] == "built"

    def test_is_closed_while_the_active_generation_cannot_be_read_and_judged_again_then(self, project: Project) -> None:
        project.rows(1000)
        project.describe(gates={"maxChangedPercent": 20})
        shard = Path(project.dataset.url) / "g1" / project.dataset.manifest("g1").shards[1].file
        shard.rename(project.folder / "away")
        message = project.report()["message"]
        assert "found nothing to compare with: shard-00001-of-00002.lmdb of g1 is missing" in message
        assert project.report("--unless-refused", "g2")["generation"] == "g2", "no other is built while it is so"
        (project.folder / "away").rename(shard)
        assert project.report("--unless-refused", "g2")["outcome"] == "built"


def test_the_largest_value_is_counted_by_both_kinds_of_kernels(project: Project) -> None:
    project.rows(1000, "x" * 300)
    project.describe(gates={"maxValueBytes": 200})
    message = project.report("--threads", "2")["message"]
    largest = project.dataset.manifest("g2").totals.largest_value_bytes
    assert f"maxValueBytes: expected values of at most 200 bytes, found one of {largest:,}" in message
    assert message.splitlines()[1] == f"  'p100': {largest:,} bytes" or f": {largest:,} bytes" in message
    project.describe(gates={"maxValueBytes": largest})
    assert project.report()["outcome"] == "built"


def test_expected_values_are_looked_up_as_a_client_would(project: Project) -> None:
    project.rows(1000)
    gates = {"expectedValues": [{"key": " P17 ", "value": '{"name": "name 17"}'}]}
    project.describe(key={"columns": ["id"], "normalize": ["strip", "lowercase"]}, gates=gates)
    assert project.report()["outcome"] == "built"
    gates = {"expectedValues": [{"key": "p17", "value": '{"name": "name 18"}'}]}
    project.describe(gates=gates)
    assert "another value: 'p17'" in project.report()["message"]


def test_pruning_removes_refused_ones_once_there_is_a_newer_one_that_may_serve(project: Project) -> None:
    project.build()
    project.rows(950)
    dataset = project.dataset
    assert prune(dataset, 3) == []
    project.build()
    assert prune(dataset, 3) == ["g2"]
    assert dataset.published_generations() == ("g1", "g3")
