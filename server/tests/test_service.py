"""Why a service is not ready, as /readyz says it, and its ready file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lookupdb.process import admin, listeners
from lookupdb.process.admin import _announce, _explain_unready
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


async def test_a_ready_file_that_cannot_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_READY_FILE_SECONDS", 0.01)
    path = tmp_path / "ready"
    path.mkdir()  # as on a full disk, no file can take this place
    supervisor: Any = SimpleNamespace(
        wait_ready=lambda: asyncio.sleep(0), workers=[worker(0, WorkerState.READY, kernels="native")]
    )
    with listeners.bind("127.0.0.1", 0) as listener:
        service: Any = SimpleNamespace(ready_members={"ports": [7]}, admin_listener=listener, ready_file=path)
        announcement = asyncio.create_task(_announce(service, supervisor))
        await asyncio.sleep(0.05)
        assert not announcement.done()
        path.rmdir()
        await asyncio.wait_for(announcement, 30)
    assert b'"ports":[7]' in path.read_bytes()
