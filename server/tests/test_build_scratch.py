"""A build removes its scratch folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookupdb.builder.options import remove_open_folders, scratch_folder
from lookupdb.errors import NotEnoughRoom


def test_it_is_removed_and_what_others_keep_beside_it_stays(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "a" / "b") as folder:
        assert folder.parent == tmp_path / "a" / "b"
        (folder / "run").write_bytes(b"1")
        (folder.parent / "others").write_bytes(b"1")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["others"]


def test_a_signal_removes_it_too(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "a"):
        remove_open_folders()
        assert list((tmp_path / "a").iterdir()) == []


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(NotEnoughRoom, match="cannot make a scratch folder"), scratch_folder(tmp_path / "file" / "a"):
        pass
    with pytest.raises(NotEnoughRoom, match="File name too long"), scratch_folder(tmp_path / ("x" * 300)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
