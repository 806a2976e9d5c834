"""Asks `lookupdb up` with clients of Redis that know nothing of it, each without a setting: `make redis-clients`.

Prints which client, in which version, was answered what. Ends with 1 if one of them was not, and says which are not
installed. Go's, Node's and Java's libraries are locked by go.sum, package-lock.json and checksums.sha256.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
START_SECONDS: Final = 120
CLIENT_SECONDS: Final = 300


@contextmanager
def airports() -> Iterator[int]:
    """A `lookupdb up` of the airports, and the port where it speaks RESP."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        words = ["up", "-f", str(ROOT / "examples" / "airports.yaml"), "--data-dir", folder, "--port", "0"]
        with (data / "output").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "lookupdb", *words, "--resp-port", "0"], stdout=output, stderr=output, cwd=ROOT
            )
        try:
            yield _wait_port(process, data)
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _wait_port(process: subprocess.Popen[bytes], data: Path) -> int:
    state = data / "run" / "default.airports" / "up.json"
    deadline = time.monotonic() + START_SECONDS
    while not state.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"lookupdb up did not begin to serve:\n{(data / 'output').read_text()}")
        time.sleep(0.1)
    return int(json.loads(state.read_bytes())["redis"].rpartition(":")[2])


def run(*words: str, cwd: Path = ROOT) -> str:
    """What a program printed. Raises CalledProcessError."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    done.check_returncode()
    return done.stdout


def ask_redis_py(port: int) -> str:
    """GET, MGET and a pipeline, by both versions of the protocol."""
    for protocol in (2, 3):
        with redis.Redis(port=port, protocol=protocol) as client:
            assert json.loads(client.get("KJFK"))["iata"] == "JFK"
            found = client.mget("KJFK", "nowhere")
            assert [value is None for value in found] == [False, True], found
            with client.pipeline(transaction=False) as pipeline:
                for _ in range(1000):
                    pipeline.get("KJFK")
                assert {json.loads(value)["iata"] for value in pipeline.execute()} == {"JFK"}
    return f"redis-py {redis.__version__}: GET, MGET, a pipeline of 1,000, RESP 2 and 3"


def ask_redis_cli(port: int) -> str:
    """GET and INFO, and that unavailable things are errors for it."""
    asked = run("redis-cli", "-p", str(port), "--no-raw", "MGET", "KJFK", "nowhere")
    assert asked.startswith('1) "{'), asked
    assert asked.rstrip().endswith("2) (nil)"), asked
    info = run("redis-cli", "-p", str(port), "INFO", "lookupdb")
    assert "dataset:default/airports" in info, info
    assert "READONLY" in run("redis-cli", "-p", str(port), "SET", "KJFK", "x")
    return f"{run('redis-cli', '--version').strip()}: MGET, INFO, SET is refused"


def ask_redis_benchmark(port: int) -> str:
    """GETs, pipelined and not."""
    lines = []
    for options in (["-P", "1"], ["-P", "16"]):
        words = ["-p", str(port), "-n", "50000", "-c", "50", "-q", *options, "GET", "KJFK"]
        output = run("redis-benchmark", *words).replace("\r", "\n")
        (line,) = (line for line in output.splitlines() if "requests per second" in line)
        lines.append(f"{' '.join(options)}: {line.partition(':')[2].strip()}")
    return f"{run('redis-benchmark', '--version').strip()}: {'; '.join(lines)}"


def ask_go(port: int) -> str:
    """go-redis."""
    return run("go", "run", ".", f"127.0.0.1:{port}", cwd=HERE / "go").strip()


def ask_node(port: int) -> str:
    """ioredis and node-redis."""
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=HERE / "node")
    return run("node", "main.js", "127.0.0.1", str(port), cwd=HERE / "node").strip()


def ask_java(port: int) -> str:
    """Jedis and Lettuce."""
    with tempfile.TemporaryDirectory() as folder:
        run("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}", cwd=HERE / "java")
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()}
        lines = (HERE / "java" / "checksums.sha256").read_text().splitlines()
        assert found == {name: digest for digest, name in map(str.split, lines)}, "Maven found other files"
        return run("java", "-cp", f"{folder}/*", "Main.java", "127.0.0.1", str(port), cwd=HERE / "java").strip()


CLIENTS: Final[dict[str, Callable[[int], str]]] = {
    "": ask_redis_py,
    "redis-cli": ask_redis_cli,
    "redis-benchmark": ask_redis_benchmark,
    "go": ask_go,
    "npm": ask_node,
    "mvn": ask_java,
}
"""By the program that each needs."""


def main() -> int:
    """Ask with all clients whose program is installed. How many were not answered as they should be."""
    failures = 0
    with airports() as port:
        for program, ask in CLIENTS.items():
            if program and shutil.which(program) is None:
                print(f"{program} is not installed: left out")
                continue
            try:
                print(ask(port))
            except (AssertionError, subprocess.SubprocessError, redis.RedisError) as error:
                failures += 1
                print(f"{program or 'redis-py'}: {error!r}", file=sys.stderr)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
