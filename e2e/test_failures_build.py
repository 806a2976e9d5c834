"""Each build failure has a reason, a message and one Event. Serving continues, and a corrected spec is built at
once."""

from __future__ import annotations

import secrets
import time
from typing import Final

import pytest
from e2e.support import fault as faults
from e2e.support.fault import BAD_ROW, DATASET, Fault
from e2e.support.figures import record
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

FAULTS: Final = faults.pod_faults("build") | {
    "source-missing": Fault("BadSource", r"absent\.csv", {"source": {"url": "volume://absent.csv"}}),
    "row-bad": Fault("BadSource", rf"bad\.csv row \d+ \(line {BAD_ROW}\)", {"source": {"url": "volume://bad.csv"}}),
    "gate-closed": Fault("GateClosed", r"minRecords", {"gates": {"minRecords": 1000000}}),
    "builder-without-room": Fault("NotEnoughRoom", r"102 MiB.*256 MiB", faults.memory_limit("build", "128Mi")),
    "claim-absent": Fault(
        "VolumeMissing", r"no-claim", {"source": {"volume": {"claimName": "no-claim", "configMapName": None}}}
    ),
    "config-map-absent": Fault("VolumeMissing", r"no-map", {"source": {"volume": {"configMapName": "no-map"}}}),
    "secret-absent": Fault("SecretMissing", r"no-secret", {"source": {"secretName": "no-secret"}}),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_build_that_fails_says_why_and_its_correction_is_built(shared_scenario: Scenario, fault: Fault) -> None:
    scenario = shared_scenario
    scenario.apply(faults.QUOTA)
    before = faults.ensure_serving(scenario)
    served = faults.read_answers(scenario)
    earlier_warnings = faults.count_warnings(scenario, fault.reason)

    version = f"data-{secrets.token_hex(3)}"
    scenario.apply(faults.source_data(version))
    scenario.change(DATASET, **faults.merge(faults.healthy_spec(version), fault.broken))
    faults.check_shown(scenario, fault, earlier_warnings, ("Built", "False"))
    assert faults.read_answers(scenario) == served

    corrected = time.monotonic()
    scenario.change(DATASET, **faults.healthy_spec(version))
    after = scenario.wait_settled(DATASET)
    record("failures-build", f"{fault.reason} corrected to serving", time.monotonic() - corrected, "s")
    assert faults.parse_number(after["generation"]) > faults.parse_number(before["generation"])
    assert faults.read_answers(scenario) == (after["generation"], version)
    assert faults.count_warnings(scenario, fault.reason) == earlier_warnings + 1


def test_a_dataset_that_begins_broken_is_served_once_it_is_corrected(scenario: Scenario) -> None:
    scenario.apply(faults.source_data("first"))
    manifest = scenario.dataset(DATASET, "first", **faults.SPEC)
    manifest["spec"]["source"]["url"] = "volume://absent.csv"
    scenario.apply(manifest)
    scenario.wait_condition(DATASET, "Built", "False", reason="BadSource")
    scenario.wait_condition(DATASET, "Degraded", "True", reason="BadSource")
    scenario.wait_condition(DATASET, "Ready", "False", reason="NoRoutingTable")

    scenario.change(DATASET, source={"url": "volume://records.csv"})
    after = scenario.wait_settled(DATASET)
    assert faults.read_answers(scenario) == (after["generation"], "first")
    assert faults.count_warnings(scenario, "BadSource") == 1
