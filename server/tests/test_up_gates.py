"""Generations rejected by a gate, and the ways to override it, with `lookupdb up`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.up_stack import MANIFEST, Stack, build_people, eventually, people, write_people

from lookupdb.cli.build import command as build

pytestmark = pytest.mark.long

__all__ = ["people"]


def test_what_a_gate_refuses_does_not_serve_unless_the_next_start_lets_it_through(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(MANIFEST.replace("maxShrinkPercent: 100", "maxShrinkPercent: 20"))
    write_people(tmp_path, ada="Alone")
    refusing = people()
    assert refusing.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    refusing.says("a gate refused it; serving g1, the last good generation")
    assert refusing.stop() == 0
    assert refusing.generations() == ["g1", "g2"]
    overriding = people("--override-gates", "g2")
    assert overriding.find("ada@example.com") == {"ada@example.com": {"title": "Alone"}}
    overriding.says("g2 passes, although:\nmaxShrinkPercent: expected at most 20 %")
    assert overriding.generations() == ["g1", "g2"], "nothing was built"


def test_an_override_does_not_bring_back_what_is_older_than_what_serves_and_says_so(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(MANIFEST.replace("maxShrinkPercent: 100", "maxShrinkPercent: 20"))
    write_people(tmp_path, ada="Alone")
    refusing = people()
    refusing.says("a gate refused it; serving g1, the last good generation")
    assert refusing.stop() == 0
    write_people(tmp_path, ada="Duchess", alan="Reader")
    build_people(tmp_path)
    overriding = people("--override-gates", "g2")
    overriding.says("g2 passes, although:")
    overriding.says("g3, which is newer than g2, is served")
    assert overriding.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}


def test_a_changed_gate_judges_what_is_built_from_now_on_and_what_was_refused(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    (stack.directory / "people.yaml").write_text(MANIFEST.replace("Percent: 100", "Percent: 20"))
    stack.says("spec.gates has changed")
    assert "building" not in stack.output, "what serves is not judged again"
    write_people(stack.directory, ada="Alone")
    stack.says("a gate refused it; g1 keeps serving")
    assert stack.generations() == ["g1", "g2"]
    (stack.directory / "people.yaml").write_text(MANIFEST.replace("Percent: 100", "Percent: 60"))
    stack.says("cut over to g3")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Alone"}}


FAILED = "a gate refused it; g1 keeps serving"


def refuse(stack: Stack, *titles: str) -> None:
    """Close a gate, and have a generation refused for each of ``titles``."""
    stack.says("Ctrl-C stops it all")
    (stack.directory / "people.yaml").write_text(MANIFEST.replace("Percent: 100", "Percent: 20"))
    stack.says("spec.gates has changed")
    for title in titles:
        refused = stack.output.count(FAILED)
        write_people(stack.directory, ada=title)
        eventually(lambda: stack.output.count(FAILED) > refused, f"the refusal of {title!r}")  # noqa: B023 - called here


def override(stack: Stack, generation: str) -> None:
    words = ["-f", str(stack.directory / "people.yaml"), "--store", str(stack.data / "store")]
    assert CliRunner().invoke(build, [*words, "--override-gates", generation]).exit_code == 0


def test_what_was_refused_is_judged_again_beside_what_was_let_through_before_it(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    refuse(stack, "Alone", "Still alone")
    override(stack, "g2")
    stack.says("cut over to g2")
    stack.says("cut over to g4")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Still alone"}}


def test_an_overridden_generation_that_cannot_be_served_hides_no_earlier_one(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    refuse(stack, "Alone", "Damaged")
    (shard,) = stack.data.rglob("g3/shard-*.lmdb")
    shard.chmod(0o644)
    shard.write_bytes(bytes(shard.stat().st_size))
    override(stack, "g3")
    stack.says("the gates of g3 are overridden; g1 serves until it is loaded")
    override(stack, "g2")
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Alone"}}


def test_an_overridden_generation_that_cannot_be_served_is_tried_again(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    refuse(stack, "Alone")
    (shard,) = stack.data.rglob("g2/shard-*.lmdb")
    content = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(bytes(len(content)))
    override(stack, "g2")
    stack.says("; g1 keeps serving, retrying in 1 s\n")
    shard.write_bytes(content)
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Alone"}}


@pytest.mark.parametrize("watch", [True, False], ids=["watching", "not watching"])
def test_the_printed_commands_show_what_was_refused_and_let_it_pass_while_up_runs(
    people: Callable[..., Stack], tmp_path: Path, watch: bool
) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(MANIFEST.replace("maxShrinkPercent: 100", "maxShrinkPercent: 20"))
    write_people(tmp_path, ada="Alone")
    stack = people(*(["--watch", "--watch-seconds", "0.1"] if watch else []))
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    if watch:
        stack.says("a gate refused it; g1 keeps serving")  # the first look has it refused again: no build runs any more
    commands = [line.strip() for line in stack.output.splitlines() if " g2" in line and line.startswith("    ")]
    diff, overridden = (
        subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        for line in commands[:2]
    )
    assert "removed  1" in diff.stdout
    where = f"the `lookupdb up` of people (process {stack.process.pid})"
    if watch:
        assert f"{where} cuts over to g2 when it looks next" in overridden.stderr
        stack.says("the gates of g2 are overridden; g1 serves until it is loaded")
        stack.says("cut over to g2")
    else:
        assert f"{where} has no --watch, and keeps serving g1: stop it and start it again" in overridden.stderr
        assert stack.stop() == 0
        stack = people()
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Alone"}}
    assert stack.generations() == ["g1", "g2"], "nothing was built"
