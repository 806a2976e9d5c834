"""`make native` and the wheel's hook: what they build, what they say where they cannot, what they leave behind.

cargo is a script here, and alone on PATH: these tests are the same on a machine that has it and on one that does not.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import native_build
import pytest
from hatchling.build import build_editable
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[2]
ELF = b"\x7fELF of the kernels"
COST = native_build.COST

CARGO = """#!/bin/sh
echo "$* $PYO3_NO_PYTHON" >> {log}
case $1 in
--version)
  echo "${{CARGO_VERSION-cargo 1.95.0 (f2d3ce0bd 2026-03-21)}}"
  [ -z "$2" ] || echo "host: x86_64-unknown-linux-gnu" ;;
fetch) [ -z "$FETCH_ERROR" ] || {{ echo "$FETCH_ERROR" >&2; exit 101; }} ;;
build)
  [ -z "$BUILD_ERROR" ] || {{ echo "$BUILD_ERROR" >&2; exit 101; }}
  echo '{{"reason":"compiler-artifact","target":{{"name":"pyo3"}},"filenames":["/x/libpyo3.rlib"]}}'
  echo '{message}'
  echo '{{"reason":"build-finished","success":true}}' ;;
esac
"""


class Machine:
    """A copy of the crate's place, and a cargo and a C compiler that are all that PATH has."""

    def __init__(self, folder: Path) -> None:
        self.crate = folder / "server" / "native"
        self.module = folder / "server" / "lookupdb" / "_native.abi3.so"
        self.library = folder / "elsewhere" / "lib_native.so"
        self.path = folder / "bin"
        self.variables: dict[str, str] = {}
        shutil.copytree(native_build.CRATE, self.crate, ignore=shutil.ignore_patterns("target", "fuzz"))
        for created in (self.module.parent, self.library.parent, self.path):
            created.mkdir()
        shutil.copy(native_build.MODULE.with_name("_native.pyi"), self.module.parent)
        self.library.write_bytes(ELF)
        message = {
            "reason": "compiler-artifact",
            "target": {"name": "_native"},
            "filenames": [str(self.library), str(self.library.with_suffix(".rlib"))],
        }
        self.log = folder / "cargo.log"
        self.add("cargo", CARGO.format(log=self.log, message=json.dumps(message)))
        self.add("cc", "#!/bin/sh\n")

    def add(self, name: str, script: str) -> None:
        program = self.path / name
        program.write_text(script)
        program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": str(self.path), **self.variables}

    @property
    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def build(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.crate / "native_build.py")]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_cargo_says_it_has_built_is_installed_under_the_name_that_python_looks_for(machine: Machine) -> None:
    run = machine.build()
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "building the native kernels (once, under two minutes)\n"
    assert machine.module.read_bytes() == ELF
    assert sorted(path.name for path in machine.module.parent.iterdir()) == ["_native.abi3.so", "_native.pyi"]
    assert machine.calls == ["--version", "--version", "fetch", "build"]
    *_, fetch, build = machine.log.read_text().splitlines()
    assert fetch.endswith("--target x86_64-unknown-linux-gnu "), "only what is for this machine"
    assert build.endswith(" 1"), "no interpreter is asked for: the ABI is the stable one"


def test_nothing_is_said_or_written_when_nothing_has_changed(machine: Machine) -> None:
    machine.build()
    before = machine.module.stat()
    run = machine.build()
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert machine.calls[4:] == ["--version", "--version", "fetch", "build"], "cargo sees what has changed"
    assert machine.module.stat().st_ino == before.st_ino


def test_a_module_that_is_in_use_is_replaced_and_not_written_to(machine: Machine) -> None:
    machine.build()
    with machine.module.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        machine.library.write_bytes(b"\x7fELF of other code.")
        assert machine.build().returncode == 0
        assert mapped[:] == ELF
    assert machine.module.read_bytes() == b"\x7fELF of other code."


def test_without_cargo_one_line_says_what_is_missing_and_what_it_costs(machine: Machine) -> None:
    (machine.path / "cargo").unlink()
    run = machine.build()
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"no native kernels (no cargo on PATH; https://rustup.rs has it): {COST}\n"


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"LOOKUPDB_NATIVE": "0"}, "LOOKUPDB_NATIVE=0"),
        ({"CARGO_VERSION": "cargo 1.63.0 (x)"}, "cargo 1.85 or newer is needed, {path}/cargo is 1.63.0"),
        ({"CARGO_VERSION": "cargo 1.84.9"}, "cargo 1.85 or newer is needed, {path}/cargo is 1.84.9"),
        ({"CARGO_VERSION": ""}, "{path}/cargo does not tell its version"),
        ({"CC": "clang-99"}, "no C compiler clang-99 on PATH, which zstd and the linker are"),
        (
            {"FETCH_ERROR": "error: failed to download\n\nCaused by:\n  [6] Could not resolve hostname"},
            "their crates cannot be fetched: [6] Could not resolve hostname; where the registry can be reached, "
            "`cargo fetch --manifest-path {crate}/Cargo.toml` once is enough",
        ),
    ],
    ids=["not-wanted", "debians", "older", "no-toolchain", "no-compiler", "no-network"],
)
def test_where_they_cannot_be_built_one_line_says_why_and_those_of_other_code_go(
    machine: Machine, variables: dict[str, str], reason: str
) -> None:
    machine.build()
    machine.variables = variables
    run = machine.build()
    reason = reason.format(path=machine.path, crate=os.path.relpath(machine.crate))
    assert (run.returncode, run.stdout, run.stderr) == (0, f"no native kernels ({reason}): {COST}\n", "")
    assert not machine.module.exists()


@pytest.mark.parametrize("version", ["1.85.0", "1.85.0-nightly (x)", "1.100.1", "2.0"])
def test_every_newer_cargo_will_do(machine: Machine, version: str) -> None:
    machine.variables = {"CARGO_VERSION": f"cargo {version}"}
    assert machine.build().returncode == 0
    assert machine.module.exists()


def test_what_1_demands_and_cannot_be_had_is_an_error(machine: Machine) -> None:
    machine.variables = {"LOOKUPDB_NATIVE": "1"}
    assert machine.build().returncode == 0
    machine.variables["CARGO_VERSION"] = "cargo 1.63.0"
    run = machine.build()
    assert run.returncode == 1
    assert run.stdout.startswith("no native kernels (cargo 1.85 or newer is needed")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"BUILD_ERROR": "error[E0308]: mismatched types"},
            "error[E0308]: mismatched types\nthe native kernels: cargo",
        ),
        (
            {"FETCH_ERROR": "error: the lock file Cargo.lock needs to be updated but --locked was passed"},
            "the native kernels: Cargo.lock is not that of Cargo.toml",
        ),
    ],
    ids=["does-not-compile", "lock-of-other-crates"],
)
def test_code_that_does_not_compile_is_an_error_and_leaves_none_of_other_code(
    machine: Machine, variables: dict[str, str], told: str
) -> None:
    machine.build()
    machine.variables = variables
    run = machine.build()
    assert run.returncode == 1
    assert run.stderr.startswith(told)
    assert run.stderr.endswith("LOOKUPDB_NATIVE=0 goes on without them\n")
    assert not machine.module.exists()


def test_the_digest_of_the_sources_changes_with_each_of_them(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "CRATE", machine.crate)
    monkeypatch.setattr(native_build, "MODULE", machine.module)
    digests = {native_build.digest_sources()}
    for name in ("Cargo.toml", "Cargo.lock", "src/lib.rs", "../lookupdb/_native.pyi"):
        with (machine.crate / name).open("a") as file:
            file.write("\n")
        digests.add(native_build.digest_sources())
    (machine.crate / "src" / "lib.rs").rename(machine.crate / "src" / "other.rs")
    digests.add(native_build.digest_sources())
    assert len(digests) == 6


@pytest.fixture
def wheels(machine: Machine, tmp_path: Path) -> Iterator[Path]:
    """Where ``build_wheel`` puts wheels. A wheel of the checkout leaves the checkout's own kernels alone."""
    before = native_build.MODULE.stat() if native_build.MODULE.exists() else None
    yield tmp_path / "wheels"
    assert (native_build.MODULE.stat() if native_build.MODULE.exists() else None) == before


def build_wheel(machine: Machine, wheels: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    environment = machine.environment | {"HOME": str(wheels)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_wheel_from_where_cargo_is_holds_the_kernels_and_its_tag_says_so(machine: Machine, wheels: Path) -> None:
    run = build_wheel(machine, wheels)
    assert run.returncode == 0, run.stderr
    (wheel,) = wheels.glob("*.whl")
    *_, tags = parse_wheel_filename(wheel.name)
    (tag,) = tags
    assert (tag.interpreter, tag.abi) == ("cp311", "abi3")
    assert tag in set(sys_tags()), "pip installs it here"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("lookupdb/_native.abi3.so") == ELF
        names = archive.namelist()
        assert "Root-Is-Purelib: false" in archive.read(next(n for n in names if n.endswith("/WHEEL"))).decode()
    assert len(names) == len(set(names))
    assert {"lookupdb/native.py", "lookupdb/_native.pyi", "lookupdb_operator/main.py"} <= set(names)
    assert not [name for name in names if name.endswith((".rs", ".toml")) or "native_build" in name]


def test_a_wheel_from_where_it_is_not_is_pure_python(machine: Machine, wheels: Path) -> None:
    (machine.path / "cargo").unlink()
    run = build_wheel(machine, wheels)
    assert run.returncode == 0, run.stderr
    assert COST in run.stdout
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if ".so" in name]


def test_a_wheel_with_kernels_that_are_demanded_and_cannot_be_built_is_none(machine: Machine, wheels: Path) -> None:
    machine.variables = {"LOOKUPDB_NATIVE": "1", "CARGO_VERSION": "cargo 1.63.0"}
    assert build_wheel(machine, wheels).returncode == 1
    machine.variables = {"BUILD_ERROR": "error[E0308]"}
    assert build_wheel(machine, wheels).returncode == 1
    assert not list(wheels.glob("*.whl"))


def test_an_editable_installation_builds_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(machine.path))
    assert build_editable(str(tmp_path)).endswith("-py3-none-any.whl")
    assert machine.calls == []
