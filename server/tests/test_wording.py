"""Small pieces of sentences."""

import sys
from pathlib import Path

import pytest

from lookupdb.wording import format_command, format_count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1234, "1,234 records")]
)
def test_one_is_singular_and_thousands_are_parted(number: int, text: str) -> None:
    assert format_count(number, "record") == text


@pytest.mark.parametrize(
    ("called", "text"),
    [
        (".venv/bin/lookupdb", ".venv/bin/lookupdb get people 'a b'"),
        ("/opt/my tools/lookupdb", "'/opt/my tools/lookupdb' get people 'a b'"),
        ("/x/lookupdb/__main__.py", "bin/lookupdb get people 'a b'"),
        ("-c", "bin/lookupdb get people 'a b'"),
    ],
)
def test_a_command_is_as_a_person_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, text: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lookupdb").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert format_command("get", "people", "a b") == text


def test_the_script_of_another_folder_has_its_whole_path_and_without_one_python_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/lookupdb/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert format_command("up") == f"{tmp_path}/python -m lookupdb up"
    (tmp_path / "lookupdb").touch()
    assert format_command("up") == f"{tmp_path}/lookupdb up"
