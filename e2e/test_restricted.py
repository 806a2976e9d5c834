"""Namespaces that enforce the restricted pod security standard accept all pods of lookupdb and its chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from e2e.support import release, restricted
from e2e.support import store as stores
from e2e.support.kubectl import kubectl
from e2e.support.scenario import Scenario


@pytest.fixture
def restricted_installation() -> Iterator[None]:
    """Enforce the standard for new pods in the installation's namespace during the scenario."""
    labels = [f"{name}={value}" for name, value in restricted.LABELS.items()]
    kubectl("label", "namespace", release.NAMESPACE, "--overwrite", *labels)
    yield
    kubectl("label", "namespace", release.NAMESPACE, *(f"{name}-" for name in restricted.LABELS))


@pytest.mark.usefixtures("restricted_installation")
def test_the_chart_and_a_dataset_run_where_pods_are_restricted(new_scenario: Callable[..., Scenario]) -> None:
    kubectl("delete", "pod", stores.pod()["metadata"]["name"], "--namespace", release.NAMESPACE, timeout=180)
    release.restart_operator()
    stores.pod()

    scenario = new_scenario("restricted", labels=restricted.LABELS)
    keys = scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    scenario.wait_settled("records")
    scenario.check_version("records", keys, "v1")
    for namespace in (scenario.namespace, release.NAMESPACE):
        assert restricted.find_refusals(namespace) == []
