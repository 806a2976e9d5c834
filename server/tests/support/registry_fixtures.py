"""A registry that images are pushed to, and oras. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookupdb.image import push as client
from support.registry import Registry, serve_registry

TOOLS = Path(__file__).parents[3] / ".tools" / "bin"


@pytest.fixture(scope="module")
def oras() -> Iterator[None]:
    """Put oras on PATH, as in the container image. Not ``autouse``: pytest would run that for every module's tests."""
    if not shutil.which("oras", path=str(TOOLS)):
        if shutil.which("go"):
            pytest.fail("there is no oras: run `make oras` once")
        pytest.skip("needs oras, which `make oras` builds where Go is")
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("PATH", str(TOOLS), prepend=os.pathsep)
        yield


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry that asks nobody for credentials."""
    with serve_registry() as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once what fails."""
    monkeypatch.setattr(client, "_FIRST_BACKOFF_SECONDS", 0.01)
