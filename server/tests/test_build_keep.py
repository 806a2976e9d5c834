"""`lookupdb build --keep`: a builder removes old generations of its own dataset, in a store that no sweep knows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.build_project import Project

from lookupdb import store
from lookupdb.errors import StoreDenied
from lookupdb.manifest import ANNOUNCEMENT_NOTE
from lookupdb.store.dataset import write_announcement
from lookupdb.store.directory import DirectoryDataset
from lookupdb.store.generations import copy_generation


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """It has g1 to g5, which are copied for each test."""
    made = Project(tmp_path_factory.mktemp("prepared"))
    made.describe(source={"url": str(made.folder / "people.csv")})
    for _ in range(5):
        made.built()
    return made


@pytest.fixture
def project(prepared: Project, tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.describe(source={"url": str(prepared.folder / "people.csv")})
    shutil.copytree(prepared.store, made.store)
    return made


def test_what_is_neither_kept_nor_protected_goes_before_the_build(project: Project) -> None:
    result = project.built("--keep", "2", "--protect", "g2", "--protect", "g5")
    assert result["generation"] == "g6"
    assert project.dataset.generations() == ("g2", "g4", "g5", "g6")


def test_it_goes_though_the_source_is_unchanged(project: Project) -> None:
    fingerprint = project.dataset.manifest("g5").fingerprint
    result = project.built("--keep", "1", "--protect", "g5", "--unless-fingerprint", fingerprint)
    assert result["outcome"] == "unchanged"
    assert project.dataset.generations() == ("g5",)


class TestTwoClustersFromOneSnapshot:
    """They have one id, the same datasets with the same uids, and so one folder in a store that both name."""

    def test_with_one_id_a_builder_removes_what_the_other_serves(self, project: Project) -> None:
        """Nothing in the store says that g2 serves elsewhere: hence the warning in docs/operations/recovery.md."""
        project.built("--keep", "1", "--protect", "g5")
        assert "g2" not in project.dataset.published_generations()

    def test_what_was_copied_to_an_id_of_its_own_stays_and_is_the_same_generation(self, project: Project) -> None:
        address = replace(project.dataset.address, cluster="second")
        second = store.open_store(str(project.store), "second").dataset_at(address)
        copy_generation(project.dataset, second, "g2", project.folder / "scratch", lambda _bytes: None)
        before = project.dataset.manifest("g2")
        project.built("--keep", "1", "--protect", "g5")
        assert "g2" not in project.dataset.published_generations()
        copied = second.manifest("g2")
        assert (copied.uid, copied.generation, copied.fingerprint) == (before.uid, "g2", before.fingerprint)
        second.check_files(copied)


def announce(project: Project, generation: str, version: int = 1) -> None:
    write_announcement(project.dataset, "local", generation, version, "2026-11-20T02:04:00Z")


def test_what_is_announced_stays(project: Project) -> None:
    """A `lookupdb up` announced it once; `lookupdb.open` and `lookupdb sync` follow that."""
    announce(project, "g1")
    project.built("--keep", "1", "--protect", "g5")
    assert project.dataset.generations() == ("g1", "g5", "g6")


class TestAnotherIsAnnounced:
    def test_is_reported_with_what_to_do(self, project: Project) -> None:
        announce(project, "g1")
        result = project.build()
        report = json.loads(result.stdout)
        says = (
            "active.json announces g1: lookupdb.open and lookupdb sync follow that one, and not g6, until lookupdb up"
        )
        assert says in result.stderr.replace("\n", " ")
        assert result.stderr.startswith("note: ")
        assert (report["outcome"], says in report["message"]) == ("built", True)
        assert "remove that file" in report["message"]

    def test_is_reported_when_nothing_was_built(self, project: Project) -> None:
        announce(project, "g1")
        fingerprint = project.dataset.manifest("g5").fingerprint
        report = project.built("--unless-fingerprint", fingerprint)
        assert report["outcome"] == "unchanged"
        assert report["message"].startswith("the source is unchanged; nothing was built; ")
        assert "announces g1: lookupdb.open and lookupdb sync follow that one, and not g5" in report["message"]

    def test_is_not_told_to_whoever_cuts_over(self, project: Project) -> None:
        announce(project, "g1")
        assert "announces" not in project.built("--active", "g5")["message"]

    def test_is_not_told_when_it_is_followed(self, project: Project) -> None:
        assert "announces" not in project.built()["message"], "nothing is announced"
        announce(project, "g7")
        assert "announces" not in project.built()["message"], "this one is"
        announce(project, "g1", 2)
        project.dataset.remove("g1")
        assert "announces" not in project.built()["message"], "what is announced is gone: the newest is followed"

    def test_a_note_that_is_no_announcement_is_reported(self, project: Project) -> None:
        project.dataset.write_note(ANNOUNCEMENT_NOTE, b"{")
        message = project.built()["message"]
        assert "; lookupdb.open and lookupdb sync do not follow g6: " in message
        assert "active.json is not an announcement" in message


def test_nothing_newer_than_what_is_protected_goes(project: Project) -> None:
    """The operator claimed this build before the others were built: for example, its Job has waited for a node."""
    project.built("--keep", "1", "--protect", "g2")
    assert project.dataset.generations() == ("g2", "g3", "g4", "g5", "g6")


def test_nothing_goes_when_nothing_is_known_to_serve(project: Project) -> None:
    project.built("--keep", "1")
    assert len(project.dataset.generations()) == 6


def test_nothing_goes_unless_it_is_given_what_to_keep(project: Project) -> None:
    project.built("--protect", "g5")
    assert len(project.dataset.generations()) == 6


def test_a_damaged_generation_goes_when_it_is_old(project: Project) -> None:
    project.damage("g1")
    project.built("--keep", "9", "--protect", "g5")
    assert project.dataset.published_generations() == ("g2", "g3", "g4", "g5", "g6")


def test_nothing_goes_when_what_is_to_be_built_is_there(project: Project) -> None:
    """Otherwise a number could be used again for another generation."""
    result = project.built("--keep", "1", "--protect", "g5", "--generation", "g3")
    assert result["outcome"] == "adopted"
    assert len(project.dataset.generations()) == 5


def test_what_cannot_be_removed_keeps_nobody_from_building(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_self: Any, generation: str) -> None:
        raise StoreDenied(f"no right to remove {generation}")

    monkeypatch.setattr(DirectoryDataset, "remove", denied)
    result = project.build("--keep", "1", "--protect", "g5")
    assert result.exception is None
    assert "older generations of default/people cannot be removed: no right to remove g1" in result.stderr
    assert project.dataset.generations()[-1] == "g6"
