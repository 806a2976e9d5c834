"""`lookupdb up` keeps its last answer to a success file for its next run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from lookupdb.up.rebuilds import SuccessFileAnswer
from lookupdb.up.run_state import FILE, KeptAnswer, RunFolder, parse_answer

SUCCESS_FILE, FINGERPRINT, CONTENT, GATES = "5" * 32, "f" * 32, "c" * 32, "a" * 32
ANSWER = SuccessFileAnswer(SUCCESS_FILE, FINGERPRINT)
PLACE = {"dataset": "default/people", "volume": None}
MEMBERS = {**PLACE, "successFile": SUCCESS_FILE, "fingerprint": FINGERPRINT}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    run_folder = RunFolder(tmp_path, "default", "people")
    with run_folder.lock():
        yield run_folder


def kept_in(folder: RunFolder, manifest: str = "people.yaml", volume: str | None = None) -> KeptAnswer:
    said: list[str] = []
    return KeptAnswer(folder, Path(manifest), volume and Path(volume), said.append)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [ANSWER, SuccessFileAnswer(SUCCESS_FILE, None)])
def test_the_next_up_reads_what_was_kept_last(folder: RunFolder, answer: SuccessFileAnswer) -> None:
    kept = kept_in(folder)
    kept.keep(CONTENT, GATES, SuccessFileAnswer("0" * 32, FINGERPRINT))
    kept.keep(CONTENT, GATES, answer)
    assert kept_in(folder).read(CONTENT, GATES) == answer
    assert [path.name for path in folder.path.iterdir() if path.name != "lock"] == [FILE], "nothing unfinished"


def test_it_is_for_what_the_manifest_has_built_from_one_place(folder: RunFolder) -> None:
    kept_in(folder).keep(CONTENT, GATES, ANSWER)
    assert kept_in(folder).read("d" * 32, GATES) is None
    assert kept_in(folder, manifest="elsewhere/people.yaml").read(CONTENT, GATES) is None
    assert kept_in(folder, volume="elsewhere").read(CONTENT, GATES) is None


def test_what_was_bad_and_is_not_identified_is_for_the_gates_that_have_judged_it(folder: RunFolder) -> None:
    """An identified source is built again only if it is still the same."""
    for answer, found in ((ANSWER, ANSWER), (SuccessFileAnswer(SUCCESS_FILE, None), None)):
        kept_in(folder).keep(CONTENT, GATES, answer)
        assert kept_in(folder).read(CONTENT, "b" * 32) == found


def test_it_is_kept_of_a_path_that_is_no_utf_8(folder: RunFolder) -> None:
    manifest = os.fsdecode(b"people-\xff.yaml")
    kept_in(folder, manifest).keep(CONTENT, GATES, ANSWER)
    assert kept_in(folder, manifest).read(CONTENT, GATES) == ANSWER


def test_it_is_written_again_once_somebody_has_removed_it(folder: RunFolder) -> None:
    kept = kept_in(folder)
    for _ in range(2):
        kept.keep(CONTENT, GATES, ANSWER)
        assert kept.read(CONTENT, GATES) == ANSWER
        (folder.path / FILE).unlink()


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: path.write_bytes(b"[" * 10_000),
        lambda path: path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "more": "x" * (1 << 17)})),
        lambda path: path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "version": 2})),
        lambda path: (path.unlink(), path.mkdir()),
        put_pipe,
    ],
    ids=["absent", "empty", "cut short", "no JSON", "deep", "huge", "another version", "a folder", "a pipe"],
)
def test_what_is_no_such_file_is_as_if_nothing_had_been_answered(
    folder: RunFolder, spoil: Callable[[Path], object]
) -> None:
    kept_in(folder).keep(CONTENT, GATES, ANSWER)
    spoil(folder.path / FILE)
    assert kept_in(folder).read(CONTENT, GATES) is None


def test_members_that_make_no_sense_or_are_of_something_else_are_no_answer() -> None:
    cases: tuple[Any, ...] = (
        None,
        [],
        {},
        {**MEMBERS, "dataset": "default/others"},
        {**MEMBERS, "successFile": None},
        {**MEMBERS, "successFile": 5},
        {**MEMBERS, "successFile": "5" * 31},
        {**MEMBERS, "fingerprint": "F" * 32},
        {**MEMBERS, "fingerprint": {}},
        {name: value for name, value in MEMBERS.items() if name != "fingerprint"},
        {name: value for name, value in MEMBERS.items() if name != "volume"},
    )
    for members in cases:
        assert parse_answer(MEMBERS, PLACE, GATES) == ANSWER
        assert parse_answer(members, PLACE, GATES) is None
