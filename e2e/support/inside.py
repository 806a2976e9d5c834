"""The programs of ``e2e/inside``, for tests that need no cluster."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from e2e.support.pods import INSIDE


def import_inside(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """Import a module as in the pod: its neighbours are on the path."""
    monkeypatch.syspath_prepend(INSIDE)
    return importlib.import_module(name)
