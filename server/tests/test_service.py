"""Why a service is not ready, as /readyz says it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lookupdb.process.admin import _explain_unready
from lookupdb.process.supervisor import WorkerState


def worker(index: int, state: WorkerState, **report: Any) -> SimpleNamespace:
    return SimpleNamespace(index=index, state=state, report=report)


STALLED = worker(1, WorkerState.STALLED)
FAILED = worker(0, WorkerState.STARTING, error="shard-0.mdb is not there")


@pytest.mark.parametrize(
    ("state", "workers", "is_prepared", "reason"),
    [
        pytest.param(WorkerState.READY, [], False, None, id="ready"),
        pytest.param(WorkerState.DRAINING, [], True, "draining", id="draining"),
        pytest.param(WorkerState.STARTING, [], False, "preparing", id="the shard is being verified"),
        pytest.param(
            WorkerState.STARTING,
            [FAILED],
            True,
            "not ready: worker 0: shard-0.mdb is not there",
            id="a worker says why",
        ),
        pytest.param(
            WorkerState.STARTING,
            [STALLED],
            True,
            "not ready: worker 1: its event loop does not run",
            id="one stands still",
        ),
    ],
)
async def test_readyz_says(
    state: WorkerState, workers: list[SimpleNamespace], is_prepared: bool, reason: str | None
) -> None:
    preparation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if is_prepared:
        preparation.set_result(None)
    supervisor: Any = SimpleNamespace(state=state, workers=workers)
    assert _explain_unready(supervisor, preparation) == reason
