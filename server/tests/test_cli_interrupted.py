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
from support.refusing_outputs import Output, full, gone
from support.up_stack import write_dataset

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


SIGNALS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


@SIGNALS
@pytest.mark.parametrize("verb", VERBS)
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
    assert (process.returncode, errors) == (code, "interrupted\n")
    assert list((tmp_path / "tmp").iterdir()) == []
    if verb == "fetch":
        result = orjson.loads(written)
        assert (result["outcome"], result["reason"], result["exitCode"]) == ("failed", "Interrupted", code)


@pytest.mark.parametrize(
    ("verb", "output", "number", "code"), [("fetch", full, signal.SIGINT, 130), ("build", gone, signal.SIGTERM, 143)]
)
def test_a_verb_that_cannot_write_its_result_ends_soon(
    tmp_path: Path, silent: socket.socket, verb: str, output: Output, number: signal.Signals, code: int
) -> None:
    write_dataset(tmp_path)
    words = {**VERBS, "build": ["build", "-f", "people.yaml", *STORE]}[verb]
    with output() as descriptor:
        process = subprocess.Popen(
            [sys.executable, "-m", "lookupdb", *words, "--termination-log", "log"],
            cwd=tmp_path,
            stdout=descriptor,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables(f"http://127.0.0.1:{silent.getsockname()[1]}")},
        )
    with silent.accept()[0]:
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=SOON_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, errors) == (code, "interrupted\n")
    log = orjson.loads((tmp_path / "log").read_bytes())
    assert (log["reason"], log["exitCode"]) == ("Interrupted", code)
