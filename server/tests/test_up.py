"""`lookupdb up` from a manifest to routed lookups. These tests share one `up`, or one that watches its files."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import redis
from support.command_line import run_here
from support.ports import free_port
from support.up_stack import (
    DEADLINE_SECONDS,
    LOOKUPDB,
    MANIFEST,
    WATCH,
    Stack,
    eventually,
    swap,
    write_dataset,
    write_people,
)

import lookupdb
from lookupdb.up.run_state import state_file

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An `up` that serves two people before and after each test, in a folder with modules that it must not import."""
    directory = tmp_path_factory.mktemp("running")
    write_dataset(directory)
    for name in ("http", "queue", "socket"):
        (directory / f"{name}.py").write_text("raise SystemExit('imported')")
    stack = Stack(directory)
    stack.says("Ctrl-C stops everything")
    yield stack
    assert stack.stop() == 0
    assert not state_file(stack.data, "default", "people").exists()


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An `up` with ``--watch``, in an environment with a proxy that does not answer."""
    directory = tmp_path_factory.mktemp("watching")
    write_dataset(directory)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY"):
            patch.setenv(name, f"http://127.0.0.1:{free_port()}")
        stack = Stack(directory, *WATCH)
    assert stack.title()
    yield stack
    assert stack.stop() == 0


def test_one_command_leads_from_a_manifest_to_lookups(running: Stack) -> None:
    assert running.find(" Ada@Example.com", "nobody@example.com") == {" Ada@Example.com": {"title": "Countess"}}
    port = int(running.state["redis"].rpartition(":")[2])
    assert f"curl {running.state['url']}/v1/lookup/" in running.output
    assert f"redis-cli -p {port} GET " in running.output
    with redis.Redis(port=port, socket_timeout=60) as redis_client:
        assert redis_client.get(" Ada@Example.com") == b'{"title":"Countess"}'
        assert redis_client.mget("ada@example.com", "nobody@example.com") == [b'{"title":"Countess"}', None]
    (place,) = re.findall(r"lookupdb\.open\('(.+)'\)  # in Python", running.output)
    with lookupdb.open(place) as mapping:
        assert mapping["ada@example.com"] == {"title": "Countess"}


def test_generations_of_one_name_have_tags_by_their_files(running: Stack) -> None:
    """All datasets on laptops have the same uid, and two may be built within one second."""
    (manifest,) = (orjson.loads(path.read_bytes()) for path in running.data.rglob("manifest.json"))
    files = "".join(shard["sha256"] for shard in manifest["shards"])
    (table,) = (orjson.loads(path.read_bytes()) for path in running.data.rglob("table/routing-table.json"))
    assert table["generations"][0]["content"] == hashlib.sha256(files.encode()).hexdigest()
    with urllib.request.urlopen(f"{running.state['url']}/v1/lookup/ada@example.com", timeout=60) as response:
        assert re.fullmatch('"g1-[0-9a-f]{16}"', response.headers["ETag"])


def test_get_asks_the_up_of_a_folder_or_a_url(running: Stack) -> None:
    line = next(line for line in running.output.splitlines() if " get " in line)
    _, *words, key = shlex.split(line)
    assert [*words, key] == ["get", "--data-dir", str(running.data), "people", "KEY"]
    one = [LOOKUPDB, *words, "ADA@example.com"]
    assert subprocess.check_output(one, timeout=DEADLINE_SECONDS) == b'{"title":"Countess"}\n'
    missing = run_here(*words, key)
    assert (missing.returncode, missing.stdout, b"'KEY' is not in people" in missing.stderr) == (3, b"", True)
    several = run_here("get", running.state["url"], "-", asked=b"ada@example.com\nnobody@example.com\n")
    assert several.returncode == 3
    assert [orjson.loads(line)["value"] for line in several.stdout.splitlines()] == [{"title": "Countess"}, None]
    stranger = run_here("get", running.state["admin"], "ada@example.com")
    assert (stranger.returncode, b"not as a router does" in stranger.stderr) == (1, True)
    garbled = run_here(*words, b"\xff")
    assert (garbled.returncode, b"is not UTF-8" in garbled.stderr) == (2, True)


def test_ports_and_the_folder_of_another_up_are_refused_before_the_build(running: Stack, tmp_path: Path) -> None:
    holder = f"process {running.process.pid}, at {running.state['url']}"
    refusals = {("--data-dir", str(running.data)): f"default/people from {running.data}/run/default.people: {holder}"}
    for option, variable, member in (
        ("--port", "LOOKUPDB_PORT", "url"),
        ("--resp-port", "LOOKUPDB_RESP_PORT", "redis"),
    ):
        port = running.state[member].rpartition(":")[2]
        taken = f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        refusals[option, port] = f"{taken}\n  give another {option}, or set {variable} (0 takes a free port)"
    for words, refusal in refusals.items():
        manifest = str(running.directory / "people.yaml")
        ended = run_here("up", "-f", manifest, "--data-dir", str(tmp_path), "--port", "0", *words)
        assert ended.returncode == 2
        assert refusal in ended.stderr.decode()
    assert not (tmp_path / "store").exists()
    assert running.find("ada@example.com"), "it is not disturbed"


def test_a_pin_goes_back_to_an_earlier_generation_until_the_source_changes(watching: Stack) -> None:
    def apply(manifest: str, outcome: str) -> None:
        before = len(watching.output)
        swap(watching.directory / "people.yaml", manifest)
        watching.says(outcome, after=before)

    newest = watching.newest()
    write_people(watching.directory, ada="Pinned")
    watching.says(f"cut over to g{newest + 1}$")
    apply(f"{MANIFEST}  generation: g{newest}\n", f"cut over to g{newest}$")
    assert watching.title() != "Pinned"
    apply(MANIFEST, "but its data were rolled back: it waits")
    write_people(watching.directory, ada="Duchess", alan="Reader")
    watching.says(f"cut over to g{newest + 2}$")
    write_people(watching.directory, ada="Countess", alan="Reader")
    watching.says(f"cut over to g{newest + 3}$")
    kept = [f"g{newest + 2}", f"g{newest + 3}"]
    eventually(lambda: watching.generations() == kept, "keepGenerations: 2, once the one that served before is drained")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("people.csv", None, "there is no such file"),
        ("people.yaml", None, ""),
        ("people.yaml", "spec: [", "is not YAML"),
        ("people.yaml", f"{MANIFEST}  on: true\n", "spec.True is not a field"),
        ("people.yaml", MANIFEST.replace("maxShrinkPercent: 100", f"minRecords: {10**20}"), "64-bit"),
        ("people.yaml", MANIFEST.replace("shards: 1", "shards: 65"), "people needs 65 shard servers"),
    ],
    ids=["no source", "no manifest", "no YAML", "no JSON", "no number of JSON", "too many servers"],
)
def test_a_problem_is_reported_each_time_and_the_last_good_generation_serves(
    watching: Stack, name: str, text: str | None, problem: str
) -> None:
    title, generations = watching.title(), watching.generations()
    file, away = watching.directory / name, watching.directory / "away"
    for _ in range(2):
        before = len(watching.output)
        file.rename(away)
        if text is not None:
            file.write_text(text)
        watching.says(f"not rebuilt: .*{problem}.*; {generations[-1]} keeps serving$", after=before)
        assert watching.title() == title
        eventually(lambda: re.search(problem, watching.state["problem"]), "its mention in the status")
        before = len(watching.output)
        away.replace(file)
        watching.says("it can be rebuilt again", after=before)
    assert watching.generations() == generations, "nothing has changed"
