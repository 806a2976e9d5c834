"""Standard output takes no more: a failed build keeps its message, its exit code and its termination log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.build_project import Project
from support.refusing_outputs import Output, full, gone

pytestmark = pytest.mark.long


REFUSING = pytest.mark.parametrize("output", [full, gone])


def run(output: Output, *words: str | Path) -> tuple[int, str]:
    """The exit code, and what is written to standard error."""
    with output() as descriptor:
        command = [sys.executable, "-m", "lookupdb", *map(str, words)]
        ended = subprocess.run(command, stdout=descriptor, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    return ended.returncode, ended.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def build(output: Output, project: Project) -> tuple[int, str, dict[str, Any]]:
    """The exit code, standard error, and the termination log."""
    log = project.folder / "log"
    words = ("build", "-f", project.manifest, "--store", project.store, "--progress", "none", "--termination-log", log)
    return *run(output, *words), orjson.loads(log.read_bytes())


@REFUSING
def test_a_bad_source(output: Output, project: Project) -> None:
    project.rows(2, extra="p0,another,1\n")
    code, errors, log = build(output, project)
    assert code == 3
    assert errors.startswith("error: the key 'p0' occurs twice")
    assert (log["outcome"], log["exitCode"], log["reason"]) == ("failed", 3, "BadSource")


@REFUSING
def test_a_closed_gate(output: Output, project: Project) -> None:
    project.describe(gates={"minRecords": 5000})
    code, errors, log = build(output, project)
    assert code == 4
    assert errors.startswith("error: ")
    assert (log["exitCode"], log["reason"]) == (4, "GateClosed")


@REFUSING
def test_a_generation_that_is_missing(output: Output, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = (
        "fetch",
        "--store",
        tmp_path,
        "--dataset",
        "people",
        "--generation",
        "g9",
        "--shard",
        "0",
        tmp_path / "data",
    )
    code, errors = run(output, *words, "--termination-log", log)
    assert code == 5
    assert "has no generation g9" in errors
    assert orjson.loads(log.read_bytes())["reason"] == "GenerationMissing"


@pytest.mark.parametrize(("output", "code"), [(full, 6), (gone, 1)])
def test_a_generation_that_was_published_is_in_the_termination_log(output: Output, code: int, project: Project) -> None:
    ended, _, log = build(output, project)
    assert ended == code
    assert (log["outcome"], log["exitCode"], log["generation"]) == ("built", 0, "g1")


def test_a_shard_that_was_fetched_is_in_the_termination_log(project: Project, tmp_path: Path) -> None:
    project.built()
    log = tmp_path / "log"
    words = ("fetch", "--store", project.store, "--dataset", "people", "--generation", "g1", "--shard", "0")
    code, errors = run(full, *words, "--termination-log", log, tmp_path / "data")
    assert code == 6
    assert errors.startswith("error: standard output cannot be written")
    assert orjson.loads(log.read_bytes())["outcome"] == "fetched"
