"""The benchmarks' report: what it compares, and how it computes."""

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from benchmarks import report, targets
from benchmarks.load import python_clients
from benchmarks.load.sample import Sample
from benchmarks.results import ONE_WORKER, OURS, PYTHON, REDIS, TWO_WORKERS, Result, Side, rates, single
from benchmarks.rows import clients


def _load(rate: float, server_busy: float, keys: int = 1) -> Side:
    sample = Sample(rate, seconds=2.0, load_busy=0.5, p50_us=100, p99_us=200, server_busy=server_busy)
    return rates([sample, sample], keys)


def _result(name: str, **sides: Side) -> Result:
    return Result(name, "GET", "requests/s", sides, baselines=(REDIS,))


def test_processor_time_is_of_a_key_and_not_of_a_request() -> None:
    assert _load(rate=10_000, server_busy=0.5, keys=100).cpu_us == pytest.approx((0.5, 0.5))


def test_what_was_not_load_has_no_processor_time() -> None:
    assert single(3.0).cpu_us == ()


def test_both_kinds_of_kernels_stand_in_one_line() -> None:
    sides = {REDIS: _load(100, 1), OURS: _load(150, 0.9), PYTHON: _load(80, 1)}
    assert report.ratios([_result("get", **sides)]).splitlines()[2] == (
        "| GET | Redis | **1.50** |  | **0.80** |  | **0.60** |"
    )


def test_what_was_not_load_is_compared_without_processor_time() -> None:
    times = Result("build", "Build", "s", {REDIS: single(2), OURS: single(1)}, baselines=(REDIS,))
    assert report.ratios([times]).splitlines()[2:] == ["| Build | Redis | **0.50** |  |  |  |  |"]


def test_a_baseline_of_our_own_has_no_line() -> None:
    own = Result("encrypted", "GET", "requests/s", {OURS: _load(100, 1)}, baselines=(OURS,))
    assert len(report.ratios([own]).splitlines()) == 2


def test_the_figures_of_load_have_processor_time_beside_the_rate() -> None:
    row = report.figures(_result("get", **{OURS: _load(200_000, 0.5)})).splitlines()[2]
    assert row.startswith("| lookupdb | 200,000 | 200,000-200,000 | 2.50 | 50% |")


def test_two_workers_are_judged_by_their_rates() -> None:
    sides = {ONE_WORKER: _load(50_000, 1.0), TWO_WORKERS: _load(90_000, 1.0)}
    verdict = next(v for v in targets.verdicts({"workers": _result("workers", **sides)}) if v.value)
    assert verdict.value == pytest.approx(1.8)
    assert verdict.word == "reached"


@pytest.mark.parametrize("row", [clients.coroutines, clients.batch, clients.get])
def test_a_row_of_clients_names_loads_that_there_are(
    row: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def compare(arena: object, kinds: dict[str, str], router: object = None) -> dict[str, list[Sample]]:
        asked.extend(kinds.values())
        return {side: [Sample(1, seconds=1, load_busy=0, p50_us=1, p99_us=1)] for side in kinds}

    monkeypatch.setattr(clients, "_compare", compare)
    row(MagicMock())
    assert asked
    assert set(asked) <= set(python_clients.KINDS)


def test_a_target_names_a_large_threshold_in_full() -> None:
    assert [t.bound for t in targets.TARGETS if "persons" in t.what] == ["≥ 450,000 records/s"]


def test_what_limits_a_target_is_said_of_targets_that_there_are() -> None:
    assert set(targets.LIMITS) <= {target.what for target in targets.TARGETS}


def test_a_figure_short_of_its_target_is_marked() -> None:
    target = targets.Target("shard GET : Redis", 1.15, True, lambda _: 1.0)
    assert "short" in report.must_reach([targets.Verdict(target, 1.0)])
