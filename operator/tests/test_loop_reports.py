"""Events: one for each new reason of a condition, a warning if it reports a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookupdb_operator.loop.reconcile import EventBudget, list_event_reports, progress_pause
from lookupdb_operator.model import ObjectRef, ObservedDataset, Plan
from lookupdb_operator.status import (
    BUILT,
    DEGRADED,
    READY,
    ROLLED_OUT,
    Condition,
    DatasetStatus,
    ScheduleStatus,
    TableStatus,
    Truth,
)


def status_of(**conditions: tuple[Truth, str]) -> DatasetStatus:
    kinds = {"ready": READY, "built": BUILT, "rolled_out": ROLLED_OUT, "degraded": DEGRADED}
    return DatasetStatus(
        conditions=tuple(
            Condition(kinds[name], truth, reason, f"{reason} it is.") for name, (truth, reason) in conditions.items()
        )
    )


SERVING = status_of(
    ready=("True", "Serving"),
    built=("True", "GenerationBuilt"),
    rolled_out=("True", "UpToDate"),
    degraded=("False", "Healthy"),
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(SERVING, SERVING, [], id="nothing changed"),
        pytest.param(
            DatasetStatus(),
            status_of(ready=("False", "NoRoutingTable"), built=("False", "Building"), degraded=("False", "Healthy")),
            [("Normal", "NoRoutingTable"), ("Normal", "Building")],
            id="a new dataset: that nothing is wrong is no news",
        ),
        pytest.param(
            SERVING,
            status_of(
                ready=("True", "Serving"),
                built=("False", "BadSource"),
                rolled_out=("True", "UpToDate"),
                degraded=("True", "BadSource"),
            ),
            [("Warning", "BadSource")],
            id="a failure in two conditions is reported once",
        ),
        pytest.param(
            status_of(ready=("True", "Serving"), built=("False", "BadSource"), degraded=("True", "BadSource")),
            status_of(ready=("True", "Serving"), built=("True", "GenerationBuilt"), degraded=("False", "Healthy")),
            [("Normal", "GenerationBuilt"), ("Normal", "Healthy")],
            id="recovered",
        ),
        pytest.param(
            status_of(ready=("False", "NoRoutingTable"), degraded=("False", "Healthy")),
            status_of(ready=("False", "NoRouterReady"), degraded=("False", "Healthy")),
            [("Normal", "NoRouterReady")],
            id="not ready yet, and nothing is wrong",
        ),
        pytest.param(
            SERVING,
            status_of(ready=("False", "NoRouterReady"), degraded=("False", "Healthy")),
            [("Warning", "NoRouterReady")],
            id="no longer ready",
        ),
        pytest.param(
            status_of(degraded=("True", "BadSource")),
            status_of(degraded=("True", "GateClosed")),
            [("Warning", "GateClosed")],
            id="another failure",
        ),
        pytest.param(
            status_of(built=("False", "Building"), degraded=("True", "ImagePullFailed")),
            status_of(built=("False", "ImagePullFailed"), degraded=("True", "ImagePullFailed")),
            [],
            id="a failure that comes to show in a second condition is not told again",
        ),
        pytest.param(
            status_of(built=("False", "Building"), degraded=("True", "ShardsUnavailable")),
            status_of(built=("False", "BadSource"), degraded=("True", "ShardsUnavailable")),
            [("Warning", "BadSource")],
            id="a failure beside a graver one is a warning too",
        ),
        pytest.param(
            status_of(ready=("True", "Serving"), degraded=("True", "ShardsUnavailable")),
            status_of(ready=("False", "ShardsUnavailable"), degraded=("True", "ShardsUnavailable")),
            [("Warning", "ShardsUnavailable")],
            id="a shortage is reported again when lookups fail for it",
        ),
    ],
)
def test_transitions(old: DatasetStatus, new: DatasetStatus, expected: list[tuple[str, str]]) -> None:
    assert [(report.type, report.reason) for report in list_event_reports(old, new)] == expected


def test_progress_is_written_every_few_seconds_and_what_matters_at_once() -> None:
    before = DatasetStatus(shards="1/16", conditions=(Condition(ROLLED_OUT, "False", "StartingServers", "1 of 16."),))
    after = DatasetStatus(shards="2/16", conditions=(Condition(ROLLED_OUT, "False", "StartingServers", "2 of 16."),))
    dataset = ObservedDataset("shop", "airports", "u", "7", 1, {}, None, status=before)
    assert progress_pause(dataset, Plan(after), float("inf")) == 0, "nothing was written lately"
    assert progress_pause(dataset, Plan(after), 0) == 5
    assert progress_pause(dataset, Plan(after), 2) == 3
    assert progress_pause(dataset, Plan(after, next_look_in=0.5), 2) == 0.5, "what is due sooner is looked at sooner"
    assert progress_pause(dataset, Plan(before), 2) == 0, "there is nothing to write"
    assert progress_pause(dataset, Plan(after, delete=(ObjectRef("Job", "j", "u"),)), 2) == 0
    confirmed = Condition(ROLLED_OUT, "True", "UpToDate", "It is.")
    assert progress_pause(dataset, Plan(DatasetStatus(shards="2/16", conditions=(confirmed,))), 2) == 0
    assert progress_pause(dataset, Plan(replace(after, last_rollout=2)), 2) == 0
    assert progress_pause(dataset, Plan(after), 5) == 0


def test_what_goes_to_and_fro_for_ever_is_reported_now_and_then() -> None:
    now = [0.0]
    budget = EventBudget(lambda: now[0])
    assert [budget.allows("NoRouterReady") for _ in range(15)] == [True] * 10 + [False] * 5
    assert budget.allows("BadSource"), "one fault that comes and goes keeps no other from being told"
    posted = 0
    for _ in range(3600):
        now[0] += 1
        posted += budget.allows("NoRouterReady")
    assert posted == 120


def test_a_routing_table_that_is_written_again_under_another_version_is_reported() -> None:
    table = TableStatus(5, "r1", "g1", 2, 1, "a", "b")
    before = DatasetStatus(table=table)
    (report,) = list_event_reports(
        before, DatasetStatus(table=replace(table, version=6, written_at="c", confirmed_at=""))
    )
    assert (report.type, report.reason) == ("Warning", "RoutingTableRenewed")
    assert report.message.startswith("Routing table 5 is written again, as 6")
    for after in (None, replace(table, confirmed_at=""), replace(table, version=6, replicas=3)):
        assert list_event_reports(before, DatasetStatus(table=after)) == ()
    assert list_event_reports(DatasetStatus(), before) == ()


def test_a_check_that_is_skipped_is_reported_once() -> None:
    before = DatasetStatus(schedule=ScheduleStatus("0 2 * * * UTC", "a", skipped="a"), next_check="b")
    after = replace(before, schedule=ScheduleStatus("0 2 * * * UTC", "b", skipped="b"), next_check="c")
    (report,) = list_event_reports(before, after)
    assert (report.type, report.reason) == ("Warning", "CheckSkipped")
    assert "The check of b was missed" in report.message
    assert "The next one is at c" in report.message
    assert list_event_reports(after, replace(after, schedule=None)) == ()
    assert list_event_reports(after, after) == ()
