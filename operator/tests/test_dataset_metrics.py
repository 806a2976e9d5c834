"""Metrics of datasets and of what ends in them, from their statuses."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from lookupdb_operator.metrics import Metrics
from lookupdb_operator.status import (
    BuildOutcome,
    BuildRecord,
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    TableStatus,
)

START, WRITTEN, CONFIRMED = "2026-01-01T12:00:00Z", "2026-01-01T12:01:00Z", "2026-01-01T12:01:03Z"
GENERATION = GenerationStatus("g1", "c", "f", 1, 1, 1, 1, (), "json", WRITTEN)
OF_AIRPORTS = '{dataset="airports",namespace="maps"}'


def value(metrics: Metrics, name: str) -> float | None:
    found = re.search(rf"^lookupdb_{re.escape(name)} (\S+)$", metrics.render().decode(), re.MULTILINE)
    return float(found[1]) if found else None


def set_all(metrics: Metrics, *statuses: DatasetStatus) -> None:
    """Write ``statuses`` one after another."""
    for status in statuses:
        metrics.set_status("maps", "airports", status)
    for before, after in pairwise(statuses):
        metrics.events.note("maps", "airports", before, after)


def record(outcome: BuildOutcome, number: int = 1) -> BuildRecord:
    return BuildRecord(f"g{number}", outcome, "", START, f"2026-01-01T12:0{number}:00Z")


@pytest.mark.parametrize(
    ("outcome", "label"),
    [("built", "succeeded"), ("unchanged", "succeeded"), ("failed", "failed"), ("gateClosed", "rejected")],
)
def test_a_build_counts_once_when_it_ends(outcome: BuildOutcome, label: str) -> None:
    metrics = Metrics()
    ended = DatasetStatus(builds=(record("built"), record(outcome, 2)))
    set_all(metrics, DatasetStatus(builds=(record("built"),)), ended, ended)
    assert value(metrics, f'operator_builds_total{{dataset="airports",namespace="maps",outcome="{label}"}}') == 1
    assert value(metrics, "operator_build_duration_seconds_count") == 1
    assert value(metrics, "operator_build_duration_seconds_sum") == 120


def test_a_rollout_and_its_cutover() -> None:
    metrics = Metrics()
    old = TableStatus(1, "r1", "g1", 1, 1, START, START)
    starting = RolloutStatus("r2", "g2", "", START)
    new = replace(old, version=2, rollout="r2", generation="g2", written_at=WRITTEN, confirmed_at="")
    began = DatasetStatus(table=old, rollouts=(starting,))
    set_all(metrics, began)
    assert value(metrics, f"dataset_rollout_started_timestamp_seconds{OF_AIRPORTS}") == 1767268800
    assert value(metrics, f"dataset_cutover_timestamp_seconds{OF_AIRPORTS}") == 1767268800
    written = DatasetStatus(table=new, rollouts=(replace(starting, referenced_replicas=1),))
    confirmed = replace(written, table=replace(new, confirmed_at=CONFIRMED))
    set_all(metrics, began, written, confirmed, confirmed)
    assert value(metrics, "operator_rollout_duration_seconds_count") == 1
    seconds = pytest.approx(time.time() - 1767268800, abs=600)
    assert value(metrics, "operator_rollout_duration_seconds_sum") == seconds
    assert value(metrics, "operator_cutover_duration_seconds_count") == 1
    assert value(metrics, "operator_cutover_duration_seconds_sum") == 3
    assert value(metrics, f"dataset_rollout_started_timestamp_seconds{OF_AIRPORTS}") is None
    assert value(metrics, f"dataset_cutover_timestamp_seconds{OF_AIRPORTS}") == 1767268863
    scaled = replace(new, version=3, written_at="2026-01-02T00:00:00Z", confirmed_at="2026-01-02T00:00:01Z")
    set_all(metrics, replace(written, table=scaled))
    assert value(metrics, f"dataset_cutover_timestamp_seconds{OF_AIRPORTS}") == 1767268863, "the same generation"


def test_the_age_of_the_source() -> None:
    metrics = Metrics()
    built = replace(GENERATION, source_modified_at=START)
    set_all(metrics, DatasetStatus(generation="g1", generations=(built, replace(GENERATION, generation="g2"))))
    assert value(metrics, f"dataset_source_timestamp_seconds{OF_AIRPORTS}") == 1767268800
    set_all(metrics, DatasetStatus(generation="g1", generations=(GENERATION,)))
    assert value(metrics, f"dataset_source_timestamp_seconds{OF_AIRPORTS}") is None


def test_a_dataset_leaves_nothing_behind() -> None:
    metrics = Metrics()
    set_all(metrics, DatasetStatus(), DatasetStatus(builds=(record("built"),)))
    metrics.forget("maps", "airports")
    assert "airports" not in metrics.render().decode()
