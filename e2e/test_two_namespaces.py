"""Two namespaces have a dataset of the same name: neither sees nor loses anything of the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side


def test_datasets_of_one_name_in_two_namespaces_are_two(new_scenario: Callable[..., Scenario]) -> None:
    scenarios = {name: new_scenario(f"namespace-{name}") for name in ("one", "two")}
    keys = []
    for name, scenario in scenarios.items():
        keys = scenario.source("records", version=name, records=300)
        scenario.apply(scenario.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    for name, scenario in scenarios.items():
        scenario.wait_settled("records")
        scenario.check_version("records", keys, name)

    one, two = scenarios.values()
    one.delete(LDS, "records")
    one.source("records", version="again", records=300)
    one.apply(one.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    one.wait_settled("records", generation="g1")
    one.check_version("records", keys, "again")  # not the deleted data
    assert two.wait_settled("records")["generation"] == "g1"
    two.check_version("records", keys, "two")
