"""Events: one for each reason that a condition changed to, a warning when it tells of a failure."""

from __future__ import annotations

import pytest

from lookupdb_operator.reports import transitions
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Condition, Status, Truth


def status_of(**conditions: tuple[Truth, str]) -> Status:
    kinds = {"ready": READY, "built": BUILT, "rolled_out": ROLLED_OUT, "degraded": DEGRADED}
    return Status(
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
            Status(),
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
            id="a failure that shows in two conditions is told once",
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
            id="what was told of as a shortage is told again when lookups fail for it",
        ),
    ],
)
def test_transitions(old: Status, new: Status, expected: list[tuple[str, str]]) -> None:
    assert [(report.type, report.reason) for report in transitions(old, new)] == expected
