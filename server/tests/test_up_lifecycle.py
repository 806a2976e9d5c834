"""`lookupdb up` is the operator's loop: promotion, PerShard, schedules and success files work as in a cluster."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.up_stack import MANIFEST, Stack, eventually, people, write_people

from lookupdb.up.run_state import run_directory

pytestmark = pytest.mark.long

__all__ = ["people"]

WATCH = ("--watch", "--watch-seconds", "0.1")


def serves(stack: Stack, title: str) -> bool:
    return stack.find("ada@example.com") == {"ada@example.com": {"title": title}}


def finish(directory: Path) -> None:
    """Write the success file: a new one, so that its identity differs within one tick of the clock."""
    (directory / "success.new").touch()
    (directory / "success.new").replace(directory / "_SUCCESS")


def test_a_candidate_waits_for_its_promotion(people: Callable[..., Stack], tmp_path: Path) -> None:
    manual = f"{MANIFEST}  rollout: {{promotion: Manual}}\n"
    (tmp_path / "people.yaml").write_text(manual)
    stack = people(*WATCH)
    assert serves(stack, "Countess")
    write_people(tmp_path, ada="Duchess")
    stack.says("g2 holds 1 record")
    assert serves(stack, "Countess")
    promoted = "{name: people, annotations: {lookupdb.dev/promote: g2}}"
    (tmp_path / "people.yaml").write_text(manual.replace("{name: people}", promoted))
    stack.says("cut over to g2")
    assert serves(stack, "Duchess")


def test_commands_are_answered_while_a_source_is_silent(people: Callable[..., Stack], tmp_path: Path) -> None:
    stack = people()
    assert serves(stack, "Countess")
    stack.stop()
    with socket.create_server(("127.0.0.1", 0)) as source:
        source.settimeout(60)
        url = f"http://127.0.0.1:{source.getsockname()[1]}/people.csv"
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("people.csv", url))
        again = people()
        asked, _ = source.accept()
        with asked:
            words = ["status", "people", "--data", str(again.data)]
            status = subprocess.run(
                [sys.executable, "-m", "lookupdb", *words], capture_output=True, text=True, timeout=60, check=False
            )
            assert "default/people: " in status.stdout, status.stderr
            pin = [sys.executable, "-m", "lookupdb", "pin", "people", "g1", "--data", str(again.data)]
            subprocess.run(pin, check=True, timeout=60)
    again.says("cannot be read")
    assert serves(again, "Countess")
    again.stop()
    kept = json.loads(
        (run_directory(again.data, "default", "people") / "objects/LookupDataset.people.json").read_bytes()
    )
    assert kept["spec"]["generation"] == "g1", "what is written while the source is asked stays"


def test_shards_are_replaced_one_after_the_other(people: Callable[..., Stack], tmp_path: Path) -> None:
    per_shard = MANIFEST.replace("shards: 1", "shards: 2\n  rollout: {strategy: PerShard}")
    (tmp_path / "people.yaml").write_text(per_shard)
    stack = people(*WATCH)
    assert serves(stack, "Countess")
    write_people(tmp_path, ada="Duchess", alan="Professor")
    eventually(lambda: serves(stack, "Duchess"), "the new value")
    eventually(lambda: len(stack.state["shards"]) == 2, "the last drain")


def test_a_schedule_refreshes_without_a_watch(people: Callable[..., Stack], tmp_path: Path) -> None:
    (tmp_path / "people.yaml").write_text(f'{MANIFEST}  refresh: {{schedule: "* * * * *"}}\n')
    stack = people()
    assert serves(stack, "Countess")
    write_people(tmp_path, ada="Duchess")
    eventually(lambda: serves(stack, "Duchess"), "the next minute")


def test_nothing_is_read_before_the_success_file_is_written_again(people: Callable[..., Stack], tmp_path: Path) -> None:
    (tmp_path / "people.yaml").write_text(f"{MANIFEST}  refresh: {{successFile: _SUCCESS}}\n")
    finish(tmp_path)
    stack = people(*WATCH)
    assert serves(stack, "Countess")
    (tmp_path / "people.csv").write_text("email,")
    finish(tmp_path)
    stack.says("g1 keeps serving. The next attempt is at")
    write_people(tmp_path, ada="Half")
    stack.says("the source has changed since the success file _SUCCESS was written; it is read when")
    assert serves(stack, "Countess")
    write_people(tmp_path, ada="Duchess")
    finish(tmp_path)
    eventually(lambda: serves(stack, "Duchess"), "the whole source")


def test_a_start_leaves_servers_out_that_drained_for_the_up_before(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    (tmp_path / "people.yaml").write_text(f"{MANIFEST}  rollout: {{drainSeconds: 600}}\n")
    stack = people(*WATCH)
    assert serves(stack, "Countess")
    write_people(tmp_path, ada="Duchess")
    stack.says("cut over to g2")
    objects = stack.data / "run/default.people/objects"
    assert {path.name for path in objects.glob("StatefulSet.*")} == {
        "StatefulSet.people-r1-s0.json",
        "StatefulSet.people-r2-s0.json",
    }
    eventually(lambda: '"confirmedAt":"2' in (objects / "LookupDataset.people.json").read_text(), "the confirmation")
    assert stack.stop() == 0
    assert serves(people(*WATCH), "Duchess")
    assert [path.name for path in objects.glob("StatefulSet.*")] == ["StatefulSet.people-r2-s0.json"]


def test_a_run_folder_that_was_removed_comes_back(people: Callable[..., Stack], tmp_path: Path) -> None:
    stack = people(*WATCH)
    assert serves(stack, "Countess")
    shutil.rmtree(tmp_path / "data" / "run")
    assert len(stack.state["shards"]) == 1, "up.json is written again"
    write_people(tmp_path, ada="Duchess")
    stack.says("cut over to g2")
    assert stack.stop() == 0
    again = people()
    assert serves(again, "Duchess")
    assert "is being built" not in again.output
