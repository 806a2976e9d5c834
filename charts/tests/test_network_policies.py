"""Access to each port, by the policies of the chart and the operator together. A model of Kubernetes' documentation
decides. The kubelet of a pod's own node always has access, and is not tested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from chart_support import EXTERNAL, NO_GATEWAY, Values
from lookupdb_operator import names
from network_policy_cluster import NAMESPACES, OTHER_PORT, PORTS, RELEASE_NAMESPACE, Cluster, Matrix, make_cluster
from network_policy_model import Endpoint, selects

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
SEARCHERS = {"namespaceSelector": {"matchLabels": {"team": "search"}}}
STRANGERS_ELSEWHERE = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}},
    "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["stranger"]}]},
}
ROUTER_PORTS = (8080, 6379)
"""For clients, by HTTP and by RESP."""
DATASETS = ("data/airports", "data/people", "other/airports")
STORE_USERS = ("builder", "executor", "shard", "diff", "load")


def everybody(cluster: Cluster, but: str = "") -> set[str]:
    return {each.name for each in cluster.pods + cluster.strangers} - {but}


def in_namespace(cluster: Cluster, namespace: str, but: str = "") -> set[str]:
    return {each.name for each in cluster.pods + cluster.strangers if each.namespace == namespace} - {but}


def gateway_users(cluster: Cluster, release: str = "lookupdb", namespaces: Iterable[str] = NAMESPACES) -> set[str]:
    """Return all endpoints with the labels, in any namespace, and the operator: the token decides access to the
    store."""
    sidecars = {each.name for each in cluster.strangers if names.SYNC_LABEL in each.labels}
    listed = {name for name in sidecars if name.rpartition(" ")[2] in namespaces}
    return cluster.wearing(*STORE_USERS, namespaces=namespaces) | listed | {f"{release}/operator"}


def expected(cluster: Cluster, release: str = "lookupdb") -> Matrix:
    """Return the matrix with the chart's default values."""
    matrix: Matrix = {
        f"{release}/store:7070": {f"{release}/gateway", f"{release}/sweep"},
        f"{release}/gateway:7071": gateway_users(cluster, release),
        f"{release}/gateway:9090": set(),
        f"{release}/operator:8081": set(),
        **{f"{release}/{component}:{OTHER_PORT}": set() for component in ("store", "gateway", "operator")},
    }
    if release != "lookupdb":
        return matrix
    for dataset in DATASETS:
        matrix |= {
            **{f"{dataset}/builder:{port}": set() for port in (7078, 7079, 9090)},
            f"{dataset}/shard:7000": {f"{dataset}/router"},
            f"{dataset}/shard:7063": {f"{dataset}/router"},
            f"{dataset}/shard:7064": set(),
            f"{dataset}/shard:9090": {"lookupdb/operator"},
            f"{dataset}/router:8080": everybody(cluster, but=f"{dataset}/router"),
            f"{dataset}/router:6379": everybody(cluster, but=f"{dataset}/router"),
            f"{dataset}/router:9090": {"lookupdb/operator"},
            **{f"{dataset}/{component}:{OTHER_PORT}": set() for component in ("builder", "shard", "router")},
        }
    return matrix


def defaults() -> tuple[Cluster, Matrix]:
    cluster = make_cluster()
    return cluster, expected(cluster)


def of_watched_namespaces() -> tuple[Cluster, Matrix]:
    cluster = make_cluster({"watchNamespaces": ["data"]})
    users = gateway_users(cluster, namespaces=["data"])
    return cluster, expected(cluster) | {"lookupdb/gateway:7071": users}


def of_two_releases() -> tuple[Cluster, Matrix]:
    """Two releases in one namespace: neither's gateway or sweep reaches the other's store."""
    cluster = make_cluster(others=["second"])
    return cluster, expected(cluster) | expected(cluster, "second")


def without_a_gateway() -> tuple[Cluster, Matrix]:
    """Pods that need the store have its credentials, and access it directly."""
    cluster = make_cluster(NO_GATEWAY)
    matrix = expected(cluster) | {"lookupdb/store:7070": {"lookupdb/sweep", *cluster.wearing(*STORE_USERS)}}
    return cluster, _without_targets(matrix, "lookupdb/gateway")


def without_a_gateway_of_watched_namespaces() -> tuple[Cluster, Matrix]:
    cluster = make_cluster({**NO_GATEWAY, "watchNamespaces": ["data"]})
    users = cluster.wearing(*STORE_USERS, namespaces=["data"])
    return cluster, _without_targets(
        expected(cluster) | {"lookupdb/store:7070": {"lookupdb/sweep", *users}}, "lookupdb/gateway"
    )


def before_a_bucket() -> tuple[Cluster, Matrix]:
    cluster = make_cluster(EXTERNAL)
    return cluster, _without_targets(expected(cluster), "lookupdb/store")


def with_named_clients() -> tuple[Cluster, Matrix]:
    """Clients of all routers; a dataset's own replace them, and a second release's operator reads nothing."""
    values: Values = {"networkPolicies": {"routerClients": [SEARCHERS]}}
    cluster = make_cluster(values, spec={"router": {"clients": [STRANGERS_ELSEWHERE, {"podSelector": {}}]}})
    matrix = expected(cluster)
    for dataset in DATASETS:
        for port in ROUTER_PORTS:
            matrix[f"{dataset}/router:{port}"] = in_namespace(cluster, "data", but=f"{dataset}/router")
    for port in ROUTER_PORTS:
        matrix[f"data/airports/router:{port}"] |= {"stranger in elsewhere"}
    return cluster, matrix


def with_clients_outside() -> tuple[Cluster, Matrix]:
    blocks = [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}]
    cluster = make_cluster({"networkPolicies": {"routerClients": blocks}})
    outside = {f"{dataset}/router:{port}": {"outside"} for dataset in DATASETS for port in ROUTER_PORTS}
    return cluster, expected(cluster) | outside


def with_monitoring() -> tuple[Cluster, Matrix]:
    """Every pod of that namespace may read metrics, and nothing else."""
    cluster = make_cluster({"networkPolicies": {"monitoring": [PROMETHEUS]}})
    matrix = expected(cluster)
    for target in matrix:
        if target.endswith(("gateway:9090", "operator:8081", "shard:9090", "router:9090")):
            matrix[target] |= in_namespace(cluster, "monitoring")
    return cluster, matrix


def with_spark() -> tuple[Cluster, Matrix]:
    """Executors reach their driver, and it and each other one reaches their blocks. Another dataset's do not."""
    cluster = make_cluster(spec={"build": {"engine": "Spark"}})
    driver, *executors = (f"data/airports/{name}" for name in ("builder", "executor-1", "executor-2"))
    matrix = expected(cluster) | {f"{driver}:{port}": {*executors} for port in (7078, 7079)}
    for each in executors:
        matrix |= {f"{each}:7078": set(), f"{each}:7079": {driver, *executors} - {each}, f"{each}:{OTHER_PORT}": set()}
    return cluster, matrix


def with_a_console() -> tuple[Cluster, Matrix]:
    """It reads the metrics of datasets, and asks their routers as everybody may."""
    cluster = make_cluster({"console": {"enabled": True}})
    matrix = expected(cluster)
    for target in matrix:
        if target.endswith(("shard:9090", "router:9090")):
            matrix[target] |= {"lookupdb/console"}
    pages = {f"lookupdb/console:{port}": set[str]() for port in (9090, OTHER_PORT)}
    return cluster, matrix | pages | {"lookupdb/console:7074": everybody(cluster, but="lookupdb/console")}


def with_a_console_for_named_clients() -> tuple[Cluster, Matrix]:
    """Neither the pages nor routers are for everybody; then the console looks up nothing."""
    values: Values = {
        "console": {"enabled": True, "clients": [SEARCHERS]},
        "networkPolicies": {"monitoring": [PROMETHEUS], "routerClients": [SEARCHERS]},
    }
    cluster = make_cluster(values)
    matrix, searchers = expected(cluster), in_namespace(cluster, "data")
    for target in matrix:
        if target.endswith(("gateway:9090", "operator:8081", "shard:9090", "router:9090")):
            matrix[target] |= in_namespace(cluster, "monitoring")
        if target.endswith(("shard:9090", "router:9090")):
            matrix[target] |= {"lookupdb/console"}
        if target.endswith(tuple(f"router:{port}" for port in ROUTER_PORTS)):
            matrix[target] = searchers - {target.rpartition(":")[0]}
    pages: Matrix = {
        "lookupdb/console:9090": in_namespace(cluster, "monitoring"),
        f"lookupdb/console:{OTHER_PORT}": set(),
    }
    return cluster, matrix | pages | {"lookupdb/console:7074": searchers}


def _without_targets(matrix: Matrix, pod: str) -> Matrix:
    return {target: sources for target, sources in matrix.items() if not target.startswith(f"{pod}:")}


SCENARIOS: dict[str, Callable[[], tuple[Cluster, Matrix]]] = {
    function.__name__: function
    for function in (
        defaults,
        of_watched_namespaces,
        of_two_releases,
        without_a_gateway,
        without_a_gateway_of_watched_namespaces,
        before_a_bucket,
        with_named_clients,
        with_clients_outside,
        with_monitoring,
        with_spark,
        with_a_console,
        with_a_console_for_named_clients,
    )
}


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request: pytest.FixtureRequest) -> tuple[Cluster, Matrix]:
    return SCENARIOS[request.param]()


def test_who_reaches_which_port(scenario: tuple[Cluster, Matrix]) -> None:
    cluster, matrix = scenario
    assert cluster.matrix() == matrix


def test_every_rule_is_needed(scenario: tuple[Cluster, Matrix]) -> None:
    """Without any policy, rule, peer, selector or port of theirs, the matrix would be another one."""
    cluster, _ = scenario
    before, idle = cluster.matrix(), []
    for what, policy, policies in mutations(cluster.policies):
        after = Cluster(cluster.pods, cluster.strangers, policies).matrix(selected_pods(cluster, policy))
        if after.items() <= before.items():
            idle.append(what)
    assert idle == []


def selected_pods(cluster: Cluster, policy: Any) -> list[Endpoint]:
    """Return the pods that an ingress policy has an effect on."""
    namespace, selector = policy["metadata"]["namespace"], policy["spec"]["podSelector"]
    return [pod for pod in cluster.pods if pod.namespace == namespace and selects(selector, pod.labels)]


def mutations(policies: tuple[Any, ...]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield for each part of a policy its name, the policy, and all policies without that part. Datasets' policies are
    alike: only those of one dataset are changed."""
    for number, policy in enumerate(policies):
        name = f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"
        if not name.startswith((f"{RELEASE_NAMESPACE}/", "data/airports-")):
            continue
        yield name, policy, policies[:number] + policies[number + 1 :]
        for path in parts(policy["spec"], ()):
            changed = copy.deepcopy(policy)
            holder: Any = changed["spec"]
            for step in path[:-1]:
                holder = holder[step]
            del holder[path[-1]]
            changed_policies = (*policies[:number], changed, *policies[number + 1 :])
            yield f"{name}: {'.'.join(map(str, path))}", policy, changed_policies


def parts(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the removable parts of a policy."""
    steps = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for step, inner in steps:
        here = (*path, step)
        if is_removable(here, value):
            yield here
        yield from parts(inner, here)


def is_removable(path: tuple[Any, ...], holder: Any) -> bool:
    """Return whether a part may be removed: a rule, a list, a peer, a selector, a port or the end of a range. Not the
    pods that a policy selects, since isolating a pod twice changes nothing; nor one label beside others, the default
    protocol, or a part that cannot go alone."""
    if path[0] != "ingress" or path == ("ingress",):
        return False
    step = path[-1]
    if isinstance(step, int):
        return len(path) == 2 or path[-2] in ("from", "ports")
    if step in ("podSelector", "namespaceSelector"):
        return len(holder) > 1
    return step in ("from", "ports", "endPort", "except", "matchLabels", "matchExpressions")


def test_without_policies_everybody_reaches_everything() -> None:
    cluster = make_cluster({"networkPolicies": {"enabled": False}})
    assert cluster.policies == ()
    assert all(sources == everybody(cluster, target.rpartition(":")[0]) for target, sources in cluster.matrix().items())


def test_every_pod_that_listens_is_asked_for() -> None:
    """The matrix must have every port that a pod listens on."""
    cluster = make_cluster({"networkPolicies": {"monitoring": [PROMETHEUS]}})
    for pod in cluster.pods:
        component = pod.labels["app.kubernetes.io/component"]
        assert {port.number for port in pod.ports.values()} <= set(PORTS.get(component, ())), pod.name


def test_labels_are_trusted_within_a_namespace_alone() -> None:
    """A pod with copied labels beside the store is trusted; elsewhere it reaches only the gateway, which asks for a
    token."""
    cluster, _ = defaults()
    foreign = {each.name for each in cluster.strangers if each.namespace in set(NAMESPACES) - {RELEASE_NAMESPACE}}
    reached = {target for target, sources in cluster.matrix().items() if sources & foreign}
    routers = {f"{dataset}/router:{port}" for dataset in DATASETS for port in ROUTER_PORTS}
    assert reached == {"lookupdb/gateway:7071", *routers}
