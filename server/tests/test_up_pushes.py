"""`lookupdb up` on a dataset whose source is pushed: it serves the newest push, and a bad one changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.up_stack import DEADLINE_SECONDS, MANIFEST, Stack, people, write_people

from lookupdb import store
from lookupdb.builder import build
from lookupdb.builder.options import BuildOptions, SilentProgress
from lookupdb.dataset.spec import read_manifest
from lookupdb.manifest import FILE_NAME

pytestmark = pytest.mark.long

__all__ = ["people"]


def describe(directory: Path) -> Path:
    manifest = directory / "people.yaml"
    manifest.write_text(MANIFEST.replace("source: {url: people.csv}", "source: {pushed: true}"))
    return manifest


def push(directory: Path, **titles: str) -> None:
    write_people(directory, **titles)
    spec, place = read_manifest(directory / "people.yaml"), store.open_store(str(directory / "data" / "store"))
    options = BuildOptions(scratch=directory / "scratch")
    build.push_generation(spec, place, [str(directory / "people.csv")], options, SilentProgress())


def test_the_newest_push_is_served_and_a_bad_one_is_reported(people: Callable[..., Stack], tmp_path: Path) -> None:
    manifest = describe(tmp_path)
    push(tmp_path, ada="Countess")
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    push(tmp_path, ada="Duchess")
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    inbox = Path(store.open_store(str(tmp_path / "data" / "store")).inbox(read_manifest(manifest)).url)
    (inbox / "g3").mkdir()
    (inbox / "g3" / FILE_NAME).write_bytes((inbox / "g2" / FILE_NAME).read_bytes().replace(b'"g2"', b'"g3"'))
    stack.says("push again. g2 keeps serving")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    push(tmp_path, ada="Queen")
    stack.says("cut over to g4")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Queen"}}


def test_without_a_push_there_is_nothing_to_serve(people: Callable[..., Stack], tmp_path: Path) -> None:
    describe(tmp_path)
    stack = people()
    assert stack.process.wait(DEADLINE_SECONDS) == 3
    assert "waiting for the first push to " in stack.output
