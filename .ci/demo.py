"""Runs `make demo` as a person would, on a free port: wait for its lookup, try it, press Ctrl-C, see all gone."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

DEADLINE_SECONDS = 300


def main() -> None:
    """Raises when a step does not hold, after the demo's output was printed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["LOOKUPDB_PORT"] = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "demo.log")
        try:
            _demo(f"http://127.0.0.1:{os.environ['LOOKUPDB_PORT']}/v1/lookup/KJFK", log)
        finally:
            print(*log.read_text().splitlines()[-40:], sep="\n")


def _demo(url: str, log: Path) -> None:
    with log.open("wb") as output:
        demo = subprocess.Popen(["make", "demo"], stdout=output, stderr=output, start_new_session=True)  # noqa: S607
    try:
        answer = _lookup(url, demo)
        assert answer["name"].startswith("John F"), answer
        print("lookup:", json.dumps(answer))
    finally:
        os.killpg(demo.pid, signal.SIGINT)
        code = demo.wait(timeout=30)
    assert "stopped" in log.read_text(), f"no orderly stop, exit code {code}"
    try:
        urllib.request.urlopen(url, timeout=1)  # noqa: S310
    except OSError:
        return
    raise AssertionError("something still listens after Ctrl-C")


def _lookup(url: str, demo: "subprocess.Popen[bytes]") -> dict[str, str]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        assert demo.poll() is None, f"make demo ended with {demo.returncode}"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
                answer: dict[str, str] = json.load(response)
                return answer
        except OSError:
            assert time.monotonic() < deadline, "no answer in time"
            time.sleep(0.2)


main()
