"""A namespace is deleted with its dataset, and the store loses what it had there: `lookupdb copy` had put it into
another part of the store, and brings it back, and the namespace that is made again serves it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import pytest
from e2e.support import helm, store
from e2e.support.story import Story

pytestmark = pytest.mark.side_by_side

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


@pytest.fixture
def backup(story: Story) -> Iterator[str]:
    """The id of a cluster that there is not, whose part of the store is emptied at the end."""
    cluster = f"backup-{secrets.token_hex(4)}"
    yield cluster
    store.remove(f"forget-{story.namespace}", f"{story.namespace}/", cluster=cluster)


def test_a_copy_in_another_part_of_the_store_brings_a_deleted_namespace_back(story: Story, backup: str) -> None:
    keys = story.source("records", version="kept", records=300)
    story.apply(story.dataset("records", "records", **SPEC))
    story.wait_settled("records", generation="g1")
    uid, cluster = story.resource("records")["metadata"]["uid"], helm.cluster_id()
    dataset = f"{story.namespace}/records"
    assert store.copy(f"keep-{story.namespace}", dataset, uid, cluster=cluster, to_cluster=backup) == [("copied", "g1")]

    story.delete_namespace()
    gone = store.remove(f"lose-{story.namespace}", f"{story.namespace}/", cluster=cluster)
    assert any(path.endswith("/g1/manifest.json") for path in gone), gone
    back = store.copy(f"bring-{story.namespace}", dataset, uid, cluster=backup, to_cluster=cluster)
    assert back == [("copied", "g1")]

    story.make_namespace()
    story.apply(story.dataset("records", "records", adopt={"uid": uid}, **SPEC))
    assert story.wait_settled("records")["generations"][-1]["adoptedFrom"] == f"{uid}/g1"
    story.check_version("records", keys, "kept")
