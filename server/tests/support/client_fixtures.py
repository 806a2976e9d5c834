"""Both kinds of client. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

import pytest

from support.clients import KINDS, Kind


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of them, in turn."""
    found: Kind = request.param
    return found
