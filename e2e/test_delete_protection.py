"""A protected dataset survives every kind of deletion except that of its namespace."""

from __future__ import annotations

from typing import Final

import pytest
from e2e.support.command import CommandFailed
from e2e.support.kubectl import find, get, kubectl, until
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

PROTECTION: Final = "lookupdb.dev/delete-protection"


def test_a_protected_dataset_stays_until_somebody_lifts_that(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2))
    scenario.wait_settled("records")
    kubectl("annotate", LDS, "records", "--namespace", scenario.namespace, f"{PROTECTION}=true")
    uid = get(LDS, "records", scenario.namespace)["metadata"]["uid"]

    for arguments in (("records",), ("--all",), ("records", "--force", "--grace-period=0")):
        with pytest.raises(
            CommandFailed, match=f"kubectl annotate lookupdatasets.lookupdb.dev records .*{PROTECTION}-"
        ):
            kubectl("delete", LDS, *arguments, "--namespace", scenario.namespace)
    found = get(LDS, "records", scenario.namespace)["metadata"]
    assert (found["uid"], "deletionTimestamp" in found) == (uid, False)
    scenario.check_version("records", keys, "v1")

    kubectl("annotate", LDS, "records", "--namespace", scenario.namespace, f"{PROTECTION}-")
    scenario.delete(LDS, "records")
    until(
        lambda: not find("pods", scenario.namespace, "lookupdb.dev/dataset=records"), seconds=120, what="all of it gone"
    )


def test_a_protected_namespace_stays_and_one_that_goes_takes_protected_datasets_with_it(scenario: Scenario) -> None:
    scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2))
    scenario.wait_settled("records")
    kubectl("annotate", LDS, "records", "--namespace", scenario.namespace, f"{PROTECTION}=true")
    kubectl("annotate", "namespace", scenario.namespace, f"{PROTECTION}=true")
    with pytest.raises(CommandFailed, match=f"kubectl annotate namespaces {scenario.namespace} {PROTECTION}-"):
        kubectl("delete", "namespace", scenario.namespace)

    kubectl("annotate", "namespace", scenario.namespace, f"{PROTECTION}-")
    kubectl("delete", "namespace", scenario.namespace, "--timeout=240s", timeout=250)
