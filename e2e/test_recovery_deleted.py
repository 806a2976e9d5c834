"""A dataset is deleted, and its source with it: made again with ``spec.adopt``, it serves what it has left."""

from __future__ import annotations

from typing import Final

import pytest
from e2e.support.story import LDS, Story

pytestmark = pytest.mark.side_by_side

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_a_dataset_made_again_adopts_what_the_deleted_one_has_left(story: Story) -> None:
    keys = story.source("records", version="kept", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    built = story.wait_settled("records", generation="g1")["generations"][0]
    uid = story.resource("records")["metadata"]["uid"]
    story.delete(LDS, "records")
    story.delete("configmap", "records")

    story.apply(story.dataset("records", "records", adopt={"uid": "00000000"}, **SPEC))
    told = story.wait_condition("records", "Degraded", "True", reason="AdoptionFailed")
    assert f"it has the uids {uid[:8]}" in told["message"]
    story.change("records", adopt={"uid": uid})
    adopted = story.wait_settled("records")["generations"][-1]
    assert adopted["adoptedFrom"] == f"{uid}/g1"
    assert (adopted["fingerprint"], adopted["builtAt"]) == (built["fingerprint"], built["builtAt"])
    story.check_version("records", keys, "kept")

    story.source("records", version="next", records=300)
    story.refresh("records")
    story.wait_settled("records")
    story.check_version("records", keys, "next")
