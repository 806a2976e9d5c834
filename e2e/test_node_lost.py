"""A node is lost for good: its servers and routers are replaced on other nodes, without anybody's help. Of kind's nodes
only: there docker can take one away. Other stories run meanwhile, so it has neither operator nor store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from e2e.support import nodes, release
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, until
from e2e.support.story import PATIENT, Story

pytestmark = pytest.mark.node_lost

AWAY = 900
"""Seconds at most: Kubernetes notices after 50, deletes the pods after 300 more, and the operator waits for them."""


def test_what_ran_on_a_node_that_is_lost_comes_back_elsewhere(story: Story) -> None:
    keys = story.source("records", version="same", records=2000)
    story.apply(story.dataset("records", "records", shards=2, replicas=2, router=PATIENT | {"replicas": 2}))
    story.wait_settled("records")
    node = nodes.spare_worker()
    assert _pods_on(story, node), f"nothing of the dataset runs on {node}"

    with nodes.cordoned(node), _paused(node):
        began = time.monotonic()
        until(lambda: not _pods_on(story, node), seconds=AWAY, what=f"no pod of the dataset on {node}")
        story.wait_settled("records")
        record("node-lost", "until all serves again", round(time.monotonic() - began), "s", at_most=AWAY)
        story.check_version("records", keys, "same")  # routers that nobody asked meanwhile know who stands still
    until(lambda: nodes.is_ready(node), seconds=180, what=f"{node} back")
    story.wait_settled("records")
    story.check_version("records", keys, "same")


@contextlib.contextmanager
def _paused(node: str) -> Iterator[None]:
    if release.operator_pod()["spec"]["nodeName"] == node:
        release.restart_operator()
    nodes.pause(node)
    try:
        yield
    finally:
        nodes.unpause(node)


def _pods_on(story: Story, node: str) -> list[Manifest]:
    """The dataset's pods on ``node``, those that are being deleted included."""
    pods = find("pods", story.namespace, "lookupdb.dev/dataset=records")
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]
