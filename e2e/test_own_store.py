"""A team keeps a dataset's generations in a bucket of its own, with a Secret of its own: nothing of it is in the store
of the release, and what it does not keep is removed by its builders."""

from __future__ import annotations

import secrets
from typing import Final

import pytest
from e2e.support import store, team_store
from e2e.support.command import CommandFailed
from e2e.support.kubectl import find
from e2e.support.story import BRISK, Story
from e2e.support.team_store import TeamStore

pytestmark = pytest.mark.side_by_side

SECRET: Final = "records-bucket"
OWN: Final = {"store": {"url": team_store.URL, "secretName": SECRET}, "keepGenerations": 1}


def test_a_dataset_with_a_store_of_its_own_is_built_served_and_refreshed_there(story: Story) -> None:
    own = TeamStore(story)
    keys = story.source("records", version="v1", records=300)
    story.apply(story.dataset("records", "records", shards=2, rollout=BRISK, router={"drainSeconds": 0}, **OWN))
    story.wait_condition("records", "Built", "False", reason="SecretMissing")
    story.apply(own.secret(SECRET))
    story.wait_settled("records", generation="g1")
    story.check_version("records", keys, "v1")
    for version in ("v2", "v3"):
        story.source("records", version=version, records=300)
        story.refresh("records")
        story.wait_settled("records")
        story.check_version("records", keys, version)

    assert _generations(story, own.paths()) == {"g2", "g3"}, "what is kept, and what was built last"
    assert not [path for path in store.paths(f"e2e-own-{secrets.token_hex(2)}") if f"/{story.namespace}/" in path]
    for pod in find("pods", story.namespace, "lookupdb.dev/dataset=records"):
        assert not [volume for volume in pod["spec"]["volumes"] if volume["name"] == "store-token"]

    story.change("records", replicas=2)  # further servers fetch from there
    story.wait_settled("records", generation="g3")
    story.check_version("records", keys, "v3")
    with pytest.raises(CommandFailed, match="copy them with `lookupdb copy`"):
        story.change("records", store={"url": "s3://elsewhere/lookups"})


def _generations(story: Story, paths: list[str]) -> set[str]:
    """Those that are whole, of the story's one dataset."""
    manifests = [path for path in paths if path.endswith("/manifest.json")]
    assert all(f"/{story.namespace}/records-" in path for path in manifests), manifests
    return {path.split("/")[-2] for path in manifests}
