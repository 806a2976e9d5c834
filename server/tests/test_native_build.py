"""`make native` and the wheel's hook: what they build, what they say if they cannot, and what they leave behind.

PATH has only a script called cargo, so these tests are the same on machines with and without cargo.
"""

from __future__ import annotations

import json
import mmap
import os
import pty
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
    """A copy of the crate's folder, and a PATH with only a cargo and a C compiler."""

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
        self.library.write_bytes(ELF + native_build.digest_sources().encode())
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

    def digest(self) -> bytes:
        """The digest of the sources, which a library that was built from them holds."""
        words = [sys.executable, "-c", "import native_build; print(native_build.digest_sources(), end='')"]
        return subprocess.run(words, cwd=self.crate, capture_output=True, timeout=60, check=True).stdout

    def install(self) -> None:
        """What ``build`` leaves, without a build."""
        shutil.copy(self.library, self.module)

    def change_sources(self) -> None:
        with (self.crate / "src" / "lib.rs").open("a") as file:
            file.write("\n")

    def build(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.crate / "native_build.py")]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def build_on_a_terminal(self) -> int:
        """Return the exit code. What is written is not read: it fits into the terminal's buffer."""
        controller, terminal = pty.openpty()
        command = [sys.executable, str(self.crate / "native_build.py")]
        try:
            return subprocess.run(
                command, env=self.environment, stdout=terminal, stderr=terminal, timeout=60, check=False
            ).returncode
        finally:
            os.close(terminal)
            os.close(controller)


def identity(path: Path) -> tuple[int, int, int] | None:
    """Identify a file's content: the same until it is replaced or written to; None if there is no file."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_cargo_says_it_has_built_is_installed_under_the_name_that_python_looks_for(machine: Machine) -> None:
    run = machine.build()
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == ("building the native kernels (under two minutes; LOOKUPDB_NATIVE=0 goes on without them)\n")
    assert machine.module.read_bytes() == machine.library.read_bytes()
    assert sorted(path.name for path in machine.module.parent.iterdir()) == ["_native.abi3.so", "_native.pyi"]
    assert machine.calls == ["--version", "--version", "fetch", "build"]
    *_, fetch, build = machine.log.read_text().splitlines()
    assert fetch.endswith("--target x86_64-unknown-linux-gnu "), "only what is for this machine"
    assert build.endswith(" 1"), "no interpreter is asked for: the ABI is the stable one"


def test_nothing_is_said_or_written_when_nothing_has_changed(machine: Machine) -> None:
    machine.build()
    before = identity(machine.module)
    run = machine.build()
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert machine.calls[4:] == ["--version", "--version", "fetch", "build"], "cargo sees what has changed"
    assert identity(machine.module) == before


def test_people_see_how_far_cargo_is_while_it_builds_again(machine: Machine) -> None:
    assert machine.build_on_a_terminal() == 0
    assert "--quiet" not in machine.log.read_text().splitlines()[-1]
    assert machine.build_on_a_terminal() == 0
    assert "--quiet" in machine.log.read_text().splitlines()[-1], "nothing has changed"
    machine.change_sources()
    assert machine.build_on_a_terminal() == 0
    assert "--quiet" not in machine.log.read_text().splitlines()[-1]
    assert machine.build().returncode == 0
    assert "--quiet" in machine.log.read_text().splitlines()[-1], "nobody looks on"


def test_a_module_that_is_in_use_is_replaced_and_not_written_to(machine: Machine) -> None:
    machine.build()
    before = machine.module.read_bytes()
    with machine.module.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        machine.library.write_bytes(b"\x7fELF of other code.")
        assert machine.build().returncode == 0
        assert mapped[:] == before
    assert machine.module.read_bytes() == b"\x7fELF of other code."


def test_without_cargo_one_line_says_what_is_missing_and_what_it_costs(machine: Machine) -> None:
    (machine.path / "cargo").unlink()
    run = machine.build()
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"no native kernels (no cargo on PATH; https://rustup.rs has it): {COST}\n"


def test_0_chooses_for_one_run_and_removes_nothing(machine: Machine) -> None:
    """Servers that run may start a worker again, which loads the module again."""
    machine.build()
    machine.change_sources()
    before = identity(machine.module)
    machine.variables = {"LOOKUPDB_NATIVE": "0"}
    run = machine.build()
    assert (run.returncode, run.stdout, run.stderr) == (0, f"no native kernels (LOOKUPDB_NATIVE=0): {COST}\n", "")
    assert identity(machine.module) == before
    assert len(machine.calls) == 4, "nor does it ask cargo"


UNABLE = pytest.mark.parametrize(
    ("variables", "reason"),
    [
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
    ids=["debians", "older", "no-toolchain", "no-compiler", "no-network"],
)


@UNABLE
def test_those_that_are_here_and_fit_stay_where_none_can_be_built(
    machine: Machine, variables: dict[str, str], reason: str
) -> None:
    machine.install()
    before = identity(machine.module)
    machine.variables = variables
    run = machine.build()
    reason = reason.format(path=machine.path, crate=os.path.relpath(machine.crate))
    told = f"the native kernels that are here are used, though none could be built ({reason})\n"
    assert (run.returncode, run.stdout, run.stderr) == (0, told, "")
    assert identity(machine.module) == before
    if "CC" in variables:
        machine.variables = variables | {"LOOKUPDB_NATIVE": "1"}
        run = machine.build()
        assert (run.returncode, run.stdout, run.stderr) == (0, told, ""), "those that are here are what 1 demands"
        assert identity(machine.module) == before


@UNABLE
def test_where_they_cannot_be_built_one_line_says_why_and_those_of_other_code_go(
    machine: Machine, variables: dict[str, str], reason: str
) -> None:
    machine.install()
    machine.change_sources()
    machine.variables = variables
    run = machine.build()
    reason = reason.format(path=machine.path, crate=os.path.relpath(machine.crate))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith(f"no native kernels ({reason}): {COST}\n")
    assert not machine.module.exists()


@pytest.mark.parametrize("version", ["1.85.0", "1.85.0-nightly (x)", "1.100.1", "2.0"])
def test_every_newer_cargo_will_do(machine: Machine, version: str) -> None:
    machine.variables = {"CARGO_VERSION": f"cargo {version}"}
    assert machine.build().returncode == 0
    assert machine.module.exists()


def test_what_1_demands_and_cannot_be_had_is_an_error(machine: Machine) -> None:
    machine.variables = {"LOOKUPDB_NATIVE": "1"}
    assert machine.build().returncode == 0
    machine.change_sources()
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
    machine.install()
    machine.variables = variables
    assert machine.build().returncode == 1
    assert machine.module.exists(), "it is of the code that is here: another compiler does not take that"
    machine.change_sources()
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
    """The folder of ``build_wheel``. A wheel of the checkout leaves the checkout's own kernels alone."""
    before = identity(native_build.MODULE)
    yield tmp_path / "wheels"
    assert identity(native_build.MODULE) == before


def build_wheel(machine: Machine, wheels: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    environment = machine.environment | {"HOME": str(wheels)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def required_by(wheel: Path) -> set[str]:
    """The packages that a wheel needs without its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return {text for text in needed if ";" not in text}


def test_a_wheel_from_where_cargo_is_holds_the_kernels_and_its_tag_says_so(machine: Machine, wheels: Path) -> None:
    run = build_wheel(machine, wheels)
    assert run.returncode == 0, run.stderr
    (wheel,) = wheels.glob("*.whl")
    *_, tags = parse_wheel_filename(wheel.name)
    (tag,) = tags
    assert (tag.interpreter, tag.abi) == ("cp311", "abi3")
    assert tag in set(sys_tags()), "pip installs it here"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("lookupdb/_native.abi3.so") == machine.library.read_bytes()
        names = archive.namelist()
        assert "Root-Is-Purelib: false" in archive.read(next(n for n in names if n.endswith("/WHEEL"))).decode()
    assert len(names) == len(set(names))
    assert {"lookupdb/native.py", "lookupdb/_native.pyi", "lookupdb/py.typed", "lookupdb_operator/main.py"} <= set(
        names
    )
    assert required_by(wheel) == {"click", "orjson", "xxhash"}
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
    assert required_by(wheel) == {"click", "orjson", "xxhash", "lmdb", "zstandard"}, (
        "the fallback reads shards by these"
    )


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
