"""SIGINT and SIGTERM end a build that waits for a server which never answers, and the `up` that waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support.buckets import variables
from support.process_table import children, is_running
from support.up_stack import write_dataset
from support.waiting import soon, until
from support.web import QuietHandler, web_server

from lookupdb_operator.local.kubelet import UpOptions
from lookupdb_operator.local.up import Up

pytestmark = pytest.mark.long

DEADLINE_SECONDS = 60.0
SOON_SECONDS = 15.0
"""Far below the timeouts of sources and buckets, and far more than a busy machine needs."""
MANIFEST = """\
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {{name: people}}
spec:
  source: {{url: "{source}"}}
  key: {{columns: [email]}}
  shards: 1
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_SECONDS)
        yield server


def url(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def start_build(directory: Path, store: str, **environment: str) -> subprocess.Popen[str]:
    words = ["build", "-f", str(directory / "people.yaml"), "--store", store, "--scratch", str(directory / "scratch")]
    return subprocess.Popen(
        [sys.executable, "-m", "lookupdb", *words, "--progress", "none", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, str]:
    """Send the signal; return standard output and standard error. The process must end soon."""
    process.send_signal(number)
    signalled = time.monotonic()
    try:
        written = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
    assert time.monotonic() - signalled < SOON_SECONDS
    return written


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_build_whose_source_does_not_answer_ends_and_leaves_nothing(
    tmp_path: Path, silent: socket.socket, number: signal.Signals, code: int
) -> None:
    (tmp_path / "people.yaml").write_text(MANIFEST.format(source=f"{url(silent)}/people.csv"))
    process = start_build(tmp_path, str(tmp_path / "store"))
    with silent.accept()[0]:
        written, errors = interrupt(process, number)
    assert (process.returncode, errors) == (code, "interrupted\n")
    assert orjson.loads(written)["reason"] == "Interrupted"


def test_a_build_whose_source_comes_slowly_ends_and_leaves_nothing(tmp_path: Path) -> None:
    class Trickle(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 30))
            self.send_header("ETag", '"1"')
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"email,title\n")
                    time.sleep(0.05)
            except OSError:
                self.close_connection = True

    with web_server(Trickle) as server:
        (tmp_path / "people.yaml").write_text(MANIFEST.format(source=f"{server}/people.csv"))
        process = start_build(tmp_path, str(tmp_path / "store"))
        until(lambda: list((tmp_path / "scratch").glob("lookupdb-build-*/source-*")), "the source to be fetched")
        interrupt(process, signal.SIGINT)
    assert process.returncode == 130
    assert list((tmp_path / "scratch").iterdir()) == []
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert [path for path in left if path.suffix != ".lock"] == []


def test_a_build_whose_bucket_does_not_answer_is_ended(tmp_path: Path, silent: socket.socket) -> None:
    """The build waits in native code, which handles no signals, so it ends without an orderly clean-up."""
    write_dataset(tmp_path)
    process = start_build(tmp_path, "s3://lookups/people", **variables(url(silent)))
    with silent.accept()[0]:
        written, errors = interrupt(process, signal.SIGTERM)
    assert process.returncode == 143
    assert errors.strip() in ("interrupted", ""), "nothing if the bucket's client gave up in the meantime"
    assert orjson.loads(written)["reason"] == "Interrupted"


FORCED = """\
import os, signal, sys, time
from pathlib import Path
from lookupdb.builder.options import remove_open_folders, scratch_folder
from lookupdb.cli.program import ended_in_time

def clean_up(code):
    remove_open_folders()
    raise OSError("standard output is gone")

with ended_in_time(clean_up), scratch_folder(Path(sys.argv[1])):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as native code: this thread takes no signal
    print(flush=True)
    time.sleep(600)
"""


def test_whoever_is_ended_while_it_takes_no_signal_has_its_scratch_folder_removed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORCED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert len(list(tmp_path.iterdir())) == 2, "the folder and its lock"
    interrupt(process, signal.SIGINT)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_an_up_whose_check_of_the_source_hangs_ends(tmp_path: Path) -> None:
    hangs = False
    is_asked = False

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
            nonlocal is_asked
            if hangs:
                is_asked = True
                time.sleep(SOON_SECONDS + 5)
            content = b"email,title\nada@example.com,Countess\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(content)

    with web_server(Handler) as server:
        (tmp_path / "people.yaml").write_text(MANIFEST.format(source=f"{server}/people.csv"))
        words = ["up", "-f", "people.yaml", "--port", "0", "--resp-port", "0", "--watch", "--watch-seconds", "0.1"]
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "lookupdb", *words], stdout=output, stderr=output, cwd=tmp_path, text=True
            )
        until(lambda: "Ctrl-C stops everything" in (tmp_path / "output").read_text(), "the banner")
        hangs = True
        until(lambda: is_asked, "a check of the source")
        interrupt(process, signal.SIGTERM)
    assert process.returncode == 0
    assert (tmp_path / "output").read_text().endswith("stopped\n")


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_up_kills_a_builder_that_takes_no_signal(tmp_path: Path, silent: socket.socket) -> None:
    (tmp_path / "people.yaml").write_text(MANIFEST.format(source=f"{url(silent)}/people.csv"))
    up = Up(UpOptions((tmp_path / "people.yaml",), tmp_path / "data", 0, 0, False, 0.1, None, None), lambda _: None)
    running = asyncio.create_task(up.run())
    (await asyncio.to_thread(silent.accept))[0].close()
    (builder,) = (pid for pid in children(os.getpid()) if b"\0build\0" in command_line(pid))
    os.kill(builder, signal.SIGSTOP)
    running.cancel()
    await soon(running.done, "its end")
    assert not is_running(builder)


def test_a_builder_ends_with_an_up_that_is_killed(tmp_path: Path, silent: socket.socket) -> None:
    """Otherwise nobody could interrupt the builder, and the next one would wait for its claim."""
    (tmp_path / "people.yaml").write_text(MANIFEST.format(source=f"{url(silent)}/people.csv"))
    words = ["up", "-f", "people.yaml", "--port", "0", "--resp-port", "0"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lookupdb", *words], cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        with silent.accept()[0]:  # the builder asks
            (builder,) = (pid for pid in children(process.pid) if b"\0build\0" in command_line(pid))
            process.kill()
            process.wait()
            until(lambda: not is_running(builder), "the builder's end")
    finally:
        process.kill()
        process.wait()
