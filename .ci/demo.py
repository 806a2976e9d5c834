"""Runs `make demo` as a person would: wait for its lookup, try it, press Ctrl-C, see everything gone."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

DEADLINE_SECONDS = 300


def main() -> None:
    """Raises when a step does not hold; the demo's output goes to the file named first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would make
    log = Path(sys.argv[1])
    url = f"http://127.0.0.1:{os.environ['LOOKUPDB_PORT']}/v1/lookup/KJFK"
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
        urllib.request.urlopen(url, timeout=1)
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
