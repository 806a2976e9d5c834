"""`lookupdb up` on a small dataset of people, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from lookupdb.cli.build import command as build
from lookupdb.manifest import generation_number
from lookupdb.up import client
from lookupdb.up.run_state import state_file

DEADLINE_SECONDS = 120.0
LATE = ("no answer from", "no server came back", "did not answer within")
"""The router's messages for a passed deadline, or for a connection that one closed."""
MANIFEST = """\
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: people}
spec:
  source: {url: people.csv}
  key: {columns: [email], normalize: [strip, lowercase]}
  shards: 1
  keepGenerations: 2
  router: {deadlineMilliseconds: 500}
  gates: {maxShrinkPercent: 100}
"""
PATIENT = MANIFEST.replace("deadlineMilliseconds: 500", "deadlineMilliseconds: 20000")
"""For tests that ask once, on however busy a machine."""


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """The first true answer of ``holds``; fails after the deadline, saying ``what`` was waited for."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = holds()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS} s for {what}"
        time.sleep(0.05)


class Stack:
    """A running `lookupdb up` on the people in ``directory``."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._output = (directory / "output").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lookupdb", "up", "-f", str(directory / "people.yaml"), "--data-dir", str(self.data)]
            + ["--port", "0", *([] if "-f" in flags else ["--resp-port", "0"]), *flags],
            stdout=self._output,
            stderr=self._output,
            cwd=directory,
        )

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text()

    @property
    def state(self) -> dict[str, Any]:
        path = state_file(self.data, "default", "people")

        def read() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.output
            return orjson.loads(path.read_bytes()) if path.exists() else None

        state: dict[str, Any] = eventually(read, "up.json")
        return state

    @property
    def pids(self) -> list[int]:
        return [self.state["router"], *(server["pid"] for server in self.state["shards"])]

    def ask(self, *keys: str) -> dict[str, Any]:
        answer = client.find_values(self.state["url"], list(keys))
        assert not answer.unavailable
        return answer.found

    def find(self, *keys: str) -> dict[str, Any]:
        """Look up keys until the router answers in time: on a busy machine its short deadline may pass."""

        def found() -> tuple[dict[str, Any]] | None:
            try:
                return (self.ask(*keys),)
            except client.ShardUnavailable as error:
                if not any(late in str(error) for late in LATE):
                    raise
                return None

        (answered,) = eventually(found, "an answer in time")
        return dict(answered)

    def says(self, text: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.output
            return text in self.output

        eventually(said, repr(text))

    def generations(self) -> list[str]:
        return sorted((path.parent.name for path in self.data.rglob("manifest.json")), key=generation_number)

    def newest(self) -> int:
        """The number of the newest generation."""
        return generation_number(self.generations()[-1])

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(DEADLINE_SECONDS)
        self._output.close()
        return code


def write_people(directory: Path, **titles: str) -> None:
    """The source, swapped in as a whole: one row ``NAME@example.com,TITLE`` for each."""
    rows = "".join(f"{name}@example.com,{title}\n" for name, title in titles.items())
    (directory / "people.csv.new").write_text("email,title\n" + rows)
    (directory / "people.csv.new").replace(directory / "people.csv")


def write_dataset(directory: Path) -> None:
    """The manifest, and two people."""
    (directory / "people.yaml").write_text(MANIFEST)
    write_people(directory, ada="Countess", alan="Reader")


def build_people(directory: Path) -> None:
    """Build the source into the store of ``directory``, as an earlier `lookupdb up` would have."""
    words = ["-f", str(directory / "people.yaml"), "--store", str(directory / "data" / "store"), "--progress", "none"]
    assert CliRunner().invoke(build, words).exit_code == 0


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Starts `lookupdb up` on two people; stopped at the end."""
    write_dataset(tmp_path)
    stacks: list[Stack] = []

    def start(*flags: str) -> Stack:
        stacks.append(Stack(tmp_path, *flags))
        return stacks[-1]

    yield start
    for stack in stacks:
        stack.stop()
