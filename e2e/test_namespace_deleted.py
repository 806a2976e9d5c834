"""A namespace with a serving dataset and a building one is deleted, with and without a running operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from e2e.support import release
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import find, until
from e2e.support.scenario import Scenario

GONE_SECONDS: Final = 60


@pytest.fixture
def operator_gone() -> Iterator[Callable[[], None]]:
    """Stop the operator when called; start it again at the end."""
    yield lambda: release.scale_operator(0)
    release.scale_operator(1)


def test_it_goes_while_an_operator_runs(scenario: Scenario) -> None:
    _fill(scenario)
    _delete(scenario, "while an operator runs")


def test_it_goes_while_no_operator_runs(scenario: Scenario, operator_gone: Callable[[], None]) -> None:
    _fill(scenario)
    operator_gone()
    _delete(scenario, "while no operator runs")


def _fill(scenario: Scenario) -> None:
    """Create one dataset that serves, and one whose builder waits for its source."""
    scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("serving", "records", shards=2))
    scenario.wait_settled("serving")
    scenario.apply(scenario.dataset("building", "absent"))
    until(lambda: find("pods", scenario.namespace, "app.kubernetes.io/component=builder"), seconds=60, what="a builder")


def _delete(scenario: Scenario, when: str) -> None:
    began = time.monotonic()
    scenario.delete_namespace()
    took = time.monotonic() - began
    record("namespace-deleted", f"a namespace with two datasets gone {when}", took, "s", at_most=GONE_SECONDS)
    assert took <= BUSY * GONE_SECONDS
