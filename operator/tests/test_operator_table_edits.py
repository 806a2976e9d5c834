"""A routing table that somebody edits, in a cluster whose API server tracks the owner of each field."""

from __future__ import annotations

import copy
from typing import Any

import orjson
from operator_support.kube import Kube
from operator_support.kube_story import all_steps, dataset, quiet, seen, status_of
from operator_support.kubelet import Kubelet
from operator_support.running import operating, options, until

from lookupdb_operator import names

pytest_plugins = ["operator_support.cluster_fixtures"]


async def test_a_routing_table_that_somebody_changes_is_put_right_under_the_next_version(
    kube: Kube, kubelet: Kubelet
) -> None:
    """Edits by hand, while an operator runs and while none does: a router may have read them. After the repair nothing
    is written."""

    def table() -> dict[str, Any]:
        found = kube.get("ConfigMap", "shop", "airports-routing-table")
        return copy.deepcopy(found) or {}

    def version() -> int:
        return int(orjson.loads(table()["data"].get(names.TABLE_FILE, "{}")).get("version", 0))

    async def confirmed(number: int) -> None:
        await until(lambda: version() == number, f"table {number}", lambda: seen(kube))
        await until(lambda: status_of(kube)["table"].get("confirmedAt"), "its confirmation", lambda: seen(kube))
        assert status_of(kube)["table"]["version"] == status_of(kube)["lastTable"] == number
        await quiet(kube)
        assert version() == number

    kube.put(dataset())
    right = ""
    async with operating(options(admin_port=kubelet.admin_port)):
        await all_steps(kube, kubelet)
        await confirmed(1)
        right = table()["data"][names.TABLE_FILE]
        kube.put({**table(), "data": {names.TABLE_FILE: right.replace(":7000", ":9")}})
        await confirmed(2)
    kube.put({**table(), "data": {}})
    async with operating(options(admin_port=kubelet.admin_port)):
        await confirmed(3)
    assert table()["data"][names.TABLE_FILE] == right.replace('"version":1', '"version":3')
    events = [event["reason"] for event in kube.all("Event")]
    assert events.count("RoutingTableRenewed") == 2


async def test_a_label_of_a_routing_table_is_put_right_under_the_same_version(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset())
    async with operating(options(admin_port=kubelet.admin_port)):
        await all_steps(kube, kubelet)
        await quiet(kube)
        before, status = copy.deepcopy(kube.get("ConfigMap", "shop", "airports-routing-table")), status_of(kube)
        assert before is not None
        edited = copy.deepcopy(before)
        edited["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "gitops"
        kube.put(edited)

        def is_put_right() -> bool:
            found = kube.get("ConfigMap", "shop", "airports-routing-table") or edited
            return bool(found["metadata"]["labels"] == before["metadata"]["labels"])

        await until(is_put_right, "the label", lambda: seen(kube))
        await quiet(kube)
    after = kube.get("ConfigMap", "shop", "airports-routing-table")
    assert after is not None
    assert after["data"] == before["data"]
    assert status_of(kube)["table"] == status["table"]
    assert "RoutingTableRenewed" not in [event["reason"] for event in kube.all("Event")]
