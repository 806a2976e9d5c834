"""Both kinds of client, and their patience. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

import pytest

from lookupdb.client import core
from support.clients import KINDS, Kind


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of client, in turn."""
    found: Kind = request.param
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller leaves while a batch is under way, however long that takes."""
    monkeypatch.setattr(core, "PATIENCE_SECONDS", 60.0)
