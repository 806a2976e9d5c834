"""`lookupdb get`: many keys are asked in batches that the router takes, whatever its limits are."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from support.command_line import run_here
from support.faulty_router import answer, batch, problem, scripted
from support.http import Server, raw_lookups, serving
from support.ports import free_port
from support.web import QuietHandler, web_server

from lookupdb.cli.get import command
from lookupdb.up.run_state import RunFolder, state_file

KEYS = [str(number) for number in range(150)]
VALUES = {"none": b"", "png": b"\x89PNG\r\n\x1a", "text": b"two\nlines\n", "json": b'{"a":1}'}


@pytest.fixture(scope="module")
def router(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A router of all keys but one."""
    records = {key: b"v" * 2000 for key in KEYS if key != "7"} | VALUES
    with serving(raw_lookups(records), **request.param) as running:
        yield running


@pytest.mark.parametrize("router", [{"max_keys": 100}, {"max_body_bytes": 1024}, {}], indirect=True, ids=str)
def test_more_keys_than_a_router_takes_at_once(router: Server) -> None:
    done = run_here("get", f"http://127.0.0.1:{router.port}", "-", asked="\n".join(KEYS).encode())
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [line["key"] for line in lines] == KEYS, done.stderr
    assert [line["key"] for line in lines if line.get("missing")] == ["7"]
    assert done.returncode == 3


@pytest.mark.parametrize("router", [{}], indirect=True, ids=str)
def test_missing_and_refused_end_differently(router: Server) -> None:
    url = f"http://127.0.0.1:{router.port}"
    assert run_here("get", url, "1").returncode == run_here("get", url, "1", "2").returncode == 0
    assert run_here("get", url, "7").returncode == run_here("get", url, "1", "7").returncode == 3
    refused = run_here("get", url, "1", "--generation", "g9")
    assert refused.returncode == 1, refused
    assert b"the generation 'g9' is neither the active one nor a candidate; active is g1\n" in refused.stderr


@pytest.mark.parametrize("router", [{}], indirect=True, ids=str)
def test_a_generation_that_is_named_is_asked_or_none(router: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{router.port}"
    assert run_here("get", url, "1", "--generation", "g1").returncode == 0
    for words in (["1"], ["1", "2", "3"]):
        for name in ("", "13", "g1 ", "newest"):
            ended = run_here("get", url, *words, "--generation", name)
            assert (ended.returncode, ended.stdout) == (2, b""), "neither the active one answers, nor is a router asked"
            assert f"a generation is called g1, g2, …, found {name!r}" in ended.stderr.decode()
        ended = run_here("get", url, *words, "--generation", "g9")
        assert (ended.returncode, ended.stdout) == (1, b"")
        assert ended.stderr.count(b"neither the active one") == 1, "once, however many keys"


@pytest.mark.parametrize("router", [{}], indirect=True, ids=str)
def test_that_a_key_is_missing_is_said_once(router: Server) -> None:
    url = f"http://127.0.0.1:{router.port}"
    ended = run_here("get", url, "7")
    assert ended.stderr.decode() == f"error: '7' is not in {url}: g1 has no record with it\n"
    assert run_here("get", url, "").stderr.decode() == f"error: '' is not in {url}: a key has 1 to 511 bytes\n"
    assert run_here("get", url, "7", "77777", "7777").stderr == b"", "of several, their lines say it"


def test_a_json_value_is_a_line_and_null_is_not_missing() -> None:
    value = b'{ "b": -0, "c": "\\ud800"}'
    many = batch({"null": None}, missing=["nobody"], unavailable=[])
    with scripted(answer(value, value_format="json"), many) as router:
        assert run_here("get", router.url, "a").stdout == value + b"\n"
        ended = run_here("get", router.url, "null", "nobody", "null")
    found, missing = {"key": "null", "value": None}, {"key": "nobody", "value": None, "missing": True}
    assert [orjson.loads(line) for line in ended.stdout.splitlines()] == [found, missing, found], ended
    assert ended.returncode == 3


@pytest.mark.parametrize("router", [{}], indirect=True, ids=str)
def test_a_raw_value_comes_byte_for_byte_and_only_a_terminal_gets_an_end_of_line_with_it(router: Server) -> None:
    url = f"http://127.0.0.1:{router.port}"
    assert {key: run_here("get", url, key).stdout for key in VALUES} == VALUES
    assert get_on_a_terminal(url, "png") == VALUES["png"] + b"\n"
    assert get_on_a_terminal(url, "text") == VALUES["text"], "it has one"
    assert get_into_nothing(url, "png") == (0, b"")


def get_into_nothing(url: str, key: str) -> tuple[int, bytes]:
    """Return how `lookupdb get` ends whose standard output is closed, and what it says of that."""
    program = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'lookupdb', *sys.argv[1:]])"
    words = [sys.executable, "-c", program, "get", url, key]
    ended = subprocess.run(words, stderr=subprocess.PIPE, timeout=60, check=False)
    return ended.returncode, ended.stderr


def get_on_a_terminal(url: str, key: str) -> bytes:
    """Return the output of `lookupdb get` on a terminal. It fits into the terminal's buffer."""
    controller, terminal = pty.openpty()
    try:
        tty.setraw(terminal)  # or each \n becomes \r\n
        with os.fdopen(os.dup(terminal), "w") as out, patch.object(sys, "stdout", out):
            command.main([url, key], standalone_mode=False)
        return os.read(controller, 1 << 12)
    finally:
        os.close(terminal)
        os.close(controller)


@pytest.mark.parametrize("words", [["1"], ["1", "2"]], ids=str)
def test_where_no_router_answers_keys_are_unavailable(words: list[str]) -> None:
    place = f"127.0.0.1:{free_port()}"
    ended = run_here("get", f"http://{place}", *words)
    assert (ended.returncode, ended.stdout) == (4, b"")
    assert f": {place} refuses connections: nothing listens there, or not yet\n" in ended.stderr.decode()


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "localhost:1"])
def test_the_hint_for_an_address_without_a_scheme_has_one(address: str) -> None:
    ended = run_here("get", address, "1")
    assert (ended.returncode, f"http://{address}" in ended.stderr.decode()) == (2, True)


@pytest.mark.parametrize("url", ["http://[::1", "http://", "http://a:0", "http://a b/", "http://a/people/v1/lookup/1"])
def test_a_url_that_is_not_a_routers_is_refused(url: str) -> None:
    ended = run_here("get", url, "1")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert f"found {url!r}".encode() in ended.stderr
    assert b"give one like http://127.0.0.1:8080" in ended.stderr


@pytest.mark.parametrize(
    "url", ["http://u:secret@127.0.0.1:1", "http://u:secret@127.0.0.1:1/v1/lookup", "u:secret@a:1"]
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    ended = run_here("get", url, "1")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"secret" not in ended.stderr


@pytest.mark.parametrize("prefix", ["/@team/people", "/v1/datasets/people", "/people/"])
def test_a_router_may_be_behind_any_prefix(prefix: str) -> None:
    ended = run_here("get", f"http://127.0.0.1:{free_port()}{prefix}", "1")
    assert (ended.returncode, b"refuses connections" in ended.stderr) == (4, True)


class _Handler(QuietHandler):
    """Answers GET and POST alike, each on a connection of its own."""

    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:  # noqa: N802 - http.server calls it so
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
        raise NotImplementedError


class _Greeter(_Handler):
    """Answers whatever it is asked, as no router does."""

    def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"hi")


@pytest.fixture(scope="module")
def greeter() -> Iterator[str]:
    with web_server(_Greeter) as url:
        yield url


@pytest.mark.parametrize("words", [["1"], ["1", "2"]], ids=str)
def test_what_no_router_says_is_no_value(greeter: str, words: list[str]) -> None:
    ended = run_here("get", greeter, *words)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"lookupdb router listens there" in ended.stderr


@pytest.mark.parametrize("words", [["people", "1"], ["team/people", "1", "2"], ["people", "-"]], ids=str)
@pytest.mark.parametrize("left", [{"pid": 4_194_305, "url": "http://127.0.0.1:9"}, None], ids=["killed", "stopped"])
def test_where_no_up_serves_keys_are_unavailable(tmp_path: Path, words: list[str], left: dict[str, Any] | None) -> None:
    for namespace in ("default", "team"):
        state = state_file(tmp_path, namespace, "people")
        state.parent.mkdir(parents=True)
        if left:
            state.write_bytes(orjson.dumps(left))
    ended = run_here("get", "--data-dir", str(tmp_path), *words, asked=b"1\n")
    assert (ended.returncode, ended.stdout) == (4, b"")
    assert f"no `lookupdb up` serves {words[0]} from {tmp_path}".encode() in ended.stderr
    assert b"--data-dir" in ended.stderr


def test_that_an_up_is_still_starting_is_reported(tmp_path: Path) -> None:
    with RunFolder(tmp_path, "default", "people").lock():
        ended = run_here("get", "--data-dir", str(tmp_path), "people", "1")
    assert (ended.returncode, b"the `lookupdb up` of people does not serve yet" in ended.stderr) == (4, True)


def test_where_no_up_serves_a_name_those_that_are_served_are_named(tmp_path: Path) -> None:
    people, routes = RunFolder(tmp_path, "default", "people"), RunFolder(tmp_path, "team", "routes")
    left = state_file(tmp_path, "default", "left")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"{}")
    with people.lock(), routes.lock():
        for folder in (people, routes):
            folder.write_state({"url": "http://127.0.0.1:9"})
        ended = run_here("get", "--data-dir", str(tmp_path), "peple", "1")
    assert ended.returncode == 4
    assert f"no `lookupdb up` serves peple from {tmp_path}, which has people, team/routes\n".encode() in ended.stderr


def test_names_that_a_hyphen_joins_alike_are_two_datasets(tmp_path: Path, greeter: str) -> None:
    """`up` of a-b/c runs, and that of a/b-c does not."""
    running = RunFolder(tmp_path, "a-b", "c")
    with running.lock(), RunFolder(tmp_path, "a", "b-c").lock():
        running.write_state({"url": greeter})
        asked = run_here("get", "--data-dir", str(tmp_path), "a-b/c", "1")
        assert b"lookupdb router listens there" in asked.stderr
    ended = run_here("get", "--data-dir", str(tmp_path), "a/b-c", "1")
    assert (ended.returncode, ended.stdout) == (4, b"")
    assert b"no `lookupdb up` serves a/b-c" in ended.stderr


def test_what_was_found_is_printed_when_a_shard_is_away() -> None:
    here, away = KEYS[:20:2], KEYS[1:20:2]
    many = batch(dict.fromkeys(here, "value"), unavailable=away)
    with scripted(many, problem("503 Service Unavailable", "unavailable", reason="Unreachable", shard=1)) as router:
        ended = run_here("get", router.url, *KEYS[:20])
        one = run_here("get", router.url, away[0])
    lines = [orjson.loads(line) for line in ended.stdout.splitlines()]
    assert [line["key"] for line in lines] == KEYS[:20], ended
    assert [line["key"] for line in lines if line.get("value") is not None] == here
    assert [line["key"] for line in lines if line.get("unavailable")] == away
    assert ended.returncode == one.returncode == 4
    assert f"{len(away)} keys could not be looked up".encode() in ended.stderr


class _Exact(_Handler):
    """Answers a batch as a router does, with numbers that Python would round, and a value that no JSON text has."""

    def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
        found = b'{"a":-0,"b":12345678901234567890123.4,"c":"\\ud800"}'
        body = b'{"found":%b,"missing":[],"unavailable":[],"generation":"g1"}' % found
        if self.path.startswith("/odd"):
            body = body.replace(b"-0", b"NaN")
        self.send_response(200)
        fields = {"Lookupdb-Generation": "g1", "Lookupdb-Value-Format": "json", "Content-Type": "application/json"}
        for name, value in {**fields, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def test_numbers_keep_their_digits_and_what_is_no_json_is_reported() -> None:
    with web_server(_Exact) as url:
        ended = run_here("get", url, "a", "b", "c")
        odd = run_here("get", f"{url}/odd", "a", "b", "c")
    assert ended.stdout == b'{"key":"a","value":-0}\n{"key":"b","value":12345678901234567890123.4}\n'
    assert (ended.returncode, b"the value of 'c' cannot be shown as JSON" in ended.stderr) == (1, True)
    assert (odd.returncode, odd.stdout, b"not valid JSON" in odd.stderr) == (1, b"", True)


def test_an_up_of_another_user_is_asked(tmp_path: Path, greeter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running = RunFolder(tmp_path, "default", "people")

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    with running.lock():
        running.write_state({"url": greeter})
        monkeypatch.setattr(os, "kill", refuse)
        assert b"lookupdb router listens there" in run_here("get", "--data-dir", str(tmp_path), "people", "1").stderr
