"""`make check` of the native kernels: the crates that it allows, and its messages about missing tools."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import native_check
import pytest
from native_build import COST

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
ALLOWED = tomllib.loads(native_check.DENY.read_text())

CARGO = """#!/bin/sh
case "$1 $2" in
"--version ") echo "cargo 1.95.0" ;;
fetch*) ;;
metadata*) echo '{"packages": []}' ;;
"deny fetch") [ -z "$OFFLINE" ] ;;
*" --version") case " $LACKS " in *" $1 "*) exit 101 ;; esac ;;
*) echo "${PWD##*/}: cargo $*"; [ "${PWD##*/}: $1" != "$FAILS" ] ;;
esac
"""


def crate(licence: str | None, source: str | None = REGISTRY) -> dict[str, Any]:
    return {"packages": [{"name": "fast", "version": "1.2.3", "license": licence, "source": source}]}


def test_a_licence_that_deny_toml_does_not_allow_is_told() -> None:
    for licence, is_allowed in (
        ("MIT", True),
        ("MIT OR Apache-2.0", True),
        ("MIT/Apache-2.0", True),
        ("Unlicense OR MIT", True),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("(MIT OR GPL-3.0-only) AND (Unlicense OR BSD-3-Clause)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT OR Apache-2.0 OR LGPL-2.1-or-later", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only AND MIT OR GPL-2.0-only", False),
        ("GPL-3.0-only WITH LLVM-exception", False),
        ("(MIT", False),
        ("MIT)", False),
        ("", False),
        (None, False),
    ):
        problems = list(native_check.find_foreign_crates(crate(licence), ALLOWED))
        told = f"fast 1.2.3 is under {licence or 'no licence'}, which deny.toml does not allow"
        assert problems == ([] if is_allowed else [told])


@pytest.mark.parametrize("source", ["git+https://example.org/fast#0123", "registry+https://example.org/index"])
def test_crates_come_from_the_registry_and_from_here(source: str) -> None:
    assert list(native_check.find_foreign_crates(crate("MIT", None), ALLOWED)) == []
    problems = list(native_check.find_foreign_crates(crate("MIT", source), ALLOWED))
    assert problems == [f"fast 1.2.3 comes from {source}, which deny.toml does not allow"]


@pytest.fixture
def cargo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that PATH has."""
    for name, script in (("cargo", CARGO), ("cc", "#!/bin/sh\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LOOKUPDB_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cargo"


def test_all_that_there_is_runs(cargo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert native_check.main() == 0
    assert capfd.readouterr().out.splitlines() == [
        "native: cargo fmt --check",
        "native: cargo clippy --quiet --locked --all-targets -- -D warnings",
        "native: cargo deny --offline --log-level error check bans licenses sources",
        "fuzz: cargo fmt --check",
        "fuzz: cargo clippy --quiet --locked --all-targets --all-features -- -D warnings",
        "native: cargo deny --offline --log-level error check advisories",
    ]


@pytest.mark.parametrize("name", [f"{crate.name}: {arguments[0]}" for crate, arguments in native_check.COMMANDS])
def test_what_fails_fails_the_check(cargo: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("FAILS", name)
    assert native_check.main() == 1


def test_an_advisory_fails_the_check(cargo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_check, "COMMANDS", ())
    assert native_check.main() == 0
    monkeypatch.setenv("FAILS", "native: deny")
    assert native_check.main() == 1


def test_advisories_that_cannot_be_fetched_are_told(
    cargo: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OFFLINE", "yes")
    assert native_check.main() == 0
    *others, last = capfd.readouterr().out.splitlines()
    assert last == "the database of advisories cannot be fetched here: they are not checked"
    assert not [line for line in others if "advisories" in line]


def test_a_crate_in_two_versions_is_told() -> None:
    packages = [{"name": name, "version": version} for name, version in (("a", "1"), ("b", "2"), ("a", "0.9"))]
    assert list(native_check.find_repeated_crates({"packages": packages})) == ["a is there in 2 versions: 0.9, 1"]
    assert list(native_check.find_repeated_crates({"packages": packages[:2]})) == []


def test_what_is_not_installed_is_told(
    cargo: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LACKS", "clippy deny")
    assert native_check.main() == 0
    assert capfd.readouterr().out.splitlines() == [
        "native: cargo fmt --check",
        "no cargo clippy here: not checked",
        "no cargo deny here: licences, sources and versions of crates are checked all the same, advisories are not",
        "fuzz: cargo fmt --check",
        "no cargo clippy here: not checked",
    ]


def test_without_cargo_one_line_says_so(cargo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cargo.unlink()
    assert native_check.main() == 0
    assert capfd.readouterr().out == f"no native kernels (no cargo on PATH; https://rustup.rs has it): {COST}\n"
