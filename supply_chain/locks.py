"""What the lock files name: Python packages and crates, with versions and checksums."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

ROOT: Final = Path(__file__).parents[1]
REQUIREMENTS: Final = ROOT / "requirements" / "run.txt"
CARGO_LOCK: Final = ROOT / "server" / "native" / "Cargo.lock"
PYPI: Final = "PyPI"
CRATES: Final = "crates.io"
_PURL_TYPES: Final = {PYPI: "pypi", CRATES: "cargo"}
_PINNED: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, order=True)
class LockedPackage:
    """One package of a lock file."""

    ecosystem: str
    """As OSV names it: ``PYPI`` or ``CRATES``."""
    name: str
    version: str
    checksums: tuple[str, ...] = ()
    """SHA-256, hexadecimal: of the files of which one is installed."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:{_PURL_TYPES[self.ecosystem]}/{quote(self.name)}@{quote(self.version)}"


def read_requirements(path: Path = REQUIREMENTS) -> list[LockedPackage]:
    """The packages of a requirements file that pins each with its hashes. Raises ValueError for any other line."""
    packages = []
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        pinned, checksums = _PINNED.match(text), _HASH.findall(text)
        if pinned is None or not checksums:
            raise ValueError(f"{path.name}: expected name==version with hashes, found {text[:80]!r}: run `make lock`")
        packages.append(LockedPackage(PYPI, normalize(pinned[1]), pinned[2], tuple(sorted(checksums))))
    return sorted(packages)


def read_cargo_lock(path: Path = CARGO_LOCK) -> list[LockedPackage]:
    """The crates of a Cargo.lock but for our own, which have no source. Raises ValueError for one without checksum."""
    packages = []
    for package in tomllib.loads(path.read_text(encoding="utf-8"))["package"]:
        if "source" not in package:
            continue
        if "checksum" not in package:
            raise ValueError(f"{path.name}: expected a checksum of {package['name']}, found none: is it from git?")
        packages.append(LockedPackage(CRATES, package["name"], package["version"], (package["checksum"],)))
    return sorted(packages)


def normalize(name: str) -> str:
    """A Python package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
