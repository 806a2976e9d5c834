"""A team keeps a dataset's generations in its own bucket, with its own Secret. Its builders remove old generations
there."""

from __future__ import annotations

import secrets
from typing import Final

import pytest
from e2e.support import store, team_store
from e2e.support.command import CommandFailed
from e2e.support.kubectl import find
from e2e.support.scenario import BRISK, Scenario
from e2e.support.team_store import TeamStore

pytestmark = pytest.mark.side_by_side

SECRET: Final = "records-bucket"
OWN: Final = {"store": {"url": team_store.URL, "secretName": SECRET}, "keepGenerations": 1}


def test_a_dataset_with_a_store_of_its_own_is_built_served_and_refreshed_there(scenario: Scenario) -> None:
    own = TeamStore(scenario)
    keys = scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, rollout=BRISK, router={"drainSeconds": 0}, **OWN))
    scenario.wait_condition("records", "Built", "False", reason="SecretMissing")
    scenario.apply(own.secret(SECRET))
    scenario.wait_settled("records", generation="g1")
    scenario.check_version("records", keys, "v1")
    for version in ("v2", "v3"):
        scenario.source("records", version=version, records=300)
        scenario.refresh("records")
        scenario.wait_settled("records")
        scenario.check_version("records", keys, version)

    assert _generations(scenario, own.paths()) == {"g2", "g3"}, "what is kept, and what was built last"
    assert not [path for path in store.paths(f"e2e-own-{secrets.token_hex(2)}") if f"/{scenario.namespace}/" in path]
    for pod in find("pods", scenario.namespace, "lookupdb.dev/dataset=records"):
        assert not [volume for volume in pod["spec"]["volumes"] if volume["name"] == "store-token"]

    scenario.change("records", replicas=2)  # new servers fetch from there
    scenario.wait_settled("records", generation="g3")
    scenario.check_version("records", keys, "v3")
    with pytest.raises(CommandFailed, match="copy the generations with `lookupdb copy`"):
        scenario.change("records", store={"url": "s3://elsewhere/lookups"})


def _generations(scenario: Scenario, paths: list[str]) -> set[str]:
    """Return the complete generations of the scenario's one dataset."""
    manifests = [path for path in paths if path.endswith("/manifest.json")]
    assert all(f"/{scenario.namespace}/records-" in path for path in manifests), manifests
    return {path.split("/")[-2] for path in manifests}
