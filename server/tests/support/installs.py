"""Installations of lookupdb with some of its extras, made of links to the packages that are here."""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[3]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_LOCKED: Final = ("pbr", "setuptools")  # see [tool.uv] in pyproject.toml


def list_packages(extras: Collection[str] = (), name: str = "lookupdb") -> set[str]:
    """Return the packages that ``pip install name[extras]`` brings, itself included, without those that the lock
    leaves out."""
    found: dict[str, set[str]] = {}
    _add_packages(found, name, {*extras})
    return found.keys() - {*NOT_LOCKED}


def _add_packages(found: dict[str, set[str]], name: str, extras: set[str]) -> None:
    if name in found and extras <= found[name]:
        return
    found[name] = found.get(name, set()) | extras
    if name == "lookupdb":
        texts = [*PROJECT["dependencies"]]
        texts += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    else:
        texts = [] if name in NOT_LOCKED else metadata.requires(name) or []
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            _add_packages(found, canonicalize_name(requirement.name), requirement.extras)


class Install:
    """A virtual environment with lookupdb, and the packages that ``extras`` bring."""

    def __init__(self, folder: Path, extras: Collection[str] = ()) -> None:
        venv.create(folder, symlinks=True)
        self._python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        for name in list_packages(extras):
            tops = {file.parts[0]: file for file in metadata.files(name) or []}
            for top in tops.keys() - {"..", "__pycache__"}:
                if name != "lookupdb" or top.endswith(".dist-info"):
                    (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
        (site / "lookupdb").symlink_to(ROOT / "server" / "lookupdb")
        (site / "lookupdb_operator").symlink_to(ROOT / "operator" / "lookupdb_operator")

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run its Python with ``words``."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        return subprocess.run(
            [self._python, *words], env=own | variables, capture_output=True, text=True, timeout=120, check=False
        )
