"""The store is away or rejects the credentials: lookups continue, and builds and new servers report it and recover."""

from __future__ import annotations

import base64
import secrets
from typing import Final

from e2e.support import fault as faults
from e2e.support import store
from e2e.support.fault import DATASET, Fault
from e2e.support.scenario import LDS, Scenario

OTHER: Final = "others"
AWAY: Final = Fault("StoreUnavailable", r"cannot \w+ s3://lookupdb at http://\S+:7070: \S+ refuses connections", {})
DENIED: Final = Fault(
    "StoreDenied", r"cannot \w+ s3://lookupdb at http://\S+:7070: access denied: SignatureDoesNotMatch", {}
)
"""Each message names the action and the address, because remedies mention the store too."""


def test_nothing_is_built_or_fetched_while_the_store_is_away(shared_scenario: Scenario) -> None:
    scenario = shared_scenario
    faults.ensure_serving(scenario)
    source = scenario.resource(DATASET)["spec"]["source"]["volume"]["configMapName"]
    scenario.apply(scenario.dataset(OTHER, source, **faults.SPEC))
    scenario.wait_settled(OTHER)
    served = {dataset: faults.read_answers(scenario, dataset) for dataset in (DATASET, OTHER)}
    earlier_warnings = faults.count_warnings(scenario, AWAY.reason)

    with store.stopped():  # fetchers and builders wait a minute for it: let both wait at the same time
        scenario.change(DATASET, serving={"workers": 2})
        version = _change_source(scenario, OTHER)
        faults.check_shown(scenario, AWAY, earlier_warnings, ("RolledOut", "False"))
        faults.check_shown(scenario, AWAY, 0, ("Built", "False"), dataset=OTHER)
        assert {dataset: faults.read_answers(scenario, dataset) for dataset in (DATASET, OTHER)} == served

    scenario.change(DATASET, gates={"minRecords": 2})
    scenario.change(OTHER, gates={"minRecords": 2})
    for dataset, expected in ((DATASET, served[DATASET][1]), (OTHER, version)):
        after = scenario.wait_settled(dataset)
        assert faults.read_answers(scenario, dataset) == (after["generation"], expected)
    assert faults.count_warnings(scenario, AWAY.reason) == earlier_warnings + 1
    assert faults.count_warnings(scenario, AWAY.reason, OTHER) == 1
    scenario.delete(LDS, OTHER)


def test_a_build_whose_credentials_the_store_refuses_says_so(shared_scenario: Scenario) -> None:
    scenario = shared_scenario
    faults.ensure_serving(scenario)
    served = faults.read_answers(scenario)
    earlier_warnings = faults.count_warnings(scenario, DENIED.reason)

    with store.other_credentials(AWS_SECRET_ACCESS_KEY=base64.b64encode(b"wrong").decode()):
        version = _change_source(scenario)
        faults.check_shown(scenario, DENIED, earlier_warnings, ("Built", "False"))
        assert faults.read_answers(scenario) == served

    # The gateway has the right credentials again, and the failed build is retried.
    after = scenario.wait_settled(DATASET)
    assert faults.read_answers(scenario) == (after["generation"], version)
    # One retry may have reached a gateway that still had the wrong ones.
    assert 1 <= faults.count_warnings(scenario, DENIED.reason) - earlier_warnings <= 2


def _change_source(scenario: Scenario, dataset: str = DATASET) -> str:
    version = f"data-{secrets.token_hex(3)}"
    scenario.apply(faults.source_data(version))
    scenario.change(dataset, source=faults.source(version))
    return version
