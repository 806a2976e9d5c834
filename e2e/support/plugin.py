"""Fixtures of scenarios, and the report of a failed one. The root conftest loads it; it ignores tests outside e2e/.

E2E_KEEP=1 keeps the namespace of a failed scenario.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from e2e.support import diagnose
from e2e.support import prometheus as prometheus_process
from e2e.support.figures import record
from e2e.support.scenario import Scenario

SCENARIO_SECONDS: Final = 900
"""A scenario that takes longer hangs. pytest's own limit is for tests without a cluster."""

FIRST: Final = (
    "test_first_lookup",
    "test_spark",
    "test_rebuild",
    "test_failures_build",
    "test_plugin",
    "test_schedule",
    "test_spark_driver",
    "test_encrypted_lookups",
    "test_failures_rollout",
    "test_secrets_shown",
    "test_suspended",
    "test_pin",
    "test_pushed",
    "test_shard_pod",
)
"""Modules that run before all others of their part: the most important, then the longest, so that none runs alone at
the end."""
LAST: Final = ("test_chart_upgrade", "test_fifty_datasets", "test_recovery_lost_cluster", "test_recovery_crd_deleted")
"""Modules that run after all others of their part, because they leave the cluster busy or remove shared objects."""

_failed = pytest.StashKey[bool]()
_scenarios = pytest.StashKey[list[Scenario]]()


@pytest.fixture
def new_scenario(request: pytest.FixtureRequest) -> Iterator[Callable[..., Scenario]]:
    """Create scenarios, for a test that needs several namespaces: ``new_scenario("other", labels={…})``."""
    scenarios: list[Scenario] = []
    request.node.stash[_scenarios] = scenarios

    def make(name: str, labels: dict[str, str] | None = None) -> Scenario:
        scenarios.append(Scenario(name, labels))
        return scenarios[-1]

    yield make
    _close(request.node)


@pytest.fixture(scope="module")
def shared_scenario(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """One namespace for all tests of a module. Each test first brings the dataset into its initial state."""
    shared = Scenario(_name(request.path))
    request.node.stash[_scenarios] = [shared]
    yield shared
    _close(request.node)


@pytest.fixture
def scenario(request: pytest.FixtureRequest, new_scenario: Callable[..., Scenario]) -> Scenario:
    """This scenario's namespace, named after its module: test_shard_pod.py → e2e-shard-pod-1f3a."""
    return new_scenario(_name(request.path))


@pytest.fixture(scope="module")
def prometheus() -> Iterator[prometheus_process.Prometheus]:
    """A Prometheus that reads the release and all datasets, and evaluates the chart's alerts."""
    with prometheus_process.running() as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "side_by_side: a scenario without a goal, with gentle load at most, that disturbs no other; four run at a time",
        "under_load: a scenario under load that disturbs no other, and is far from its goal; three run at a time",
        "node_lost: the scenario that takes a node away for minutes, beside those that run side by side",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give scenarios more time than tests, and run some first or last."""
    items.sort(key=_turn)
    for item in items:
        if _is_scenario(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SCENARIO_SECONDS))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Add diagnostic output to the report of a failed scenario."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.when == "teardown" or not _is_scenario(item):
        return
    if report.when == "call":
        record(item.path.stem.removeprefix("test_"), f"{item.name} took", call.duration, "s")
    if not report.failed:
        return
    for node in item.listchain():
        node.stash[_failed] = True
        for scenario in node.stash.get(_scenarios, []):
            report.sections.append(
                (f"what is in {scenario.namespace}", diagnose.describe_namespace(scenario.namespace))
            )
    report.sections.append(("the operator", f"{time.strftime('%H:%M:%S')}\n{diagnose.describe_operator()}"))


def _close(node: pytest.Item | pytest.Module) -> None:
    if node.stash.get(_failed, False) and os.environ.get("E2E_KEEP"):
        return
    for scenario in node.stash.get(_scenarios, []):
        scenario.close()


def _name(path: Path) -> str:
    return path.stem.removeprefix("test_").replace("_", "-")


def _turn(item: pytest.Item) -> int:
    if not _is_scenario(item):
        return 0
    name = item.path.stem
    if name in FIRST:
        return FIRST.index(name) - len(FIRST)
    return LAST.index(name) + 1 if name in LAST else 0


def _is_scenario(item: pytest.Item) -> bool:
    return item.path.parent.name == "e2e"
