"""Fixtures of the stories, and the report of one that fails. Loaded by the root conftest for all tests; does nothing
for those outside e2e/.

E2E_KEEP=1 leaves the namespace of a story that failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import pytest
from e2e.support import diagnose
from e2e.support.figures import record
from e2e.support.story import Story

STORY_SECONDS: Final = 900
"""A story that takes longer hangs; pytest's own limit is meant for tests without a cluster."""

_failed = pytest.StashKey[bool]()
_stories = pytest.StashKey[list[Story]]()


@pytest.fixture
def new_story(request: pytest.FixtureRequest) -> Iterator[Callable[..., Story]]:
    """Makes stories, for a test that needs several namespaces: ``new_story("other", labels={…})``."""
    stories: list[Story] = []
    request.node.stash[_stories] = stories

    def make(name: str, labels: dict[str, str] | None = None) -> Story:
        stories.append(Story(name, labels))
        return stories[-1]

    yield make
    if request.node.stash.get(_failed, False) and os.environ.get("E2E_KEEP"):
        return
    for story in stories:
        story.close()


@pytest.fixture
def story(request: pytest.FixtureRequest, new_story: Callable[..., Story]) -> Story:
    """The namespace of this story, named after its module: test_shard_pod.py → e2e-shard-pod-1f3a."""
    return new_story(request.path.stem.removeprefix("test_").replace("_", "-"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stories may take longer than tests."""
    for item in items:
        if _is_story(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(STORY_SECONDS))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Adds what a person would look at to the report of a story that failed."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.when == "teardown" or not _is_story(item):
        return
    if report.when == "call":
        record(item.path.stem.removeprefix("test_"), f"{item.name} took", call.duration, "s")
    if not report.failed:
        return
    item.stash[_failed] = True
    for story in item.stash.get(_stories, []):
        report.sections.append((f"what is in {story.namespace}", diagnose.namespace(story.namespace)))
    report.sections.append(("the operator", f"{time.strftime('%H:%M:%S')}\n{diagnose.operator()}"))


def _is_story(item: pytest.Item) -> bool:
    return item.path.parent.name == "e2e"
