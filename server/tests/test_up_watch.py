"""`lookupdb up --watch` when its builder fails by what no look has seen: nothing is final, and serving goes on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.up_stack import MANIFEST, build_people, write_dataset, write_people
from support.up_watch import (
    damage,
    during_the_next_build,
    kill_server,
    replace_text,
    running_watch,
    server_pid,
    watching,
)
from support.waiting import soon
from support.web import web_file

from lookupdb.dataset.spec import DatasetSpec, read_manifest
from lookupdb.up import builds, observer, rebuilds
from lookupdb.up.child import ChildFailed
from lookupdb.up.run_state import NotWritten
from lookupdb.up.serving import Serving

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilds, "FIRST_PERSISTENT_SECONDS", 0.2)
    monkeypatch.setattr(rebuilds, "LONGEST_PERSISTENT_SECONDS", 0.4)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("people.csv", "email,"),
        ("people.csv", "email,title\n"),
        ("people.csv", "<html>maintenance</html>"),
        ("people.yaml", ""),
    ],
    ids=["half a file", "an empty one, which a gate refuses", "a page of another kind", "an empty manifest"],
)
async def test_what_was_there_for_a_moment_is_not_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    async with watching(tmp_path) as watch:
        during_the_next_build(monkeypatch, replace_text(tmp_path / file, text))
        write_people(tmp_path, ada="Duchess")
        await watch.says("; g1 keeps serving, retrying in 0 s, or when the manifest or the source changes")
        await watch.says("people: building again; g1 keeps serving")
        await watch.cuts_over_to("g2", ada="Duchess")


def count_refusals(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record the results of ``builds.is_refused_again`` from now on."""
    answers: list[bool] = []
    ask = builds.is_refused_again

    def answer(*arguments: object) -> bool:
        answers.append(ask(*arguments))  # type: ignore[arg-type]
        return answers[-1]

    monkeypatch.setattr(builds, "is_refused_again", answer)
    return answers


async def test_a_refusal_that_nothing_has_changed_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path) as watch:
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("Percent: 100", "Percent: 20"))
        await watch.says("spec.gates has changed")
        write_people(tmp_path, ada="Alone")
        await watch.says("a gate refused it; g1 keeps serving, retrying in")
        refusals = count_refusals(monkeypatch)
        await soon(lambda: len(refusals) >= 3, "three more looks at it")
        assert watch.output.count("building") == 1
        write_people(tmp_path, ada="Duchess", alan="Reader")
        await watch.says("cut over to g3")


@pytest.mark.parametrize("name", ["_look", "_build"])
async def test_an_error_that_nobody_has_foreseen_ends_a_look_and_not_what_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with watching(tmp_path) as watch:
        real = getattr(watch.up, name)

        async def fail(*_arguments: object, **_options: object) -> None:
            monkeypatch.setattr(watch.up, name, real)
            raise RuntimeError("unforeseen")

        monkeypatch.setattr(watch.up, name, fail)
        write_people(tmp_path, ada="Duchess")
        await watch.says("the check for changes failed: RuntimeError: unforeseen; g1 keeps serving, retrying in 1 s")
        assert "Traceback" in caplog.text
        await watch.cuts_over_to("g2", ada="Duchess")


async def test_an_error_that_was_foreseen_is_told_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(tmp_path) as watch:
        real = watch.up._follow

        async def fail(*_arguments: object) -> None:
            monkeypatch.setattr(watch.up, "_follow", real)
            raise NotWritten("the routing table cannot be written", hint="make room")

        monkeypatch.setattr(watch.up, "_follow", fail)
        told = "people: the routing table cannot be written; g1 keeps serving, retrying in 1 s\n  make room"
        await watch.says(told)
        assert "Traceback" not in caplog.text


async def test_a_manifest_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        manifest = tmp_path / "people.yaml"
        manifest.unlink()
        os.mkfifo(manifest)
        await watch.says(f"people: not rebuilt: {manifest} is a pipe, expected a file; g1 keeps serving")
        manifest.unlink()
        write_dataset(tmp_path)
        await watch.says("people: manifest and source can be read again")


async def test_a_manifest_that_cannot_be_read_to_its_end_holds_up_no_more_than_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a share whose server is gone. What dies is started again, and Ctrl-C ends it all."""
    is_read, is_back = threading.Event(), threading.Event()
    waits: list[bool] = []

    def read(path: Path) -> DatasetSpec:
        is_read.set()
        waits.append(is_back.wait(30))
        return read_manifest(path)

    try:
        async with watching(tmp_path) as watch:
            monkeypatch.setattr(observer, "read_manifest", read)
            await soon(is_read.is_set, "a look")
            write_people(tmp_path, ada="Duchess")
            before = server_pid(watch)
            kill_server(watch)
            await soon(lambda: server_pid(watch) not in (None, before), "the server to be back")
            assert not waits
            is_back.set()
            await watch.cuts_over_to("g2", ada="Duchess")
    finally:
        is_back.set()


async def test_a_failure_is_told_in_full_once_and_again_when_it_is_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with watching(tmp_path) as watch:
        (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
        await watch.says(
            "the build failed; g1 keeps serving, retrying in 0 s, or when the manifest or the source changes"
        )
        await watch.says("people: still the same after 3 attempts: the build failed; g1 keeps serving, retrying in")
        assert watch.output.count("people: the build failed") == 1
        assert capfd.readouterr().err.count("people.csv") == 1, "what the builder says of it"
        (tmp_path / "people.csv").write_text('email,title\nada@example.com,Countess\nalan@example.com,"never closed\n')
        await soon(lambda: watch.output.count("people: the build failed") == 2, "the other failure")
        assert capfd.readouterr().err.count("people.csv") == 1


async def test_a_source_that_is_put_back_as_it_was_ends_a_failure_that_was_told(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        good = (tmp_path / "people.csv").read_bytes()
        (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
        await watch.says("the build failed; g1 keeps serving")
        (tmp_path / "people.csv").write_bytes(good)
        await watch.says("people: g1 is serving; the pending retry is cancelled")
        (tmp_path / "people.csv").write_text("email,title\nada@example.com,Countess\nalan@example.com,Dr\n")
        await watch.cuts_over_to("g2", ada="Countess")
        assert watch.output.count("the pending retry is cancelled") == 1


async def test_a_source_that_is_put_back_while_it_is_read_ends_the_attempt_that_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as watch:
        write_people(tmp_path, ada="Duchess")

        def put_back() -> Callable[[], object]:
            write_people(tmp_path, ada="Countess", alan="Reader")
            return lambda: None

        during_the_next_build(monkeypatch, put_back)
        await watch.says("g1 was built from another source than the last check saw, building again in 1 s")
        await watch.says("people: g1 is serving; the pending retry is cancelled")


async def test_a_start_over_a_bad_source_says_that_it_is_tried_again(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    build_people(tmp_path)
    (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
    async with running_watch(tmp_path) as watch:
        told = "people: the build failed; serving g1, the last good generation, retrying once --watch sees the source\n"
        assert told in watch.output
        await watch.says("people: manifest or source has changed, building; g1 keeps serving")


async def test_a_start_promises_nothing_of_a_source_whose_changes_are_not_watched(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    with web_file((tmp_path / "people.csv").read_bytes()) as file:
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("people.csv", f"{file.url}/people.csv"))
        build_people(tmp_path)
        file.content = b'email,title\nada@example.com,"never closed\n'
        async with running_watch(tmp_path) as watch:
            assert "serving g1, the last good generation\n" in watch.output
            await watch.says("its source's changes are not watched")


async def test_a_manifest_whose_source_cannot_be_looked_for_leaves_what_serves(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("people.csv", f"{'x' * 300}.csv"))
        await watch.says("x.csv cannot be read: File name too long; g1 keeps serving")
        (tmp_path / "people.yaml").write_text(MANIFEST)
        await watch.says("manifest and source can be read again")


async def test_what_was_built_for_another_dataset_is_not_cut_over_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as watch:
        write_people(tmp_path, ada="Duchess")
        await watch.says("cut over to g2")
        other = MANIFEST.replace("name: people", "name: other")
        during_the_next_build(monkeypatch, replace_text(tmp_path / "people.yaml", other))
        write_people(tmp_path, ada="Princess")
        await watch.says(
            "now describes default/other, and a running `up` cannot change to another dataset; g2 keeps serving"
        )
        await watch.cuts_over_to("g3", ada="Princess")
        assert "cut over to g1" not in watch.output


async def test_a_source_that_is_put_back_is_built_again(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        before = (tmp_path / "people.csv").read_bytes()
        write_people(tmp_path, ada="Duchess")
        await watch.says("cut over to g2")
        (tmp_path / "people.csv").write_bytes(before)
        await watch.cuts_over_to("g3", ada="Countess")


async def test_a_store_that_was_lost_numbers_on(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        write_people(tmp_path, ada="Duchess")
        await watch.says("cut over to g2")
        shutil.rmtree(tmp_path / "data" / "store")
        write_people(tmp_path, ada="Princess")
        await watch.cuts_over_to("g3", ada="Princess")


async def test_a_store_that_was_lost_leaves_gates_what_serves_to_compare_with(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("maxShrinkPercent: 100", "maxShrinkPercent: 20"))
        await watch.says("spec.gates has changed")
        shutil.rmtree(tmp_path / "data" / "store")
        write_people(tmp_path, ada="Alone")
        await watch.says("a gate refused it; g1 keeps serving")
        write_people(tmp_path, ada="Duchess", alan="Reader")
        await watch.cuts_over_to("g3", ada="Duchess")


async def test_what_was_built_and_is_damaged_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path) as watch:
        during_the_next_build(monkeypatch, lambda: lambda: damage(tmp_path, "g2"))
        write_people(tmp_path, ada="Duchess")
        await watch.says("people: g2 cannot be served, the next attempt builds again")
        await watch.cuts_over_to("g3", ada="Duchess")


async def test_what_serves_and_is_damaged_in_the_store_is_built_again(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        damage(tmp_path, "g1")
        (tmp_path / "people.yaml").write_text(MANIFEST.replace("shards: 1", "shards: 1\n  replicas: 2"))
        await watch.says("people: g1 cannot be served, the next attempt builds again")
        await watch.says("cut over to g2")
        assert len(watch.up._serving.manifest.shards) == 1
        assert watch.up._spec.replicas == 2


async def test_what_is_put_back_while_the_builder_starts_and_comes_again_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as watch:
        source, old = tmp_path / "people.csv", tmp_path / "old.csv"
        source.rename(old)  # with its time
        shutil.copy2(old, source)
        await watch.says("Ctrl-C stops it all")

        def put_back() -> Callable[[], object]:
            source.replace(tmp_path / "new.csv")
            shutil.copy2(old, source)
            return lambda: (tmp_path / "new.csv").replace(source)

        during_the_next_build(monkeypatch, put_back)
        write_people(tmp_path, ada="Duchess")
        await watch.says("the source has not changed since g1 was built")
        await watch.says("g1 was built from another source than the last check saw, building again in 1 s")
        await watch.cuts_over_to("g2", ada="Duchess")


async def test_what_cannot_be_served_though_it_is_whole_does_not_fill_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilds, "LONGEST_SECONDS", 0.05)

    async def fail(_self: Serving, generation: str, _spec: object) -> None:
        raise ChildFailed(f"{generation} has no process")

    async with watching(tmp_path) as watch:
        monkeypatch.setattr(Serving, "replace", fail)
        write_people(tmp_path, ada="Duchess")
        await watch.says("g5 has no process")
        kept = {path.parent.name for path in (tmp_path / "data").rglob("manifest.json")}
        assert "g1" in kept
        assert len(kept) <= 4, "the one that serves, spec.keepGenerations of others, and one that was built since"
