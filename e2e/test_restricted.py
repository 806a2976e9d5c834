"""Namespaces that enforce the restricted pod security standard take everything that lookupdb runs, and the chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from e2e.support import release, restricted
from e2e.support import store as stores
from e2e.support.kubectl import kubectl
from e2e.support.story import Story


@pytest.fixture
def restricted_installation() -> Iterator[None]:
    """While the story runs, the installation's namespace enforces the standard, for new pods."""
    labels = [f"{name}={value}" for name, value in restricted.LABELS.items()]
    kubectl("label", "namespace", release.NAMESPACE, "--overwrite", *labels)
    yield
    kubectl("label", "namespace", release.NAMESPACE, *(f"{name}-" for name in restricted.LABELS))


@pytest.mark.usefixtures("restricted_installation")
def test_the_chart_and_a_dataset_run_where_pods_are_restricted(new_story: Callable[..., Story]) -> None:
    kubectl("delete", "pod", stores.pod()["metadata"]["name"], "--namespace", release.NAMESPACE, timeout=180)
    release.restart_operator()
    stores.pod()

    story = new_story("restricted", labels=restricted.LABELS)
    keys = story.source("records", version="v1", records=300)
    story.apply(story.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    story.wait_settled("records")
    story.check_version("records", keys, "v1")
    for namespace in (story.namespace, release.NAMESPACE):
        assert restricted.find_refusals(namespace) == []
