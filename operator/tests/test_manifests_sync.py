"""The DaemonSet of `spec.sync`: the rights of its pods, their folders, and the arguments of `lookupdb sync`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest
from manifest_samples import CONFIG, GATEWAY_CONFIG, airports, rendered, with_own_store, with_sync
from operator_support.gateway_lives import GATEWAY
from operator_support.plan_samples import applied, deleted
from operator_support.plan_world import SPEC, World

from lookupdb.cli.fetch import sync as command
from lookupdb.errors import InvalidManifest
from lookupdb_operator import manifests, names
from lookupdb_operator.cluster.workloads import parse_existing
from lookupdb_operator.model import Config, ObservedDataset


def pod_of(of: ObservedDataset, config: Config = GATEWAY_CONFIG) -> dict[str, Any]:
    (daemon,) = manifests.render_sync(of, config)
    spec: dict[str, Any] = daemon["spec"]["template"]["spec"]
    return spec


def parse(of: ObservedDataset, config: Config = GATEWAY_CONFIG) -> dict[str, Any]:
    """Parse ``arguments`` as `lookupdb sync` does."""
    (container,) = pod_of(of, config)["containers"]
    verb, *words = container["args"]
    assert verb == "sync"
    with click.Context(command) as context:
        command.parse_args(context, words)
        return dict(context.params)


def test_a_dataset_that_asks_for_none_has_none() -> None:
    assert manifests.render_sync(airports(), CONFIG) == ()
    assert not any(policy["metadata"]["name"].endswith("-sync") for policy in rendered(airports())["network-policy"])


def test_it_keeps_what_the_routing_table_says() -> None:
    params, pod = parse(with_sync()), pod_of(with_sync())
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert [str(table) for table in params["tables"]] == [f"{mounts['table']['mountPath']}/{names.TABLE_FILE}"]
    assert (params["names"], params["keep"], params["cluster_id"]) == ((), 3, "c1")
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "table"]
    assert volume["configMap"] == {"name": "airports-routing-table", "optional": True}


def test_what_is_announced_counts_too_where_it_is() -> None:
    announcing = replace(GATEWAY_CONFIG, announces=True)
    of = with_sync()
    assert parse(of, announcing)["names"] == (f"default/airports@{of.uid}",)
    own = airports(sync={}, store=dict(with_own_store().own_store or {}))
    assert parse(own, announcing)["names"] == ()


def test_it_writes_to_its_own_datasets_folder_of_a_node_and_nowhere_else() -> None:
    pod = pod_of(with_sync())
    (volume,) = [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert volume["hostPath"] == {"path": "/mnt/ssd/lookupdb/default/airports", "type": "DirectoryOrCreate"}
    (container,) = pod["containers"]
    writable = [mount for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert [mount["mountPath"] for mount in writable] == [f"{parse(with_sync())['folder']}/default/airports", "/tmp"]
    defaults = pod_of(airports(sync={}))["volumes"]
    assert defaults[0]["hostPath"]["path"] == "/var/lib/lookupdb/default/airports"


def test_it_is_root_without_any_right_of_roots() -> None:
    """The kubelet makes the folder, and root owns it."""
    pod = pod_of(with_sync())
    assert (pod["securityContext"]["runAsUser"], pod["automountServiceAccountToken"]) == (0, False)
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@pytest.mark.parametrize(
    ("of", "config", "url", "variables"),
    [
        (with_sync(), GATEWAY_CONFIG, GATEWAY, {"LOOKUPDB_STORE_TOKEN_FILE"}),
        (with_sync(), CONFIG, "s3://lookupdb", set()),
        (
            airports(sync={}, store=dict(with_own_store().own_store or {})),
            GATEWAY_CONFIG,
            "s3://team-lookups/airports",
            {"LOOKUPDB_STORE_SECRET"},
        ),
    ],
    ids=["gateway", "credentials", "own store"],
)
def test_it_reaches_the_store_as_fetchers_do(
    of: ObservedDataset, config: Config, url: str, variables: set[str]
) -> None:
    pod = pod_of(of, config)
    (container,) = pod["containers"]
    assert parse(of, config)["store_url"] == url
    given = {variable["name"] for variable in container["env"]} - {"LOOKUPDB_LOG_FORMAT", "HOME"}
    assert given == variables
    assert ("envFrom" in container) == (config is CONFIG or of.own_store is not None)
    assert any("projected" in volume for volume in pod["volumes"]) == (url == GATEWAY)


def test_it_runs_where_it_says_and_not_where_servers_do() -> None:
    scheduling = {"nodeSelector": {"pool": "lookups"}, "tolerations": [{"key": "lookups", "operator": "Exists"}]}
    pod = pod_of(airports(sync={}, scheduling=scheduling))
    assert not {"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"} & pod.keys()
    pod = pod_of(with_sync())
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "apps"}, [{"operator": "Exists"}])


def test_the_gateway_lets_its_pods_in_by_their_label() -> None:
    (daemon,) = manifests.render_sync(with_sync(), GATEWAY_CONFIG)
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert labels[names.SYNC_LABEL] == "airports"
    assert daemon["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/var/lib",
        "lookupdb",
        "/var/lib/lookupdb/",
        "/lookupdb/..",
        "/x/../lookupdb",
        "//lookupdb",
        "/a b/lookupdb",
    ],
)
def test_a_folder_of_a_nodes_own_is_refused(path: str) -> None:
    with pytest.raises(InvalidManifest, match="hostPath must be an absolute path"):
        airports(sync={"hostPath": path})


@pytest.mark.parametrize("path", ["/lookupdb", "/var/lib/lookupdb", "/mnt/disks/ssd0/lookupdb/eu"])
def test_a_folder_for_lookups_is_taken(path: str) -> None:
    assert pod_of(airports(sync={"hostPath": path}))["volumes"][0]["hostPath"]["path"] == f"{path}/default/airports"


class TestPlan:
    def test_it_is_made_changed_and_taken_away_with_the_spec(self) -> None:
        world = World(spec={**SPEC, "sync": {}})
        world.settle()
        assert ("DaemonSet", "airports-sync") in world.things
        assert world.look().apply == ()
        world.edit(sync={"keep": 5})
        assert "DaemonSet/airports-sync" in applied(world.look())
        world.reconcile()
        del world.spec["sync"]
        world.edit()
        assert {"DaemonSet/airports-sync", "NetworkPolicy/airports-sync"} <= deleted(world.look())

    def test_status_says_on_how_many_nodes_there_is_a_generation(self) -> None:
        (daemon,) = manifests.render_sync(with_sync(), CONFIG)
        body = {**daemon, "metadata": {**daemon["metadata"], "uid": "u-1", "resourceVersion": "1"}}
        body["status"] = {"desiredNumberScheduled": 4, "numberReady": 3}
        found = parse_existing("DaemonSet", body)
        assert (found.nodes, found.ready_nodes, found.ref.name) == (4, 3, "airports-sync")
        assert parse_existing("DaemonSet", {**body, "status": {}}).nodes == 0
