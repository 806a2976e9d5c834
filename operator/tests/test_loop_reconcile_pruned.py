"""A look at a dataset whose status an older CustomResourceDefinition prunes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from operator_support.kube_schema import pruning
from operator_support.reconcile_bench import DATASET, KEY, NOON, STATUS, Bench

from lookupdb_operator.api.client import ApiError, Conflict, NotFound, Refused, Unreachable
from lookupdb_operator.loop.pruned_statuses import PROBE_SECONDS
from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.status import DatasetStatus


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_status_that_an_older_crd_prunes_is_written_once_and_now_and_then_where_it_is_ours(
    bench: Bench,
) -> None:
    pruned = replace(DATASET, status=STATUS)
    bench.cluster.prune, bench.plan = pruning("lastChecked"), Plan(status=replace(STATUS, last_checked=NOON))
    await bench.look()
    assert "status" in bench.cluster.done
    bench.observer.observed = Observed(pruned)
    assert await bench.look() is None
    assert bench.cluster.done == []
    bench.clock += PROBE_SECONDS
    bench.plan = replace(bench.plan, idle_reason="another operator's")
    await bench.look()
    assert bench.cluster.done == []
    bench.plan = replace(bench.plan, idle_reason="")
    bench.clock += PROBE_SECONDS
    await bench.look()
    assert bench.cluster.done == ["status"]
    await bench.look()
    assert bench.cluster.done == [], "it is pruned as before"
    bench.observer.observed = Observed(replace(pruned, status=DatasetStatus()))
    await bench.look()
    assert bench.cluster.done[0] == "status", "who wipes it has it written anew at once"


@pytest.mark.parametrize("failure", [Refused, Conflict, Unreachable, NotFound])
async def test_a_look_that_only_writes_again_what_was_pruned_does_not_fail_with_that(
    bench: Bench, failure: type[ApiError], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.cluster.prune = pruning("lastChecked")
    bench.plan = Plan(status=replace(STATUS, last_checked=NOON), next_look_in=12.0)
    await bench.look()
    bench.observer.observed = Observed(replace(DATASET, status=STATUS))
    followed: list[object] = []
    monkeypatch.setattr(bench.reconciler._announcements, "follow", lambda key, due: followed.append(key))
    bench.cluster.failures["status"] = failure("LookupDataset airports", "a webhook denies it")
    for done in (["status"], [], []) * 2:
        bench.clock += PROBE_SECONDS if done else 1
        assert await bench.look() == 12.0
        assert bench.cluster.done == done
    assert followed == [KEY] * 6
    assert bench.count("done") == 7


async def test_a_look_that_always_fails_keeps_no_other_from_being_written_again(bench: Bench) -> None:
    bench.cluster.prune = pruning("lastChecked")
    bench.plan = Plan(status=replace(STATUS, last_checked=NOON))
    await bench.look()
    other = replace(DATASET, name="harbours")
    bench.observer.observed = Observed(other)
    await bench.reconciler.look(other.key)
    bench.cluster.done.clear()
    bench.clock += PROBE_SECONDS
    plan, bench.plan = bench.plan, cast(Plan, None)
    bench.observer.observed = Observed(replace(DATASET, status=STATUS))
    with pytest.raises(AttributeError):
        await bench.look()
    bench.clock += PROBE_SECONDS
    bench.plan = plan
    bench.observer.observed = Observed(replace(other, status=STATUS))
    await bench.reconciler.look(other.key)
    assert bench.cluster.done == ["status"]
