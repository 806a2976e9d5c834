"""Router TLS: the pods, the Service and the endpoint of a dataset that names a certificate."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_samples import CONFIG, airports, rendered

from lookupdb_operator.model import ObservedDataset
from lookupdb_operator.plan import planner

CLIENT_CA = {"secretName": "clients", "key": "ca.crt"}


def _dataset(**tls: Any) -> ObservedDataset:
    return airports(router={"tls": {"secretName": "airports-tls", **tls}})


def _rendered(dataset: ObservedDataset, kind: str) -> dict[str, Any]:
    found = next(manifest for manifest in rendered(dataset, CONFIG)["router"] if manifest["kind"] == kind)
    spec: dict[str, Any] = found["spec"]
    return spec


def _pod(dataset: ObservedDataset) -> dict[str, Any]:
    pod: dict[str, Any] = _rendered(dataset, "Deployment")["template"]["spec"]
    return pod


def _options(dataset: ObservedDataset) -> dict[str, str]:
    words = _pod(dataset)["containers"][0]["args"][1:]
    return {name: value for name, value in zip(words[::2], words[1::2], strict=True) if name.startswith("--tls")}


def test_without_it_nothing_of_it_is_there() -> None:
    dataset = airports()
    assert _options(dataset) == {}
    assert [volume["name"] for volume in _pod(dataset)["volumes"] if volume["name"].startswith("tls")] == []
    assert _rendered(dataset, "Service")["ports"][0]["appProtocol"] == "http"
    assert planner.find_endpoint(dataset) == "http://airports-router.default.svc"


def test_certificate_is_mounted_whole_and_may_be_missing() -> None:
    dataset = _dataset()
    assert _options(dataset) == {"--tls-cert": "/etc/lookupdb/tls/tls.crt", "--tls-key": "/etc/lookupdb/tls/tls.key"}
    volume = {"name": "tls", "secret": {"secretName": "airports-tls", "optional": True}}
    mount = {"name": "tls", "mountPath": "/etc/lookupdb/tls", "readOnly": True}
    assert volume in _pod(dataset)["volumes"]
    assert mount in _pod(dataset)["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("client_ca", "source"),
    [
        ({"secretName": "clients", "key": "ca.crt"}, {"secret": {"secretName": "clients", "optional": True}}),
        ({"configMapName": "clients", "key": "ca.crt"}, {"configMap": {"name": "clients", "optional": True}}),
    ],
)
def test_clients_authorities_come_from_either(client_ca: dict[str, str], source: dict[str, Any]) -> None:
    dataset = _dataset(clientCA=client_ca)
    assert _options(dataset)["--tls-client-ca"] == "/etc/lookupdb/tls-client-ca/ca.crt"
    assert {"name": "tls-client-ca", **source} in _pod(dataset)["volumes"]


def test_service_and_endpoint_say_https() -> None:
    dataset = _dataset()
    assert _rendered(dataset, "Service")["ports"][0]["appProtocol"] == "https"
    assert planner.find_endpoint(dataset) == "https://airports-router.default.svc:80"
    secure = airports(router={"tls": {"secretName": "airports-tls"}, "service": {"port": 443}})
    assert planner.find_endpoint(secure) == "https://airports-router.default.svc"


def test_secret_is_read_by_routers_alone() -> None:
    parts = rendered(_dataset(clientCA=CLIENT_CA), CONFIG)
    for part, manifests in parts.items():
        assert ("airports-tls" in repr(manifests)) == (part == "router"), part
