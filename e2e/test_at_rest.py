"""Nothing is written while nothing changes, not even by an operator that has just started."""

from __future__ import annotations

import time
from typing import Final

from e2e.support import kinds, release
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, find_everywhere, until
from e2e.support.scenario import LDS, Scenario

KINDS: Final = f"{LDS},{kinds.OF_A_DATASET}"
REST_SECONDS: Final = 20
WRITES: Final = "lookupdb_operator_api_writes_total"
RECONCILES: Final = "lookupdb_operator_reconciles_total"


def test_nothing_is_written_at_rest(scenario: Scenario) -> None:
    dataset = scenario.apply_example("airports")
    scenario.wait_settled(dataset)
    until(lambda: _is_only_dataset(scenario), seconds=400, what="the datasets of other scenarios gone")
    writes = _wait_quiet()
    before = _versions(scenario)

    time.sleep(REST_SECONDS)
    assert release.operator_total(WRITES) == writes
    assert _versions(scenario) == before

    release.restart_operator()
    until(lambda: release.operator_total(RECONCILES) >= 1, seconds=60, what="a pass of the new operator")
    time.sleep(REST_SECONDS)
    written = release.operator_total(WRITES)
    record("at-rest", "API writes of an operator that starts where nothing changed", written, "", at_most=0)
    assert _versions(scenario) == before
    assert written == 0


def _is_only_dataset(scenario: Scenario) -> bool:
    """Return True once the datasets of all other scenarios are gone."""
    return {item["metadata"]["namespace"] for item in find_everywhere(LDS)} == {scenario.namespace}


def _wait_quiet() -> float:
    """Wait until the operator has written nothing for a while. It writes the list of live datasets within 10 s."""
    last = [-1.0, 0.0]

    def look() -> bool:
        now = release.operator_total(WRITES)
        if now != last[0]:
            last[:] = [now, time.monotonic()]
        return time.monotonic() - last[1] > 15

    until(look, seconds=120, what="15 s without a write")
    return last[0]


def _versions(scenario: Scenario) -> dict[str, str]:
    return {_object_name(item): item["metadata"]["resourceVersion"] for item in find(KINDS, scenario.namespace)}


def _object_name(item: Manifest) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"
