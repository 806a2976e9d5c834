"""A build removes its scratch folder, and the folders that it made above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookupdb.builder import options
from lookupdb.builder.options import remove_open_folders, scratch_folder
from lookupdb.errors import NotEnoughRoom


def test_folders_that_had_to_be_made_go_with_it(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "a" / "b") as folder:
        assert folder.parent == tmp_path / "a" / "b"
        (folder / "run").write_bytes(b"1")
    assert list(tmp_path.iterdir()) == []


def test_what_others_keep_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with scratch_folder(tmp_path / "a"):
        pass
    assert (tmp_path / "a").is_dir(), "it was there before"
    with scratch_folder(tmp_path / "b" / "c"):
        (tmp_path / "b" / "others").write_bytes(b"1")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["others"]


def test_a_signal_removes_them_too(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "a"):
        remove_open_folders()
        assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(NotEnoughRoom, match="cannot make a scratch folder"), scratch_folder(tmp_path / "file" / "a"):
        pass
    with (
        pytest.raises(NotEnoughRoom, match="File name too long"),
        scratch_folder(tmp_path / "a" / ("x" * 300)),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_another_build_that_removes_its_own_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = options._remove_abandoned
    calls = []

    def remove_once(base: Path) -> None:
        look(base)
        calls.append(base)
        if len(calls) == 1:
            base.rmdir()

    monkeypatch.setattr(options, "_remove_abandoned", remove_once)
    with scratch_folder(tmp_path / "a") as folder:
        assert folder.is_dir()
    assert len(calls) == 2
