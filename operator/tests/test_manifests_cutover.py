"""The routing table as routers read it, the network policies, and the Secret for the store."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import orjson
import pytest
from manifest_samples import CONFIG, FULL_CONFIG, airports, dataset, everything, generation, table

from lookupdb.router import routing_table as route_table
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Config, Manifest, ObservedDataset, Pod, StoreAccess
from lookupdb_operator.status import TablePart

CONFIG_MAP_BYTES = 1 << 20


def _parsed(manifest: Manifest) -> route_table.RoutingTable:
    return route_table.parse_table(manifest["data"][names.TABLE_FILE].encode())


def test_a_router_reads_what_was_written() -> None:
    of = everything()
    built = generation(of, value_format="raw", built_at="2026-03-04T05:06:07Z")
    read = _parsed(manifests.render_routing_table(of, table(of, version=9), {"g12": built}))
    assert (read.version, read.active) == (9, "g12")
    assert read.dataset == route_table.RoutedDataset(of.namespace, of.name, of.uid)
    entry = read.active_entry
    assert (entry.rollout, entry.records, entry.bytes) == ("r34", built.records, built.bytes)
    assert (entry.normalize, entry.value_format, entry.built_at) == (
        ("strip", "lowercase"),
        "raw",
        "2026-03-04T05:06:07Z",
    )
    assert [str(address) for address in entry.shards[1].endpoints] == [
        f"people-r34-s1-{replica}.people-r34.lookups.svc:{port}" for replica in range(3) for port in (7000, 7001)
    ]


def test_a_router_reports_of_what_was_written_what_the_operator_expects() -> None:
    of = everything()
    written = manifests.render_routing_table(of, table(of, version=9), {"g12": generation(of)})
    assert _parsed(written).digest == manifests.content_mark(written)


def test_a_table_names_as_many_servers_as_it_says_not_as_the_spec_does() -> None:
    of = airports(replicas=5)
    read = _parsed(manifests.render_routing_table(of, table(of, replicas=2, workers=3), {"g12": generation(of)}))
    assert [len(shard.endpoints) for shard in read.active_entry.shards] == [6] * 4


def _long(shards: int) -> ObservedDataset:
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": "n" * 63, "name": "d" * 40, "uid": "u" * 36},
        "spec": {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}, "shards": shards},
    }
    return dataset(resource)


@pytest.mark.parametrize(
    ("of", "endpoints"),
    [
        pytest.param(airports(shards=1024), 16, id="1,024 shards of 16 endpoints, short names"),
        pytest.param(_long(1024), 5, id="1,024 shards of 5 endpoints, the longest names"),
        pytest.param(_long(64), 64, id="64 shards of 64 endpoints, the longest names"),
    ],
)
def test_the_largest_tables_fit_a_config_map(of: ObservedDataset, endpoints: int) -> None:
    built = generation(of, bytes=1 << 50, records=1 << 40)
    manifest = manifests.render_routing_table(of, table(of, rollout="r9999", replicas=endpoints), {"g12": built})
    assert len(manifest["data"][names.TABLE_FILE]) + 1024 < CONFIG_MAP_BYTES
    assert [len(shard.endpoints) for shard in _parsed(manifest).active_entry.shards] == [endpoints] * of.spec["shards"]


def test_a_table_of_several_generations_says_which_shard_is_whose_and_how_old() -> None:
    of = airports(replicas=2)
    generations = {
        "g12": generation(of, "g12", built_at="2026-01-01T00:00:00Z"),
        "g13": generation(of, "g13", built_at="2026-01-02T00:00:00Z"),
    }
    parts = (TablePart("r34", "g12", 1, "1,3"),)
    manifest = manifests.render_routing_table(of, table(of, rollout="r35", generation="g13", parts=parts), generations)
    assert orjson.loads(manifest["data"][names.TABLE_FILE])["formatVersion"] == route_table.MIXED_FORMAT_VERSION
    read = _parsed(manifest)
    assert [(shard.generation, shard.built_at[:10]) for shard in read.active_entry.shards] == [
        ("g13", "2026-01-02"),
        ("g12", "2026-01-01"),
        ("g13", "2026-01-02"),
        ("g12", "2026-01-01"),
    ]
    assert [str(address) for address in read.active_entry.shards[3].endpoints] == [
        f"airports-r34-s3-{replica}.airports-r34.default.svc:7000" for replica in range(2)
    ]


def test_a_table_of_several_rollouts_of_one_generation_is_as_any_other() -> None:
    of = airports(replicas=1)
    parts = (TablePart("r34", "g12", 2, "0"),)
    manifest = manifests.render_routing_table(
        of, table(of, rollout="r35", parts=parts, workers=1), {"g12": generation(of)}
    )
    content = orjson.loads(manifest["data"][names.TABLE_FILE])
    assert content["formatVersion"] == route_table.FORMAT_VERSION
    assert [set(shard) for shard in content["generations"][0]["shards"]] == [{"endpoints"}] * 4
    assert [len(shard.endpoints) for shard in _parsed(manifest).active_entry.shards] == [2, 1, 1, 1]


def test_a_nudge_is_about_one_pod_and_one_annotation() -> None:
    pod = Pod(name="airports-router-abc", uid="u1", component=names.ROUTER)
    assert manifests.render_nudge(airports(), pod, 7) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "default",
            "name": "airports-router-abc",
            "uid": "u1",
            "annotations": {"lookupdb.dev/table-version": "7"},
        },
    }


def _ingress(policies: tuple[Manifest, ...]) -> dict[str, list[tuple[Any, Any]]]:
    return {
        policy["metadata"]["name"]: [
            (rule.get("from"), port["port"]) for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]
        ]
        for policy in policies
    }


ROUTERS = [
    {
        "podSelector": {
            "matchLabels": {names.DATASET: "airports", names.DATASET_UID: airports().uid, names.COMPONENT: "router"}
        }
    }
]


def test_shards_answer_their_own_routers_alone_and_admin_ports_nobody_unless_told() -> None:
    assert _ingress(manifests.render_network_policies(airports(), CONFIG)) == {
        "airports-shard": [(ROUTERS, 7000)],
        "airports-router": [(None, 8080), (None, 6379)],
        "airports-builder": [],
    }


def test_clients_are_those_of_the_operators_options() -> None:
    routers, admin = list(FULL_CONFIG.router_clients), list(FULL_CONFIG.admin_clients)
    assert _ingress(manifests.render_network_policies(airports(), FULL_CONFIG)) == {
        "airports-shard": [(ROUTERS, 7000), (admin, 9090)],
        "airports-router": [(routers, 8080), (routers, 6379), (admin, 9090)],
        "airports-builder": [],
    }


SHOPS: dict[str, Any] = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "shop"}}}


@pytest.mark.parametrize("config", [CONFIG, FULL_CONFIG])
def test_clients_that_a_dataset_names_replace_those_of_the_operators_options(config: Config) -> None:
    """The rest of the policies stays; the empty selector, which means all namespaces, is kept."""
    without = _ingress(manifests.render_network_policies(airports(), config))
    named = _ingress(manifests.render_network_policies(airports(router={"clients": [SHOPS]}), config))
    assert named.pop("airports-router")[:2] == [([SHOPS], 8080), ([SHOPS], 6379)]
    without.pop("airports-router")
    assert named == without


def test_clients_of_redis_reach_routers_where_these_speak_its_protocol() -> None:
    config = dataclasses.replace(CONFIG, router_resp=False)
    for chosen, ports in ((CONFIG, [80, 6379]), (config, [80])):
        deployment, service, *_ = manifests.render_routers(airports(), chosen)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        has_port = len(ports) == 2
        assert ("--resp-port" in container["args"]) is has_port
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert named == {"http": 8080, "admin": 9090} | ({"redis": 6379} if has_port else {})
        assert [port["port"] for port in service["spec"]["ports"]] == ports
    assert _ingress(manifests.render_network_policies(airports(), config))["airports-router"] == [(None, 8080)]


def test_a_service_has_no_port_twice() -> None:
    """If HTTP uses Redis' own port, Redis is reached at the pods alone."""
    _, service, *_ = manifests.render_routers(airports(router={"service": {"port": 6379}}), CONFIG)
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_every_worker_of_a_shard_server_can_be_reached() -> None:
    shard, *_ = manifests.render_network_policies(airports(), CONFIG)
    assert shard["spec"]["ingress"][0]["ports"] == [{"port": 7000, "endPort": 7063, "protocol": "TCP"}]


def test_there_are_no_policies_where_none_are_wanted() -> None:
    assert manifests.render_network_policies(airports(), dataclasses.replace(CONFIG, network_policies=False)) == ()


def test_the_stores_variables_have_a_prefix() -> None:
    access = StoreAccess(environment={"AWS_REGION": "eu-1", "AWS_SECRET_ACCESS_KEY": "geheim ß"}, digest="d")
    secret = manifests.render_store_secret(airports(), access)
    assert "stringData" not in secret
    assert {name: base64.b64decode(value).decode() for name, value in secret["data"].items()} == {
        "LOOKUPDB_STORE_AWS_REGION": "eu-1",
        "LOOKUPDB_STORE_AWS_SECRET_ACCESS_KEY": "geheim ß",
    }


def test_autoscaling_leaves_the_number_of_routers_to_the_autoscaler_within_its_bounds() -> None:
    kinds = {manifest["kind"]: manifest for manifest in manifests.render_routers(everything(), CONFIG)}
    assert kinds["Deployment"]["spec"]["replicas"] == 3, "the least, until there are more"
    for present, replicas in {0: 3, 2: 3, 3: 3, 7: 7, 12: 12, 13: 12}.items():
        scaled = manifests.scale_routers(kinds["Deployment"], everything(), present)
        assert scaled["spec"] == {**kinds["Deployment"]["spec"], "replicas": replicas}
        assert manifests.read_digest(scaled) == manifests.read_digest(kinds["Deployment"])
    assert kinds["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "people-router"
    fixed = {manifest["kind"]: manifest for manifest in manifests.render_routers(airports(), CONFIG)}
    assert fixed["Deployment"]["spec"]["replicas"] == 2
    assert manifests.scale_routers(fixed["Deployment"], airports(), 7) == fixed["Deployment"]
    assert "HorizontalPodAutoscaler" not in fixed


def test_a_router_has_time_to_drain_before_it_is_killed() -> None:
    deployment, *_ = manifests.render_routers(airports(router={"drainSeconds": 60}), CONFIG)
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 75


def _service(**service: Any) -> Manifest:
    return manifests.render_routers(airports(router={"service": service}), CONFIG)[1]


def test_the_routers_service_holds_what_is_said_of_it_and_leaves_the_rest_to_others() -> None:
    assert _service()["spec"].keys() == {"selector", "ports"}, "who has set a type by hand keeps it"
    given = {"type": "LoadBalancer", "loadBalancerClass": "a/b", "externalTrafficPolicy": "Local"}
    service = _service(**given, port=8000, nodePort=30000, annotations={"a": "b"})
    assert service["spec"].items() >= given.items()
    port, _ = service["spec"]["ports"]
    assert (port["port"], port["nodePort"], port["targetPort"]) == (8000, 30000, "http")
    assert service["metadata"]["annotations"].items() >= {"a": "b"}.items()


def test_a_change_of_the_service_changes_nothing_else_of_the_routers() -> None:
    plain = manifests.render_routers(airports(), CONFIG)
    exposed = manifests.render_routers(airports(router={"service": {"type": "NodePort"}}), CONFIG)
    assert [one["kind"] for one, other in zip(plain, exposed, strict=True) if one != other] == ["Service"]
    assert plain[1]["spec"]["selector"] == exposed[1]["spec"]["selector"]
