"""Run the commands of the tutorial and of the README in order, with their files, and compare the output."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support.waiting import until

pytestmark = pytest.mark.long

DEADLINE_SECONDS = 120.0
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXT = (ROOT / "docs" / "start" / "tutorial.md").read_text()
SECTION = TEXT.partition("## Five minutes\n")[2].partition("\n## ")[0]
DEMO, _, OWN_DATA = SECTION.partition("Now try your own")
PROGRAMS: dict[str, str] = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
PRINTED = {
    "asyncio": "[{'iata': 'JFK', …}, {'iata': 'LHR', …}, None]\n['nowhere']\n",
    "redis": 'John F Kennedy International Airport [b\'{"iata":"LHR", …}\', None]\n',
    "mapping": "John F Kennedy International Airport False 28298 g1\n",
}
"""Output of the Python programs; for an airport, its first member."""
OUTCOMES = {"cut over to g2": "cut over to g2", "g2 keeps serving": "g2 keeps serving. The next attempt is at"}
"""The outcome of each change of the file in the tutorial's words → the line that `up` prints."""


def indented_blocks(text: str) -> list[str]:
    return [re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n)+", text, re.M)]


class Walk:
    """A user's folder, in which the commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.up: subprocess.Popen[bytes] | None = None
        self.outcomes = iter(OUTCOMES.values())
        program = folder / ".venv" / "bin" / "lookupdb"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lookupdb "$@"\n')
        program.chmod(0o755)

    @property
    def said(self) -> str:
        return (self.folder / "output").read_text()

    def play(self, line: str) -> None:
        """Run a command, and compare what it prints with its comment, if that is JSON."""
        command, _, comment = (part.strip() for part in line.partition("  # "))
        if " up " in command:
            assert "--port 8081 --watch" in command
            self.start(command.replace("--port 8081", "--port 0"))
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

    def start(self, command: str) -> None:
        """Start `up`, and wait until it serves."""
        with (self.folder / "output").open("w") as output:
            self.up = subprocess.Popen(["bash", "-c", "exec " + command], cwd=self.folder, stdout=output, stderr=output)
        until(lambda: "Ctrl-C stops everything" in self.said or self._ended(), "the banner", DEADLINE_SECONDS)

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
    for line in "".join(indented_blocks(OWN_DATA)).splitlines():
        walk.play(line)
    assert walk.up is not None
    assert next(walk.outcomes, None) is None, f"{walk.said} has all of {OUTCOMES}"


def test_it_tells_what_up_says_in_its_words() -> None:
    told = " ".join(OWN_DATA.replace("*", "").split())
    assert all(words in told for words in OUTCOMES)


def test_each_program_for_python_runs_beside_the_demo_as_it_stands(walk: Walk) -> None:
    (walk.folder / "examples").symlink_to(ROOT / "examples")
    walk.start(".venv/bin/lookupdb up -f examples/airports.yaml --port 0")
    state = json.loads((walk.folder / ".lookupdb/run/default.airports/up.json").read_text())
    redis_port = state["redis"].rpartition(":")[2]
    assert PROGRAMS.keys() == PRINTED.keys()
    for name, written in PROGRAMS.items():
        program = written.replace("http://127.0.0.1:8080", state["url"]).replace("port=6379", f"port={redis_port}")
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=walk.folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, (name, ended.stderr)
        assert re.sub(r", ?[\"']name[^}]*", ", …", ended.stdout) == PRINTED[name], name


def test_readme_names_the_two_commands_and_lookups_of_the_tutorial() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^    make (\w+) ", README.partition("## Two commands")[2].partition("\n## ")[0], re.M)
    assert commands == ["demo", "test"]
    assert all(f"\n{command}: " in makefile for command in commands)
    lookups = re.findall(r"^    (curl .*)$", README, re.M)
    assert lookups
    assert all(f"    {lookup}\n" in DEMO for lookup in lookups)
    assert len(README.split()) <= 900


def test_the_demo_answers_the_lookups_that_it_names(walk: Walk) -> None:
    (walk.folder / "examples").symlink_to(ROOT / "examples")
    assert "\t$(BIN)/lookupdb up -f examples/airports.yaml\n" in (ROOT / "Makefile").read_text()
    walk.start(".venv/bin/lookupdb up -f examples/airports.yaml --port 0")
    (router,) = re.findall(r"curl (http://127.0.0.1:\d+)/v1/lookup/KJFK\n", walk.said)
    answers = []
    for line in indented_blocks(DEMO)[0].splitlines():
        curl, *data, url = shlex.split(line)
        assert (curl, data[:1], url.startswith("http://127.0.0.1:8080/")) == ("curl", ["-d"] if data else [], True), (
            line
        )
        request = urllib.request.Request(
            url.replace("http://127.0.0.1:8080", router), "".join(data[1:]).encode() or None
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:
            answers.append(orjson.loads(response.read()))
    value, batch, dataset = answers
    assert value == batch["found"]["KJFK"]
    assert (set(batch["found"]), batch["missing"], dataset["generation"]) == ({"KJFK", "egll"}, ["nowhere"], "g1")
