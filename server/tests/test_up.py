"""`lookupdb up`: one command from a manifest to routed lookups, and what it does when things go wrong."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest
import redis
from support.command_line import run_here
from support.ports import free_port
from support.process_table import is_running
from support.up_stack import (
    DEADLINE_SECONDS,
    MANIFEST,
    Stack,
    build_people,
    eventually,
    people,
    write_dataset,
    write_people,
)
from support.web import web_file

import lookupdb
from lookupdb.errors import LookupFailed, Unavailable
from lookupdb.up import client
from lookupdb.up.run_state import state_file

pytestmark = pytest.mark.long

__all__ = ["people"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A `lookupdb up` on two people that every test leaves as it found it, or as good."""
    directory = tmp_path_factory.mktemp("running")
    write_dataset(directory)
    stack = Stack(directory, "--port", str(free_port()))
    assert len(stack.find("ada@example.com", "alan@example.com")) == 2
    yield stack
    assert stack.stop() == 0


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with ``--watch``, in an environment with a proxy that does not answer."""
    directory = tmp_path_factory.mktemp("watching")
    write_dataset(directory)
    patient = MANIFEST.replace("deadlineMilliseconds: 500", "deadlineMilliseconds: 2000")  # no answer may fail
    (directory / "people.yaml").write_text(patient)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY"):
            patch.setenv(name, f"http://127.0.0.1:{free_port()}")
        stack = Stack(directory, "--watch", "--watch-seconds", "0.1")
    yield stack
    assert stack.stop() == 0


def test_one_command_leads_from_a_manifest_to_lookups_and_ctrl_c_stops_it_all(people: Callable[..., Stack]) -> None:
    stack = people()
    assert stack.find(" Ada@Example.com", "nobody@example.com") == {" Ada@Example.com": {"title": "Countess"}}
    stack.says("curl http://127.0.0.1:")
    port = int(stack.state["redis"].rpartition(":")[2])
    stack.says(f"redis-cli -p {port} GET ")
    with redis.Redis(port=port, socket_timeout=60) as redis_client:
        assert redis_client.get(" Ada@Example.com") == b'{"title":"Countess"}'
        assert redis_client.mget("ada@example.com", "nobody@example.com") == [b'{"title":"Countess"}', None]
    stack.says("# in Python")
    (place,) = re.findall(r"lookupdb\.open\('(.+)'\)", stack.output)
    with lookupdb.open(place) as mapping:
        assert mapping["ada@example.com"] == {"title": "Countess"}
    pids = stack.pids
    assert all(is_running(pid) for pid in pids)
    assert stack.stop(signal.SIGINT) == 0
    eventually(lambda: not any(is_running(pid) for pid in pids), "all processes to be gone")
    assert not state_file(stack.data, "default", "people").exists()


def test_generations_of_one_name_have_tags_by_their_files(people: Callable[..., Stack]) -> None:
    """All datasets on laptops have the same uid, and two may be built within one second."""
    stack = people()
    assert stack.find("ada@example.com")
    (manifest,) = (orjson.loads(path.read_bytes()) for path in stack.data.rglob("manifest.json"))
    files = "".join(shard["sha256"] for shard in manifest["shards"])
    table = orjson.loads(
        (stack.data / "run" / "default.people" / "people-router-0" / "table" / "routing-table.json").read_bytes()
    )
    assert table["generations"][0]["content"] == hashlib.sha256(files.encode()).hexdigest()
    with urllib.request.urlopen(f"{stack.state['url']}/v1/lookup/ada@example.com", timeout=60) as response:
        assert re.fullmatch('"g1-[0-9a-f]{16}"', response.headers["ETag"])


def test_a_whole_generation_of_an_unchanged_source_is_reused(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    stack = people()
    assert stack.find("ada@example.com")
    assert stack.generations() == ["g1"]


def test_a_changed_source_is_built_at_the_next_start(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    write_people(tmp_path, ada="Enchantress")
    stack = people()
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Enchantress"}}
    assert stack.generations() == ["g1", "g2"]


def test_a_source_whose_changes_cannot_be_seen_is_read_at_every_start_and_not_watched(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    with web_file(b"email,title\nada@example.com,Countess\n") as file:
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("people.csv", f"{file.url}/people.csv"))
        stack = people("--watch", "--watch-seconds", "0.05")
        assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
        stack.says("its source's changes are not watched")
        assert stack.stop() == 0
        file.content = file.content.replace(b"Countess", b"Duchess ")
        stack = people()
        assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess "}}
        assert stack.generations() == ["g1", "g2"]


def test_watch_cuts_over_while_serving_without_a_failed_or_mixed_answer(watching: Stack) -> None:
    write_people(watching.directory, ada="Countess", alan="Reader")
    url, keys = watching.state["url"], ["ada@example.com", "alan@example.com"]
    eventually(lambda: watching.find(*keys) == {keys[0]: {"title": "Countess"}, keys[1]: {"title": "Reader"}}, "them")
    before = watching.newest()
    answers: set[tuple[str, ...]] = set()
    failures: list[LookupFailed] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                answer = client.find_values(url, keys)
                assert not answer.unavailable
                answers.add(tuple(answer.found[key]["title"] for key in keys))
            except LookupFailed as error:
                failures.append(error)
            stop.wait(0.005)  # processors are for what is asked

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for round_ in (2, 3):
            write_people(watching.directory, ada=f"Countess {round_}", alan=f"Reader {round_}")
            watching.says(f"cut over to g{before + round_ - 1}")
            eventually(partial(answers.__contains__, (f"Countess {round_}", f"Reader {round_}")), "the new values")
    finally:
        stop.set()
        asker.join()
    assert failures == []
    assert answers <= {("Countess", "Reader"), ("Countess 2", "Reader 2"), ("Countess 3", "Reader 3")}
    two = [f"g{before + 1}", f"g{before + 2}"]
    eventually(lambda: watching.generations() == two, "keepGenerations: 2, once the last one is drained")


def test_an_older_generation_that_cannot_be_removed_does_not_undo_a_cutover(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    manifest = stack.directory / "people.yaml"
    manifest.write_text(MANIFEST.replace("keepGenerations: 2", "keepGenerations: 1"))
    assert len(stack.state["shards"]) == 1
    (g1,) = stack.data.rglob("g1")
    g1.rename(stack.directory / "elsewhere")
    g1.symlink_to(stack.directory / "elsewhere")  # a folder that no store would remove
    manifest.write_text(MANIFEST.replace("keepGenerations: 2", "keepGenerations: 1\n  replicas: 2"))
    write_people(stack.directory, ada="Duchess")
    stack.says("older generations are not removed: cannot remove")
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    assert len(stack.state["shards"]) == 2
    manifest.write_text(MANIFEST.replace("keepGenerations: 2", "keepGenerations: 1"))
    eventually(lambda: len(stack.state["shards"]) == 1, "the one replica that the manifest asks for again")


def test_a_bad_source_leaves_the_last_good_generation_serving(watching: Stack) -> None:
    served, good = watching.find("ada@example.com"), watching.generations()
    newest = watching.newest()
    (watching.directory / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
    watching.says(f"g{newest} keeps serving")
    assert watching.find("ada@example.com") == served
    assert watching.generations() == good
    write_people(watching.directory, ada="Mended")
    mended = {"ada@example.com": {"title": "Mended"}}
    eventually(lambda: watching.find("ada@example.com") == mended, "what is mended")


def test_a_pin_goes_back_to_an_earlier_generation_until_the_source_changes(watching: Stack) -> None:
    manifest = watching.directory / "people.yaml"
    assert watching.find("ada@example.com")
    unpinned, newest = manifest.read_text(), watching.newest()
    write_people(watching.directory, ada="Pinned")
    watching.says(f"cut over to g{newest + 1}")
    before = len(watching.output)
    manifest.write_text(f"{unpinned}  generation: g{newest}\n")
    eventually(lambda: f"cut over to g{newest}\n" in watching.output[before:], "the pinned generation")
    assert watching.find("ada@example.com") != {"ada@example.com": {"title": "Pinned"}}
    before = len(watching.output)
    manifest.write_text(unpinned)
    eventually(lambda: "of a source that was rolled back from: it waits" in watching.output[before:], "that it waits")
    write_people(watching.directory, ada="Countess", alan="Reader")
    eventually(lambda: f"cut over to g{newest + 2}" in watching.output[before:], "what the source holds now")


def test_a_source_that_comes_and_goes_is_told_of_each_time(watching: Stack) -> None:
    assert watching.find("ada@example.com")
    source, built = watching.directory / "people.csv", watching.generations()
    before = watching.output

    def said(text: str, times: int) -> None:
        eventually(lambda: watching.output.count(text) - before.count(text) == times, f"{text!r} {times} times")

    for turn in (1, 2):
        source.rename(away := watching.directory / "away.csv")
        said("there is no such file", turn)
        away.rename(source)
        said("can be read again", turn)
    assert watching.generations() == built, "it is the file that the newest was built from"


@pytest.mark.parametrize("name", ["people.csv", "people.yaml"])
def test_what_vanishes_or_breaks_is_told_with_what_keeps_serving(watching: Stack, name: str) -> None:
    assert watching.find("ada@example.com")
    file, away = watching.directory / name, watching.directory / "away"
    told = re.compile(rf"not rebuilt: .*; g{watching.newest()} keeps serving$", re.MULTILINE)
    before = len(watching.output)
    file.rename(away)
    eventually(lambda: told.search(watching.output[before:]), f"{name} to be missed")
    if name == "people.yaml":
        before = len(watching.output)
        file.write_text("spec: [")
        eventually(lambda: told.search(watching.output[before:]), f"{name} to be no YAML")
    before = len(watching.output)
    away.replace(file)
    eventually(lambda: "can be read again" in watching.output[before:], f"{name} to be back")


def test_a_start_with_a_bad_source_serves_the_last_good_generation(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    build_people(tmp_path)
    (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
    stack = people()
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    stack.says("a quote is opened and never closed; ")


def test_with_nothing_to_serve_a_bad_source_ends_it_with_the_builders_exit_code(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    build_people(tmp_path)
    for manifest in (tmp_path / "data").rglob("manifest.json"):
        manifest.unlink()
    (tmp_path / "people.csv").unlink()
    stack = people()
    assert stack.process.wait(DEADLINE_SECONDS) == 3
    assert "people.csv" in stack.output
    assert stack.output.count("error: ") == 1, "the builder's own error is enough"


def wait_for_success_file(directory: Path) -> Path:
    """The file that the manifest in ``directory`` names from now on."""
    (directory / "people.yaml").write_text(f"{MANIFEST}  refresh: {{successFile: _SUCCESS, schedule: 0 2 * * *}}\n")
    return directory / "_SUCCESS"


def test_a_source_that_is_not_whole_is_not_read_before_its_success_file_is_written(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    success = wait_for_success_file(tmp_path)
    success.touch()
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.find("ada@example.com")
    (tmp_path / "people.csv").write_text("half a ro")
    success.unlink()
    stack.says("waiting for the success file _SUCCESS")
    write_people(tmp_path, ada="Queen")
    success.touch()
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Queen"}}
    write_people(tmp_path, ada="King")
    time.sleep(0.5)  # some checks of a source that is written to while its success file is as it was
    assert stack.generations() == ["g1", "g2"]


def test_a_start_without_the_success_file_serves_what_is_there(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    wait_for_success_file(tmp_path)
    (tmp_path / "people.csv").write_text("half a ro")
    stack = people()
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    stack.says("waiting for the success file _SUCCESS")
    stack.says("the present generation serves")


def test_a_start_without_the_success_file_and_nothing_to_serve_says_so(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    wait_for_success_file(tmp_path)
    stack = people()
    assert stack.process.wait(DEADLINE_SECONDS) == 3
    assert stack.output.count("waiting for the success file _SUCCESS") == 1


def test_a_killed_shard_server_is_started_again_and_its_keys_are_never_called_missing(running: Stack) -> None:
    keys = ["ada@example.com", "alan@example.com"]
    servers = running.state["shards"]

    def answered() -> bool:
        try:
            found = running.ask(*keys)
        except Unavailable:
            return False
        assert set(found) == set(keys), "a key on a server that is away is unavailable, not missing"
        return True

    def lost() -> bool:
        """Asked right behind the kill. On a busy machine another server may be there first: then that one is killed."""
        for server in running.state["shards"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server["pid"], signal.SIGKILL)
        return not answered()

    eventually(lost, "the loss to show")
    eventually(answered, "the shards to be back")
    eventually(lambda: running.state["shards"] != servers, "up.json to tell where they are now")


def test_a_killed_router_is_started_again_on_its_port(running: Stack) -> None:
    killed = running.state["router"]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: running.state["router"] != killed, "another router; workers of this one answer a moment more")

    def answered() -> bool:
        try:
            return bool(running.ask("ada@example.com"))
        except Unavailable:
            return False

    eventually(answered, "the router to be back")


def test_no_process_outlives_a_killed_up(people: Callable[..., Stack]) -> None:
    stack = people()
    pids = stack.pids
    stack.process.kill()
    eventually(lambda: not any(is_running(pid) for pid in pids), "all processes to be gone")


@pytest.mark.parametrize(("option", "member"), [("--port", "url"), ("--resp-port", "redis")])
def test_a_port_that_another_router_has_is_refused(running: Stack, option: str, member: str) -> None:
    port = running.state[member].rpartition(":")[2]
    other = subprocess.run(
        [sys.executable, "-m", "lookupdb", "up", "-f", str(running.directory / "people.yaml")]
        + ["--data-dir", str(running.directory / "other"), "--port", "0", option, port],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert not (running.directory / "other" / "store").exists(), "noticed before the build"
    assert other.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in other.stderr
    assert f"give another {option} (0 takes a free port)" in other.stderr


def test_two_of_the_same_dataset_and_directory_are_refused(running: Stack) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "lookupdb", "up", "-f", str(running.directory / "people.yaml")]
        + ["--data-dir", str(running.data), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert second.returncode == 2
    where = f"process {running.process.pid}, at {running.state['url']}"
    assert (
        f"another `lookupdb up` serves default/people from {running.data}/run/default.people: {where}" in second.stderr
    )


def test_get_prints_the_value_as_it_is_and_several_as_lines(running: Stack) -> None:
    def get(*words: str | bytes, asked: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return run_here("get", "--data-dir", str(running.data), *words, asked=asked)

    command = [sys.executable, "-m", "lookupdb", "get", "--data-dir", str(running.data), "people", "ADA@example.com"]
    assert subprocess.check_output(command, timeout=DEADLINE_SECONDS) == b'{"title":"Countess"}\n'
    one = get("people", "ADA@example.com")
    assert (one.returncode, one.stdout) == (0, b'{"title":"Countess"}\n')
    missing = get("people", "nobody@example.com")
    assert (missing.returncode, missing.stdout) == (3, b"")
    assert b"'nobody@example.com' is not in people" in missing.stderr
    several = get(running.state["url"], "-", asked=b"ada@example.com\nnobody@example.com\n")
    assert several.returncode == 3
    assert [orjson.loads(line)["value"] for line in several.stdout.splitlines()] == [{"title": "Countess"}, None]
    stranger = get(running.state["admin"], "ada@example.com")
    assert (stranger.returncode, b"not as a router does" in stranger.stderr) == (1, True)
    garbled = get("people", b"\xff")
    assert (garbled.returncode, b"is not UTF-8" in garbled.stderr) == (2, True)
    unknown = get("elsewhere", "x")
    assert (unknown.returncode, b"no `lookupdb up` serves elsewhere" in unknown.stderr) == (4, True)
