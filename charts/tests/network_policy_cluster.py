"""A cluster with the objects of the chart and the operator, and with strangers, for the model of network policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
from manifest_samples import airports, rendered

from chart_support import Rendered, Values, parse_arguments, render
from lookupdb_operator import names
from lookupdb_operator.command import command, options
from lookupdb_operator.model import Config, ObservedDataset
from lookupdb_operator.plugin import jobs
from network_policy_model import ClusterNetwork, Endpoint, Port

RELEASE_NAMESPACE: Final = "lookups"
NAMESPACES: Final[Mapping[str, Mapping[str, str]]] = {
    RELEASE_NAMESPACE: {},
    "data": {"team": "search"},
    "other": {},
    "elsewhere": {},
    "monitoring": {},
}
PORTS: Final[Mapping[str, tuple[int, ...]]] = {
    "store": (7070,),
    "gateway": (7071, 9090),
    "operator": (8081,),
    "console": (7074, 9090),
    "shard": (7000, 7063, 7064, 9090),  # 64 workers at most
    "router": (8080, 6379, 9090),
    "builder": (7078, 7079, 9090),
    "executor": (7078, 7079),
}
"""Component → the ports that are tried, besides ``OTHER_PORT``."""
OTHER_PORT: Final = 8022
"""A debugger's port: nothing of ours listens there."""

Matrix = dict[str, set[str]]
"""Pod and port → the names of the endpoints that reach it."""
Json = Any


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """The pods of the chart and the operator (``namespace/…/component``), the strangers, and the policies."""

    pods: tuple[Endpoint, ...]
    strangers: tuple[Endpoint, ...]
    policies: tuple[Json, ...]

    def matrix(self, pods: Iterable[Endpoint] | None = None) -> Matrix:
        """Return the endpoints that reach each port of ``pods``, or of all pods."""
        network = ClusterNetwork(NAMESPACES, self.policies)
        everybody = self.pods + self.strangers
        return {
            f"{pod.name}:{port}": {
                each.name for each in everybody if each is not pod and network.allows(each, pod, port)
            }
            for pod in (self.pods if pods is None else pods)
            if pod.labels[names.COMPONENT] in PORTS
            for port in (*PORTS[pod.labels[names.COMPONENT]], OTHER_PORT)
        }

    def wearing(self, *components: str, namespaces: Iterable[str] = NAMESPACES) -> set[str]:
        """Return the names of all endpoints with labels of the operator or of Jobs of `kubectl lookupdb`: pods and
        copies."""
        return {
            each.name
            for each in self.pods + self.strangers
            if each.labels.get(names.COMPONENT) in components
            and each.labels.get(names.APP) == "lookupdb"
            and each.namespace in namespaces
        }


def make_cluster(
    values: Values | None = None, *, others: Iterable[str] = (), spec: Mapping[str, Json] | None = None
) -> Cluster:
    """Make a cluster with a release with ``values``, and releases ``others`` in its namespace. The first release has
    three datasets: ``airports`` and ``people`` in ``data``, another ``airports`` in ``other``. The first of them has
    ``spec``."""
    release = render(values, namespace=RELEASE_NAMESPACE)
    releases = {"lookupdb": release, **{other: render(release=other, namespace=RELEASE_NAMESPACE) for other in others}}
    pods = [pod for name, each in releases.items() for pod in release_pods(each, name)]
    policies = [policy for each in releases.values() for policy in each.find_all("NetworkPolicy")]
    config = operator_config(release)
    for dataset in datasets(spec or {}):
        objects = rendered(dataset, config)
        pods += dataset_pods(dataset, objects)
        policies += objects["network-policy"]
    for namespace in ("data", "other"):
        pods.append(Endpoint(f"{namespace}/diff", namespace, jobs.DIFF_LABELS))
        pods.append(Endpoint(f"{namespace}/load", namespace, jobs.LOAD_LABELS))
    return Cluster(tuple(pods), tuple(strangers(pods)), tuple(policies))


def datasets(spec: Mapping[str, Json]) -> tuple[ObservedDataset, ...]:
    """Return three datasets; two have the same name, in two namespaces."""
    plain = airports()
    return (
        dataclasses.replace(airports(**spec), namespace="data"),
        dataclasses.replace(plain, namespace="data", name="people", uid="11111111-2222-4333-8444-555555555555"),
        dataclasses.replace(plain, namespace="other", uid="66666666-7777-4888-8999-000000000000"),
    )


def operator_config(release: Rendered) -> Config:
    """Return the operator's configuration in a release."""
    return options(**parse_arguments(command, release.operator_arguments()[1:])).config


def release_pods(release: Rendered, name: str) -> Iterator[Endpoint]:
    """Yield one pod of each template of the chart."""
    for _, template in release.pod_templates():
        component = template["metadata"]["labels"][names.COMPONENT]
        yield _endpoint(f"{name}/{component}", RELEASE_NAMESPACE, template)


def dataset_pods(dataset: ObservedDataset, objects: Mapping[str, Iterable[Json]]) -> Iterator[Endpoint]:
    """Yield one pod of each component; no policy selects shards by number."""
    config_map, _ = objects["build"]
    if executor := config_map["data"].get(names.EXECUTOR_FILE):
        for number in (1, 2):
            name = f"{dataset.namespace}/{dataset.name}/executor-{number}"
            yield _endpoint(name, dataset.namespace, orjson.loads(executor))
    for component, part in ((names.BUILDER, "build"), (names.SHARDS, "shards"), (names.ROUTER, "router")):
        template = next(item["spec"]["template"] for item in objects[part] if "template" in item.get("spec", {}))
        assert template["metadata"]["labels"][names.COMPONENT] == component
        yield _endpoint(f"{dataset.namespace}/{dataset.name}/{component}", dataset.namespace, template)


def strangers(pods: Iterable[Endpoint]) -> Iterator[Endpoint]:
    """Yield a stranger in each namespace, and one with `lookupdb sync` beside it; copies of all pods' labels in other
    namespaces; a reader of metrics; and addresses outside."""
    for namespace in NAMESPACES:
        yield Endpoint(f"stranger in {namespace}", namespace, {"app": "stranger"})
        for component in ("builder", "diff", "load"):
            yield Endpoint(f"another program's {component} in {namespace}", namespace, {names.COMPONENT: component})
        yield Endpoint(f"sidecar in {namespace}", namespace, {"app": "shop", names.SYNC_LABEL: "people"})
    for pod in pods:
        for namespace in {"elsewhere", "data", RELEASE_NAMESPACE} - {pod.namespace}:
            yield Endpoint(f"copy of {pod.name} in {namespace}", namespace, pod.labels)
    yield Endpoint("prometheus", "monitoring", {"app": "prometheus"})
    yield Endpoint("outside", address="192.0.2.7")
    yield Endpoint("further outside", address="192.0.2.200")


def _endpoint(name: str, namespace: str, template: Json) -> Endpoint:
    ports = {
        port["name"]: Port(port["containerPort"], port["protocol"])
        for container in template["spec"]["containers"]
        for port in container.get("ports", ())
    }
    return Endpoint(name, namespace, template["metadata"]["labels"], ports)
