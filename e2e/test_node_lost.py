"""A lost node's servers and routers are replaced on other nodes, without help.

It needs kind, whose nodes docker can pause. The node has neither operator nor store, because other scenarios run
meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from e2e.support import nodes, release
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, until
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.node_lost

AWAY = 900
"""Most seconds: Kubernetes notices after 50 and deletes the pods after 300 more, and the operator waits for them."""


def test_what_ran_on_a_node_that_is_lost_comes_back_elsewhere(scenario: Scenario) -> None:
    keys = scenario.source("records", version="same", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, replicas=2, router=PATIENT | {"replicas": 2}))
    scenario.wait_settled("records")
    node = nodes.spare_worker()
    assert _pods_on(scenario, node), f"nothing of the dataset runs on {node}"

    with nodes.cordoned(node), _paused(node):
        began = time.monotonic()
        until(lambda: not _pods_on(scenario, node), seconds=AWAY, what=f"no pod of the dataset on {node}")
        scenario.wait_settled("records")
        record("node-lost", "until all serves again", round(time.monotonic() - began), "s", at_most=AWAY)
        scenario.check_version("records", keys, "same")  # even a router that was idle meanwhile avoids lost servers
    until(lambda: nodes.is_ready(node), seconds=180, what=f"{node} back")
    scenario.wait_settled("records")
    scenario.check_version("records", keys, "same")


@contextlib.contextmanager
def _paused(node: str) -> Iterator[None]:
    if release.operator_pod()["spec"]["nodeName"] == node:
        release.restart_operator()
    nodes.pause(node)
    try:
        yield
    finally:
        nodes.unpause(node)


def _pods_on(scenario: Scenario, node: str) -> list[Manifest]:
    """Return the dataset's pods on ``node``, also those that are being deleted."""
    pods = find("pods", scenario.namespace, "lookupdb.dev/dataset=records")
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]
