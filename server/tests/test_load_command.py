"""`lookupdb load` as a program: against real routers and shards, its errors, its exit codes, and how it is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import orjson
import pytest
from support.command_line import run_here
from support.fleets import fleet, fleet_entry
from support.load_results import SCHEMA
from support.ports import free_port
from support.process_table import children, is_running
from support.routers import Router, routing, routing_encrypted
from support.routing import table_file
from support.scripted_router import answer_found, encode_answer, scripted_router
from support.shards import write_generation
from support.tls import authority, make_identity
from support.waiting import until

from lookupdb.router.access import hash_token
from lookupdb.up.run_state import RunFolder

pytestmark = pytest.mark.long

RECORDS = {f"key {number}": b'{"number": %d}' % number for number in range(500)}
TOKEN = "the-token-of-the-load-rig"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The table file of three shard servers."""
    home = tmp_path_factory.mktemp("load")
    generation = write_generation(home, RECORDS, shards=3, value_format="json")
    with fleet(generation) as shards:
        (home / "table.json").write_bytes(table_file(fleet_entry(generation, shards)))
        yield home / "table.json"


@pytest.fixture(scope="module")
def router(table: Path) -> Iterator[Router]:
    with routing(table, "--max-keys", "100") as running:
        yield running


@pytest.fixture(scope="module")
def url(router: Router) -> str:
    return f"http://127.0.0.1:{router.port}"


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    (tmp_path / "keys.txt").write_text("\n".join(RECORDS))
    return str(tmp_path / "keys.txt")


def load(*words: str, asked: bytes = b"") -> tuple[int, dict[str, Any], str]:
    """Exit code, the result, and what is said on standard error."""
    ended = run_here("load", *words, "--json", asked=asked)
    document = orjson.loads(ended.stdout) if ended.stdout else {}
    return ended.returncode, document, ended.stderr.decode()


def test_keys_of_a_generation_are_sampled_and_found(table: Path, url: str) -> None:
    words = ("--sample-from", str(table.parent / "g1"), "--rate", "200", "--duration", "2", "--warmup", "0.2")
    code, document, said = load(url, *words)
    assert code == 0, said
    jsonschema.validate(document, SCHEMA)
    requests = document["requests"]
    assert requests["scheduled"] == requests["answered"] == document["keys"]["found"] == document["latency"]["count"]
    assert requests["answered"] == pytest.approx(400, abs=100)
    assert document["keys"]["missing"] == document["keys"]["unavailable"] == 0
    assert document["plan"]["keys"] == 500
    assert document["target"] == {
        "url": url,
        "namespace": "default",
        "name": "sample",
        "records": 500,
        "generation": "g1",
        "isAskedByName": False,
    }
    assert 0 < document["latency"]["percentiles"]["50"] < 1_000_000
    assert [span["name"] for span in document["generations"]] == ["g1"]
    assert len(document["points"]) == 2


def test_batches_of_several_processes_with_keys_that_are_made_up(url: str, key_file: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    words = (
        "--keys",
        key_file,
        "--batch",
        "20",
        "--hit-ratio",
        "0.5",
        "--distribution",
        "zipf:1.1",
        "--processes",
        "2",
    )
    code, document, said = load(url, *words, "--rate", "50", "--duration", "1", "--report", str(report))
    assert code == 0, said
    keys = document["keys"]
    assert keys["asked"] == keys["found"] + keys["missing"] == document["requests"]["answered"] * 20
    assert keys["found"] / keys["asked"] == pytest.approx(0.5, abs=0.1)
    root = ElementTree.fromstring(report.read_text())
    assert {"percentiles", "latencies", "rates"} <= {element.get("id") for element in root.iter()}


def test_the_dataset_of_an_up_is_named_and_its_store_sampled(table: Path, url: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "data", "default", "sample")
    with folder.lock():
        folder.write_state({"url": url})
        words = ("--data-dir", str(tmp_path / "data"), "--rate", "50", "--duration", "0.5", "--warmup", "0")
        code, _, said = load("sample", *words)
        assert code == 5
        assert f"{tmp_path / 'data' / 'store'} has no dataset default/sample" in said
        assert "--sample-from FOLDER takes those of a generation's folder, whatever its namespace" in said
        place = tmp_path / "data" / "store" / "local" / "default" / "sample-local"
        place.mkdir(parents=True)
        (place / "g1").symlink_to(table.parent / "g1")
        code, document, said = load("sample", *words)
    assert code == 0, said
    assert document["keys"]["found"] == document["requests"]["scheduled"] > 5
    assert str(place / "g1") in document["plan"]["keySource"]


def test_people_get_a_summary_and_keys_may_come_from_standard_input(url: str) -> None:
    words = ("--keys", "-", "--rate", "100", "--duration", "0.5")
    ended = run_here("load", url, *words, asked=b"key 1\nkey 2\nnobody\n")
    assert ended.returncode == 0, ended.stderr
    assert f"default/sample at {url}, 0.5 s measured\n".encode() in ended.stdout
    assert b" found, " in ended.stdout
    assert b"generation g1: " in ended.stdout


# Exit codes


def test_a_condition_that_holds_ends_it_with_7(url: str, key_file: str) -> None:
    words = (url, "--keys", key_file, "--rate", "50", "--duration", "0.5", "--warmup", "0")
    code, document, said = load(*words, "--fail-if", "p50>1us", "--fail-if", "errors>0", "--fail-if", "p99.9<1s")
    assert code == 7
    assert [judged["holds"] for judged in document["failIf"]] == [True, False, True]
    assert "--fail-if 'p50>1us' holds: it is " in said
    assert "--fail-if 'p99.9<1s' holds: it is " in said
    assert "errors" not in said
    assert load(*words, "--fail-if", "errors>0", "--fail-if", "p99>60s")[0] == 0


DATASET = {"namespace": "default", "name": "sample", "generation": "g1", "records": 3, "candidates": []}


async def test_a_router_that_dies_closes_each_gate_on_latencies() -> None:
    answers = 0

    async def die(asked: str, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        if asked == "v1/dataset":
            writer.write(encode_answer(200, orjson.dumps(DATASET)))
            return
        answers += 1
        if answers == 1:  # it is asked once before the load
            await answer_found(asked, writer)
        else:
            writer.close()

    async with scripted_router(die) as router:
        words = ("--rate", "100", "--duration", "0.5", "--warmup", "0", "--keys", "-", "--fail-if", "p99>500ms")
        code, said = await _load_elsewhere(f"http://127.0.0.1:{router.port}", *words)
    assert code == 7, said
    assert "--fail-if 'p99>500ms' holds: there is no such latency: 0 of " in said


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--rate", "1001"], 2, "--beyond-default-bounds"),
        (["--duration", "1m", "--warmup", "1s"], 2, "61 s, the warm-up included"),
        (["--rate", "5", "--ramp", "1:5:2"], 2, "--rate and --ramp say different things"),
        (["--ramp", "1:5"], 2, "is not a ramp"),
        (["--fail-if", "p99"], 2, "is not a condition"),
        (["--distribution", "zipf"], 2, "--distribution zipf is unknown"),
        (["--header", "Authorization: Bearer x"], 2, "would show a secret"),
        (["--report", "load.pdf"], 2, "none of the endings"),
        (["--at", "13"], 2, "a generation is called g1"),
        (["--at", "g13"], 1, "does not serve g13: g1 is active"),
        (["--keys", "/nothing/here"], 2, "--keys /nothing/here cannot be read: No such file"),
        (["--batch", "101"], 1, "give a smaller --batch"),
        (["--batch", "501"], 2, "a batch has 501 keys, found only 500"),
        (["--rate", "1000000", "--beyond-default-bounds"], 1, "this machine does not keep up: for 3 s"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(url: str, key_file: str, words: list[str], code: int, told: str) -> None:
    found, document, said = load(url, "--keys", key_file, *words)
    assert (found, document) == (code, {}), said
    assert told in said
    assert "Traceback" not in said


@pytest.mark.parametrize("by_environment", [False, True], ids=["option", "environment"])
@pytest.mark.parametrize("dataset", ["people", "default/people", "other/sample"])
def test_keys_of_another_dataset_are_not_sampled(
    url: str, monkeypatch: pytest.MonkeyPatch, dataset: str, by_environment: bool
) -> None:
    if by_environment:
        monkeypatch.setenv("LOOKUPDB_DATASET", dataset)
    code, document, said = load(url, *([] if by_environment else ["--dataset", dataset]))
    assert (code, document) == (2, {}), said
    assert f"--dataset is {dataset}, and the router serves default/sample" in said
    assert "unset LOOKUPDB_DATASET" in said
    assert "--sample-from FOLDER takes those of a generation's folder, whatever its namespace" in said


def test_a_folder_of_another_namespace_is_sampled(url: str, tmp_path: Path) -> None:
    """As the hint says: a generation from elsewhere may have been built for another namespace."""
    write_generation(tmp_path, RECORDS, shards=1, value_format="json", namespace="other", name="sample")
    code, document, said = load(url, "--sample-from", str(tmp_path / "g1"), "--duration", "0.3", "--warmup", "0")
    assert code == 0, said
    assert document["keys"]["missing"] == 0


def test_a_folder_of_another_dataset_is_not_sampled(url: str, tmp_path: Path) -> None:
    write_generation(tmp_path, {"a": b"1"}, shards=1, value_format="json", name="people")
    code, document, said = load(url, "--sample-from", str(tmp_path / "g1"))
    assert (code, document) == (2, {}), said
    assert f"--sample-from {tmp_path / 'g1'} is of people, and the router serves default/sample" in said


def test_a_report_of_the_environment_may_have_a_colon_in_its_name(
    url: str, key_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "2026-11-24T10:53.html", tmp_path / "b.svg"]
    monkeypatch.setenv("LOOKUPDB_REPORT", "\n".join(map(str, files)))
    code, _, said = load(url, "--keys", key_file, "--duration", "0.3", "--warmup", "0")
    assert code == 0, said
    assert all(file.exists() for file in files)


def test_results_are_written_to_all_files_that_are_given(url: str, key_file: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json", "a.html", "b.svg")]
    words = [word for file in files for word in ("--report", str(file))]
    code, document, said = load(url, "--keys", key_file, "--duration", "0.3", "--warmup", "0", *words)
    assert code == 0, said
    assert orjson.loads(files[0].read_bytes()) == orjson.loads(files[1].read_bytes()) == document
    assert files[2].read_text().startswith("<!DOCTYPE html>")
    assert files[3].read_text().startswith("<svg")


def test_a_redis_port_is_reported(table: Path) -> None:
    with routing(table, "--resp-port", "0") as router:
        for words, code in ((["load", "--keys", "-"], 4), (["get"], 1)):
            where = f"http://127.0.0.1:{router.resp}"
            ended = run_here(words[0], where, *words[1:] or ["a"], asked=b"a\n")
            said = ended.stderr.decode()
            assert ended.returncode == code, said
            assert "this looks like a Redis port" in said
            assert "8080" in said
            assert "\n\n" not in said.strip(), "no empty line"


def test_keys_of_a_file_need_no_temporary_folder(key_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    ended = run_here("load", f"http://127.0.0.1:{free_port()}", "--keys", key_file)
    assert ended.returncode == 4
    assert b"refuses connections" in ended.stderr


def test_more_than_the_default_bound_can_be_asked_for(url: str, key_file: str) -> None:
    words = ("--rate", "1200", "--duration", "0.5", "--warmup", "0", "--beyond-default-bounds")
    code, document, said = load(url, "--keys", key_file, *words)
    assert code == 0, said
    assert document["requests"]["scheduled"] == pytest.approx(600, abs=120)


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("nothing", 4, "no `lookupdb up` serves nothing"),
        ("127.0.0.1:80", 2, "is not a dataset's name"),
        ("http://user@127.0.0.1", 2, "no user and no password"),
        ("http://127.0.0.1:{free}", 4, "refuses connections"),
        ("http://nowhere.invalid", 4, "does not resolve"),
        ("{url}/v1/lookup", 2, "ends before /v1"),
        ("https://127.0.0.1:{port}", 4, "give its URL with http"),
    ],
)
def test_a_router_that_cannot_be_asked_is_named(router: Router, url: str, target: str, code: int, told: str) -> None:
    where = target.format(url=url, port=router.port, free=free_port())
    found, document, said = load(where, "--keys", "-", asked=b"a\n")
    assert (found, document) == (code, {}), said
    assert told in said


async def _load_elsewhere(*words: str) -> tuple[int, str]:
    """Run `load` in a process of its own, while this one answers."""
    command = [sys.executable, "-m", "lookupdb", "load", *words]
    process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, stderr=-1)
    _, errors = await asyncio.wait_for(process.communicate(b"a\n"), 60)
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_what_is_no_router_is_not_loaded() -> None:
    async with scripted_router(answer_found) as other:
        code, said = await _load_elsewhere(f"http://127.0.0.1:{other.port}", "--keys", "-")
    assert code == 1
    assert "answered 200 Whatever, not as a router does" in said
    assert len(other.asked) == 1


async def test_a_redirect_is_not_followed() -> None:
    async def redirect(_: str, writer: Any) -> None:
        writer.write(encode_answer(302, b"", "", "Location: http://127.0.0.1:1/"))

    async with scripted_router(redirect) as other:
        code, said = await _load_elsewhere(f"http://127.0.0.1:{other.port}", "--keys", "-")
    assert code == 1
    assert "a redirect, which a router never does" in said


async def test_a_generation_that_is_not_whole_is_refused_with_the_option_to_leave_out() -> None:
    """While shards change one by one /v1/dataset names it, and lookups are 412."""
    facts = {"namespace": "a", "name": "b", "generation": "g1", "records": 1, "candidates": []}
    problem = {"title": "Not served", "detail": "no generation is whole; leave Lookupdb-Generation out to ask them"}

    async def answer(asked: str, writer: Any) -> None:
        writer.write(encode_answer(412, orjson.dumps(problem)) if asked else encode_answer(200, orjson.dumps(facts)))

    async with scripted_router(answer) as other:
        code, said = await _load_elsewhere(f"http://127.0.0.1:{other.port}", "--keys", "-", "--at", "g1")
    assert code == 1, said
    assert "error: the router answered 412: Not served: no generation is whole\n" in said
    assert "without --at" in said


# Access


def test_tokens_and_certificates(table: Path, tmp_path: Path, key_file: str) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "web").write_text(hash_token(TOKEN.encode()))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_bytes(authority().certificate_pem)
    certificate, key = make_identity("localhost", by=authority()).write(tmp_path / "tls")
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--auth-tokens", str(tmp_path / "tokens"))
    with routing(table, *options) as encrypted:
        words = (f"https://localhost:{encrypted.port}", "--keys", key_file, "--rate", "100", "--duration", "0.5")
        code, _, said = load(*words)
        assert code == 4
        assert "is not trusted" in said
        assert "--ca-file" in said
        code, _, said = load(*words, "--ca-file", str(tmp_path / "ca.crt"))
        assert code == 1
        assert "the router answered 401" in said
        assert "--token-file" in said
        trusted = ("--ca-file", str(tmp_path / "ca.crt"), "--token-file", str(tmp_path / "token"))
        code, document, said = load(*words, *trusted)
        assert code == 0, said
        assert document["requests"]["answered"] == document["requests"]["scheduled"] > 20
        assert TOKEN not in orjson.dumps(document).decode()


def test_a_router_that_wants_a_certificate_of_its_clients_is_reported(table: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(authority().certificate_pem)
    with routing_encrypted(table, tmp_path, "--tls-client-ca", str(tmp_path / "ca.crt")) as url:
        code, _, said = load(url, "--keys", "-", "--ca-file", str(tmp_path / "ca.crt"), asked=b"a\n")
    assert code == 4
    assert "wants its clients to have a certificate\n" in said
    assert "this command has no client certificate" in said
    assert "lookupdb get" not in said


def test_a_certificate_that_is_not_valid_yet_may_be_the_clocks_fault(table: Path, tmp_path: Path) -> None:
    import datetime

    (tmp_path / "ca.crt").write_bytes(authority().certificate_pem)
    later = make_identity("localhost", by=authority(), begins_in=datetime.timedelta(days=1))
    certificate, key = later.write(tmp_path / "tls")
    with routing(table, "--tls-cert", str(certificate), "--tls-key", str(key)) as encrypted:
        where = f"https://localhost:{encrypted.port}"
        code, _, said = load(where, "--keys", "-", "--ca-file", str(tmp_path / "ca.crt"), asked=b"a\n")
    assert code == 4
    assert "or correct the clock of this machine" in said


# How it ends


def _start(url: str, key_file: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lookupdb", "load", url, "--keys", key_file, "--duration", "50", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_result_so_far(
    url: str, key_file: str, tmp_path: Path, router: Router, number: signal.Signals
) -> None:
    result = tmp_path / "result.json"
    process = _start(url, key_file, "--rate", "100", "--warmup", "0", "--report", str(result), "--processes", "2")
    until(lambda: len(children(process.pid)) == 2, "senders")
    senders = children(process.pid)
    assert process.stderr is not None
    assert "answered of" in process.stderr.readline(), "a line every few seconds"
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "it was interrupted" in out
    document = orjson.loads(result.read_bytes())
    assert document["isInterrupted"] is True
    assert 3 < document["seconds"] < 45
    assert 0 < document["rate"]["answered"] < 140, "of the seconds that it took; a busy machine sends less"
    until(lambda: not any(map(is_running, senders)), "no sender is left")


def test_files_are_written_though_nobody_reads_what_is_printed(url: str, key_file: str, tmp_path: Path) -> None:
    files = [tmp_path / "result.json", tmp_path / "report.svg"]
    words = ["--rate", "20", "--warmup", "0", "--duration", "1", "--report", str(files[0]), "--report", str(files[1])]
    with _start(url, key_file, *words) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)
    assert orjson.loads(files[0].read_bytes())["isInterrupted"] is False
    assert files[1].read_text()


def test_a_file_that_cannot_be_written_does_not_lose_the_others(url: str, key_file: str, tmp_path: Path) -> None:
    files = [tmp_path / "full.json", tmp_path / "result.json", tmp_path / "report.svg"]
    files[0].symlink_to("/dev/full")  # a disk that has no room
    words = ["--rate", "20", "--warmup", "0", "--duration", "1"]
    words += [word for file in files for word in ("--report", str(file))]
    with _start(url, key_file, *words) as process:
        _, message = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "full.json cannot be written: No space left on device" in message
    assert all(file.stat().st_size for file in files[1:])


def test_a_signal_ends_it_while_it_waits_for_keys(url: str) -> None:
    command = [sys.executable, "-m", "lookupdb", "load", url, "--keys", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("a\n")
        process.stdin.flush()
        handled = f"/proc/{process.pid}/status"
        until(lambda: int(_read_member(handled, "SigCgt"), 16) >> (signal.SIGTERM - 1) & 1, "it handles signals")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in said) == (143, False), said


def _read_member(path: str, name: str) -> str:
    return next(line.split()[1] for line in Path(path).read_text().splitlines() if line.startswith(name))


def test_senders_end_with_the_program_that_has_started_them(url: str, key_file: str) -> None:
    process = _start(url, key_file, "--rate", "50")
    until(lambda: len(children(process.pid)) == 1, "a sender")
    (sender,) = children(process.pid)
    process.kill()
    process.communicate()
    until(lambda: not is_running(sender), "the sender is gone", 20)


@pytest.mark.parametrize("seconds", [0, 0.1, 2], ids="after {} s".format)
def test_a_sender_that_is_killed_is_reported(url: str, key_file: str, seconds: float) -> None:
    """Even before it has read its plan."""
    process = _start(url, key_file, "--rate", "50", "--warmup", "0")
    until(lambda: len(children(process.pid)) == 1, "a sender")
    time.sleep(seconds)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "a sender ended with exit code" in said
    assert "Traceback" not in said
