"""Paths with bytes that are no UTF-8: files that cannot be opened are refused in a sentence, all else goes on."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from support.build_project import Project
from support.command_line import run_here

from lookupdb import telemetry
from lookupdb.builder.listing import find_files
from lookupdb.builder.options import scratch_folder
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import BadSource, InvalidManifest, UsageError
from lookupdb.process.launch import become_supervisor
from lookupdb.store.generations import open_shard


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder of such a name."""
    folder = tmp_path / os.fsdecode(b"f\xfflder")
    folder.mkdir()
    return folder


@pytest.fixture
def odd_generation(project: Project, odd: Path) -> Path:
    """A generation that was copied into such a folder."""
    project.built()
    shutil.copytree(Path(project.dataset.url) / "g1", odd / "g1")
    return odd / "g1"


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Log to pytest's handlers again, after a command has set its own."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield
    root.handlers[:] = handlers


def test_a_source_that_a_wildcard_matches_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / os.fsdecode(b"M\xfcnchen.csv")).touch()
    for url in ("*.csv", f"file://{tmp_path}/*.csv", "volume://*.csv"):
        with pytest.raises(BadSource, match=r"/M\\udcfcnchen.csv is not UTF-8") as caught:
            find_files(url, base=tmp_path, volume=tmp_path)
        assert not caught.value.may_pass


def test_the_folder_of_a_manifest(project: Project, odd: Path) -> None:
    shutil.copy(project.manifest, odd)
    with pytest.raises(InvalidManifest, match=r"/f\\udcfflder is not UTF-8"):
        read_manifest(odd / "people.yaml")


def test_a_scratch_folder(odd: Path) -> None:
    with pytest.raises(UsageError, match=r"/f\\udcfflder is not UTF-8"), scratch_folder(odd):
        pass


def test_a_shard_file(odd_generation: Path) -> None:
    with pytest.raises(UsageError, match=r"f\\udcfflder/g1/shard-00000-of-00002.lmdb is not UTF-8"):
        open_shard(odd_generation / "shard-00000-of-00002.lmdb")


Words = Callable[[Path, Path], list[str]]


@pytest.mark.parametrize(
    "words",
    [
        lambda folder, odd: ["build", "-f", f"{folder}/people.yaml", "--store", f"{odd}/store"],
        lambda folder, odd: ["fetch", "--dataset", "people", "--generation", "g1", "--shard", "0", str(odd)],
        lambda folder, odd: ["serve", f"{odd}/g1", "--shard", "0"],
        lambda folder, odd: ["route", "--table", f"{odd}/table.json"],
        lambda folder, odd: ["inspect", f"{odd}/g1"],
        lambda folder, odd: ["inspect", f"{odd}/g1/shard-00000-of-00002.lmdb"],
        lambda folder, odd: ["diff", "--json", f"{odd}/g1", f"{folder}/store/local/default/people-local/g1"],
        lambda folder, odd: [
            "sweep",
            "--store",
            str(odd),
            "--living",
            f"{folder}/living.json",
            "--cluster-id",
            "local",
        ],
    ],
    ids=lambda words: words(Path(), Path())[0],
)
def test_a_verb_says_it_in_a_sentence(project: Project, odd: Path, odd_generation: Path, words: Words) -> None:
    live = {"formatVersion": 1, "cluster": "local", "writtenAt": datetime.now(UTC).isoformat(), "datasets": []}
    (project.folder / "living.json").write_bytes(orjson.dumps(live))
    ended = run_here(*words(project.folder, odd))
    assert ended.returncode == 2
    message = ended.stderr.decode()
    assert message.startswith("error: the path "), message
    assert "f\\udcfflder" in message.splitlines()[0]
    assert " is not UTF-8" in message.splitlines()[0]


def test_a_setting_of_a_server_deep_within() -> None:
    with pytest.raises(UsageError, match=r"the path /k\\udcffy is not UTF-8"):
        become_supervisor("role", {"tls": {"key": os.fsdecode(b"/k\xffy")}})


def test_an_image_is_written_and_its_folder_told_with_escapes(project: Project, odd: Path) -> None:
    project.built()
    ended = run_here(
        "image", "write", f"{project.dataset.url}/g1", "--out", str(odd / "image"), "--progress", "none", "--json"
    )
    assert ended.returncode == 0
    assert orjson.loads(ended.stdout)["folder"].endswith("/f\\udcfflder/image")


def test_a_line_of_the_log_in_json(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure_logging("json")
    logging.getLogger("here").info("in %s", odd, extra={"folder": str(odd), "path": odd})
    line = orjson.loads(capsys.readouterr().err)
    assert line["message"].endswith("f\\udcfflder")
    assert line["folder"] == line["path"] == f"{odd.parent}/f\\udcfflder"


def run_in_utf8(*words: str, redirection: str = "") -> subprocess.CompletedProcess[bytes]:
    """The program in a locale whose standard output takes UTF-8 alone."""
    command = ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, *words]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    return subprocess.run(command, capture_output=True, timeout=120, check=False, env=environment)


def test_an_error_with_standard_error_closed_keeps_its_exit_code() -> None:
    assert run_in_utf8("-m", "lookupdb", "build", "-f", os.fsdecode(b"\xff.yaml"), redirection="2>&-").returncode == 2


def test_standard_output_gets_escapes() -> None:
    program = """
import click
from lookupdb.cli.program import run_program
run_program(lambda: click.echo("f\\udcfflder"))
"""
    ended = run_in_utf8("-c", program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"f\\udcfflder\n", b"")
