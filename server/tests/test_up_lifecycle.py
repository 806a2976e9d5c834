"""How `lookupdb up` starts, and that it is the operator's loop: gates, promotion, PerShard, schedules, success files
and pushes work as in a cluster. Damaged or lost files are made again."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from support.command_line import run_here
from support.up_stack import (
    DEADLINE_SECONDS,
    MANIFEST,
    WATCH,
    Stack,
    Start,
    build_people,
    eventually,
    people,
    run_lookupdb,
    swap,
    write_dataset,
    write_people,
)
from support.web import web_file

from lookupdb.cli import cli
from lookupdb.dataset.spec import read_manifest
from lookupdb.manifest import FILE_NAME
from lookupdb.up.run_state import RunFolder, object_file, read_resource
from lookupdb_operator import names
from lookupdb_operator.cluster.api import MERGE_PATCH
from lookupdb_operator.local.api import FolderApi
from lookupdb_operator.local.kubelet import find_free_port

pytestmark = pytest.mark.long

__all__ = ["people"]

STRICT = MANIFEST.replace("maxShrinkPercent: 100", "maxShrinkPercent: 20")
CLUSTER_FIELDS = f"{MANIFEST}  store: {{url: 's3://team/lookups'}}\n".replace(
    "router: {", "router: {auth: {tokens: {secretName: clients}}, "
).replace("name: people", "name: people, uid: 3f2b9c1e-77aa", 1)
AWAITING = f"{MANIFEST}  refresh: {{successFile: _SUCCESS, schedule: 0 2 * * *}}\n"
PUSHED = MANIFEST.replace("{url: people.csv}", "{pushed: true}")
TWO = ("-f", "people.yaml", "-f", "others.yaml")
TOO_MANY = "people needs 1,000 shard servers .* 2,000 processes with about 41.0 GiB of memory,.* lower spec.shards .*"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-f", "wide.yaml"], f"{TOO_MANY} --max-servers 1000"),
        (["-f", "people.yaml", "--port", "7000", "--resp-port", "7000"], "--port and --resp-port are both 7000"),
        (["-f", "people.yaml", "--kubeconfig", "people.csv"], "--kubeconfig people.csv exists"),
        ([*TWO, "--resp-port", "0"], "--resp-port serves one dataset"),
        ([*TWO, "--override-gates", "g2"], "--override-gates is for one dataset"),
        ([*TWO, "--max-servers", "1"], "people, others need 2 shard servers"),
        ([*TWO, "-f", "again.yaml"], "people.yaml and again.yaml both describe a dataset people"),
    ],
    ids=["servers", "ports", "kubeconfig", "Redis port of two", "gates of two", "servers of two", "twice"],
)
def test_a_refused_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path)
    (tmp_path / "again.yaml").write_text(MANIFEST)
    (tmp_path / "others.yaml").write_text(MANIFEST.replace("name: people", "name: others"))
    (tmp_path / "wide.yaml").write_text(MANIFEST.replace("shards: 1", "shards: 1000"))
    ended = run_here("up", "--port", "0", *words)
    assert ended.returncode == 2
    assert re.search(reason, ended.stderr.decode(), re.DOTALL)
    assert run_here("ls", "--json").stdout == b"[]\n"
    assert list(tmp_path.rglob("manifest.json")) == []


@pytest.mark.parametrize(
    ("manifest", "source", "title", "said"),
    [
        (MANIFEST, "email,title\nada@example.com,Enchantress\n", "Enchantress", ""),
        (MANIFEST, 'email,title\nada@example.com,"never closed\n', "Countess", "a quote is opened and never closed$"),
        (AWAITING, "half a ro", "Countess", "waiting for the success file _SUCCESS"),
    ],
    ids=["changed", "bad", "not whole"],
)
def test_a_start_builds_a_changed_source_and_else_serves_the_last_good_generation(
    people: Start, tmp_path: Path, manifest: str, source: str, title: str, said: str
) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(manifest)
    (tmp_path / "people.csv").write_text(source)
    stack = people()
    stack.says(said)
    assert stack.title() == title
    assert stack.generations() == (["g1"] if said else ["g1", "g2"])


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (MANIFEST, "error: "),
        (AWAITING, "waiting for the success file _SUCCESS"),
        (PUSHED, "waiting for the first push to "),
    ],
    ids=["no source", "no success file", "no push"],
)
def test_with_nothing_to_serve_it_ends_with_the_builders_exit_code_and_says_why_once(
    people: Start, tmp_path: Path, manifest: str, said: str
) -> None:
    if manifest == MANIFEST:
        build_people(tmp_path)
        for path in (tmp_path / "its data").rglob("manifest.json"):
            path.unlink()
        (tmp_path / "people.csv").unlink()
    (tmp_path / "people.yaml").write_text(manifest)
    stack = people()
    assert stack.process.wait(DEADLINE_SECONDS) == 3
    assert stack.output.count(said) == 1
    assert " The next " not in stack.output
    todo = "correct what failed, then" if manifest == MANIFEST else f"make {said.removeprefix('waiting for ')}"
    assert f"so `up` ends; {todo}" in stack.output


def test_a_start_after_a_failed_first_build_serves_the_corrected_source(people: Start, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("email,title\nada@example.com,Countess\nada@example.com,Enchantress\n")
    failed = people()
    assert failed.process.wait(DEADLINE_SECONDS) == 3
    assert "the key 'ada@example.com' occurs twice" in failed.output
    assert "start it again" in failed.output
    assert "next attempt" not in failed.output
    write_people(tmp_path, ada="Countess")
    assert people().title() == "Countess"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_while_servers_start_a_few_at_a_time(
    people: Start, tmp_path: Path, number: signal.Signals
) -> None:
    def count_begun() -> int:
        return len(list(tmp_path.glob("its data/run/default.people/people-r1-s*-0.log")))

    (tmp_path / "people.yaml").write_text(MANIFEST.replace("shards: 1", "shards: 60"))
    stack = people()
    eventually(count_begun, "the first servers to start")
    signalled = time.monotonic()
    assert stack.stop(number) == 0
    assert time.monotonic() - signalled < 30
    assert count_begun() <= 40, "not all were begun first"
    assert stack.output.endswith("stopped\n")
    running = ["grep", "-slF", str(tmp_path), *map(str, Path("/proc").glob("[0-9]*/cmdline"))]
    assert subprocess.run(running, capture_output=True, check=False).stdout == b""


def test_the_next_port_that_is_free_replaces_the_default_of_redis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = find_free_port(port)
        assert found != port
        assert find_free_port(port, besides=found) not in (port, found)
        with socket.create_server(("127.0.0.1", found)):
            assert find_free_port(port) not in (port, found)


def test_two_that_start_at_once_have_different_redis_ports(tmp_path: Path) -> None:
    stacks = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_dataset(tmp_path / name)
        stacks.append(Stack(tmp_path / name, "-f", str(tmp_path / name / "people.yaml")))  # without --resp-port
    ports = {stack.state["redis"] for stack in stacks}
    assert [stack.stop() for stack in stacks] == [0, 0]
    assert len(ports) == 2


@pytest.mark.parametrize("stderr", ["errors", "/dev/full"])
def test_it_builds_and_cuts_over_though_the_disk_behind_its_output_is_full(
    people: Start, tmp_path: Path, stderr: str
) -> None:
    stack = people(*WATCH, stdout="/dev/full", stderr=stderr)
    assert stack.title() == "Countess"
    write_people(tmp_path, ada="Duchess")
    eventually(lambda: stack.title() == "Duchess", "the second generation")
    assert stack.stop() == 0
    assert stderr == "/dev/full" or "error" not in (tmp_path / stderr).read_text()


def test_a_builder_that_is_killed_at_the_start_is_reported_by_its_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path)
    (tmp_path / "program").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli, ["up", "-f", "people.yaml", "--port", "0"], catch_exceptions=False)
    assert "killed by SIGKILL, perhaps because it ran out of memory" in ended.output
    assert ended.exit_code == 137


def test_a_build_without_room_for_its_log_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_room(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_dataset(tmp_path)
    monkeypatch.setattr("lookupdb_operator.local.kubelet.renew_build_log", find_no_room)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli, ["up", "-f", "people.yaml", "--port", "0"], catch_exceptions=False)
    told = "the build cannot be started in .lookupdb/run/default.people: No space left on device; make room there"
    assert told in ended.output
    assert "its log" not in ended.output


def test_files_of_a_source_are_beside_what_a_link_to_the_manifest_names(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.yaml").symlink_to(tmp_path / "people.yaml")
    assert read_manifest(tmp_path / "elsewhere" / "linked.yaml").base == tmp_path.resolve()


def override_in_the_store(stack: Stack) -> None:
    words = ("-f", str(stack.directory / "people.yaml"), "--store", str(stack.data / "store"))
    assert run_here("build", *words, "--override-gates", "g2").returncode == 0


def run_printed_command(stack: Stack) -> None:
    (line,) = (line for line in stack.output.splitlines() if line.startswith("    ") and "override-gates" in line)
    _, *words = shlex.split(line)
    assert words == ["override-gates", "--data-dir", str(stack.data), "people", "g2"]
    assert run_here(*words).returncode == 0


@pytest.mark.parametrize(
    ("override", "flags", "next_flags", "said"),
    [
        (override_in_the_store, WATCH, None, "cut over to g2"),
        (run_printed_command, (), None, "cut over to g2"),
        (override_in_the_store, (), (), ""),
        (run_printed_command, (), (), ""),
        (None, (), ("--override-gates", "g2"), "g2 passes despite:\nmaxShrinkPercent: expected at most 20 %"),
    ],
    ids=["store", "printed command", "store before a start", "printed command before a start", "flag of a start"],
)
def test_a_rejected_generation_serves_once_its_gates_are_overridden(
    people: Start,
    tmp_path: Path,
    override: Callable[[Stack], None] | None,
    flags: tuple[str, ...],
    next_flags: tuple[str, ...] | None,
    said: str,
) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(STRICT)
    write_people(tmp_path, ada="Alone")
    stack = people(*flags)
    stack.says("maxShrinkPercent: expected at most 20 %")
    assert stack.title() == "Countess"
    assert read_resource(stack.data, "default", "people")["status"]["lastRefreshed"], "g1, which the store had"
    if next_flags is not None:
        assert stack.stop() == 0
    if override:
        override(stack)
    if next_flags is not None:
        stack = people(*next_flags)
    stack.says(said)
    eventually(lambda: stack.title() == "Alone", "g2")
    assert stack.generations() == ["g1", "g2"], "nothing was built"


def test_an_overridden_generation_stays_while_the_status_lists_it(people: Start, tmp_path: Path) -> None:
    def status() -> dict[str, Any]:
        found: dict[str, Any] = read_resource(stack.data, "default", "people")["status"]
        return found

    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(STRICT)
    write_people(tmp_path, ada="Alone")
    stack = people(*WATCH)
    stack.says("maxShrinkPercent: expected at most 20 %")
    assert stack.title() == "Countess"
    eventually(lambda: status().get("refused"), "g2 is rejected")
    run_printed_command(stack)
    eventually(lambda: stack.title() == "Alone", "g2")
    write_people(tmp_path, ada="Duchess")
    eventually(lambda: stack.title() == "Duchess", "g3")
    eventually(lambda: len(status()["rollouts"]) == 1, "the servers of g2 have drained")
    assert [item["generation"] for item in status()["generations"]] == ["g2", "g3"]
    assert {"g2", "g3"} <= set(stack.generations())


def test_the_source_that_kubectl_has_applied_is_watched(people: Start, tmp_path: Path) -> None:
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    others = tmp_path / "others.csv"
    others.write_text((tmp_path / "people.csv").read_text().replace("Countess", "Duchess"))
    api = FolderApi(RunFolder(stack.data, "default", "people"))
    path = f"/apis/{names.API_VERSION}/namespaces/default/{names.DATASET_KIND.plural}/people"
    patch = {"spec": {"source": {"url": "others.csv"}}}
    asyncio.run(api.request("PATCH", path, subject="people", body=patch, content_type=MERGE_PATCH))
    eventually(lambda: stack.title() == "Duchess", "the applied source")
    swap(others, others.read_text().replace("Duchess", "Baroness"))
    eventually(lambda: stack.title() == "Baroness", "a change of the applied source")


def test_a_source_that_grows_for_long_is_built_when_it_rests(people: Start, tmp_path: Path) -> None:
    stack = people("--watch", "--watch-seconds", "0.5")
    assert stack.title() == "Countess"
    end = time.monotonic() + DEADLINE_SECONDS
    with (tmp_path / "people.csv").open("a", buffering=1) as source:
        while "not rebuilt: the source changes at each check" not in stack.output and time.monotonic() < end:
            source.write(f"at{time.monotonic_ns()}@example.com,Reader\n")
            time.sleep(0.01)
        source.write("last@example.com,Duchess\n")
    assert stack.newest() == 1
    eventually(lambda: stack.find("last@example.com"), "the whole source")
    stack.says("it can be rebuilt again")
    assert stack.newest() == 2


def test_a_changed_gate_judges_what_was_rejected_and_not_what_serves(people: Start, tmp_path: Path) -> None:
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    swap(tmp_path / "people.yaml", STRICT)
    write_people(tmp_path, ada="Alone")
    stack.says("maxShrinkPercent: expected at most 20 %")
    assert stack.title() == "Countess"
    swap(tmp_path / "people.yaml", MANIFEST.replace("Percent: 100", "Percent: 60"))
    eventually(lambda: stack.title() == "Alone", "what other gates let through")


def test_a_candidate_waits_for_its_promotion(people: Start, tmp_path: Path) -> None:
    manual = MANIFEST.replace("drainSeconds: 1", "promotion: Manual")
    (tmp_path / "people.yaml").write_text(manual)
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    write_people(tmp_path, ada="Duchess")
    stack.says("g2 holds 1 record")
    assert stack.title() == "Countess"
    promoted = "{name: people, annotations: {lookupdb.dev/promote: g2}}"
    swap(tmp_path / "people.yaml", manual.replace("{name: people}", promoted))
    stack.says("cut over to g2")
    assert stack.title() == "Duchess"


def test_a_schedule_refreshes_without_a_watch_and_shards_are_replaced_one_after_the_other(
    people: Start, tmp_path: Path
) -> None:
    per_shard = MANIFEST.replace("shards: 1", "shards: 2").replace(
        "drainSeconds: 1", "strategy: PerShard, drainSeconds: 1"
    )
    (tmp_path / "people.yaml").write_text(f'{per_shard}  refresh: {{schedule: "* * * * *"}}\n')
    stack = people()
    assert stack.title() == "Countess"
    write_people(tmp_path, ada="Duchess", alan="Professor")
    eventually(lambda: stack.title() == "Duchess", "the next minute")
    eventually(lambda: len(stack.state["shards"]) == 2, "the last drain")


def test_nothing_is_read_before_the_success_file_is_written_again(people: Start, tmp_path: Path) -> None:
    def finish() -> None:
        swap(tmp_path / "_SUCCESS", "")  # a new file differs within one tick of the clock

    (tmp_path / "people.yaml").write_text(f"{MANIFEST}  refresh: {{successFile: _SUCCESS, schedule: 0 2 * * *}}\n")
    finish()
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    (tmp_path / "people.csv").write_text("email,")
    time.sleep(0.5)  # some checks of a source that changes while its success file does not
    (tmp_path / "_SUCCESS").unlink()
    stack.says("waiting for the success file _SUCCESS")
    assert "The next attempt is at" not in stack.output
    finish()
    stack.says("^people: g1 keeps serving. The next attempt is at")
    write_people(tmp_path, ada="Duchess")
    finish()
    eventually(lambda: stack.title() == "Duchess", "the whole source")


def test_a_source_whose_changes_cannot_be_seen_is_read_at_every_start_and_not_watched(
    people: Start, tmp_path: Path
) -> None:
    with web_file(b"email,title\nada@example.com,Countess\n") as file:
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("people.csv", f"{file.url}/people.csv"))
        stack = people(*WATCH)
        assert stack.title() == "Countess"
        stack.says("its source's changes are not watched")
        assert stack.stop() == 0
        file.content = file.content.replace(b"Countess", b"Duchess ")
        stack = people()
        assert stack.title() == "Duchess "
        assert stack.generations() == ["g1", "g2"]


def test_commands_are_answered_while_a_source_is_silent(people: Start, tmp_path: Path) -> None:
    stack = people()
    assert stack.title() == "Countess"
    stack.stop()
    with socket.create_server(("127.0.0.1", 0)) as source:
        source.settimeout(60)
        url = f"http://127.0.0.1:{source.getsockname()[1]}/people.csv"
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("people.csv", url))
        again = people()
        with source.accept()[0]:
            about = ("people", "--data", str(again.data))
            assert "default/people: " in run_lookupdb("status", *about).stdout
            assert run_lookupdb("pin", *about, "g1").returncode == 0
    again.says("cannot be read")
    assert again.title() == "Countess"
    again.stop()
    kept = orjson.loads(object_file(again.data, "default", "people").read_bytes())
    assert kept["spec"]["generation"] == "g1", "what is written while the source is asked stays"


def test_the_newest_push_is_served_and_a_bad_one_is_reported(people: Start, tmp_path: Path) -> None:
    def push(title: str) -> None:
        write_people(tmp_path, ada=title)
        words = ("-f", str(tmp_path / "people.yaml"), "--store", str(tmp_path / "its data" / "store"))
        assert run_here("push", str(tmp_path / "people.csv"), *words).returncode == 0

    (tmp_path / "people.yaml").write_text(MANIFEST.replace("{url: people.csv}", "{pushed: true}"))
    push("Countess")
    (first,) = (tmp_path / "its data").rglob("g1")
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    push("Duchess")
    stack.says("cut over to g2")
    assert stack.title() == "Duchess"
    pushed = (first.with_name("g2") / FILE_NAME).read_bytes()
    first.with_name("g3").mkdir()
    (first.with_name("g3") / FILE_NAME).write_bytes(pushed.replace(b'"g2"', b'"g3"'))
    stack.says("push again$")
    assert stack.title() == "Duchess"
    push("Queen")
    stack.says("cut over to g4")
    assert stack.title() == "Queen"


def test_fields_for_clusters_are_reported_once_and_change_nothing(people: Start, tmp_path: Path) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(CLUSTER_FIELDS)
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    stack.says("people: spec.store applies only in a cluster: ")
    stack.says("people: spec.router.auth applies only in a cluster: ")
    swap(tmp_path / "people.yaml", f"{CLUSTER_FIELDS}  adopt: {{uid: 3f2b9c1e}}\n")
    stack.says("people: spec.adopt applies only in a cluster: ")
    assert stack.output.count("spec.store applies") == stack.output.count("spec.router.auth applies") == 1
    assert stack.generations() == ["g1"], "the unchanged source is not built again, and the folder is the store"


def test_a_generation_that_cannot_be_removed_does_not_undo_a_cutover(people: Start, tmp_path: Path) -> None:
    manifest, keeps_one = tmp_path / "people.yaml", MANIFEST.replace("keepGenerations: 2", "keepGenerations: 1")
    stack = people(*WATCH)
    swap(manifest, keeps_one)
    assert len(stack.state["shards"]) == 1
    (g1,) = stack.data.rglob("g1")
    g1.rename(tmp_path / "elsewhere")
    g1.symlink_to(tmp_path / "elsewhere")  # a folder that no store would remove
    swap(manifest, f"{keeps_one}  replicas: 2\n")
    write_people(tmp_path, ada="Duchess")
    stack.says("older generations are not removed: cannot remove")
    stack.says("cut over to g2")
    assert stack.title() == "Duchess"
    assert len(stack.state["shards"]) == 2
    swap(manifest, keeps_one)
    eventually(lambda: len(stack.state["shards"]) == 1, "the one replica that the manifest asks for again")
    folder = object_file(stack.data, "default", "people").parents[1]
    eventually(lambda: len({path.stem for path in folder.glob("people-r*-s0-*")}) == 1, "no files of old servers")


def fill_with_zeros(generation: Path) -> None:
    (shard,) = generation.glob("shard-*.lmdb")
    shard.chmod(0o644)
    shard.write_bytes(bytes(shard.stat().st_size))


@pytest.mark.parametrize(
    ("harm", "restarts"),
    [(fill_with_zeros, False), (shutil.rmtree, False), (shutil.rmtree, True)],
    ids=["zeros", "removed", "removed while nothing ran"],
)
def test_a_damaged_generation_is_built_again_when_its_server_dies_or_up_starts(
    people: Start, harm: Callable[[Path], None], restarts: bool
) -> None:
    stack = people()
    assert stack.title() == "Countess"
    (server,) = stack.state["shards"]
    (generation,) = stack.data.rglob("people-local/g1")
    assert not restarts or stack.stop() == 0
    harm(generation)
    if restarts:
        stack = people()
    else:
        os.kill(server["pid"], signal.SIGKILL)
    eventually(lambda: stack.state["generation"] == "g2", "another generation")
    assert stack.title() == "Countess"


def test_a_run_folder_that_was_removed_comes_back(people: Start, tmp_path: Path) -> None:
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    (stack.data / "run").rename(tmp_path / "run")
    assert len(stack.state["shards"]) == 1, "up.json is written again"
    write_people(tmp_path, ada="Duchess")
    stack.says("cut over to g2")
    assert stack.stop() == 0
    again = people()
    assert again.title() == "Duchess"
    assert "is being built" not in again.output


def test_a_start_leaves_servers_out_that_drained_for_the_up_before(people: Start, tmp_path: Path) -> None:
    (tmp_path / "people.yaml").write_text(MANIFEST.replace("drainSeconds: 1", "drainSeconds: 600"))
    stack = people(*WATCH)
    assert stack.title() == "Countess"
    write_people(tmp_path, ada="Duchess")
    stack.says("cut over to g2")
    dataset = object_file(stack.data, "default", "people")
    servers = [dataset.with_name(f"StatefulSet.people-r{number}-s0.json") for number in (1, 2)]
    assert sorted(dataset.parent.glob("StatefulSet.*")) == servers
    eventually(lambda: '"confirmedAt":"2' in dataset.read_text(), "the confirmation")
    assert stack.stop() == 0
    assert people(*WATCH).title() == "Duchess"
    assert list(dataset.parent.glob("StatefulSet.*")) == servers[1:]
