"""The command line becomes the supervisor: what stays of the process, and what goes."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support.fleets import fleet_entry
from support.routers import routing
from support.routing import table_file
from support.shards import serving, write_generation

pytestmark = pytest.mark.long

ROLES = ("lookupdb.shard.server", "lookupdb.router.router")


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    return write_generation(tmp_path, {"key 1": b"value 1"})


@contextlib.contextmanager
def supervisors(generation: Path, *options: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A shard server and a router of the generation."""
    with serving(generation, *options, by_command_line=True) as server:
        table = generation / "table.json"
        table.write_bytes(table_file(fleet_entry(generation, [[server]])))
        with routing(table, *options, by_command_line=True) as router:
            yield [server.process, router.process]


@pytest.mark.parametrize("role", ROLES)
def test_a_supervisor_imports_nothing_it_does_not_need(role: str) -> None:
    """Memory is paid for in every pod: what reads options, files of shards, requests and TLS does not belong there."""
    program = (
        f"from lookupdb.process import leave_out_tls; leave_out_tls(); import {role}, sys\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert {"asyncio", "httptools"} <= set(loaded)
    unwanted = {"aiohttp", "cel", "click", "hiredis", "jsonschema", "lmdb", "prometheus_client"}
    unwanted |= {"rich", "_ssl", "uvloop", "yaml", "zstandard"}
    assert unwanted & set(loaded) == set()


def test_a_process_listing_still_says_what_is_served_and_no_password(generation: Path) -> None:
    secret = generation / "secret"
    secret.write_text("s3cret")
    with supervisors(generation, "--password-file", str(secret)) as processes:
        for process, verb in zip(processes, ("serve", "route"), strict=True):
            words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
            assert words[words.index(verb) :].count(str(secret)) == 1
            assert not any("s3cret" in word for word in words)
            assert "s3cret" not in Path(f"/proc/{process.pid}/environ").read_text()


def open_files(pid: int) -> Iterator[str]:
    """Yield the files of a process's descriptors, without those that it closes meanwhile."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(path.readlink())


def test_the_settings_are_read_and_closed(generation: Path) -> None:
    """The memory file holds the password."""
    with supervisors(generation) as processes:
        for process in processes:
            files = list(open_files(process.pid))
            assert any("lookupdb-counters" in file for file in files)
            assert not any("lookupdb-supervisor" in file for file in files)


def test_the_log_format_of_the_command_line_is_that_of_supervisors_and_workers(
    generation: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with supervisors(generation, "--log-format", "json"):
        pass
    events = [orjson.loads(line) for line in capfd.readouterr().err.splitlines()]
    loggers = {event["logger"] for event in events}
    assert {"lookupdb.shard.server", "lookupdb.process.admin"} <= loggers, "supervisors"
    assert "lookupdb.router.cutover" in loggers, "the router's worker"


def test_a_supervisor_that_cannot_begin_ends_as_the_command_line_does(generation: Path, tmp_path: Path) -> None:
    missing = subprocess.run(
        [sys.executable, "-m", "lookupdb", "serve", str(tmp_path / "g9")], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert missing.stderr == f"error: {tmp_path / 'g9'}: no such file or directory\n"
    (generation / "manifest.json").write_text("{}")
    damaged = subprocess.run(
        [sys.executable, "-m", "lookupdb", "serve", str(generation)], capture_output=True, text=True, check=False
    )
    assert damaged.returncode == 5
    assert re.match(
        r"error: .*manifest\.json is not a generation's index: .*\n  build the generation again\n", damaged.stderr
    )


def test_ctrl_c_ends_it_cleanly(generation: Path) -> None:
    with serving(generation, by_command_line=True) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
