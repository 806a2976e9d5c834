"""README's five minutes, played: its own files and commands, one after another, and what it says comes of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import until

DEADLINE_SECONDS = 120.0
README = (Path(__file__).parents[2] / "README.md").read_text()
WALK = README.partition("## Five minutes\n")[2].partition("\n## ")[0].partition("Now try your own")[2]
BLOCKS = [
    re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n)+(?:\n(?:    .*\n)+)*", WALK, re.M)
]
OUTCOMES = ("cut over to g2", "g2 keeps serving")
"""What `up` says of each change of the file, in README's words."""


class Walk:
    """A user's folder, in which the commands of README run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.up: subprocess.Popen[bytes] | None = None
        self.outcomes = iter(OUTCOMES)
        program = folder / ".venv" / "bin" / "lookupdb"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lookupdb "$@"\n')
        program.chmod(0o755)

    @property
    def said(self) -> str:
        return (self.folder / "output").read_text()

    def play(self, line: str) -> None:
        """Run a command, and compare what it prints with the JSON that its comment may be."""
        command, _, comment = (part.strip() for part in line.partition("  # "))
        if " up " in command:
            self._start(command)
            return
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, (line, ended.stderr, self.up and self.said)
        if comment.startswith("{"):
            assert ended.stdout.strip() == comment, line
        if " diff " in command:
            assert (comment, "changed  1" in ended.stdout) == ("1 of 2 keys has changed", True), ended.stdout
        if self.up and "> people.csv" in command:
            outcome = next(self.outcomes)
            until(lambda: outcome in self.said or self._ended(), outcome, DEADLINE_SECONDS)

    def _start(self, command: str) -> None:
        assert "--port 8081 --watch" in command
        with (self.folder / "output").open("w") as output:
            words = ["bash", "-c", "exec " + command.replace("--port 8081", "--port 0")]
            self.up = subprocess.Popen(words, cwd=self.folder, stdout=output, stderr=output)
        until(lambda: "Ctrl-C stops it all" in self.said or self._ended(), "the banner", DEADLINE_SECONDS)

    def _ended(self) -> bool:
        assert self.up is not None
        assert self.up.poll() is None, self.said
        return False


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    begun = Walk(tmp_path)
    yield begun
    if begun.up:
        begun.up.terminate()
        assert begun.up.wait(DEADLINE_SECONDS) == 0


def test_the_walk_comes_out_as_it_says(walk: Walk) -> None:
    assert "Save this as `people.yaml`" in WALK
    manifest, *commands = BLOCKS
    assert manifest.startswith("apiVersion:")
    (walk.folder / "people.yaml").write_text(manifest)
    for line in "".join(commands).splitlines():
        walk.play(line)
    assert walk.up is not None
    assert next(walk.outcomes, None) is None, f"{walk.said} has all of {OUTCOMES}"


def test_it_tells_what_up_says_in_its_words() -> None:
    told = " ".join(WALK.replace("*", "").split())
    assert all(outcome in told for outcome in OUTCOMES)
