"""Small pieces of sentences."""

import sys
from pathlib import Path

import pytest

from lookupdb.wording import escape_controls, format_command, format_count, render_json, shorten, strip_secrets


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


def test_an_url_is_shown_without_what_may_be_secret() -> None:
    assert strip_secrets("https://user:word@host:1/path?key=1#part") == "https://host:1/path"


def test_a_mistyped_url_is_shown_without_what_may_be_secret() -> None:
    for url, shown in (
        ("https:/user:SECRET@host/f.csv?sig=SECRET", "https:/host/f.csv"),
        ("https//user:SECRET@host/f.csv?sig=SECRET", "https//host/f.csv"),
        ("https:user:SECRET@host/f.csv", "https:host/f.csv"),
        ("https:/SECRET@host/f.csv", "https:/host/f.csv"),
        ("user:SECRET@host/f.csv", "host/f.csv"),
        ("https://user:SEC/R?E#T@host/f.csv", "https://host/f.csv"),
        ("https://user:SEC@RET@host/f.csv", "https://host/f.csv"),
        ("https://user:SECRET@[bad/f.csv?sig=SECRET", "https://[bad/f.csv"),
        ("file://user:SECRET@host/f.csv", "file://host/f.csv"),
        ("az://folder/f.csv?sv=1&sig=SECRET/=", "az://folder/f.csv?…"),
        ("example://airports?sig=SECRET", "example://airports?…"),
        ("f.csv?sig=SECRET", "f.csv?…"),
    ):
        assert strip_secrets(url) == shown


def test_what_is_no_secret_is_shown() -> None:
    for url in (
        "s3://folder/day-?/*.csv",
        "data/2026-??/day=1/f.csv",
        "folder/part@2.csv",
        "folder/a:b@2.csv",
        "https://host:8443/scope@2/f.csv",
        "http://[::1]:1/f@2.csv",
        "file:///data/a:b@c.csv",
        "volume://part@2/f.csv",
        "/data/part@2.csv",
    ):
        assert strip_secrets(url) == url


@pytest.mark.parametrize("text", ["plain", "\udcff"])
def test_what_json_cannot_hold_is_no_null(text: str) -> None:
    with pytest.raises(TypeError):
        render_json({"a": text, "b": {1, 2}})
    assert render_json({"a": text, "b": {1}}, default=sorted).endswith(b'"b":[1]}')


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("error: café, 日本, 🙂\n  a\thint\u00a0\u3000", "error: café, 日本, 🙂\n  a\thint\u00a0\u3000"),
        ("\x1b]0;title\x07\x1b[2J", "\\x1b]0;title\\x07\\x1b[2J"),
        ("a\rb\x00\x7f\x9b", "a\\rb\\x00\\x7f\\x9b"),
        ("back\u202ewards\ufeff", "back\\u202ewards\\ufeff"),
        ("f\udcfflder", "f\\udcfflder"),
    ],
)
def test_what_controls_a_terminal_becomes_escapes(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


def test_what_is_too_long_is_cut() -> None:
    assert (shorten("abcd", 4), shorten("abcde", 4)) == ("abcd", "abcd…")
