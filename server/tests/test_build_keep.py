"""`lookupdb build --keep`: a builder removes of its own dataset what no sweep can, in a store that no sweep knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.build_project import Project

from lookupdb.errors import StoreDenied
from lookupdb.store.directory import DirectoryDataset


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """It has g1 to g5."""
    made = Project(tmp_path)
    for _ in range(5):
        made.built()
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


def test_nothing_newer_than_what_is_protected_goes(project: Project) -> None:
    """The operator claimed this build before the others were built: the Job has waited for a node, say."""
    project.built("--keep", "1", "--protect", "g2")
    assert project.dataset.generations() == ("g2", "g3", "g4", "g5", "g6")


def test_nothing_goes_when_nothing_is_known_to_serve(project: Project) -> None:
    project.built("--keep", "1")
    assert len(project.dataset.generations()) == 6


def test_nothing_goes_unless_it_is_told_what_to_keep(project: Project) -> None:
    project.built("--protect", "g5")
    assert len(project.dataset.generations()) == 6


def test_a_damaged_generation_goes_when_it_is_old(project: Project) -> None:
    project.damage("g1")
    project.built("--keep", "9", "--protect", "g5")
    assert project.dataset.published_generations() == ("g2", "g3", "g4", "g5", "g6")


def test_nothing_goes_when_what_is_to_be_built_is_there(project: Project) -> None:
    """Or a generation would be built anew under a number that had another before."""
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
