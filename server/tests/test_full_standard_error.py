"""Standard error or a log takes no more: nothing but its messages is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from support.up_stack import MANIFEST, write_dataset

from lookupdb import cli as lookupdb_cli
from lookupdb import telemetry

SUPERVISOR = """
import sys
from lookupdb.process import launch
from lookupdb.errors import StoreError
launch.telemetry.configure_logging("text")
launch.end_with_message("away", StoreError.exit_code)
"""
INTERRUPTED = "from lookupdb.process import launch; launch.end_interrupted()"


def run_full(*words: str, output: str | None = None) -> subprocess.CompletedProcess[bytes]:
    """Python with a full disk behind standard error, and standard output at ``output``, or read."""
    with Path("/dev/full").open("w") as full, Path(output or "/dev/null").open("w") as out:
        stdout = out if output else subprocess.PIPE
        command = [sys.executable, *words]
        return subprocess.run(command, stdout=stdout, stderr=full, timeout=120, check=False)


def test_a_build_goes_on_without_its_progress(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    words = ["build", "-f", str(tmp_path / "people.yaml"), "--store", str(tmp_path), "--progress", "rich", "--json"]
    run = run_full("-m", "lookupdb", *words)
    assert run.returncode == 0
    assert orjson.loads(run.stdout)["outcome"] == "built"


def test_a_build_goes_on_when_who_reads_its_progress_is_gone(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    words = ["build", "-f", str(tmp_path / "people.yaml"), "--store", str(tmp_path), "--progress", "plain", "--json"]
    command = [sys.executable, "-m", "lookupdb", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        process.stderr.close()
        assert orjson.loads(process.stdout.read())["outcome"] == "built"
        assert process.wait(120) == 0


def test_a_build_goes_on_without_the_log_that_up_keeps(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    words = ["build", "-f", str(tmp_path / "people.yaml"), "--store", str(tmp_path), "--progress", "plain"]
    run = subprocess.run(
        [sys.executable, "-m", "lookupdb", *words, "--termination-log", "/dev/full"],
        env={**os.environ, telemetry.LOG_FILE: "/dev/full"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0
    assert run.stdout.startswith("built g1: ")
    assert "cannot write the termination log path=/dev/full reason=No space left on device\n" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["-m", "lookupdb", "nonsense"]),
        (3, ["-m", "lookupdb", "build", "-f", "{path}/people.yaml", "--store", "{path}"]),
        (5, ["-c", SUPERVISOR]),
        (130, ["-c", INTERRUPTED]),
    ],
    ids=["usage", "source", "supervisor", "interrupted"],
)
def test_a_failure_keeps_its_exit_code(tmp_path: Path, code: int, words: list[str]) -> None:
    (tmp_path / "people.yaml").write_text(MANIFEST)
    assert run_full(*(word.replace("{path}", str(tmp_path)) for word in words)).returncode == code


def test_with_standard_output_full_as_well_help_ends_as_without_room() -> None:
    assert run_full("-m", "lookupdb", "--help", output="/dev/full").returncode == 6


def test_the_kubectl_plugin_is_run_as_lookupdb_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams and exit codes are therefore those that the tests of ``lookupdb`` show."""
    from lookupdb_operator.plugin import cli as plugin  # takes a while, and most tests here start other processes

    assert vars(plugin)["run_program"] is vars(lookupdb_cli)["run_program"]
    runs: list[tuple[object, ...]] = []
    monkeypatch.setattr(plugin, "run_program", lambda *words: runs.append(words))
    plugin.main()
    plugin.complete_for_kubectl()
    assert len(runs) == 2
