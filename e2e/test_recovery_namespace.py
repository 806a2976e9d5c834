"""A deleted namespace whose store data are gone too comes back from a backup that `lookupdb copy` made in another part
of the store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import pytest
from e2e.support import helm, store
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

SPEC: Final = {"shards": 2, "router": {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


@pytest.fixture
def backup(scenario: Scenario) -> Iterator[str]:
    """The id of a made-up cluster, whose part of the store is emptied at the end."""
    cluster = f"backup-{secrets.token_hex(4)}"
    yield cluster
    store.remove(f"forget-{scenario.namespace}", f"{scenario.namespace}/", cluster=cluster)


def test_a_copy_in_another_part_of_the_store_brings_a_deleted_namespace_back(scenario: Scenario, backup: str) -> None:
    keys = scenario.source("records", version="kept", records=300)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    scenario.wait_settled("records", generation="g1")
    uid, cluster = scenario.resource("records")["metadata"]["uid"], helm.cluster_id()
    dataset = f"{scenario.namespace}/records"
    assert store.copy(f"keep-{scenario.namespace}", dataset, uid, cluster=cluster, to_cluster=backup) == [
        ("copied", "g1")
    ]

    scenario.delete_namespace()
    gone = store.remove(f"lose-{scenario.namespace}", f"{scenario.namespace}/", cluster=cluster)
    assert any(path.endswith("/g1/manifest.json") for path in gone), gone
    back = store.copy(f"bring-{scenario.namespace}", dataset, uid, cluster=backup, to_cluster=cluster)
    assert back == [("copied", "g1")]

    scenario.make_namespace()
    scenario.apply(scenario.dataset("records", "records", adopt={"uid": uid}, **SPEC))
    assert scenario.wait_settled("records")["generations"][-1]["adoptedFrom"] == f"{uid}/g1"
    scenario.check_version("records", keys, "kept")
