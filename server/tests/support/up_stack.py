"""`lookupdb up` on a small dataset of people, as a process."""

from __future__ import annotations

import glob
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from lookupdb.client import Client
from lookupdb.manifest import generation_number
from lookupdb.up.run_state import state_file
from support.command_line import run_here

LOOKUPDB = str(Path(sys.executable).with_name("lookupdb"))
WATCH = ("--watch", "--watch-seconds", "0.1")
DEADLINE_SECONDS = 120.0
MANIFEST = """\
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: people}
spec:
  source: {url: people.csv}
  key: {columns: [email], normalize: [strip, lowercase]}
  shards: 1
  keepGenerations: 2
  router: {deadlineMilliseconds: 5000}
  rollout: {drainSeconds: 1}
  gates: {maxShrinkPercent: 100}
"""


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
    """A running `lookupdb up` on the people in ``directory``. It writes to files there, or to ``/dev/full``."""

    def __init__(self, directory: Path, *flags: str, stdout: str = "output", stderr: str = "output") -> None:
        self.directory = directory
        self.data = directory / "its data"
        words = ["up", "-f", str(directory / "people.yaml"), "--data-dir", str(self.data), "--port", "0"]
        words += [*([] if "-f" in flags else ["--resp-port", "0"]), *flags]
        (directory / "output").write_text("")
        with (directory / stdout).open("a") as out, (directory / stderr).open("a") as errors:
            self.process = subprocess.Popen([LOOKUPDB, *words], stdout=out, stderr=errors, cwd=directory)

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

    def find(self, *keys: str) -> dict[str, Any]:
        with Client(self.state["url"]) as client:
            return client.get_many(keys).found

    def title(self) -> str:
        """Ada's title."""
        return str(self.find("ada@example.com")["ada@example.com"]["title"])

    def says(self, pattern: str, after: int = 0) -> None:
        """Wait until the output has ``pattern`` behind its first ``after`` characters."""

        def said() -> bool:
            assert self.process.poll() is None, self.output
            return re.search(pattern, self.output[after:], re.MULTILINE) is not None

        eventually(said, repr(pattern))

    def generations(self) -> list[str]:
        # unlike pathlib's, it passes over folders that vanish meanwhile
        manifests = glob.glob("store/local/*/*/g*/manifest.json", root_dir=self.data)  # noqa: PTH207
        return sorted((Path(manifest).parent.name for manifest in manifests), key=generation_number)

    def newest(self) -> int:
        """The number of the newest generation."""
        return generation_number(self.generations()[-1])

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


def run_lookupdb(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `lookupdb` in a process of its own."""
    return subprocess.run([LOOKUPDB, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)


def swap(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


def write_people(directory: Path, **titles: str) -> None:
    """The source: one row ``NAME@example.com,TITLE`` for each."""
    rows = (f"{name}@example.com,{title}\n" for name, title in titles.items())
    swap(directory / "people.csv", "".join(["email,title\n", *rows]))


def write_dataset(directory: Path) -> None:
    """The manifest, and two people."""
    (directory / "people.yaml").write_text(MANIFEST)
    write_people(directory, ada="Countess", alan="Reader")


def build_people(directory: Path) -> None:
    """Build the source into the store of ``directory``, as an earlier `lookupdb up` would have."""
    words = (
        "-f",
        str(directory / "people.yaml"),
        "--store",
        str(directory / "its data" / "store"),
        "--progress",
        "none",
    )
    assert run_here("build", *words).returncode == 0


Start = Callable[..., Stack]


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Start]:
    """Starts `lookupdb up` on two people; stopped at the end."""
    write_dataset(tmp_path)
    stacks: list[Stack] = []

    def start(*flags: str, **outputs: str) -> Stack:
        stacks.append(Stack(tmp_path, *flags, **outputs))
        return stacks[-1]

    yield start
    for stack in stacks:
        stack.stop()
