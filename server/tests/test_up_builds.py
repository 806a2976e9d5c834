"""`lookupdb up` classifies the end of its builder."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.up_stack import MANIFEST, PATIENT, write_dataset
from support.up_watch import watching
from support.waiting import soon
from support.web import QuietHandler, web_server

from lookupdb.errors import InvalidManifest, LookupdbError
from lookupdb.up import builds


async def failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str | None = None,
    kind: type[LookupdbError] = builds.BuildFailed,
    was_reported: Callable[[LookupdbError], bool] | None = None,
) -> LookupdbError:
    """Build people.yaml with the builder, or another program, and return the failure."""
    if program is not None:
        (tmp_path / "program").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "program").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    request = builds.BuildRequest("default/people", tmp_path / "people.yaml", str(tmp_path / "store"), None, None)
    with pytest.raises(kind) as caught:
        await builds.Builder(request).run(was_reported=was_reported)
    return caught.value


async def test_a_source_that_is_bad_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path)
    (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
    failed = await failure(tmp_path, monkeypatch)
    assert (failed.exit_code, failed.may_pass) == (3, False)


async def test_a_source_that_is_not_there_may_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path)
    (tmp_path / "people.csv").unlink()
    failed = await failure(tmp_path, monkeypatch)
    assert (failed.exit_code, failed.may_pass) == (3, True)


async def test_what_a_gate_refuses_is_refused_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path)
    manifest = MANIFEST.replace("maxShrinkPercent: 100", "requiredKeys: [nobody@example.com]")
    (tmp_path / "people.yaml").write_text(manifest)
    failed = await failure(tmp_path, monkeypatch)
    assert (failed.message, failed.exit_code, failed.may_pass) == ("a gate refused it", 4, False)


@pytest.mark.parametrize(
    ("end", "message", "code"),
    [
        ("kill -9 $$", "the builder was killed by SIGKILL, perhaps because it ran out of memory", 137),
        ("kill -SEGV $$", "the builder was killed by SIGSEGV", 139),
    ],
)
@pytest.mark.parametrize("report", ["", '{"outcome": "built", "mayPass": false, "generation": "g2"}'])
async def test_one_that_is_killed_may_pass_whatever_it_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, message: str, code: int, report: str
) -> None:
    failed = await failure(tmp_path, monkeypatch, f"echo '{report}'; {end}", builds.BuilderKilled)
    assert (failed.message, failed.exit_code, failed.may_pass) == (message, code, True)


async def test_of_what_a_retry_writes_the_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builds, "MAX_OUTPUT_BYTES", 1000)
    report = '{"outcome": "failed", "reason": "SourceInvalid", "message": "why", "mayPass": false}'
    script = f"for i in $(seq 5000); do echo $i >&2; done; echo '{report}'; exit 3"
    await failure(tmp_path, monkeypatch, script, was_reported=lambda _: False)
    shown = capfd.readouterr().err
    lines = shown.splitlines()
    assert lines == ["(what the builder wrote before this is left out)", *map(str, range(4801, 5001))], "whole lines"


@pytest.mark.parametrize(("size", "is_cut"), [(1000, False), (1001, True), (3000, True)])
async def test_a_line_that_is_longer_than_what_is_kept_begins_with_a_whole_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], size: int, is_cut: bool
) -> None:
    monkeypatch.setattr(builds, "MAX_OUTPUT_BYTES", 1000)
    (tmp_path / "messages").write_bytes("€".encode() * (size // 3) + b"x" * (size % 3))
    await failure(tmp_path, monkeypatch, f"cat '{tmp_path}/messages' >&2; exit 3", was_reported=lambda _: False)
    note, _, shown = capfd.readouterr().err.rpartition("\n")
    assert bool(note) is is_cut
    assert set(shown) <= {"€", "x"}
    assert len(shown.encode()) >= 998


async def test_the_cause_is_kept_however_long_a_name_the_source_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path)
    (tmp_path / "people.csv").write_text("x" * 3_000_000)
    failed = await failure(tmp_path, monkeypatch, was_reported=lambda _: False)
    assert isinstance(failed, builds.BuildFailed)
    assert "people.csv: key.columns names the column 'email', which is not there" in failed.cause
    assert "people.csv: key.columns names the column 'email'" in capfd.readouterr().err
    assert not failed.may_pass


@pytest.mark.parametrize(("was_reported", "shown"), [(None, "why\n"), (lambda _: False, "why\n"), (lambda _: True, "")])
async def test_what_has_been_told_of_a_failure_is_not_shown_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    was_reported: Callable[[LookupdbError], bool] | None,
    shown: str,
) -> None:
    report = '{"outcome": "failed", "mayPass": false, "message": "why"}'
    failed = await failure(tmp_path, monkeypatch, f"echo why >&2; echo '{report}'; exit 3", was_reported=was_reported)
    assert isinstance(failed, builds.BuildFailed)
    assert (failed.cause, capfd.readouterr().err) == ("why", shown)


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[str]:
    """A line of a program that leaves a process behind, which holds what the program writes into."""
    yield f"sleep 600 <&0 & echo $! > '{tmp_path}/left'"
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("was_reported", [None, lambda _: False])
async def test_what_it_leaves_behind_is_not_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_behind: str,
    was_reported: Callable[[LookupdbError], bool] | None,
) -> None:
    report = '{"outcome": "failed", "mayPass": false, "message": "why"}'
    async with asyncio.timeout(60):
        failed = await failure(
            tmp_path, monkeypatch, f"{left_behind}; echo '{report}'; exit 3", was_reported=was_reported
        )
    assert isinstance(failed, builds.BuildFailed)
    assert failed.cause == "why"


async def test_nor_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_behind: str) -> None:
    build = asyncio.create_task(
        failure(tmp_path, monkeypatch, f"{left_behind}; kill -STOP $$", was_reported=lambda _: False)
    )
    monkeypatch.setattr(builds, "INTERRUPTION_SECONDS", 0.1)
    async with asyncio.timeout(60):
        left = tmp_path / "left"
        await soon(lambda: left.exists() and left.read_text().strip(), "a process left behind")
        build.cancel()
        with pytest.raises(asyncio.CancelledError):
            await build


@pytest.mark.parametrize("output", ["", "no JSON", "[]", '{"outcome": "built", "mayPass": false}'])
async def test_one_that_fails_without_a_report_of_it_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    failed = await failure(tmp_path, monkeypatch, f"echo '{output}'; exit 1")
    assert (failed.message, failed.exit_code, failed.may_pass) == ("the build failed", 1, True)


async def test_one_that_ends_well_without_a_report_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = await failure(tmp_path, monkeypatch, "exit 0", LookupdbError)
    assert (failed.message, failed.may_pass) == ("the builder ended without a report", True)


@pytest.mark.parametrize("outcome", ["built", "unchanged", "waiting"])
async def test_what_it_has_done_for_another_dataset_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    report = f'{{"outcome": "{outcome}", "dataset": "default/other", "generation": "g1", "message": ""}}'
    failed = await failure(tmp_path, monkeypatch, f"echo '{report}'", InvalidManifest)
    assert failed.message.startswith("the manifest now describes default/other, and a running `up` cannot")


class Site:
    """A web server with one file. While it is ``weak`` it ends each connection in the middle of the file, whose head
    is the same as ever."""

    def __init__(self) -> None:
        self.content, self.is_weak = b"", False
        self.url = ""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
            content = site.content
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{zlib.crc32(content)}"')
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if site.is_weak else content)
            self.close_connection = site.is_weak

    with web_server(Handler) as site.url:
        yield site


@pytest.mark.long
async def test_what_could_not_be_read_is_tried_again_though_nothing_changes(tmp_path: Path, site: Site) -> None:
    site.content = b"email,title\nada@example.com,Countess\n"
    async with watching(tmp_path, PATIENT.replace("people.csv", f"{site.url}/people.csv")) as watch:
        assert watch.generations() == ["g1"]
        site.is_weak, site.content = True, site.content.replace(b"Countess", b"Duchess")
        await watch.says("people: manifest or source has changed, building; g1 keeps serving")
        await watch.says("people: the build failed; g1 keeps serving, retrying in 1 s")
        site.is_weak = False
        await watch.says("people: building again; g1 keeps serving")
        await watch.cuts_over_to("g2", ada="Duchess")
