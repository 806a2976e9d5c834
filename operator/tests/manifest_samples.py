"""Sample datasets, and the manifests rendered from them."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from lookupdb.dataset import schema
from lookupdb.dataset.spec import parse_completed_resource
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Config, Manifest, ObservedDataset, StoreAccess
from lookupdb_operator.status import BuildStatus, GenerationStatus, RolloutStatus, TableStatus

GOLDEN: Final = Path(__file__).parent / "golden"
EXAMPLES: Final = Path(__file__).parents[2] / "examples"

CONFIG: Final = Config(image="lookupdb:1.0.0", store="s3://lookupdb", cluster="c1")
FULL_CONFIG: Final = Config(
    image="lookupdb:1.0.0",
    store="s3://lookupdb/eu",
    cluster="c1",
    image_pull_policy="Always",
    image_pull_secrets=("registry", "mirror"),
    router_clients=({"namespaceSelector": {"matchLabels": {"team": "search"}}},),
    admin_clients=({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "lookupdb"}}},),
    pod_labels={"team": "data", "lookupdb.dev/dataset": "is ours to set"},
)
GATEWAY_CONFIG: Final = Config(
    image="lookupdb:1.0.0", store="s3://lookupdb", cluster="c1", gateway="http://lookupdb-gateway.lookupdb.svc:7071"
)
SPARK_CONFIG: Final = replace(GATEWAY_CONFIG, spark_image="lookupdb-spark:1.0.0")
ACCESS: Final = StoreAccess(
    environment={"AWS_ENDPOINT_URL": "http://store.lookupdb.svc:7070", "AWS_ACCESS_KEY_ID": "key"}, digest="0011"
)
BUILD: Final = BuildStatus(generation="g12", content="c", refresh="", digest="d", started_at="2026-01-01T00:00:00Z")


ADOPTION: Final = replace(BUILD, adopt="3f2b9c1e/g7")
"""A status without any generation."""


def read(path: Path) -> dict[str, Any]:
    """Read the resource in the file ``path``."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast: golden files are read at import
    resource: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), loader)
    return resource


def airports(**spec: Any) -> ObservedDataset:
    """The example dataset, with the members of ``spec`` in place of its own."""
    resource = read(EXAMPLES / "airports.yaml")
    resource["metadata"] |= {"namespace": "default", "uid": "8d3f6b1a-4c2e-4f5a-9e7b-6a5c4d3e2f10"}
    resource["spec"] |= copy.deepcopy(spec)
    return dataset(resource)


def everything() -> ObservedDataset:
    """A dataset that sets every field that pods are rendered from."""
    return dataset(read(GOLDEN / "everything" / "dataset.yaml"))


def from_config_map() -> ObservedDataset:
    """A dataset whose source is a ConfigMap."""
    return dataset(read(GOLDEN / "configmap" / "dataset.yaml"))


def with_own_store(**store: Any) -> ObservedDataset:
    """A dataset whose generations are in a bucket of its own."""
    own = store or {"url": "s3://team-lookups/airports", "secretName": "airports-store"}
    return airports(shards=1, store=own, source={"url": "s3://exports/airports.csv", "secretName": "airports-source"})


def from_volume(path: str = "lookups/eu") -> ObservedDataset:
    """A dataset whose servers map shards from a volume that shows the store."""
    volume = {"claimName": "lookups"} | ({"path": path} if path else {})
    return airports(shards=1, serving={"delivery": {"type": "Volume", "volume": volume}})


def from_images(**image: Any) -> ObservedDataset:
    """A dataset whose servers mount their shards as images."""
    chosen = image or {
        "repository": "registry.example/team/lookups",
        "pullSecretName": "lookups-pull",
        "pushSecretName": "lookups-push",
        "registryCA": {"configMapName": "our-ca", "key": "ca.crt"},
    }
    return airports(shards=2, serving={"delivery": {"type": "Image", "image": chosen}})


def with_sync(**sync: Any) -> ObservedDataset:
    """A dataset whose active generation is kept on nodes."""
    chosen = {
        "hostPath": "/mnt/ssd/lookupdb",
        "keep": 3,
        "nodeSelector": {"pool": "apps"},
        "tolerations": [{"operator": "Exists"}],
        "resources": {"limits": {"memory": "512Mi"}},
    }
    return airports(shards=1, sync=sync or chosen)


def with_spark(
    spark: dict[str, Any] | None = None, *, of: ObservedDataset | None = None, **build: Any
) -> ObservedDataset:
    """The dataset ``of``, or the example, built by Spark."""
    base = of or airports()
    own = {"engine": "Spark", "deadlineSeconds": 3600, "spark": spark or {}, **build}
    return dataset(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"namespace": base.namespace, "name": base.name, "uid": base.uid},
            "spec": {**base.spec, "build": {**base.spec["build"], **own}},
        }
    )


def dataset(resource: dict[str, Any]) -> ObservedDataset:
    """Return ``resource`` as the operator observes it."""
    return _dataset(json.dumps(resource))


@functools.cache
def _dataset(text: str) -> ObservedDataset:
    # Cached, because checking the CRD's rules takes longer than most tests; nobody changes a dataset.
    resource = json.loads(text)
    metadata, completed = resource["metadata"], schema.complete_resource(resource)
    return ObservedDataset(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version="1",
        generation=1,
        spec=completed["spec"],
        parsed=parse_completed_resource(completed),
    )


def generation(
    of: ObservedDataset, name: str = "g12", largest_shard_bytes: int = 300 << 20, **members: Any
) -> GenerationStatus:
    """A generation built from ``of``."""
    values: dict[str, Any] = {
        "content": "c",
        "fingerprint": "f",
        "records": 28000,
        "bytes": 1 << 30,
        "shards": of.spec["shards"],
        "normalize": tuple(of.spec["key"]["normalize"]),
        "value_format": "json",
        "built_at": "2026-01-01T00:00:00Z",
    }
    return GenerationStatus(generation=name, largest_shard_bytes=largest_shard_bytes, **values | members)


def rollout(name: str = "r34", generation: str = "g12") -> RolloutStatus:
    """A rollout of one generation."""
    return RolloutStatus(rollout=name, generation=generation, template="t", started_at="2026-01-01T00:00:00Z")


def table(
    of: ObservedDataset, version: int = 7, rollout: str = "r34", generation: str = "g12", **members: Any
) -> TableStatus:
    """A routing table that names all servers of ``of``."""
    values: dict[str, Any] = {
        "replicas": of.spec["replicas"],
        "workers": of.spec["serving"]["workers"],
        "written_at": "2026-01-01T00:00:00Z",
    }
    return TableStatus(version=version, rollout=rollout, generation=generation, **values | members)


def rendered(of: ObservedDataset, config: Config = CONFIG) -> dict[str, tuple[Manifest, ...]]:
    """Return all objects of a dataset, by the part of it that they serve."""
    built = generation(of)
    return {
        "build": manifests.render_builder(of, BUILD, config),
        "shards": manifests.render_shards(of, rollout(), built, of.spec["replicas"], config),
        "router": manifests.render_routers(of, config),
        "routing-table": (manifests.render_routing_table(of, table(of), {"g12": built}),),
        "network-policy": manifests.render_network_policies(of, config),
        "store-secret": (manifests.render_store_secret(of, ACCESS),),
    }
