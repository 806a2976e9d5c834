"""Builds the native kernels and installs them beside the Python modules: ``python server/native/native_build.py``.

If they cannot be built (cargo is missing or too old, no C compiler, no access to the registry), one line says why:
lookupdb works without them, but slower. Code that does not compile is an error. This module imports only the standard
library, so that the wheel's build can use it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CRATE: Final = Path(__file__).parent
MODULE: Final = CRATE.parent / "lookupdb" / "_native.abi3.so"
VARIABLE: Final = "LOOKUPDB_NATIVE"
SOURCES_VARIABLE: Final = "LOOKUPDB_NATIVE_SOURCES"
"""Passes the digest of its sources to the crate; the module then has it as ``SOURCES``."""
COST: Final = "lookups, batches and builds run in plain Python, which takes several times their processor time"


class NoKernels(Exception):
    """They cannot be built here. lookupdb works without them, unless they are required or ``is_fault``."""

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


def main() -> int:
    """Build what has changed, or say why not. Return the exit code.

    An existing module may be in use: servers restart workers, which load it again. Remove it only if it is outdated.
    """
    if os.environ.get(VARIABLE) == "0":
        return explain(NoKernels(f"{VARIABLE}=0"))  # for one run only: keep the module
    try:
        install(build_library())
    except NoKernels as error:
        if is_up_to_date() and not error.is_fault:
            print(f"the native kernels that are here are used, though none could be built ({error})", flush=True)
            return 0
        if not is_up_to_date():
            MODULE.unlink(missing_ok=True)
        return explain(error)
    return 0


def explain(error: NoKernels) -> int:
    """Say why there are no kernels, and return the exit code."""
    if error.is_fault:
        print(f"the native kernels: {error}; {VARIABLE}=0 goes on without them", file=sys.stderr)
        return 1
    print(f"no native kernels ({error}): {COST}", flush=True)
    return 1 if os.environ.get(VARIABLE) == "1" else 0


def build_library() -> Path:
    """Return the library, built again if its sources have changed. Raises NoKernels."""
    cargo = find_cargo()
    takes_long = not is_up_to_date()
    if takes_long:
        print(f"building the native kernels (under two minutes; {VARIABLE}=0 goes on without them)", flush=True)
    fetch_crates(cargo)
    # The ABI is the stable one: the build needs no Python, and gives the same module for each version.
    environment = os.environ | {"PYO3_NO_PYTHON": "1", SOURCES_VARIABLE: digest_sources()}
    quiet = [] if takes_long and sys.stderr.isatty() else ["--quiet"]  # cargo shows its progress
    command = [cargo, "build", *quiet, "--release", "--locked", "--message-format=json-render-diagnostics"]
    run = subprocess.run(
        [*command, *_manifest()], env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False
    )
    if run.returncode:
        raise NoKernels("cargo could not build them", is_fault=True)
    return _find_library(run.stdout)


def install(library: Path) -> None:
    """Put ``library`` where Python finds it. Replace a module that may be in use, never write to it."""
    if MODULE.exists() and MODULE.read_bytes() == library.read_bytes():
        return
    new = MODULE.with_name(f"{MODULE.name}.{os.getpid()}")
    try:
        shutil.copy(library, new)
        new.replace(MODULE)
    finally:
        new.unlink(missing_ok=True)


def is_up_to_date() -> bool:
    """Return whether the installed module was built from these sources: it contains their digest."""
    return MODULE.exists() and digest_sources().encode() in MODULE.read_bytes()


def find_cargo() -> str:
    """Return the cargo to build with. Raises NoKernels if nothing can be built here."""
    if os.environ.get(VARIABLE) == "0":
        raise NoKernels(f"{VARIABLE}=0")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoKernels("no cargo on PATH; https://rustup.rs has it")
    least, found = least_version(), cargo_version(cargo)
    if found is None:
        raise NoKernels(f"{cargo} does not tell its version")
    if found < least:
        raise NoKernels(f"cargo {_format_version(least)} or newer is needed, {cargo} is {_format_version(found)}")
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        raise NoKernels(f"no C compiler {compiler} on PATH, which zstd and the linker are")
    return cargo


def fetch_crates(cargo: str, crate: Path = CRATE) -> None:
    """Fetch the missing crates that ``crate`` needs on this machine. Ask the registry only if some are missing. Raises
    NoKernels.
    """
    command = [cargo, "fetch", "--quiet", "--locked", *_manifest(crate), *_target(cargo)]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if not run.returncode:
        return
    causes = [line.strip() for line in run.stderr.splitlines() if line.strip()] or ["cargo does not tell why"]
    if "--locked" in run.stderr:
        raise NoKernels("Cargo.lock is not that of Cargo.toml: run cargo check, and commit both", is_fault=True)
    raise NoKernels(
        f"their crates cannot be fetched: {causes[-1].rstrip('.')}; where the registry can be reached, "
        f"`cargo fetch --manifest-path {os.path.relpath(crate / 'Cargo.toml')}` once is enough"
    )


def least_version() -> tuple[int, ...]:
    """Return the oldest version of cargo that builds the crate, from Cargo.toml."""
    match = re.search(r'^rust-version = "([0-9.]+)"', (CRATE / "Cargo.toml").read_text(), re.MULTILINE)
    assert match, "Cargo.toml names it"
    return _parse_version(match[1])


def cargo_version(cargo: str) -> tuple[int, ...] | None:
    """Return the version of ``cargo``, None if it reports none: rustup's proxy without a toolchain, for example."""
    output = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"cargo ([0-9]+(?:\.[0-9]+)*)", output)
    return _parse_version(match[1]) if match else None


def digest_sources() -> str:
    """Return a digest of everything that the library is built from."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(CRATE.parent)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    yield from (CRATE / "Cargo.lock", CRATE / "Cargo.toml", MODULE.with_name("_native.pyi"))
    yield from sorted((CRATE / "src").rglob("*.rs"))


def _target(cargo: str) -> list[str]:
    """Return the options for this machine alone, so that crates for other platforms are not fetched."""
    output = subprocess.run([cargo, "--version", "--verbose"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"^host: (\S+)$", output, re.MULTILINE)
    return ["--target", match[1]] if match else []


def _manifest(crate: Path = CRATE) -> list[str]:
    return ["--manifest-path", str(crate / "Cargo.toml")]


def _find_library(messages: bytes) -> Path:
    """Return the path that cargo reports: its settings may choose any target folder."""
    for message in map(json.loads, messages.splitlines()):
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == "_native":
            for file in message["filenames"]:
                if file.endswith(".so"):
                    return Path(file)
    raise NoKernels("cargo tells of no library that it has built", is_fault=True)


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    sys.exit(main())
