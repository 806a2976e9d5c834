"""The objects in docs/how-to/expose.md in front of the routers: Kubernetes accepts them, and they reach the routers."""

from __future__ import annotations

import re
from typing import Any

import yaml

from chart_support import ROOT, Rendered, find_schema_errors
from lookupdb.dataset import schema
from lookupdb.dataset.spec import parse_resource
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Config, ObservedDataset

CONFIG = Config(image="lookupdb:1.0.0", store="s3://lookupdb", cluster="c1")


def example(kind: str) -> Any:
    """Return the only example of ``kind``."""
    text = (ROOT / "docs" / "how-to" / "expose.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    (found,) = [block for block in blocks if block["kind"] == kind]
    return found


def objects(kind: str) -> list[Any]:
    """Return the operator's objects for the example dataset."""
    resource = example(names.KIND)
    resource["metadata"] |= {"namespace": "default", "uid": "8d3f6b1a-4c2e-4f5a-9e7b-6a5c4d3e2f10"}
    dataset = ObservedDataset(
        namespace="default",
        name=resource["metadata"]["name"],
        uid=resource["metadata"]["uid"],
        resource_version="1",
        generation=1,
        spec=schema.complete_resource(resource)["spec"],
        parsed=parse_resource(resource),
    )
    rendered = (*manifests.render_routers(dataset, CONFIG), *manifests.render_network_policies(dataset, CONFIG))
    return [item for item in rendered if item["kind"] == kind]


def test_the_ingress_is_one_that_kubernetes_takes_and_reaches_the_routers() -> None:
    ingress = example("Ingress")
    assert find_schema_errors([Rendered((ingress,), yaml.safe_dump(ingress))]) == ""
    (service,) = objects("Service")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    backend = path["backend"]["service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert rule["host"] in ingress["spec"]["tls"][0]["hosts"]


def test_the_route_of_a_gateway_reaches_the_routers() -> None:
    """Kubernetes has no schema of the Gateway API: only the reference to the Service is compared."""
    route = example("HTTPRoute")
    (service,) = objects("Service")
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]


def test_the_gateways_namespace_and_nobody_else_may_ask() -> None:
    (router,) = [policy for policy in objects("NetworkPolicy") if policy["metadata"]["name"] == "airports-router"]
    (rule,) = router["spec"]["ingress"]
    namespace = example("HTTPRoute")["spec"]["parentRefs"][0]["namespace"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]
