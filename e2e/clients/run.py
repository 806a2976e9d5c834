"""Asks `lookupdb up` with unmodified clients of Redis: `make redis-clients`.

Prints the answers to each client and version, and the clients that are not installed. Ends with 1 if an answer is
wrong. go.sum, package-lock.json and checksums.sha256 lock the libraries of Go, Node and Java.
"""

from __future__ import annotations

import base64
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
from typing import Any, Final

import redis

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
START_SECONDS: Final = 120
CLIENT_SECONDS: Final = 300


@contextmanager
def serving(manifest: Path) -> Iterator[int]:
    """Run a `lookupdb up` of the dataset of ``manifest``. Yield its RESP port."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        words = ["up", "-f", str(manifest), "--data-dir", folder, "--port", "0"]
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
    deadline = time.monotonic() + START_SECONDS
    while not (states := list(data.glob("run/*/up.json"))):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"lookupdb up did not begin to serve:\n{(data / 'output').read_text()}")
        time.sleep(0.1)
    return int(json.loads(states[0].read_bytes())["redis"].rpartition(":")[2])


def run(*words: str, cwd: Path = ROOT) -> str:
    """Return a program's output. Raises CalledProcessError."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    done.check_returncode()
    return done.stdout


def ask_redis_py(port: int) -> str:
    """GET, MGET and a pipeline, with both versions of the protocol."""
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
    """GET and INFO; unavailable keys are errors."""
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


def ask_go(port: int, *table: str) -> str:
    """go-redis."""
    return run("go", "run", ".", f"127.0.0.1:{port}", *table, cwd=HERE / "go").strip()


def ask_node(port: int, *table: str) -> str:
    """ioredis and node-redis."""
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=HERE / "node")
    return run("node", "main.js", "127.0.0.1", str(port), *table, cwd=HERE / "node").strip()


def ask_java(port: int, *table: str) -> str:
    """Jedis and Lettuce."""
    with tempfile.TemporaryDirectory() as folder:
        run("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}", cwd=HERE / "java")
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()}
        lines = (HERE / "java" / "checksums.sha256").read_text().splitlines()
        assert found == {name: digest for digest, name in map(str.split, lines)}, "Maven found other files"
        words = ("-cp", f"{folder}/*", "Main.java", "127.0.0.1", str(port), *table)
        return run("java", *words, cwd=HERE / "java").strip()


CLIENTS: Final[dict[str, Callable[[int], str]]] = {
    "": ask_redis_py,
    "redis-cli": ask_redis_cli,
    "redis-benchmark": ask_redis_benchmark,
    "go": ask_go,
    "npm": ask_node,
    "mvn": ask_java,
}
"""Program → the clients that need it."""


# The same operations with every client

JFK: Final = '{"iata":"JFK","name":"John F Kennedy","feet":13.50,"closed":null,"tags":["jfk"]}'
FIELDS: Final = {b"iata": b"JFK", b"name": b"John F Kennedy", b"feet": b"13.50", b"tags": b'["jfk"]'}
RECORDS: Final = {
    "KJFK": JFK,
    "Zürich \u822a\u7a7a": '{"iata":"ZRH"}',
    " two  spaces ": '{"iata":"SPC"}',
    "k" * 511: '{"iata":"511"}',
}
MANIFEST: Final = """
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: odd-keys}
spec:
  source: {url: "file://%s"}
  key: {columns: [id]}
  shards: 2
"""
Answer = bytes | int | list["Answer"] | dict[bytes, bytes] | Exception | None


def _four(key: str = "KJFK") -> tuple[str, str, str]:
    return key, "iata", "nowhere"


_FOUR_ANSWERS: Final[list[Answer]] = [JFK.encode(), b"JFK", None, len(JFK)]
OPERATIONS: Final[tuple[tuple[str, tuple[str | bytes, ...], Answer], ...]] = (
    ("GET", ("KJFK",), JFK.encode()),
    ("GET", ("nowhere",), None),
    ("GET", ("",), None),
    ("GET", ("Zürich \u822a\u7a7a",), b'{"iata":"ZRH"}'),
    ("GET", (" two  spaces ",), b'{"iata":"SPC"}'),
    ("GET", (b"\xff\x00\xfe",), None),
    ("GET", ("k" * 511,), b'{"iata":"511"}'),
    ("GET", ("k" * 1024,), None),
    ("MGET", ("KJFK", "nowhere", "KJFK", ""), [JFK.encode(), None, JFK.encode(), None]),
    ("EXISTS", ("KJFK", "nowhere", "KJFK"), 2),
    ("TYPE", ("KJFK",), b"string"),
    ("TYPE", ("nowhere",), b"none"),
    ("TTL", ("KJFK",), -1),
    ("TTL", ("nowhere",), -2),
    ("STRLEN", ("KJFK",), len(JFK)),
    ("STRLEN", ("nowhere",), 0),
    ("GETRANGE", ("KJFK",), b"iata"),
    ("HGET", ("KJFK", "feet"), b"13.50"),
    ("HGET", ("KJFK", "closed"), None),
    ("HGET", ("nowhere", "iata"), None),
    ("HMGET", ("KJFK", "iata", "no such", "tags"), [b"JFK", None, b'["jfk"]']),
    ("HKEYS", ("KJFK",), list(FIELDS)),
    ("HGETALL", ("KJFK",), FIELDS),
    ("HGETALL", ("nowhere",), {}),
    ("MULTI", _four(), _FOUR_ANSWERS),
    ("PIPELINE", _four(), _FOUR_ANSWERS),
    ("SET", ("KJFK", "x"), redis.ReadOnlyError("READONLY")),
)
"""Command, words, and the expected answer. MULTI and PIPELINE are four reads; GETRANGE is of 2 to 5."""


def write_answer(answer: object) -> str:
    """The form of an answer that all clients print: text in base64, because it may be any bytes."""
    match answer:
        case None:
            return "nil"
        case bool() | int():
            return str(int(answer))
        case str() | bytes():
            return "'" + base64.b64encode(answer.encode() if isinstance(answer, str) else answer).decode()
        case list() | tuple():
            return f"[{','.join(map(write_answer, answer))}]"
        case dict():
            return (
                f"{{{','.join(sorted(f'{write_answer(name)}:{write_answer(text)}' for name, text in answer.items()))}}}"
            )
        case redis.ReadOnlyError():
            return "!READONLY"  # which redis-py removes from the message
        case _:
            return f"!{str(answer).split(maxsplit=1)[0]}"


def _perform(client: Any, name: str, words: tuple[str | bytes, ...]) -> object:
    if name in ("MULTI", "PIPELINE"):
        with client.pipeline(transaction=name == "MULTI") as pipeline:
            key, field, missing = words
            return pipeline.get(key).hget(key, field).get(missing).strlen(key).execute()
    method = getattr(client, name.lower())
    return method(words[0], 2, 5) if name == "GETRANGE" else method(*words)


def ask_table_by_redis_py(port: int, _: str) -> str:
    """Both versions of the protocol."""
    lines = []
    for protocol in (2, 3):
        with redis.Redis(port=port, protocol=protocol) as client:
            for number, (name, words, _answer) in enumerate(OPERATIONS):
                try:
                    found = _perform(client, name, words)
                except redis.ResponseError as error:
                    found = error
                lines.append(f"answer\tredis-py {redis.__version__}\t{number}\t{write_answer(found)}")
    return "\n".join(lines)


TABLE_CLIENTS: Final[dict[str, Callable[[int, str], str]]] = {
    "": ask_table_by_redis_py,
    "go": ask_go,
    "npm": ask_node,
    "mvn": ask_java,
}
"""Program → the clients that need it."""


def ask_table() -> int:
    """Perform all operations with each client, print the answers, and return the number of wrong ones."""
    answers: dict[int, dict[str, set[str]]] = {number: {} for number in range(len(OPERATIONS))}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = (f'{{"id":{json.dumps(key)},{value[1:]}\n' for key, value in RECORDS.items())
        (home / "records.jsonl").write_text("".join(rows))
        (home / "dataset.yaml").write_text(MANIFEST % (home / "records.jsonl"))
        lines = ("\t".join((name, *(write_answer(word)[1:] for word in words))) for name, words, _ in OPERATIONS)
        (home / "operations").write_text("".join(f"{line}\n" for line in lines))
        with serving(home / "dataset.yaml") as port:
            for program, ask in TABLE_CLIENTS.items():
                if program and shutil.which(program) is None:
                    print(f"{program} is not installed: left out of the table")
                    continue
                for line in ask(port, str(home / "operations")).splitlines():
                    _, client, number, answer = line.split("\t")
                    answers[int(number)].setdefault(answer, set()).add(client)
    return _print_table(answers)


def _print_table(answers: dict[int, dict[str, set[str]]]) -> int:
    clients = sorted({client for found in answers.values() for names in found.values() for client in names})
    print(f"The same operations by {', '.join(clients)}:")
    wrong = 0
    for number, (name, words, expected) in enumerate(OPERATIONS):
        shown = " ".join(repr(word) if len(word) < 30 else f"{word[0]!r} * {len(word)}" for word in words)
        is_right = answers[number].keys() == {write_answer(expected)} and all(
            names == set(clients) for names in answers[number].values()
        )
        wrong += not is_right
        print(f"{name} {shown}: {'all' if is_right else answers[number]}, expected {expected!r:.60}")
    return wrong


def main() -> int:
    """Ask with all installed clients, and return the number that got a wrong answer."""
    failures = ask_table()
    with serving(ROOT / "examples" / "airports.yaml") as port:
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
