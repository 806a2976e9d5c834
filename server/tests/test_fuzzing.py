"""Parsers of bytes from outside withstand random input; ``make fuzz`` runs longer."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import __main__ as command
from fuzzing.mutate import inputs
from fuzzing.target import Target
from fuzzing.targets import TARGETS

pytestmark = pytest.mark.long

INPUTS = 100
ROOT = Path(__file__).parents[2]
UPGRADE = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
BY_NAME = {target.name: target for target in TARGETS}


@pytest.mark.parametrize("name", BY_NAME)
def test_promises_are_kept(name: str) -> None:
    target = BY_NAME[name]
    for data in itertools.islice(inputs(target, seed=1), INPUTS):
        target.check(data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("requests", UPGRADE + b"GET /b HTTP/1.1\r\n\r\n"),
        ("requests", UPGRADE + b"POST /b HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("requests", b"CONNECT /a HTTP/1.1\r\nHost: x\r\nUpgrade: y\r\n\r\n"),
        ("resp-replies", b"*3\r\n_x\r\n$0\r\n\r\n-ERR damaged\r\n"),
        ("resp-replies", b"*3\r\n_\r\n$00\r\n\r\n-ERR damaged\r\n"),
        ("resp-replies", b"*3\r\n_\r\n$0\r\n\r\n-ERR damaged\r$-2\r\n"),
        ("resp-replies", b"*3\r\n_\r\n$0\r\nd\n-ERR damaged\r\n"),
        ("resp-requests", b"P" * 300 + b"\r\n"),
        ("build-results", b'{"outcome":"failed","exitCode":true}'),
        ("warnings", b'FailedMount MountVolume.SetUp failed for volume "tls" : secret "\n" not found'),
    ],
)
def test_what_once_broke_a_promise_does_no_more(name: str, data: bytes) -> None:
    BY_NAME[name].check(data)


def test_inputs_are_the_same_for_a_seed_and_others_for_another() -> None:
    target = BY_NAME["requests"]
    first, again, other = ([*itertools.islice(inputs(target, seed), 50)] for seed in (1, 1, 2))
    assert first == again != other
    assert first[: len(target.samples)] == [*target.samples]
    assert len(set(first)) > 40


def test_broken_promise_ends_the_run_and_its_input_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(data: bytes) -> None:
        assert b"true" not in data

    monkeypatch.setattr(command, "FOLDER", tmp_path / "kept")
    with pytest.raises(AssertionError):
        command._fuzz_randomly(Target("sample", check, (b'{"a":1}',)), seconds=60, seed=0)
    assert b"true" in (tmp_path / "kept" / "sample-broken").read_bytes()
    assert "sample: broken by " in capsys.readouterr().out


def test_command_says_how_many_inputs_were_tried() -> None:
    run = _run("0.3", "accept-fields", "gateway-modes", "--random")
    assert run.returncode == 0, run.stderr
    assert [line.split(":")[0] for line in run.stdout.splitlines()] == [
        "inputs are random",
        "accept-fields",
        "gateway-modes",
    ]


def test_command_names_the_targets_there_are() -> None:
    run = _run("1", "nothing")
    assert run.returncode == 2
    assert "there is no target 'nothing'; expected one of requests, " in run.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzzing", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
