"""Sends the same requests to `lookupdb up` with HTTP clients of three languages: `make http-clients`.

Prints a table of requests, answers, and clients with a different answer. Ends with 1 unless ``CARE`` expects the
difference. Go's and Node's clients are those of their standard libraries.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import httpx
import requests
import urllib3

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
START_SECONDS: Final = 120
CLIENT_SECONDS: Final = 120
ODD: Final = "c++ & 100%/ž?"
KEYS: Final = ("KJFK", "a/b", "a//b", "a b", "c++", "100%", "%2F", "what?", "a&b=c", "žluť 🐎", "..", "a;b", ODD)
MANIFEST: Final = """
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata:
  name: odd
spec:
  source:
    url: rows.jsonl
  key:
    columns: [key]
  value:
    field: value
  shards: 2
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its answer: a status, and the value's text if it has one."""

    name: str
    target: str
    answer: int | str
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    """The parameters from which the client's library makes the query."""


JSON: Final = {"Content-Type": "application/json"}
CASES: Final = (
    Case("a key", "/v1/lookup/KJFK", "KJFK"),
    Case("a missing key", "/v1/lookup/nowhere", 404),
    Case("HEAD", "/v1/lookup/KJFK", 200, method="HEAD"),
    Case("HEAD of a missing key", "/v1/lookup/nowhere", 404, method="HEAD"),
    Case("any text, escaped", "/v1/lookup/" + quote("žluť 🐎"), "žluť 🐎"),
    Case("any text, not escaped", "/v1/lookup/žluť%20🐎", "žluť 🐎"),
    Case("a slash", "/v1/lookup/a/b", "a/b"),
    Case("a slash, escaped", "/v1/lookup/a%2Fb", "a/b"),
    Case("two slashes", "/v1/lookup/a//b", "a//b"),
    Case("two dots", "/v1/lookup/..", ".."),
    Case("two dots, escaped", "/v1/lookup/%2E%2E", ".."),
    Case("two dots in the query", "/v1/lookup?key=..", ".."),
    Case("a space", "/v1/lookup/a%20b", "a b"),
    Case("pluses", "/v1/lookup/c++", "c++"),
    Case("pluses, escaped", "/v1/lookup/c%2B%2B", "c++"),
    Case("a plus for a space in the query", "/v1/lookup?key=a+b", "a b"),
    Case("pluses, escaped in the query", "/v1/lookup?key=c%2B%2B", "c++"),
    Case("a percent sign, escaped", "/v1/lookup/100%25", "100%"),
    Case("a percent sign, not escaped", "/v1/lookup/100%", 400),
    Case("an escape, escaped", "/v1/lookup/%252F", "%2F"),
    Case("a question mark, escaped", "/v1/lookup/what%3F", "what?"),
    Case("a question mark, not escaped", "/v1/lookup/what?", 400),
    Case("a semicolon in the query", "/v1/lookup?key=a;b", "a;b"),
    Case("an ampersand in the query, escaped", "/v1/lookup?key=a%26b%3Dc", "a&b=c"),
    Case("the library escapes a path", "/v1/lookup/" + quote(ODD, safe=""), ODD),
    Case("the library escapes a query", "/v1/lookup", ODD, parameters={"key": ODD}),
    Case("no key", "/v1/lookup/", 404),
    Case("an empty key in the query", "/v1/lookup?key=", 404),
    Case("a key of 1 KiB", "/v1/lookup/" + "x" * 1024, 404),
    Case("a key that is not UTF-8", "/v1/lookup/%FF", 400),
    Case("another parameter", "/v1/lookup/KJFK?utm_source=x", "KJFK"),
    Case("another parameter beside the key", "/v1/lookup?x=1&key=KJFK", "KJFK"),
    Case("a fragment", "/v1/lookup/KJFK#x", "KJFK"),
    Case("two keys", "/v1/lookup/KJFK?key=EGLL", 400),
    Case("a batch", "/v1/lookup", 200, "POST", JSON, json.dumps({"keys": [*KEYS, "nowhere", ""]})),
    Case("If-None-Match", "/v1/lookup/KJFK", 304, headers={"If-None-Match": "TAG"}),
    Case("If-None-Match, HEAD", "/v1/lookup/KJFK", 304, "HEAD", {"If-None-Match": 'W/"x", TAG'}),
    Case("If-None-Match of another", "/v1/lookup/KJFK", "KJFK", headers={"If-None-Match": '"g9-0"'}),
    Case("If-None-Match, a missing key", "/v1/lookup/nowhere", 404, headers={"If-None-Match": "TAG"}),
    Case("a probe", "/healthz", 200),
    Case("another probe, HEAD", "/readyz", 200, method="HEAD"),
)

CARE: Final[dict[str, dict[str, int | str]]] = {
    "any text, not escaped": {"node:http": "not sent"},
    "two dots": dict.fromkeys(("aiohttp", "httpx", "requests", "urllib3", "fetch"), 404),
    "two dots, escaped": dict.fromkeys(("aiohttp", "fetch"), 404),
    "a percent sign, not escaped": {**dict.fromkeys(("aiohttp", "requests", "urllib3"), "100%"), "Go": "not sent"},
    "a question mark, not escaped": dict.fromkeys(("aiohttp", "requests", "fetch"), 404),
    "a fragment": {"node:http": 400},
}
"""Case → the answer to clients that change the request."""


@contextmanager
def odd_keys() -> Iterator[str]:
    """Run a `lookupdb up` in which each of ``KEYS`` is its own value. Yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        (data / "odd.yaml").write_text(MANIFEST)
        rows = (json.dumps({"key": key, "value": key}) for key in KEYS)
        (data / "rows.jsonl").write_text("".join(f"{row}\n" for row in rows))
        words = ["up", "-f", str(data / "odd.yaml"), "--data-dir", folder, "--port", "0"]
        with (data / "output").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "lookupdb", *words, "--resp-port", "0"], stdout=output, stderr=output, cwd=ROOT
            )
        try:
            yield _wait_url(process, data)
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _wait_url(process: subprocess.Popen[bytes], data: Path) -> str:
    state = data / "run" / "default.odd" / "up.json"
    deadline = time.monotonic() + START_SECONDS
    while not state.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"lookupdb up did not begin to serve:\n{(data / 'output').read_text()}")
        time.sleep(0.1)
    return str(json.loads(state.read_bytes())["url"])


Ask = Callable[[str, Case], tuple[int, bytes]]


def ask_requests(url: str, case: Case) -> tuple[int, bytes]:
    """requests."""
    response = requests.request(
        case.method, url + case.target, params=case.parameters, headers=case.headers, data=case.body, timeout=30
    )
    return response.status_code, response.content


def ask_httpx(url: str, case: Case) -> tuple[int, bytes]:
    """httpx, whose ``params`` replace the query of a URL."""
    response = httpx.request(
        case.method,
        url + case.target,
        params=case.parameters or None,
        headers=case.headers,
        content=case.body,
        timeout=30,
    )
    return response.status_code, response.content


def ask_urllib3(url: str, case: Case) -> tuple[int, bytes]:
    """urllib3, which takes parameters only without a body."""
    asked: dict[str, Any] = {"fields": case.parameters} if case.parameters else {"body": case.body} if case.body else {}
    with urllib3.PoolManager() as pool:
        response = pool.request(
            case.method, url + case.target, headers=case.headers, timeout=30, retries=False, **asked
        )
        return response.status, response.data


def ask_aiohttp(url: str, case: Case) -> tuple[int, bytes]:
    """aiohttp."""

    async def ask() -> tuple[int, bytes]:
        asked: dict[str, Any] = {"params": case.parameters or None, "headers": case.headers, "data": case.body or None}
        async with aiohttp.ClientSession() as session, session.request(case.method, url + case.target, **asked) as got:
            return got.status, await got.read()

    return asyncio.run(ask())


PYTHON: Final[dict[str, tuple[Ask, Any]]] = {
    f"aiohttp {version('aiohttp')}": (ask_aiohttp, (aiohttp.ClientError, ValueError)),
    f"httpx {version('httpx')}": (ask_httpx, (httpx.HTTPError, httpx.InvalidURL)),
    f"requests {version('requests')}": (ask_requests, requests.RequestException),
    f"urllib3 {version('urllib3')}": (ask_urllib3, urllib3.exceptions.HTTPError),
}
PROGRAMS: Final = {"go": ["go", "run", "."], "node": ["node", "main.mjs"]}
"""The program in the folder ``http_`` and its name, which reads cases and prints answers."""


def ask_all(url: str, cases: list[Case]) -> dict[str, list[int | str]]:
    """Return the answers of each installed client to ``cases``, by name and version."""
    answers = {name: [_ask(ask, errors, url, case) for case in cases] for name, (ask, errors) in PYTHON.items()}
    for program, words in PROGRAMS.items():
        if shutil.which(program) is None:
            print(f"{program} is not installed: left out")
            continue
        given = json.dumps([asdict(case) for case in cases])
        done = subprocess.run(
            [*words, url],
            cwd=HERE / f"http_{program}",
            input=given,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{program}: {done.stderr}")
        for name, found in json.loads(done.stdout).items():
            answers[name] = [
                "not sent" if answer["error"] else read_answer(answer["status"], answer["body"].encode(), case)
                for answer, case in zip(found, cases, strict=True)
            ]
    return answers


def _ask(ask: Ask, errors: Any, url: str, case: Case) -> int | str:
    try:
        status, body = ask(url, case)
    except errors:
        return "not sent"
    return read_answer(status, body, case)


def read_answer(status: int, body: bytes, case: Case) -> int | str:
    """Summarize an answer: the value of one key, or the status."""
    if case.method == "HEAD" or status in (204, 304):
        assert not body, body
    elif case.method == "POST" and status == 200:
        document = json.loads(body)
        assert (document["found"], document["missing"]) == ({key: key for key in KEYS}, ["nowhere", ""]), document
    elif status == 200 and case.target.startswith("/v1/lookup"):
        return str(json.loads(body))
    return status


def main() -> int:
    """Ask with all installed clients. Return 1 if an answer differs from what is known."""
    surprises = 0
    with odd_keys() as url:
        tag = requests.head(f"{url}/v1/lookup/KJFK", timeout=30).headers["ETag"]
        cases = [
            replace(case, headers={name: value.replace("TAG", tag) for name, value in case.headers.items()})
            for case in CASES
        ]
        answers = ask_all(url, cases)
    print(f"clients: {', '.join(answers)}\n\n| request | sent as | answer | otherwise |\n| --- | --- | --- | --- |")
    for place, case in enumerate(cases):
        others = {
            name.rpartition(" ")[0]: found[place] for name, found in answers.items() if found[place] != case.answer
        }
        expected = {name: answer for name, answer in CARE.get(case.name, {}).items() if _has(answers, name)}
        mark = "" if others == expected else " **not as expected**"
        surprises += others != expected
        sent = f"{case.method} {case.target}" if len(case.target) < 50 else f"{case.method} {case.target[:30]}…"
        result = ", ".join(f"{name}: {answer}" for name, answer in others.items())
        print(f"| {case.name} | `{sent}` | {case.answer} | {result}{mark} |")
    return min(surprises, 1)


def _has(answers: dict[str, list[int | str]], name: str) -> bool:
    return any(client.rpartition(" ")[0] == name for client in answers)


if __name__ == "__main__":
    sys.exit(main())
