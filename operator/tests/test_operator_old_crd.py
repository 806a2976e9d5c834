"""An operator on a cluster whose CustomResourceDefinition is older, and prunes what it does not know of each status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_support.kube import Kube, Object
from operator_support.kube_schema import pruning
from operator_support.kube_story import condition, dataset, quiet, seen, status_of, step_to_build
from operator_support.kubelet import Kubelet
from operator_support.running import Running, operating, options, until

from lookupdb_operator.config import Config
from lookupdb_operator.loop import pruned_statuses
from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan.plan import plan

pytest_plugins = ["operator_support.cluster_fixtures"]
pytestmark = pytest.mark.timeout(240)

IMAGE = {"delivery": {"type": "Image", "image": {"repository": "r.example/lookups"}}}
PUSH = ("Job", "shop", "airports-r1-push")


class Clock:
    """The operator's clock on the wall, which a test puts forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def decide(self, observed: Observed, config: Config, now: datetime) -> Plan:
        return plan(observed, config, now + self.ahead)


def running(clock: Clock, kubelet: Kubelet) -> Any:
    return operating(options(admin_port=kubelet.admin_port, resync_seconds=0.25), clock.decide)


async def looked_again(operator: Running) -> None:
    """``operator`` has looked at its dataset three more times."""
    begin = await _count_looks(operator)

    async def done() -> bool:
        return await _count_looks(operator) >= begin + 3

    await until(done, "three looks", every=0.1)


async def _count_looks(operator: Running) -> float:
    name = "lookupdb_operator_reconciles_total{"
    text = (await operator.ask("/metrics"))[1]
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def pushing(kube: Kube, kubelet: Kubelet) -> str:
    """The uid of the first push."""
    await step_to_build(kube)
    kubelet.end_builds()
    await until(lambda: kube.get(*PUSH), "a push", lambda: seen(kube))
    return _uid(kube)


def _uid(kube: Kube) -> str:
    return str((kube.get(*PUSH) or {"metadata": {"uid": ""}})["metadata"]["uid"])


async def fail_push(kube: Kube) -> None:
    """Return when the operator has seen that the push has failed, and says when it makes it again."""
    push = kube.get(*PUSH) or {}
    kube.put({**push, "status": {"conditions": [{"type": "Failed", "status": "True"}], "failed": 1}})
    attempt = "the next attempt is at"
    await until(lambda: attempt in condition(kube, "RolledOut")["message"], "the failure", lambda: seen(kube))


async def next_push(kube: Kube, clock: Clock, before: str) -> str:
    clock.ahead += timedelta(hours=1)
    await until(lambda: _uid(kube) not in ("", before), "another push", lambda: seen(kube))
    return _uid(kube)


def push_of(kube: Kube) -> Mapping[str, Any] | None:
    (rollout,) = status_of(kube)["rollouts"]
    return rollout.get("push")  # type: ignore[no-any-return]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "CustomResourceDefinition" in message]


def status_writes(kube: Kube) -> int:
    return sum(write.subresource == "status" for write in kube.writes)


async def test_a_push_that_failed_is_made_again_and_the_status_is_not_written_for_ever(
    kube: Kube, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    clock, kube.prune = Clock(), pruning("rollouts[].push")
    kube.put(dataset(serving=IMAGE))
    async with running(clock, kubelet) as operator:
        first = await pushing(kube, kubelet)
        await quiet(kube)
        await fail_push(kube)
        await quiet(kube)
        settled = status_writes(kube)
        await looked_again(operator)
        assert status_writes(kube) == settled
        assert push_of(kube) is None
        second = await next_push(kube, clock, first)
        await fail_push(kube)
        await next_push(kube, clock, second)
        (warning,) = warnings_of(caplog)
        assert "status.rollouts[].push " in warning


async def test_an_edit_of_the_status_is_put_right(kube: Kube, kubelet: Kubelet) -> None:
    clock, kube.prune = Clock(), pruning("rollouts[].push")
    kube.put(dataset(serving=IMAGE))
    async with running(clock, kubelet):
        await pushing(kube, kubelet)
        await fail_push(kube)
        assert _phase(kube) == "Stuck"
        edited: Object = kube.get("LookupDataset", "shop", "airports") or {}
        kube.put({**edited, "status": {**edited["status"], "phase": "Ready"}})
        await until(lambda: _phase(kube) == "Stuck", "the phase as it was", lambda: seen(kube))


def _phase(kube: Kube) -> str:
    return str(status_of(kube).get("phase", ""))


async def test_an_upgraded_crd_has_the_whole_status_without_a_restart(
    kube: Kube, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruned_statuses, "PROBE_SECONDS", 0.5)
    clock, kube.prune = Clock(), pruning("rollouts[].push")
    kube.put(dataset(serving=IMAGE))
    async with running(clock, kubelet) as operator:
        first = await pushing(kube, kubelet)
        await fail_push(kube)
        await looked_again(operator)
        assert push_of(kube) is None
        kube.prune = pruning()
        await until(lambda: push_of(kube), "the whole status", lambda: seen(kube))
        assert (push_of(kube) or {})["job"] == first


async def test_an_operator_that_starts_anew_pushes_again_after_another_pause(
    kube: Kube, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    clock, kube.prune = Clock(), pruning("rollouts[].push")
    kube.put(dataset(serving=IMAGE))
    async with running(clock, kubelet):
        first = await pushing(kube, kubelet)
        await fail_push(kube)
        await until(lambda: warnings_of(caplog), "a warning", lambda: seen(kube))
    async with running(clock, kubelet):
        await until(lambda: len(warnings_of(caplog)) == 2, "its own warning", lambda: seen(kube))
        await next_push(kube, clock, first)
