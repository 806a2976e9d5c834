"""Fixtures for tests of sweeps. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookupdb import store
from support.buckets import new_bucket
from support.sweeps import Clock, Place

pytest_plugins = ["support.s3_fixtures"]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A directory, or what ``in_each_store`` says."""
    if getattr(request, "param", "directory") == "directory":
        return Place(tmp_path, str(tmp_path / "store"), None)
    bucket = new_bucket(request.getfixturevalue("server"), monkeypatch)
    made = Place(tmp_path, bucket.url, bucket)
    monkeypatch.setattr(store, "open_store", lambda _url, cluster: made.open(cluster))  # with a short lease
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
