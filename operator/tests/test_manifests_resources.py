"""Requests and limits of containers, with and without those of a dataset."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_samples import airports

from lookupdb_operator.manifests import pods

MI = 1 << 20
Given = dict[str, Any]


@pytest.mark.parametrize(
    ("workers", "hot", "shard", "expected"),
    [
        (1, 1, 0, "128Mi"),
        (1, 1, 1, "129Mi"),
        (1, 1, 300 * MI, "428Mi"),
        (4, 1, 300 * MI, "620Mi"),
        (1, 0.5, 300 * MI, "278Mi"),
        (1, 0, 1 << 40, "128Mi"),
        (1, 0.1, 10 * MI, "129Mi"),
        (64, 1, 1 << 40, f"{64 * 65 + (1 << 20)}Mi"),
    ],
)
def test_a_servers_memory_follows_from_the_generation(workers: int, hot: float, shard: int, expected: str) -> None:
    server = pods.server(airports(serving={"workers": workers, "hotFraction": hot}).spec, shard)
    assert {**server["requests"], "ephemeral-storage": ""} == {
        "cpu": "50m",
        "memory": expected,
        "ephemeral-storage": "",
    }
    assert server["limits"] == {"memory": expected}


@pytest.mark.parametrize(
    ("shard", "expected"), [(0, "64Mi"), (1, "65Mi"), (300 * MI, "364Mi"), (1 << 40, f"{(1 << 20) + 64}Mi")]
)
def test_a_servers_disk_follows_from_the_generation(shard: int, expected: str) -> None:
    spec = airports(serving={"hotFraction": 0}).spec
    server = pods.server(spec, shard)
    assert server["requests"]["ephemeral-storage"] == pods.fetcher(server)["requests"]["ephemeral-storage"] == expected
    assert "ephemeral-storage" not in server["limits"], "the volume has one; logs may grow"


@pytest.mark.parametrize(
    "given", [{"requests": {"ephemeral-storage": "2Gi"}}, {"limits": {"ephemeral-storage": "10Mi"}}]
)
def test_the_disk_that_is_asked_for_is_the_users_to_choose(given: Given) -> None:
    (chosen,) = (amounts["ephemeral-storage"] for amounts in given.values())
    for of in (
        pods.server(airports(serving={"resources": given}).spec, 300 * MI),
        pods.builder(
            airports(build={"resources": given | {"limits": {"memory": "1Gi"} | given.get("limits", {})}}).spec
        ),
        pods.router(airports(router={"resources": given}).spec),
    ):
        assert of["requests"]["ephemeral-storage"] == chosen


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [
        pytest.param({}, {"cpu": "50m", "memory": "428Mi"}, {"memory": "428Mi"}, id="nothing"),
        pytest.param(
            {"limits": {"memory": "200Mi"}},
            {"cpu": "50m", "memory": "200Mi"},
            {"memory": "200Mi"},
            id="a limit below what is needed is the user's to choose",
        ),
        pytest.param(
            {"requests": {"memory": "1Gi"}},
            {"cpu": "50m", "memory": "1Gi"},
            {"memory": "1Gi"},
            id="a greater request lifts the limit",
        ),
        pytest.param(
            {"requests": {"memory": "100Mi"}},
            {"cpu": "50m", "memory": "100Mi"},
            {"memory": "428Mi"},
            id="a smaller request leaves it",
        ),
        pytest.param(
            {"requests": {"cpu": 2}, "limits": {"cpu": 4}},
            {"cpu": "2", "memory": "428Mi"},
            {"cpu": "4", "memory": "428Mi"},
            id="numbers become text",
        ),
        pytest.param(
            {"limits": {"cpu": "20m"}},
            {"cpu": "20m", "memory": "428Mi"},
            {"cpu": "20m", "memory": "428Mi"},
            id="our own default keeps within the limit",
        ),
    ],
)
def test_a_server_gets_what_is_given(given: Given, requests: dict[str, str], limits: dict[str, str]) -> None:
    server = pods.server(airports(serving={"resources": given}).spec, 300 * MI)
    assert server == {"requests": requests | {"ephemeral-storage": "364Mi"}, "limits": limits}


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [
        pytest.param({}, {"cpu": "50m", "memory": "128Mi"}, {"memory": "512Mi"}, id="nothing"),
        pytest.param({"requests": {"cpu": 1}}, {"cpu": "1", "memory": "128Mi"}, {"memory": "512Mi"}, id="cpu"),
        pytest.param(
            {"requests": {}, "limits": {"memory": "100Mi"}},
            {"cpu": "50m", "memory": "100Mi"},
            {"memory": "100Mi"},
            id="little memory",
        ),
        pytest.param({"limits": {}}, {"cpu": "50m", "memory": "128Mi"}, {}, id="no limits"),
    ],
)
def test_a_router_gets_what_is_given(given: Given, requests: dict[str, str], limits: dict[str, str]) -> None:
    router = pods.router(airports(router={"resources": given}).spec)
    assert router == {"requests": requests | {"ephemeral-storage": "64Mi"}, "limits": limits}


@pytest.mark.parametrize(
    ("given", "requests", "memory", "threads"),
    [
        pytest.param({}, {"cpu": "100m", "memory": "1Gi"}, 858993459, None, id="nothing"),
        pytest.param({"limits": {"memory": "10Mi"}}, {"cpu": "100m", "memory": "10Mi"}, 8 * MI, None, id="memory"),
        pytest.param(
            {"limits": {"memory": "1Gi", "cpu": "2500m"}},
            {"cpu": "100m", "memory": "1Gi"},
            858993459,
            3,
            id="a part of a core is a thread too",
        ),
        pytest.param(
            {"limits": {"memory": "1Gi", "cpu": "50m"}, "requests": {}},
            {"cpu": "50m", "memory": "1Gi"},
            858993459,
            1,
            id="less than a core",
        ),
        pytest.param(
            {"limits": {"memory": "1Gi", "cpu": 1000}},
            {"cpu": "100m", "memory": "1Gi"},
            858993459,
            256,
            id="more cores than threads",
        ),
    ],
)
def test_a_builder_knows_its_bounds(given: Given, requests: dict[str, str], memory: int, threads: int | None) -> None:
    builder = pods.builder(airports(build={"resources": given}).spec)
    assert builder["requests"] == requests | {"ephemeral-storage": "10Gi"}, "what its scratch volume may hold"
    assert pods.builder_memory(builder) == memory
    assert pods.builder_threads(builder) == threads


def test_a_fetcher_has_all_that_a_quota_asks_of_its_server() -> None:
    server = {
        "requests": {"cpu": "1", "memory": "8Gi", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "2", "memory": "8Gi"},
    }
    assert pods.fetcher(server) == {
        "requests": {"cpu": "1", "memory": "128Mi", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "2", "memory": "256Mi"},
    }


def test_a_shard_on_a_volume_of_its_own_takes_nothing_of_its_nodes_disk() -> None:
    of = airports(serving={"storageClassName": "local-nvme"})
    server = pods.server(of.spec, 300 * MI)
    assert server["requests"]["ephemeral-storage"] == "64Mi", "what /tmp may hold"


@pytest.mark.parametrize(
    ("shard_bytes", "size"),
    [pytest.param(0, "512Mi", id="a file system's least"), pytest.param(10 << 30, "11776Mi", id="a tenth more")],
)
def test_a_volume_of_its_own_has_room_for_its_file_system(shard_bytes: int, size: str) -> None:
    assert pods.shard_volume(shard_bytes) == size
