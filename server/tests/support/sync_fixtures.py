"""Fixtures for tests of `lookupdb sync`. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookupdb.sync import keeper as keepers
from support.syncing import hasten


@pytest.fixture
def hastened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `lookupdb sync` check, retry and tidy up many times a second."""
    hasten(monkeypatch)
    monkeypatch.setattr(keepers, "TIDY_SECONDS", 0.05)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder that it keeps."""
    return tmp_path / "kept"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The store, a directory."""
    return str(tmp_path / "store")
