"""What the store has lost of a dataset that serves is built again by itself, and lookups go on meanwhile."""

from __future__ import annotations

from typing import Final

import pytest
from e2e.support import store
from e2e.support.kubectl import find
from e2e.support.story import LDS, Story

pytestmark = pytest.mark.side_by_side

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}
SHARDS: Final = "app.kubernetes.io/component=shard"


def test_a_generation_that_the_store_has_lost_is_built_again(story: Story) -> None:
    keys = story.source("records", version="same", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    story.wait_settled("records", generation="g1")
    uid = story.resource("records")["metadata"]["uid"]
    folder = f"{story.namespace}/records-{uid[:8]}/"

    gone = store.remove(f"empty-{story.namespace}", folder)
    assert any(path.endswith("manifest.json") for path in gone), gone
    story.check_version("records", keys, "same")
    # Nobody sees the loss before a server has to fetch.
    story.delete("pod", find("pods", story.namespace, SHARDS)[0]["metadata"]["name"])
    story.wait_settled("records", generation="g2")
    story.check_version("records", keys, "same")
    assert story.resource("records")["metadata"]["uid"] == uid
    story.delete(LDS, "records", "--wait=false")
