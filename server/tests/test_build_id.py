"""Only the build that published a generation may take it over.

An operator that lost its status, or got back an older one, reuses numbers. The generations with these numbers are whole
and of the same spec, but they are not today's data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lookupdb import store
from lookupdb.cli import cli
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import GateClosed, GenerationExists


class Builds:
    """Builds of one dataset, each under a number and a name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, folder / "people.yaml"
        (folder / "scratch").mkdir()
        spec = {"source": {"url": "people.csv"}, "key": {"columns": ["id"]}, "shards": 2}
        metadata = {"name": "people", "namespace": "team", "uid": "0f6b1c2d"}
        resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": metadata, "spec": spec}
        self.manifest.write_text(yaml.safe_dump(resource))

    def build(self, records: int, *arguments: str) -> Any:
        rows = "".join(f"p{n},name {n}\n" for n in range(records))
        (self.folder / "people.csv").write_text(f"id,name\n{rows}")
        fixed = ("-f", str(self.manifest), "--store", str(self.folder / "store"), "--progress", "none")
        scratch = ("--scratch", str(self.folder / "scratch"))
        return CliRunner().invoke(cli, ["build", *fixed, *scratch, "--json", *arguments], standalone_mode=False)

    def report(self, records: int, *arguments: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.build(records, *arguments).stdout.splitlines()[-1])
        return report

    def manifest_of(self, generation: str) -> dict[str, Any]:
        dataset = store.open_store(str(self.folder / "store")).dataset(read_manifest(self.manifest))
        written: dict[str, Any] = json.loads(dataset.manifest(generation).to_json())
        return written


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def test_the_build_that_published_it_takes_it_over(builds: Builds) -> None:
    builds.report(10, "--generation", "g1", "--build-id", "monday")
    again = builds.report(12, "--generation", "g1", "--build-id", "monday")
    assert (again["outcome"], again["generation"], again["records"]) == ("adopted", "g1", 10)
    assert builds.manifest_of("g1")["build"] == "monday"


@pytest.mark.parametrize("first", [("--build-id", "monday"), ()], ids=["named", "unnamed"])
def test_another_one_gets_the_next_free_number(builds: Builds, first: tuple[str, ...]) -> None:
    for number in (1, 2):
        builds.report(10, "--generation", f"g{number}", *first)
    result = builds.build(12, "--generation", "g1", "--build-id", "tuesday")
    report = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(result.exception, GenerationExists)
    assert (report["outcome"], report["reason"], report["exitCode"]) == ("failed", "GenerationExists", 5)
    assert report["nextFree"] == "g3"
    assert "by another build\n  a generation never changes: the next free one is g3" in report["message"]
    assert builds.report(12, "--generation", "g3", "--build-id", "wednesday")["records"] == 12


def test_a_number_up_to_which_nobody_counts_is_passed_by(builds: Builds) -> None:
    for number in (1, 2, 999_999_999):
        builds.report(10, "--generation", f"g{number}")
    assert builds.report(12, "--generation", "g1", "--build-id", "tuesday")["nextFree"] == "g3"


def test_what_a_gate_refused_is_refused_to_its_own_build_alone(builds: Builds) -> None:
    builds.report(10, "--generation", "g1", "--build-id", "monday")
    for _ in range(2):
        refused = builds.build(2, "--generation", "g2", "--build-id", "tuesday")
        assert isinstance(refused.exception, GateClosed)
    assert isinstance(builds.build(10, "--generation", "g2", "--build-id", "friday").exception, GenerationExists)


def test_who_gives_no_name_takes_over_what_is_of_this_spec(builds: Builds) -> None:
    builds.report(10, "--generation", "g1", "--build-id", "monday")
    assert builds.report(12, "--generation", "g1")["outcome"] == "adopted"
    assert "build" not in builds.manifest_of(builds.report(12)["generation"])
