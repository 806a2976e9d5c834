"""A real API server refuses what examples/invalid/ holds, in the words that each file expects, and takes the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from e2e.support.command import CommandFailed
from e2e.support.kubectl import kubectl
from e2e.support.story import EXAMPLES, Story

pytestmark = pytest.mark.side_by_side

EXPECT: Final = "# expect: "


def test_invalid_manifests_are_refused_in_words_that_help(story: Story) -> None:
    files = sorted((EXAMPLES / "invalid").glob("*.yaml"))
    assert files
    assert [answer for path in files if (answer := _unexpected(path, story))] == []


def test_every_example_is_accepted(story: Story) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        kubectl("apply", "--dry-run=server", "--namespace", story.namespace, "-f", str(path))


def _unexpected(path: Path, story: Story) -> str | None:
    """What the API server does with the file, when that is not what the file says."""
    (expected,) = (line.removeprefix(EXPECT) for line in path.read_text().splitlines() if line.startswith(EXPECT))
    try:
        kubectl("apply", "--dry-run=server", "--validate=strict", "--namespace", story.namespace, "-f", str(path))
    except CommandFailed as refused:
        return None if expected in str(refused) else f"{path.name}: expected {expected!r}, got: {refused}"
    return f"{path.name}: accepted, expected {expected!r}"
