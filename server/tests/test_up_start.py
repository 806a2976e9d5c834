"""`lookupdb up` starts a few servers at a time, within a limit, and ends at once on Ctrl-C; `get` meanwhile."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.ports import free_port
from support.up_stack import write_people
from support.waiting import until

from lookupdb.cli import cli
from lookupdb.dataset.spec import read_manifest
from lookupdb_operator.local.kubelet import find_free_port
from lookupdb_operator.names import RESP_PORT

pytestmark = pytest.mark.long

DEADLINE_SECONDS = 120.0
MANIFEST = """\
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {{name: people}}
spec:
  source: {{url: {source}}}
  key: {{columns: [email]}}
  shards: {shards}
"""
LOOKUPDB = [sys.executable, "-m", "lookupdb"]


class Folder:
    """A folder with a manifest and its source, in which commands run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process: subprocess.Popen[str] | None = None
        (path / "people.csv").write_text("email,title\nada@example.com,Countess\n")
        self.write_manifest(shards=1)

    def write_manifest(self, shards: int, source: str = "people.csv") -> None:
        (self.path / "people.yaml").write_text(MANIFEST.format(shards=shards, source=source))

    def start(self, *flags: str, program: Sequence[str] = LOOKUPDB) -> None:
        with (self.path / "output").open("w") as output:
            self.process = subprocess.Popen(
                [*program, "up", "-f", "people.yaml", "--port", "0", "--resp-port", "0", *flags],
                stdout=output,
                stderr=output,
                cwd=self.path,
                text=True,
            )

    def output(self) -> str:
        return (self.path / "output").read_text()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LOOKUPDB, *words], capture_output=True, text=True, cwd=self.path, timeout=DEADLINE_SECONDS, check=False
        )

    def servers_begun(self) -> int:
        return len(list(self.path.glob(".lookupdb/run/default.people/people-r1-s*-0.log")))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    new_folder = Folder(tmp_path)
    yield new_folder
    if new_folder.process and new_folder.process.poll() is None:
        new_folder.process.terminate()
        new_folder.process.wait(DEADLINE_SECONDS)


def test_a_refused_start_leaves_nothing(folder: Folder) -> None:
    (folder.path / "production").write_text("kind: Config\n")
    ended = folder.run("up", "-f", "people.yaml", "--port", "0", "--resp-port", "0", "--kubeconfig", "production")
    assert ended.returncode == 2
    assert "--kubeconfig production exists" in ended.stderr
    assert folder.run("ls", "--json").stdout == "[]\n"


def test_more_servers_than_a_machine_should_start_are_refused_before_anything_is_built(folder: Folder) -> None:
    folder.write_manifest(shards=1000)
    ended = folder.run("up", "-f", "people.yaml", "--port", "0", "--resp-port", "0")
    assert ended.returncode == 2
    assert "people needs 1,000 shard servers" in ended.stderr
    assert "2,000 processes with about 41.0 GiB of memory" in ended.stderr
    assert "lower spec.shards" in ended.stderr
    assert "--max-servers 1000" in ended.stderr
    assert not (folder.path / ".lookupdb").exists()


def test_a_start_after_a_failed_first_build_serves_the_corrected_source(folder: Folder) -> None:
    source = folder.path / "people.csv"
    rows = source.read_text()
    source.write_text(rows + "ada@example.com,Enchantress\n")
    failed = folder.run("up", "-f", "people.yaml", "--port", "0", "--resp-port", "0")
    assert failed.returncode == 3
    assert "the key 'ada@example.com' occurs twice" in failed.stderr
    assert "start it again" in failed.stdout + failed.stderr
    assert "next attempt" not in failed.stdout + failed.stderr

    source.write_text(rows)
    folder.start()
    until(lambda: "Ctrl-C stops everything" in folder.output(), "the banner")


def test_modules_in_the_users_folder_are_not_imported(folder: Folder) -> None:
    for name in ("http", "queue", "socket"):
        (folder.path / f"{name}.py").write_text("raise SystemExit('imported')")
    folder.start(program=[str(Path(sys.executable).with_name("lookupdb"))])
    until(lambda: "Ctrl-C stops everything" in folder.output(), "the banner")
    assert "imported" not in folder.output()


def test_a_running_up_does_not_grow_beyond_it_either(folder: Folder) -> None:
    folder.start("--watch", "--watch-seconds", "0.1", "--max-servers", "2")
    until(lambda: "Ctrl-C stops everything" in folder.output(), "the banner")
    folder.write_manifest(shards=3)
    until(lambda: "not rebuilt: people needs 3 shard servers" in folder.output(), "the refusal")


@pytest.mark.parametrize(
    ("line", "said"),
    [("on: true", "spec.True is not a field"), ("gates: {minRecords: 99999999999999999999}", "64-bit")],
)
def test_a_manifest_that_json_cannot_hold_is_refused_and_what_serves_keeps_serving(
    folder: Folder, line: str, said: str
) -> None:
    folder.start("--watch", "--watch-seconds", "0.1")
    until(lambda: "Ctrl-C stops everything" in folder.output(), "the banner")
    manifest = folder.path / "people.yaml"
    manifest.write_text(f"{manifest.read_text()}  {line}\n")
    until(lambda: said in folder.output(), "the refusal")
    assert "g1 keeps serving" in folder.output()
    folder.write_manifest(shards=1)
    until(lambda: "can be read again" in folder.output(), "the end of it")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_while_servers_start_a_few_at_a_time(folder: Folder, number: signal.Signals) -> None:
    folder.write_manifest(shards=60)
    folder.start()
    until(folder.servers_begun, "the first servers to start")
    assert folder.process is not None
    signalled = time.monotonic()
    folder.process.send_signal(number)
    assert folder.process.wait(DEADLINE_SECONDS) == 0
    assert folder.servers_begun() <= 40, "not all were begun first"
    assert time.monotonic() - signalled < 30
    assert folder.output().endswith("stopped\n")
    assert processes_in(folder.path) == []


def processes_in(path: Path) -> list[str]:
    """The command lines that name ``path``."""

    def command_line(process: Path) -> str:
        try:
            return (process / "cmdline").read_text()
        except OSError:
            return ""

    lines = map(command_line, Path("/proc").glob("[0-9]*"))
    return [line for line in lines if str(path) in line]


def test_what_the_banner_says_to_run_finds_this_up(folder: Folder) -> None:
    folder.start("--data-dir", "else where")
    until(lambda: "Ctrl-C stops everything" in folder.output(), "the banner")
    line = next(line for line in folder.output().splitlines() if " get " in line)
    _, *words = shlex.split(line)
    assert words == ["get", "--data-dir", "else where", "people", "KEY"]
    assert "'KEY' is not in people" in folder.run(*words).stderr
    elsewhere = folder.run("get", "people", "KEY").stderr
    assert "no `lookupdb up` serves people from .lookupdb" in elsewhere
    assert "--data-dir" in elsewhere


def test_get_says_that_an_up_is_still_starting(folder: Folder) -> None:
    lock = folder.path / ".lookupdb" / "run" / "default.people" / "lock"
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    completed = folder.run("get", "people", "KEY")
    assert (completed.returncode, "the `lookupdb up` of people does not serve yet" in completed.stderr) == (4, True)
    holder.communicate("\n", timeout=DEADLINE_SECONDS)
    assert "no `lookupdb up` serves people" in folder.run("get", "people", "KEY").stderr


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "localhost:1"])
def test_get_of_a_routers_address_without_a_scheme_says_so(folder: Folder, address: str) -> None:
    completed = folder.run("get", address, "KEY")
    assert (completed.returncode, f"http://{address}" in completed.stderr) == (2, True)


def test_get_says_in_words_that_nothing_listens(folder: Folder) -> None:
    port = free_port()
    completed = folder.run("get", f"http://127.0.0.1:{port}", "KEY")
    assert completed.returncode == 4
    assert f"127.0.0.1:{port} refuses connections: nothing listens there, or not yet" in completed.stderr
    assert "urlopen" not in completed.stderr
    completed = folder.run("get", "http://nowhere.invalid", "KEY")
    assert "the host nowhere.invalid does not resolve" in completed.stderr


def test_where_redis_port_is_taken_the_next_is_listened_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = find_free_port(port)
        assert found != port
        with socket.create_server(("127.0.0.1", found)):
            assert find_free_port(port) not in (port, found)


def test_redis_port_is_none_that_http_has(folder: Folder) -> None:
    first = find_free_port(RESP_PORT)
    assert find_free_port(RESP_PORT, besides=first) != first
    completed = folder.run("up", "-f", "people.yaml", "--port", str(first), "--resp-port", str(first))
    assert completed.returncode == 2
    assert f"--port and --resp-port are both {first}, expected two different ports" in completed.stderr
    assert not list(folder.path.rglob("manifest.json")), "it is refused before the build"


def test_two_that_start_at_once_have_different_redis_ports(folder: Folder) -> None:
    ups = []
    for name in ("a", "b"):
        words = ["up", "-f", "people.yaml", "--port", "0", "--data-dir", name]
        with (folder.path / f"{name}.txt").open("w") as output:
            ups.append(subprocess.Popen([*LOOKUPDB, *words], stdout=output, stderr=output, cwd=folder.path))
    found = set()
    for name in ("a", "b"):
        said = partial((folder.path / f"{name}.txt").read_text)
        until(partial(lambda read: "redis-cli -p" in read(), said), "the banner", DEADLINE_SECONDS)
        found.add(next(line for line in said().splitlines() if "redis-cli -p" in line))
    for up in ups:
        up.send_signal(signal.SIGINT)
    assert [up.wait(DEADLINE_SECONDS) for up in ups] == [0, 0]
    assert len(found) == 2


def test_it_serves_though_the_disk_behind_its_output_is_full(folder: Folder) -> None:
    with Path("/dev/full").open("w") as full, (folder.path / "errors").open("w") as errors:
        command = [*LOOKUPDB, "up", "-f", "people.yaml", "--port", "0", "--resp-port", "0"]
        folder.process = subprocess.Popen(command, stdout=full, stderr=errors, cwd=folder.path, text=True)
    until(
        lambda: folder.run("get", "people", "ada@example.com").returncode == 0, "the first generation", DEADLINE_SECONDS
    )
    folder.process.send_signal(signal.SIGINT)
    assert folder.process.wait(DEADLINE_SECONDS) == 0
    assert "error" not in (folder.path / "errors").read_text()


def test_it_builds_and_cuts_over_though_the_disk_behind_its_messages_is_full(folder: Folder) -> None:
    def find() -> str:
        return folder.run("get", "people", "ada@example.com").stdout

    with Path("/dev/full").open("w") as full:
        command = [*LOOKUPDB, "up", "-f", "people.yaml", "--port", "0", "--resp-port", "0"]
        command += ["--watch", "--watch-seconds", "0.1"]
        folder.process = subprocess.Popen(command, stdout=full, stderr=full, cwd=folder.path, text=True)
    until(lambda: "Countess" in find(), "the first generation", DEADLINE_SECONDS)
    write_people(folder.path, ada="Duchess")
    until(lambda: "Duchess" in find(), "the second generation", DEADLINE_SECONDS)
    folder.process.send_signal(signal.SIGINT)
    assert folder.process.wait(DEADLINE_SECONDS) == 0


def test_a_builder_that_is_killed_at_the_start_is_told_by_its_signal(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "program").write_text("#!/bin/sh\nkill -9 $$\n")
    (folder.path / "program").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder.path / "program"))
    monkeypatch.chdir(folder.path)
    ended = CliRunner().invoke(cli, ["up", "-f", "people.yaml", "--port", "0"], catch_exceptions=False)
    assert "killed by SIGKILL, perhaps because it ran out of memory" in ended.output
    assert ended.exit_code == 137


def test_files_of_a_source_are_beside_what_a_link_to_the_manifest_names(folder: Folder, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "linked.yaml"
    link.parent.mkdir()
    link.symlink_to(folder.path / "people.yaml")
    assert read_manifest(link).base == folder.path.resolve()
