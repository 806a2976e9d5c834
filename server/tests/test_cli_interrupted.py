"""SIGINT and SIGTERM end verbs that wait, in native code, for a bucket which never answers."""

from __future__ import annotations

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

DEADLINE_SECONDS = 60.0
SOON_SECONDS = 15.0
"""Far below the timeout of a bucket, and far more than a busy machine needs."""
STORE = ["--store", "s3://lookups/people", "--cluster-id", "c1"]
VERBS = {
    "fetch": ["fetch", *STORE, "--dataset", "people", "--generation", "g1", "--shard", "0", "--json", "data"],
    "sweep": ["sweep", *STORE, "--living", "living.json"],
    "diff": ["diff", "g1", "g2", *STORE, "--dataset", "people"],
}


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_SECONDS)
        yield server


INT, TERM = (signal.SIGINT, 130), (signal.SIGTERM, 143)


@pytest.mark.parametrize(
    ("verb", "number", "code"), [("fetch", *INT), ("fetch", *TERM), ("sweep", *INT), ("diff", *TERM)]
)
def test_a_verb_whose_bucket_does_not_answer_ends_soon(
    tmp_path: Path, silent: socket.socket, verb: str, number: signal.Signals, code: int
) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    living = {"formatVersion": 1, "cluster": "c1", "writtenAt": now, "datasets": []}
    (tmp_path / "living.json").write_bytes(orjson.dumps(living))
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "lookupdb", *VERBS[verb]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            **variables(f"http://127.0.0.1:{silent.getsockname()[1]}"),
            "TMPDIR": str(tmp_path / "tmp"),
        },
    )
    with silent.accept()[0]:
        process.send_signal(number)
        signalled = time.monotonic()
        try:
            written, errors = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert time.monotonic() - signalled < SOON_SECONDS
    assert process.returncode == code
    assert errors.strip() in ("interrupted", ""), "nothing if the bucket's client gave up in the meantime"
    assert list((tmp_path / "tmp").iterdir()) == []
    if verb == "fetch":
        result = orjson.loads(written)
        assert (result["outcome"], result["reason"], result["exitCode"]) == ("failed", "Interrupted", code)


PROGRAM = """
import atexit, contextlib, time
from lookupdb.cli.program import run_program
from lookupdb.errors import UsageError
from lookupdb.process.launch import call_interruptibly
def run():
    with contextlib.suppress(TimeoutError):
        call_interruptibly(time.sleep, 60, seconds=0.01)
    raise UsageError("no answer")
atexit.register(print, "shutdown of Python")
run_program(run)
"""


def test_a_call_that_still_runs_does_not_meet_the_shutdown_of_python() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "error: no answer\n")
