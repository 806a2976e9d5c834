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
PUSHED = replace(ROLLOUT, rollout="r2", push=PushStatus("uid-1", NOON, 1))
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

    def take_probe(self, name: str = "airports") -> bool:
        return self.pruned.take_probe(("shop", name))

    def count_probes(self, statuses: dict[str, DatasetStatus], minutes: int) -> dict[str, int]:
        """Look at each dataset every minute; how often each was written again."""
        counts = dict.fromkeys(statuses, 0)
        for _ in range(minutes):
            self.now += 60
            for name, status in statuses.items():
                if self.take_probe(name):
                    counts[name] += 1
                    self.write(status, name=name)
        return counts


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
        replace(stored, status=replace(stored.status, rollouts=())),
        replace(stored, status=replace(stored.status, rollouts=(replace(ROLLOUT, generation="g2"),))),
        replace(stored, uid="u2"),
        replace(stored, name="harbours"),
        replace(stored, status_problem="expected int, found 'x'"),
    ):
        assert bench.pruned.restore(changed) == changed


def test_an_edit_of_something_else_leaves_rollouts_as_they_were_written(bench: Bench) -> None:
    stored = bench.write()
    edited = replace(stored, status=replace(stored.status, phase="Edited"))
    assert bench.pruned.restore(edited).status == replace(STATUS, phase="Edited")
    first, second = stored.status.rollouts
    reordered = replace(stored, status=replace(stored.status, rollouts=(second, replace(first, workers=9))))
    assert bench.pruned.restore(reordered).status.rollouts == (PUSHED, replace(ROLLOUT, workers=9))
    another = replace(edited, uid="u2")
    assert bench.pruned.restore(another) == another


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
    for prune in (pruning(), pruning("storeDigest")):
        bench.prune = lambda status, prune=prune: {**prune(status), **change}  # type: ignore[misc]
        stored = bench.write()
        assert bench.pruned.restore(stored) is stored
        assert caplog.messages == []


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
    assert "drops status.rollouts[].push, status.storeDigest of" in message
    assert "CustomResourceDefinition lookupdatasets.lookupdb.dev is older" in message
    assert "kubectl apply --server-side -f crds/" in message
    bench.now += PROBE_SECONDS
    bench.write()
    assert len(caplog.messages) == 1


def test_each_path_is_told_of_once_when_it_is_pruned_and_when_it_is_stored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench.write()
    bench.write(replace(STATUS, rollouts=()))
    bench.write()
    assert levels(caplog) == [("WARNING", "status.rollouts[].push")], "a status without the field says nothing"
    bench.prune = pruning("storeDigest")
    bench.write()
    told = [("INFO", "status.rollouts[].push"), ("WARNING", "status.storeDigest")]
    assert levels(caplog)[1:] == told
    for prune in (NEW, OLD) * 3:
        bench.prune = prune
        bench.write()
    assert levels(caplog)[1:] == [*told, ("INFO", "status.storeDigest")]


def test_what_is_dropped_in_one_namespace_alone_is_told_of_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        bench.prune = pruning("storeDigest")
        bench.write(name="airports")
        bench.prune = NEW
        bench.write(name="harbours")
        assert not bench.take_probe("airports"), "another one says nothing of it"
    assert levels(caplog) == [("WARNING", "status.storeDigest")]


def test_what_a_webhook_takes_away_with_all_around_it_is_not_stored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for name in ("airports", "harbours"):
        bench.write(name=name)
    bench.prune = lambda status: {**OLD(status), "rollouts": OLD(status)["rollouts"][:1]}
    bench.write()
    bench.prune = pruning("rollouts")
    bench.write(name="harbours")
    assert "INFO" not in caplog.text


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    return [(record.levelname, record.args and record.args[0]) for record in caplog.records]  # type: ignore[index]


def test_one_of_all_is_written_again_now_and_then(bench: Bench) -> None:
    for name in ("airports", "harbours"):
        bench.write(name=name)
    bench.write(replace(STATUS, rollouts=()), name="stations")
    bench.now += PROBE_SECONDS - 1
    assert not bench.take_probe()
    bench.now += 1
    assert not bench.take_probe("stations"), "nothing of it was pruned"
    assert not bench.take_probe("harbours"), "it was written after the other one"
    assert bench.take_probe("airports")
    assert not bench.take_probe("harbours"), "one is enough"


def test_a_write_of_another_dataset_puts_no_probe_off(bench: Bench) -> None:
    for name in ("airports", "harbours"):
        bench.write(name=name)
    bench.now += PROBE_SECONDS
    bench.write(name="harbours")
    assert bench.take_probe("airports")


def test_a_probe_that_comes_to_nothing_is_not_repeated_and_then_it_is_anothers_turn(bench: Bench) -> None:
    for name in ("airports", "harbours"):
        bench.write(name=name)
    for name, other in (("airports", "harbours"), ("harbours", "airports")) * 3:
        bench.now += PROBE_SECONDS
        assert not bench.take_probe(other)
        assert bench.take_probe(name)
        assert not bench.take_probe(name)


def test_each_has_its_turn_after_a_crd_was_upgraded_in_part(bench: Bench) -> None:
    statuses = {"airports": replace(STATUS, rollouts=()), "harbours": replace(STATUS, store_digest="")}
    bench.prune = pruning("rollouts[].push", "storeDigest")
    for name, status in statuses.items():
        bench.write(status, name=name)
    assert bench.count_probes(statuses, minutes=16) == {"airports": 2, "harbours": 2}
    bench.prune = pruning("storeDigest")
    assert bench.count_probes(statuses, minutes=8)["harbours"] == 1
    assert bench.pruned._statuses.keys() == {("shop", "airports")}, "nothing of the other one is in memory alone"


def test_all_are_written_again_when_what_was_pruned_is_stored(bench: Bench) -> None:
    statuses = dict.fromkeys(("airports", "harbours", "stations"), STATUS)
    bench.prune = pruning("rollouts[].push", "storeDigest")
    for name in statuses:
        bench.write(name=name)
    bench.prune = pruning("storeDigest")
    bench.write()
    assert not bench.take_probe("airports")
    for name in ("harbours", "stations"):
        assert bench.take_probe(name)
        assert not bench.take_probe(name), "once, also when it is refused"
    bench.prune = NEW
    bench.write(name="harbours")
    bench.write(name="stations")
    assert bench.take_probe("airports")
    assert not bench.take_probe("stations"), "it was written meanwhile"


def test_the_crd_prunes_nothing_of_what_is_written(bench: Bench) -> None:
    bench.prune = NEW
    assert bench.write().status == STATUS
