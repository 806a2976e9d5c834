"""Fixtures of the stories, and the report of one that fails. Loaded by the root conftest for all tests; does nothing
for those outside e2e/.

E2E_KEEP=1 leaves the namespace of a story that failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from e2e.support import diagnose
from e2e.support.figures import record
from e2e.support.story import Story

STORY_SECONDS: Final = 900
"""A story that takes longer hangs; pytest's own limit is meant for tests without a cluster."""

FIRST: Final = ("test_first_lookup", "test_rebuild", "test_failures_build", "test_schedule", "test_shard_pod")
"""Modules that run before all others of their part: what they show matters most, or they take longest."""
LAST: Final = ("test_chart_upgrade", "test_fifty_datasets", "test_recovery_lost_cluster", "test_recovery_crd_deleted")
"""Modules that run after all others of their part: they leave the cluster busy, or take from it what all share."""

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
    _close(request.node)


@pytest.fixture(scope="module")
def shared_story(request: pytest.FixtureRequest) -> Iterator[Story]:
    """One namespace for all tests of a module; each test brings the dataset into the state that it begins from."""
    shared = Story(_name(request.path))
    request.node.stash[_stories] = [shared]
    yield shared
    _close(request.node)


@pytest.fixture
def story(request: pytest.FixtureRequest, new_story: Callable[..., Story]) -> Story:
    """The namespace of this story, named after its module: test_shard_pod.py → e2e-shard-pod-1f3a."""
    return new_story(_name(request.path))


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "side_by_side: a story with no more than a gentle load, that disturbs no other and has no goal to reach",
        "in_pairs: a story under load that disturbs no other and has no goal of seconds to reach; two run at a time",
        "node_lost: a story that takes a node away for minutes; those that disturb no other run meanwhile",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give stories more time than tests, and run some first or last."""
    items.sort(key=_turn)
    for item in items:
        if _is_story(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(STORY_SECONDS))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Add the output that a person would look at to the report of a story that failed."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.when == "teardown" or not _is_story(item):
        return
    if report.when == "call":
        record(item.path.stem.removeprefix("test_"), f"{item.name} took", call.duration, "s")
    if not report.failed:
        return
    for node in item.listchain():
        node.stash[_failed] = True
        for story in node.stash.get(_stories, []):
            report.sections.append((f"what is in {story.namespace}", diagnose.describe_namespace(story.namespace)))
    report.sections.append(("the operator", f"{time.strftime('%H:%M:%S')}\n{diagnose.describe_operator()}"))


def _close(node: pytest.Item | pytest.Module) -> None:
    if node.stash.get(_failed, False) and os.environ.get("E2E_KEEP"):
        return
    for story in node.stash.get(_stories, []):
        story.close()


def _name(path: Path) -> str:
    return path.stem.removeprefix("test_").replace("_", "-")


def _turn(item: pytest.Item) -> int:
    if not _is_story(item):
        return 0
    name = item.path.stem
    if name in FIRST:
        return FIRST.index(name) - len(FIRST)
    return LAST.index(name) + 1 if name in LAST else 0


def _is_story(item: pytest.Item) -> bool:
    return item.path.parent.name == "e2e"
