"""``lookupdb up`` and the operator validate the networks of a router's clients, which no schema can."""

from __future__ import annotations

from typing import Any

import pytest

from lookupdb.dataset import spec
from lookupdb.errors import InvalidManifest


def parse(*clients: dict[str, Any]) -> spec.DatasetSpec:
    return spec.parse_resource(
        {
            "apiVersion": "lookupdb.dev/v1alpha1",
            "kind": "LookupDataset",
            "metadata": {"name": "people"},
            "spec": {
                "source": {"url": "people.csv"},
                "key": {"columns": ["email"]},
                "router": {"clients": list(clients)} if clients else {},
            },
        }
    )


@pytest.mark.parametrize(
    "client",
    [
        {"namespaceSelector": {}},
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "shop", "empty": ""}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}, "podSelector": {}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "10.1.0.0/16"]}},
        {"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}},
    ],
)
def test_what_a_network_policy_takes_is_accepted_and_means_nothing_to_a_laptop(client: dict[str, Any]) -> None:
    assert parse(client) == parse()


def test_what_a_cluster_would_refuse_of_a_network_is_refused() -> None:
    for block, said in (
        ({"cidr": "10.0.0.0/33"}, r"router\.clients\[1\]\.ipBlock\.cidr is not a network, found '10\.0\.0\.0/33'"),
        ({"cidr": "10.0.0.1/8"}, r"ipBlock\.cidr is not a network, found '10\.0\.0\.1/8': .*host bits"),
        ({"cidr": "300.0.0.0/8"}, r"ipBlock\.cidr is not a network"),
        ({"cidr": "10::1::/8"}, r"ipBlock\.cidr is not a network"),
        ({"cidr": "10.0.0.0/08"}, r"ipBlock\.cidr is not a network, .*begins with 0"),
        ({"cidr": "::ffff:10.0.0.0/104"}, r"ipBlock\.cidr is not a network, .*it is an IPv4 network in IPv6 form"),
        ({"cidr": "10.0.0.0/8", "except": ["10.0.0.0/40"]}, r"ipBlock\.except\[0\] is not a network"),
        (
            {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]},
            r"except\[0\]: expected a smaller network within 10\.0\.0\.0/8",
        ),
        ({"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}, r"except\[0\]: expected a smaller network within"),
        ({"cidr": "10.0.0.0/8", "except": ["2001:db8::/32"]}, r"except\[0\]: expected a smaller network within"),
        ({"cidr": "2001:db8::/32", "except": ["10.0.0.0/40"]}, r"except\[0\] is not a network"),
        ({"cidr": "::/0", "except": ["10.0.0.0/8"]}, r"except\[0\]: expected a smaller network within ::/0"),
    ):
        with pytest.raises(InvalidManifest, match=f"people: spec.*{said}"):
            parse({"podSelector": {}}, {"ipBlock": block})


def test_a_list_of_nobody_is_refused_because_a_network_policy_takes_it_for_everybody() -> None:
    with pytest.raises(InvalidManifest, match=r"spec\.router\.clients: expected at least 1"):
        spec.parse_resource(
            {
                "apiVersion": "lookupdb.dev/v1alpha1",
                "kind": "LookupDataset",
                "metadata": {"name": "people"},
                "spec": {"source": {"url": "a.csv"}, "key": {"columns": ["a"]}, "router": {"clients": []}},
            }
        )
