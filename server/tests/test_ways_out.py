"""If a gate fails, `lookupdb build` prints commands that work when they are pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from support.build_project import Project

from lookupdb.up.run_state import DATA_DIRECTORY, state_file

pytestmark = pytest.mark.long

LOOKUPDB = [sys.executable, "-m", "lookupdb"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "o'clock"
    folder.mkdir()
    return Project(folder)


def run(project: Project, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=120, check=False)


def build(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return run(project, *LOOKUPDB, "build", "-f", "people.yaml", "--progress", "none", *words)


def printed_commands(text: str) -> list[str]:
    lines = text.partition("override the gate:\n")[2].splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


@pytest.mark.parametrize("options", [[], ["--store", "another store"]], ids=str)
def test_they_look_at_the_refused_generation_and_let_it_pass(project: Project, options: list[str]) -> None:
    assert build(project, *options).returncode == 0
    people = project.manifest.read_text()
    project.manifest.write_text(people.replace("name: people", "name: others"))
    assert build(project, *options).returncode == 0, "a store of two datasets"
    project.manifest.write_text(people)
    project.rows(500)
    refused = build(project, *options)
    assert refused.returncode == 4
    look, override = printed_commands(refused.stderr)
    assert ("--store" in look, "--store" in override) == (bool(options), bool(options))
    looked = run(project, "bash", "-c", look)
    assert "removed  500" in looked.stdout, looked
    overridden = run(project, "bash", "-c", override)
    assert "g2 passes despite" in overridden.stdout, overridden


def test_nothing_is_said_of_an_up_whose_version_did_not_tell_whether_it_watches(project: Project) -> None:
    assert build(project).returncode == 0
    project.rows(500)
    assert build(project).returncode == 4
    older = state_file(project.folder / DATA_DIRECTORY, "default", "people")
    older.parent.mkdir(parents=True)
    older.write_bytes(orjson.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:9"}))
    overridden = build(project, "--override-gates", "g2")
    assert overridden.returncode == 0, overridden
    assert "lookupdb up" not in overridden.stderr


def test_the_first_generation_is_inspected(project: Project) -> None:
    project.describe(gates={"minRecords": 2000})
    look, _ = printed_commands(build(project).stderr)
    assert "refused " in run(project, "bash", "-c", look).stdout


def test_a_builder_of_a_cluster_names_those_of_kubectl(project: Project) -> None:
    project.built("--cluster-id", "c")
    project.rows(500)
    assert printed_commands(str(project.refused("--cluster-id", "c"))) == [
        "kubectl lookupdb diff people -n default g1 g2",
        "kubectl annotate lds people -n default lookupdb.dev/override-gates=g2 --overwrite",
    ]


def test_nothing_is_to_be_looked_at_in_an_empty_one(project: Project) -> None:
    project.rows(0)
    assert printed_commands(str(project.refused())) == []
