"""A registry that images are pushed to. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lookupdb.image import registry as client
from support.registry import Registry, serve_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    """One that asks nobody for credentials."""
    with serve_registry() as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(client, "_FIRST_BACKOFF_SECONDS", 0.01)
