"""A real API server rejects every file of examples/invalid/ with the expected message, and accepts all other
examples."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from e2e.support.command import CommandFailed
from e2e.support.kubectl import kubectl
from e2e.support.scenario import EXAMPLES, Scenario

pytestmark = pytest.mark.side_by_side

EXPECT: Final = "# expect: "


def test_invalid_manifests_are_refused_in_words_that_help(scenario: Scenario) -> None:
    files = sorted((EXAMPLES / "invalid").glob("*.yaml"))
    assert files
    assert [answer for path in files if (answer := _unexpected(path, scenario))] == []


def test_every_example_is_accepted(scenario: Scenario) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        kubectl("apply", "--dry-run=server", "--namespace", scenario.namespace, "-f", str(path))


def _unexpected(path: Path, scenario: Scenario) -> str | None:
    """Return how the API server's answer differs from what the file expects."""
    (expected,) = (line.removeprefix(EXPECT) for line in path.read_text().splitlines() if line.startswith(EXPECT))
    try:
        kubectl("apply", "--dry-run=server", "--validate=strict", "--namespace", scenario.namespace, "-f", str(path))
    except CommandFailed as refused:
        return None if expected in str(refused) else f"{path.name}: expected {expected!r}, got: {refused}"
    return f"{path.name}: accepted, expected {expected!r}"
