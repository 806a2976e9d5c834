"""promtool finds nothing to criticize in the metrics of any program, as real ones answer them."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest
from operator_support.gateways import Standing
from operator_support.kube import Kube
from operator_support.kube_story import all_steps, condition, dataset, seen
from operator_support.kubelet import Kubelet
from operator_support.running import operating, options
from operator_support.running import until as soon
from support.fleets import fleet, fleet_entry
from support.routers import routing
from support.routing import table_file
from support.shards import write_generation
from support.syncing import announce, publish, sync_process

from chart_support import promtool

pytest_plugins = [
    "operator_support.cluster_fixtures",
    "operator_support.gateway_fixtures",
]

KEYS = {f"k{i}": b"v%d" % i for i in range(100)}


def check(metrics: str | bytes) -> None:
    text = metrics.decode() if isinstance(metrics, bytes) else metrics
    assert "\n# TYPE lookupdb_" in text
    assert promtool("check", "metrics", text=text) == ""


def test_router_and_shard_server(tmp_path: Path) -> None:
    generation = write_generation(tmp_path / "store", KEYS, shards=2)
    table = tmp_path / "table.json"
    with fleet(generation) as shards:
        table.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(table) as router:
            assert [router.get(f"/v1/lookup/{key}")[0] for key in ("k1", "k2", "none")] == [200, 200, 404]
            check(router.get("/metrics", admin=True)[1])
        with urlopen(f"http://127.0.0.1:{shards[0][0].admin}/metrics", timeout=60) as answer:
            check(answer.read())


async def test_operator(kube: Kube, kubelet: Kubelet) -> None:
    kube.put(dataset())
    async with operating(options(admin_port=kubelet.admin_port)) as operator:
        await all_steps(kube, kubelet)
        await soon(lambda: condition(kube, "RolledOut")["reason"] == "UpToDate", "the end", lambda: seen(kube))
        check((await operator.ask("/metrics"))[1])


async def test_gateway(gateway: Standing) -> None:
    assert (await gateway.ask("GET", "/v1/object/cluster-uid/team/people-1a2b3c4d/none")).status == 404
    assert (await gateway.ask("GET", "/v1/object/cluster-uid/team/people-1a2b3c4d/none", token="")).status == 401
    check((await gateway.admin("/metrics"))[1])


def test_sync(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    announce(publish(store, "g1"), "g1", 1)
    with sync_process(tmp_path, str(tmp_path / "kept"), "--store", store, "--dataset", "team/people") as running:
        running.wait_ready()
        check(running.ask("/metrics")[1])


def test_promtool_finds_something() -> None:
    with pytest.raises(AssertionError, match="should have"):
        check("\n# HELP lookupdb_errors Errors.\n# TYPE lookupdb_errors counter\nlookupdb_errors 1\n")
