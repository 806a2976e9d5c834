"""Builds the native kernels and puts them beside Python's modules: ``python server/native/native_build.py``.

Without a cargo that is new enough nothing is built, which one line says: lookupdb is whole without them, and slower.
Nothing but the standard library is imported, so that the wheel's build can use it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

CRATE: Final = Path(__file__).parent
LIBRARY: Final = CRATE / "target" / "release" / "lib_native.so"
MODULE: Final = CRATE.parent / "lookupdb" / "_native.abi3.so"
VARIABLE: Final = "LOOKUPDB_NATIVE"
COST: Final = "lookups, batches and builds run in Python, which takes two to three times their processor time"


def main() -> int:
    """Build, or say why not. The exit code is cargo's."""
    reason = find_obstacle()
    if reason:
        MODULE.unlink(missing_ok=True)  # that of other code
        print(f"no native kernels ({reason}): {COST}")
        return 1 if os.environ.get(VARIABLE) == "1" else 0
    return build()


def find_obstacle() -> str:
    """Why nothing can be built, or ""."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    cargo = shutil.which("cargo")
    if cargo is None:
        return "no cargo on PATH; https://rustup.rs has it"
    least, found = least_version(), cargo_version(cargo)
    if found < least:
        return f"cargo {'.'.join(map(str, least))} or newer is needed, {cargo} is {'.'.join(map(str, found))}"
    return ""


def build() -> int:
    """Build what has changed, and install it. A file that is in use is replaced, never written to."""
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", str(CRATE / "Cargo.toml")]
    if not LIBRARY.exists():
        print("building the native kernels (once, under two minutes)", flush=True)
    code = subprocess.run(command, check=False).returncode
    if code:
        print(f"the native kernels could not be built; {VARIABLE}=0 goes on without them", file=sys.stderr)
        return code
    if not MODULE.exists() or MODULE.read_bytes() != LIBRARY.read_bytes():
        new = MODULE.with_name(f"{MODULE.name}.{os.getpid()}")
        shutil.copy(LIBRARY, new)
        new.replace(MODULE)
    return 0


def least_version() -> tuple[int, ...]:
    """The oldest cargo that builds the crate, from Cargo.toml."""
    match = re.search(r'^rust-version = "([0-9.]+)"', (CRATE / "Cargo.toml").read_text(), re.MULTILINE)
    assert match, "Cargo.toml names it"
    return _parse_version(match[1])


def cargo_version(cargo: str) -> tuple[int, ...]:
    """The version of ``cargo``; (0,) if it does not tell."""
    output = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"cargo ([0-9.]+)", output)
    return _parse_version(match[1]) if match else (0,)


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


if __name__ == "__main__":
    sys.exit(main())
