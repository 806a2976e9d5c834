"""Faults from outside of a build: signals, full disks, a store that fails half-way, a second builder.

Whatever it is: the new generation is there whole or not at all, earlier ones are untouched, and running it again works.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.buckets import s3_application, s3_server, use_server
from support.waiting import until

from lookupdb import store
from lookupdb.cli.build import command
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import NotEnoughRoom, StoreError
from lookupdb.store import StoredDataset
from lookupdb.store.generations import find_in_store

pytestmark = pytest.mark.long

ROWS = 20_000


class Builds:
    """A folder with a source and a manifest, and the command to build it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.store = str(folder / "store")
        self.manifest = folder / "people.yaml"
        self.source(1)
        self.manifest.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "lookupdb.dev/v1alpha1",
                    "kind": "LookupDataset",
                    "metadata": {"name": "people"},
                    "spec": {
                        "source": {"url": "people.csv"},
                        "key": {"columns": ["id"]},
                        "value": {"compression": "none"},
                        "shards": 2,
                    },
                }
            )
        )

    def source(self, version: int) -> None:
        """Another content each time, a few megabytes of it."""
        text = "".join(f"{number:09d},version {version} of row {number} {'-' * 100}\n" for number in range(ROWS))
        (self.folder / "people.csv").write_text("id,text\n" + text)

    def arguments(self, *more: str) -> list[str]:
        fixed = ["-f", str(self.manifest), "--store", self.store, "--scratch", str(self.scratch), "--progress", "plain"]
        return [*fixed, "--memory-limit", "256MiB", "--json", *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        """The command in a process of its own, under way."""
        command_line = [sys.executable, "-m", "lookupdb", "build", *self.arguments(*more)]
        return subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *more: str) -> Any:
        """The command, done within this process."""
        return CliRunner().invoke(command, self.arguments(*more), standalone_mode=False)

    @property
    def dataset(self) -> StoredDataset:
        return store.open_store(self.store).dataset(read_manifest(self.manifest))

    def check_whole(self, generation: str) -> None:
        """Every record of ``generation`` is there."""
        with find_in_store(self.dataset, generation).shards(self.scratch) as shards:
            assert sum(shard.pages()["entries"] for shard in shards) == ROWS


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


READING = ".g2.partial"
WRITING = ".g2.partial/shard-00000-of-00002.lmdb"


@pytest.mark.parametrize(
    ("number", "seen"),
    [
        pytest.param(signal.SIGINT, READING, id="Ctrl-C while the source is read"),
        pytest.param(signal.SIGTERM, WRITING, id="SIGTERM while shards are written"),
        pytest.param(signal.SIGKILL, READING, id="kill -9 while the source is read"),
        pytest.param(signal.SIGKILL, WRITING, id="kill -9 while shards are written"),
    ],
)
def test_an_interrupted_build_can_be_run_again(
    builds: Builds, tmp_path: Path, number: signal.Signals, seen: str
) -> None:
    assert builds.run().exception is None
    folder = Path(builds.dataset.url)
    g1 = contents(folder)
    builds.source(2)
    with builds.start("--termination-log", str(tmp_path / "log")) as process:
        until(lambda: (folder / seen).exists() or process.poll() is not None, seen)
        process.send_signal(number)
        process.communicate(timeout=150)
    was_faster = builds.dataset.generations() != ("g1",)  # than the signal, which may have come as it ended
    if not was_faster:
        assert process.returncode == (128 + number if number != signal.SIGKILL else -number)
        if number != signal.SIGKILL:
            assert list(builds.scratch.iterdir()) == []
            assert contents(Path(builds.dataset.url)) == g1
            told = json.loads((tmp_path / "log").read_bytes())
            assert (told["reason"], told["exitCode"]) == ("Interrupted", 128 + number)
        assert json.loads(builds.run().stdout)["outcome"] == "built"
    newest = next(reversed(builds.dataset.generations()), None)
    assert newest
    builds.check_whole(newest)
    assert was_faster or list(builds.scratch.iterdir()) == []
    now = contents(Path(builds.dataset.url))
    assert g1.items() <= now.items()
    assert {name.split("/")[0] for name in now} == {"g1", newest}


def test_of_two_builds_of_one_generation_exactly_one_wins(builds: Builds) -> None:
    """The other builder reports that the generation is being built; or it comes later, and finds it whole."""
    with builds.start("--generation", "g1") as one, builds.start("--generation", "g1") as other:
        told = [process.communicate(timeout=150) for process in (one, other)]
    results = [json.loads(out.splitlines()[-1]) for out, _ in told]
    outcomes = sorted(result["outcome"] for result in results)
    assert outcomes in (["built", "failed"], ["adopted", "built"])
    for process, result, (_, errors) in zip((one, other), results, told, strict=True):
        assert process.returncode == (5 if result["outcome"] == "failed" else 0)
        if result["outcome"] == "failed":
            assert "g1 of default/people is being built by another process" in errors
    builds.check_whole("g1")


class TestDiskFull:
    def check(self, builds: Builds, error: str) -> None:
        assert "make room" in error or "larger folder" in error
        assert builds.dataset.generations() == ()
        assert list(builds.scratch.iterdir()) == []
        assert not contents(Path(builds.dataset.url))

    def test_a_file_that_may_not_grow(self, builds: Builds) -> None:
        """A limit on file size stands for a quota: any user can set one."""
        with builds.start() as process:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            out, err = process.communicate(timeout=150)
        assert (process.returncode, json.loads(out)["reason"]) == (6, "NotEnoughRoom")
        assert "no room left for" in err
        assert "shard-0000" in err
        assert "File too large" in err
        assert "--store (`lookupdb up`: --data-dir)" in err
        self.check(builds, err)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
    @pytest.mark.parametrize("where", ["store", "scratch"])
    def test_a_small_disk(self, builds: Builds, where: str) -> None:
        disk = builds.folder / where
        disk.mkdir(exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False).returncode:
            pytest.skip("no right to mount")
        try:
            if where == "scratch":  # large values wait there while keys are sorted, however much memory there is
                lines = "".join(f"{number},{'x' * 70_000}\n" for number in range(40))
                (builds.folder / "people.csv").write_text("id,text\n" + lines)
            error = builds.run().exception
            assert isinstance(error, NotEnoughRoom)
            assert str(disk) in str(error)
            assert "No space left on device" in str(error)
            self.check(builds, str(error))
        finally:
            subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def failing_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An S3 server that refuses to put what ends in ``refused``; gives its URL first, then what it was asked to put."""
    application = s3_application()
    asked: list[str] = []

    def middleware(environ: dict[str, Any], respond: Any) -> Any:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "PUT":
            name = path.rpartition("/")[2]
            asked.append(re.sub("-[0-9a-f]{12}", "", name))
            if name.startswith("shard-00001-of-00002"):
                respond("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>QuotaExceeded</Code><Message>the bucket is full</Message></Error>"]
        return application(environ, respond)

    with s3_server(middleware) as url:
        use_server(url, monkeypatch)
        urllib.request.urlopen(urllib.request.Request(f"{url}/lookups", method="PUT")).close()
        asked.clear()
        yield asked


def test_a_store_that_fails_half_way_is_left_clean(builds: Builds, failing_s3: list[str]) -> None:
    builds.store = "s3://lookups/prefix"
    error = builds.run().exception
    assert isinstance(error, StoreError)
    assert "cannot put shard-00001-of-00002.lmdb into s3://lookups/prefix" in str(error)
    assert failing_s3 == ["claim.json", "shard-00000-of-00002.lmdb", "shard-00001-of-00002.lmdb"]
    assert builds.dataset.generations() == ()
    assert builds.dataset.next_generation() == "g1"  # not even a claim is left
    assert list(builds.scratch.iterdir()) == []
