"""A status of which the API server prunes what an older CustomResourceDefinition does not know is remembered as it was
written, and told of once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from operator_support.kube_schema import pruning

from lookupdb_operator.loop.pruned_statuses import PROBE_SECONDS, PrunedStatuses
from lookupdb_operator.model import ObservedDataset
from lookupdb_operator.status import DatasetStatus, PushStatus, RolloutStatus

NOON = "2026-01-01T12:00:00Z"
ROLLOUT = RolloutStatus("r1", "g1", "a" * 16, NOON)
PUSHED = replace(ROLLOUT, push=PushStatus("uid-1", NOON, 1))
STATUS = DatasetStatus(operator="own/release", rollouts=(ROLLOUT, PUSHED), store_digest="digest")
OLD, NEW = pruning("rollouts[].push"), pruning()


class Bench:
    """An API server that prunes, and what one process knows of it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.prune: Callable[[dict[str, Any]], dict[str, Any]] = OLD
        self.pruned = PrunedStatuses(lambda: self.now)

    def write(self, status: DatasetStatus = STATUS, *, name: str = "airports", uid: str = "u1") -> ObservedDataset:
        """The dataset as it is stored after a write."""
        dataset = ObservedDataset("shop", name, uid, "7", 1, {}, None)
        stored = self.prune(status.to_json())
        self.pruned.note_write(dataset, status, {"status": stored})
        return replace(dataset, status=DatasetStatus.from_json(stored), resource_version="8")

    def needs_probe(self, name: str = "airports") -> bool:
        return self.pruned.needs_probe(("shop", name))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_was_written_counts_while_what_was_answered_stands_there(bench: Bench) -> None:
    stored = bench.write()
    assert stored.status != STATUS
    assert bench.pruned.restore(stored).status == STATUS
    assert bench.pruned.restore(replace(stored, resource_version="9", refresh="now")).status == STATUS
    later = replace(STATUS, shards="1/2", rollouts=(PUSHED, ROLLOUT))
    assert bench.pruned.restore(bench.write(later)).status == later


def test_a_status_that_anybody_has_changed_is_as_it_is(bench: Bench) -> None:
    stored = bench.write()
    for changed in (
        replace(stored, status=DatasetStatus()),
        replace(stored, status=replace(stored.status, shards="edited")),
        replace(stored, uid="u2"),
        replace(stored, name="harbours"),
        replace(stored, status_problem="expected int, found 'x'"),
    ):
        assert bench.pruned.restore(changed) is changed


def test_nothing_is_remembered_of_what_is_stored_as_a_whole_or_of_a_dataset_that_is_gone(bench: Bench) -> None:
    bench.write()
    bench.pruned.forget(("shop", "airports"))
    assert bench.pruned._statuses == {}
    bench.write()
    bench.prune = NEW
    bench.write()
    assert bench.pruned._statuses == {}


@pytest.mark.parametrize("change", [{"operator": "another/one"}, {"phase": "Odd"}, {"rollouts": []}], ids=str)
def test_what_a_webhook_makes_of_it_is_no_pruning(
    bench: Bench, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bench.prune = lambda status: {**status, **change}
    stored = bench.write()
    assert bench.pruned.restore(stored) is stored
    assert caplog.messages == []
    bench.prune = lambda status: {**pruning("storeDigest")(status), **change}
    stored = bench.write()
    assert bench.pruned.restore(stored) is stored, "both at once are as before"
    assert len(caplog.messages) == 1


def test_what_is_left_and_cannot_be_read_is_not_remembered(bench: Bench) -> None:
    bench.prune = pruning("rollouts[].push.job")
    dataset = ObservedDataset("shop", "airports", "u1", "7", 1, {}, None)
    bench.pruned.note_write(dataset, STATUS, {"status": bench.prune(STATUS.to_json())})
    assert bench.pruned._statuses == {}


def test_the_log_is_told_once_what_is_lost_and_what_to_do(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.prune = pruning("rollouts[].push", "storeDigest")
    for number in range(500):
        bench.write(name=f"dataset-{number}")
    (message,) = caplog.messages
    assert "status.rollouts[].push " in message
    assert "CustomResourceDefinition lookupdatasets.lookupdb.dev is older" in message
    assert "kubectl apply --server-side -f crds/" in message
    bench.now += PROBE_SECONDS
    bench.write()
    assert len(caplog.messages) == 1


def test_it_is_told_again_when_the_crd_was_upgraded_and_is_older_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench.write()
    bench.write(replace(STATUS, rollouts=()))
    bench.write()
    assert [record.levelname for record in caplog.records] == ["WARNING"], "a status without the field says nothing"
    bench.prune = pruning("storeDigest")
    bench.write()
    levels = [(record.levelname, record.args and record.args[0]) for record in caplog.records[1:]]  # type: ignore[index]
    assert levels == [("INFO", "rollouts[].push"), ("WARNING", "storeDigest")]


def test_one_of_all_is_written_again_now_and_then(bench: Bench) -> None:
    for name in ("airports", "harbours"):
        bench.write(name=name)
    bench.write(replace(STATUS, rollouts=()), name="stations")
    bench.now += PROBE_SECONDS - 1
    assert not bench.needs_probe()
    bench.now += 1
    assert bench.needs_probe("airports")
    assert bench.needs_probe("harbours")
    assert not bench.needs_probe("stations"), "nothing of it was pruned"
    bench.write()
    assert not bench.needs_probe("harbours"), "the CRD is as old as before"


def test_all_are_written_again_when_one_was_stored_as_a_whole(bench: Bench) -> None:
    for name in ("airports", "harbours"):
        bench.write(name=name)
    bench.prune = NEW
    bench.write()
    assert not bench.needs_probe("airports")
    assert bench.needs_probe("harbours")


def test_the_crd_prunes_nothing_of_what_is_written(bench: Bench) -> None:
    bench.prune = NEW
    assert bench.write().status == STATUS
