"""`lookupdb up --watch` on a source that is bad at the start: what the builder has tried and said is not repeated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.up_stack import MANIFEST, Stack, build_people, people, write_people

pytestmark = pytest.mark.long

__all__ = ["people"]

WATCH = ("--watch", "--watch-seconds", "0.1")


def look_thrice(stack: Stack) -> None:
    """Wait for three looks at manifest and source: two that agree would build."""
    for pinned in ("g7", "g8", "g9"):
        text = (stack.directory / "people.yaml").read_text()
        pinning = re.sub(r"(  generation: g.\n)?  shards: 1", f"  generation: {pinned}\n  shards: 1", text)
        (stack.directory / "people.yaml.new").write_text(pinning)
        (stack.directory / "people.yaml.new").replace(stack.directory / "people.yaml")
        stack.says(f"spec.generation: {pinned} has no effect here")


def cut_a_row(directory: Path) -> None:
    (directory / "people.csv").write_text('email,title\nada@example.com,"Count')


def lose_a_row(directory: Path) -> None:
    (directory / "people.yaml").write_text(MANIFEST.replace("Percent: 100", "Percent: 20"))
    write_people(directory, ada="Alone")


@pytest.mark.parametrize(
    ("spoil", "said", "generation"),
    [(cut_a_row, "the build failed", "g2"), (lose_a_row, "a gate refused it", "g3")],
    ids=["failed", "refused"],
)
def test_what_failed_at_the_start_is_tried_again_when_the_source_changes(
    people: Callable[..., Stack], tmp_path: Path, spoil: Callable[[Path], None], said: str, generation: str
) -> None:
    build_people(tmp_path)
    spoil(tmp_path)
    stack = people(*WATCH)
    stack.says(f"{said}; serving g1, the last good generation")
    stack.says("Ctrl-C stops it all")
    look_thrice(stack)
    assert "building" not in stack.output
    assert stack.output.count("error: ") == 1
    write_people(stack.directory, ada="Enchantress", alan="Reader")
    stack.says(f"cut over to {generation}")
    assert stack.output.count("manifest or source has changed, building; g1 keeps serving") == 1


def test_that_the_source_is_missing_is_said_once(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    (tmp_path / "people.csv").unlink()
    stack = people(*WATCH)
    stack.says("Ctrl-C stops it all")
    look_thrice(stack)
    assert "not rebuilt" not in stack.output
    write_people(stack.directory, ada="Enchantress", alan="Reader")
    stack.says("manifest and source can be read again")
    stack.says("cut over to g2")
