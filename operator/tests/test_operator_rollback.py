"""From the command to the last router on the old data, with a real operator, watches and polls: one write of the
routing table while the servers of the previous generation are kept."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from operator_support.kube import Kube
from operator_support.kube_story import (
    all_steps,
    condition,
    dataset,
    quiet,
    respecified,
    seen,
    status_of,
    step_to_servers,
)
from operator_support.kubelet import Kubelet
from operator_support.running import operating, options, until

from lookupdb_operator import names

pytest_plugins = ["operator_support.cluster_fixtures"]
pytestmark = pytest.mark.timeout(240)  # a scenario has many steps, each with its own patience

KEPT: dict[str, Any] = {"rollout": {"drainSeconds": 0, "keepPrevious": "10m"}}


async def _refresh(kube: Kube, kubelet: Kubelet) -> None:
    """Build new data and let it serve; the previous rollout is kept."""
    item = kube.get("LookupDataset", "shop", "airports") or {}
    kube.put({**item, "metadata": {**item["metadata"], "annotations": {names.REFRESH: "again"}}})
    await until(lambda: kube.all("Job"), "a second build", lambda: seen(kube))
    await step_to_servers(kube, kubelet, count=4, fingerprint="of other data")
    kubelet.start_servers()
    await until(lambda: status_of(kube)["generation"] == "g2", "the cutover", lambda: seen(kube))
    await until(lambda: any("keptSince" in one for one in status_of(kube)["rollouts"]), "the drain", lambda: seen(kube))
    await quiet(kube)


async def _pin(kube: Kube, generation: str) -> None:
    """Pin ``generation``, and wait until every router answers from it."""
    kube.put(respecified(kube, generation=generation, **KEPT))
    await until(lambda: status_of(kube)["generation"] == generation, "the rollback", lambda: seen(kube))


async def test_a_rollback_to_servers_that_stand_is_one_write_of_the_routing_table(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset(**KEPT))
    async with operating(options(admin_port=kubelet.admin_port)):
        await all_steps(kube, kubelet)
        await _refresh(kube, kubelet)
        kube.writes.clear()
        await _pin(kube, "g1")
        written = [(write.kind, write.name) for write in kube.writes if write.kind not in ("LookupDataset", "Event")]
        routers = sorted(pod["metadata"]["name"] for pod in kube.all("Pod") if "router" in pod["metadata"]["name"])
        assert written[0] == ("ConfigMap", "airports-routing-table")
        assert sorted(written[1:]) == [("Pod", router) for router in routers]
        await until(lambda: condition(kube, "RolledOut")["reason"] == "Pinned", "the drain", lambda: seen(kube))
    table = orjson.loads((kube.get("ConfigMap", "shop", "airports-routing-table") or {})["data"][names.TABLE_FILE])
    assert (table["active"], table["generations"][0]["rollout"]) == ("g1", "r1")
    assert [mark["generation"] for mark in status_of(kube)["rolledBack"]] == ["g2"]


async def test_when_the_pin_is_taken_away_nothing_comes_back_by_itself(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset(**KEPT))
    async with operating(options(admin_port=kubelet.admin_port)):
        await all_steps(kube, kubelet)
        await _refresh(kube, kubelet)
        for spec in ({"generation": "g1"}, {}):
            kube.put(respecified(kube, **spec, **KEPT))
            reason = "Pinned" if spec else "RolledBack"
            await until(lambda: condition(kube, "RolledOut")["reason"] == reason, reason, lambda: seen(kube))  # noqa: B023
        await quiet(kube)
    assert (status_of(kube)["generation"], kube.all("Job")) == ("g1", [])
