"""Generations rejected by a gate, and the ways to override it, with `lookupdb up`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.up_stack import MANIFEST, Stack, build_people, eventually, people, write_people

from lookupdb.cli.build import command as build

pytestmark = pytest.mark.long

__all__ = ["people"]

STRICT = MANIFEST.replace("maxShrinkPercent: 100", "maxShrinkPercent: 20")
WATCH = ("--watch", "--watch-seconds", "0.1")


def override(stack: Stack, generation: str) -> None:
    """Override the gates of ``generation`` in the store, as the builder's message says."""
    words = ["-f", str(stack.directory / "people.yaml"), "--store", str(stack.data / "store")]
    assert CliRunner().invoke(build, [*words, "--override-gates", generation]).exit_code == 0


def serve_refused(start: Callable[..., Stack], directory: Path, *flags: str) -> Stack:
    """An `up` that serves g1, because a gate has refused g2."""
    build_people(directory)
    (directory / "people.yaml").write_text(STRICT)
    write_people(directory, ada="Alone")
    stack = start(*flags)
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    stack.says("maxShrinkPercent: expected at most 20 %")
    assert stack.generations() == ["g1", "g2"]
    return stack


def is_alone(stack: Stack) -> bool:
    return stack.find("ada@example.com") == {"ada@example.com": {"title": "Alone"}}


def test_what_a_gate_refuses_does_not_serve_unless_the_next_start_lets_it_through(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    assert serve_refused(people, tmp_path).stop() == 0
    overriding = people("--override-gates", "g2")
    overriding.says("g2 passes, although:\nmaxShrinkPercent: expected at most 20 %")
    eventually(lambda: is_alone(overriding), "g2")
    assert overriding.generations() == ["g1", "g2"], "nothing was built"


def test_the_printed_command_overrides_the_gates(people: Callable[..., Stack], tmp_path: Path) -> None:
    stack = serve_refused(people, tmp_path)
    (line,) = (line for line in stack.output.splitlines() if line.startswith("    ") and "override-gates" in line)
    words = shlex.split(line)
    assert words[1:] == ["override-gates", "--data", str(stack.data), "people", "g2"]
    subprocess.run([sys.executable, "-m", "lookupdb", *words[1:]], check=True, timeout=60)
    stack.says("cut over to g2")
    assert is_alone(stack)


def test_what_is_overridden_in_the_store_is_cut_over_to_while_it_watches(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = serve_refused(people, tmp_path, *WATCH)
    override(stack, "g2")
    stack.says("cut over to g2")
    assert is_alone(stack)


def test_what_is_overridden_in_the_store_serves_after_the_next_start(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = serve_refused(people, tmp_path)
    override(stack, "g2")
    assert stack.stop() == 0
    again = people()
    eventually(lambda: is_alone(again), "g2")


def test_a_changed_gate_judges_what_was_refused_and_not_what_serves(people: Callable[..., Stack]) -> None:
    stack = people(*WATCH)
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    (stack.directory / "people.yaml").write_text(STRICT)
    write_people(stack.directory, ada="Alone")
    stack.says("maxShrinkPercent: expected at most 20 %")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    (stack.directory / "people.yaml").write_text(MANIFEST.replace("Percent: 100", "Percent: 60"))
    eventually(lambda: is_alone(stack), "what other gates let through")
