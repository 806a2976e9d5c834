"""The model of NetworkPolicies, case by case as Kubernetes documents them."""

from __future__ import annotations

from typing import Any

import pytest

from network_policy_model import ClusterNetwork, Endpoint, Port, policy_types, selects

WEB = Endpoint("web", "shop", {"app": "web"}, {"http": Port(8080), "dns": Port(53, "UDP")}, "10.0.0.1")
NEIGHBOUR = Endpoint("neighbour", "shop", {"app": "till"}, {}, "10.0.0.2")
ALIKE = Endpoint("alike", "yard", {"app": "till"}, {}, "10.1.0.3")
OTHER = Endpoint("other", "yard", {"app": "lorry"}, {}, "10.1.0.4")
OUTSIDE = Endpoint("outside", address="192.0.2.7")
NEARBY = Endpoint("nearby", address="192.0.2.200")
EVERYBODY = (NEIGHBOUR, ALIKE, OTHER, OUTSIDE, NEARBY)
ALL = {endpoint.name for endpoint in EVERYBODY}
TILLS = {"podSelector": {"matchLabels": {"app": "till"}}}
NO_TEAM = {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}
BLOCK = {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}


def policy(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "shop", "name": "policy"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, **spec},
    }


def network(*policies: dict[str, Any]) -> ClusterNetwork:
    return ClusterNetwork({"shop": {"team": "sales"}, "yard": {}}, policies)


def sources(*policies: dict[str, Any], port: int = 8080) -> set[str]:
    """Return the endpoints that reach a port of the web pod."""
    return {each.name for each in EVERYBODY if network(*policies).allows(each, WEB, port)}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, set(), id="isolated, and no rule"),
        pytest.param({"ingress": []}, set(), id="an empty list has no rule"),
        pytest.param({"ingress": None}, set(), id="null is none"),
        pytest.param({"ingress": [{}]}, ALL, id="an empty rule is of everybody"),
        pytest.param({"ingress": [{"from": []}]}, ALL, id="an empty list of peers is as none: everybody"),
        pytest.param({"ingress": [{"ports": [{"port": 8080}]}]}, ALL, id="absent peers are everybody"),
        pytest.param({"podSelector": {"matchLabels": {"app": "x"}}}, ALL, id="a pod that none selects is open"),
        pytest.param({"podSelector": {}}, set(), id="an empty selector of pods selects all"),
        pytest.param({"policyTypes": ["Egress"]}, ALL, id="a policy of egress isolates no ingress"),
        pytest.param({"policyTypes": ["Egress"], "ingress": [{"from": [TILLS]}]}, ALL, id="nor do its rules"),
        pytest.param({"ingress": [{"from": [TILLS]}]}, {"neighbour"}, id="pods alone: of its own namespace"),
        pytest.param({"ingress": [{"from": [{"podSelector": {}}]}]}, {"neighbour"}, id="all pods of its own"),
        pytest.param(
            {"ingress": [{"from": [{"namespaceSelector": {}}]}]}, {"neighbour", "alike", "other"}, id="all namespaces"
        ),
        pytest.param(
            {"ingress": [{"from": [{"namespaceSelector": {}, **TILLS}]}]}, {"neighbour", "alike"}, id="both: and"
        ),
        pytest.param(
            {"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "sales"}}}, TILLS]}]},
            {"neighbour"},
            id="two peers: or",
        ),
        pytest.param(
            {"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "yard"}}}]}]},
            {"alike", "other"},
            id="a namespace by its name",
        ),
        pytest.param(
            {"ingress": [{"from": [{"namespaceSelector": NO_TEAM}]}]},
            {"alike", "other"},
            id="a namespace by an expression",
        ),
        pytest.param({"ingress": [{"from": [{"ipBlock": BLOCK}]}]}, {"outside"}, id="a block but for a part of it"),
        pytest.param(
            {"ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}]},
            {"outside", "nearby"},
            id="everywhere but in the cluster",
        ),
        pytest.param({"ingress": [{"from": [{"ipBlock": {"cidr": "::/0"}}]}]}, set(), id="the other kind of addresses"),
        pytest.param(
            {"ingress": [{"from": [TILLS]}, {"from": [{"ipBlock": BLOCK}]}]}, {"neighbour", "outside"}, id="rules: or"
        ),
        pytest.param({"ingress": [{"from": [TILLS], "ports": [{"port": 8081}]}]}, set(), id="peers and ports: and"),
    ],
)
def test_who_reaches_a_pod(spec: dict[str, Any], expected: set[str]) -> None:
    assert sources(policy(**spec)) == expected


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        pytest.param([], {("TCP", 53), ("TCP", 8080), ("UDP", 53), ("TCP", 8090)}, id="an empty list: all"),
        pytest.param([{}], {("TCP", 53), ("TCP", 8080), ("TCP", 8090)}, id="without a protocol: TCP"),
        pytest.param([{"protocol": "UDP"}], {("UDP", 53)}, id="without a number: all of a protocol"),
        pytest.param([{"port": 53}], {("TCP", 53)}, id="a number"),
        pytest.param([{"port": 53, "protocol": "UDP"}], {("UDP", 53)}, id="a number and a protocol"),
        pytest.param([{"port": "http"}], {("TCP", 8080)}, id="a name of the pod that is reached"),
        pytest.param([{"port": "dns"}], set(), id="a name of a port of another protocol"),
        pytest.param([{"port": "dns", "protocol": "UDP"}], {("UDP", 53)}, id="a name and a protocol"),
        pytest.param([{"port": "none"}], set(), id="a name that the pod does not have"),
        pytest.param([{"port": 8080, "endPort": 8090}], {("TCP", 8080), ("TCP", 8090)}, id="a range, with its end"),
        pytest.param([{"port": 8081, "endPort": 8089}], set(), id="beside a range"),
        pytest.param([{"port": 53}, {"port": 8090}], {("TCP", 53), ("TCP", 8090)}, id="ports: or"),
    ],
)
def test_which_ports(ports: list[Any], expected: set[tuple[str, int]]) -> None:
    asked = [("TCP", 53), ("TCP", 8080), ("UDP", 53), ("TCP", 8090)]
    made = network(policy(ingress=[{"ports": ports}]))
    assert {(protocol, port) for protocol, port in asked if made.allows(OTHER, WEB, port, protocol)} == expected


def test_policies_add_up() -> None:
    denied, tills = policy(ingress=[]), policy(ingress=[{"from": [TILLS]}])
    block = policy(ingress=[{"from": [{"ipBlock": BLOCK}]}])
    assert sources() == ALL
    assert sources(denied, tills, block) == {"neighbour", "outside"}


def test_a_policy_is_of_its_own_namespace() -> None:
    foreign = policy()
    foreign["metadata"]["namespace"] = "yard"
    assert sources(foreign) == ALL


def test_no_policy_keeps_a_pod_from_itself() -> None:
    assert network(policy(policyTypes=["Ingress", "Egress"])).allows(WEB, WEB, 8080)


class TestEgress:
    """Egress of the web pod's namespace; its destinations are open."""

    def reached(self, **spec: Any) -> set[str]:
        return {each.name for each in EVERYBODY if network(policy(**spec)).allows(WEB, each, 443)}

    def test_is_open_to_policies_of_ingress(self) -> None:
        assert self.reached(ingress=[]) == ALL

    def test_is_isolated_by_its_rules_and_so_is_ingress(self) -> None:
        assert self.reached(egress=[{"to": [{"ipBlock": BLOCK}]}]) == {"outside"}
        assert sources(policy(egress=[{}])) == set()

    def test_is_not_by_an_empty_list_without_a_type(self) -> None:
        assert self.reached(egress=[]) == ALL
        assert self.reached(egress=[], policyTypes=["Egress"]) == set()

    def test_by_peers_and_ports(self) -> None:
        rule = {"to": [{"namespaceSelector": {}, **TILLS}], "ports": [{"port": 443}]}
        assert self.reached(egress=[rule]) == {"neighbour", "alike"}
        assert self.reached(egress=[{**rule, "ports": [{"port": 80}]}]) == set()

    def test_a_named_port_is_of_the_destination(self) -> None:
        made = network(policy(policyTypes=["Egress"], egress=[{"ports": [{"port": "https"}]}]))
        named = Endpoint("named", "yard", {}, {"https": Port(443)})
        assert made.allows(WEB, named, 443)
        assert not made.allows(WEB, OTHER, 443)

    def test_both_sides_have_to_allow_it(self) -> None:
        made = network(policy(policyTypes=["Egress"], egress=[{}]), policy(podSelector=TILLS["podSelector"]))
        assert not made.allows(WEB, NEIGHBOUR, 443)
        assert made.allows(WEB, ALIKE, 443)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"Ingress"}),
        ({"ingress": [{}]}, {"Ingress"}),
        ({"egress": [{}]}, {"Ingress", "Egress"}),
        ({"egress": []}, {"Ingress"}),
        ({"policyTypes": [], "egress": [{}]}, {"Ingress", "Egress"}),
        ({"policyTypes": ["Egress"]}, {"Egress"}),
        ({"policyTypes": ["Ingress"], "egress": [{}]}, {"Ingress"}),
    ],
)
def test_what_a_policy_isolates(spec: dict[str, Any], expected: set[str]) -> None:
    assert policy_types(spec) == expected


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {}, "matchExpressions": []}, True),
        ({"matchLabels": {"app": "web", "tier": "front"}}, True),
        ({"matchLabels": {"app": "web", "zone": "a"}}, False),
        (expression("In", "till", "web"), True),
        (expression("In", "web", key="zone"), False),
        (expression("NotIn", "web"), False),
        (expression("NotIn", "web", key="zone"), True),
        (expression("Exists"), True),
        (expression("Exists", key="zone"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="zone"), True),
        ({"matchLabels": {"tier": "back"}, **expression("In", "web")}, False),
        ({"matchLabels": {"tier": "front"}, **expression("In", "till")}, False),
    ],
)
def test_selectors(selector: dict[str, Any], expected: bool) -> None:
    assert selects(selector, {"app": "web", "tier": "front"}) is expected


@pytest.mark.parametrize(
    "rule",
    [
        {"from": [{}]},
        {"from": [{"podSelector": {}, "ipBlock": BLOCK}]},
        {"from": [{"podselector": {}}]},
        {"to": []},
        {"from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["198.51.100.0/24"]}}]},
        {"from": [{"podSelector": {"app": "web"}}]},
        {"from": [{"podSelector": expression("Is", "web")}]},
        {"from": [{"podSelector": expression("In")}]},
        {"from": [{"podSelector": expression("Exists", "web")}]},
        {"ports": [{"port": "http", "endPort": 8090}]},
        {"ports": [{"port": 8080, "endPort": 8079}]},
        {"ports": [{"number": 8080}]},
    ],
)
def test_what_the_api_server_refuses_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        network(policy(ingress=[rule])).allows(NEIGHBOUR, WEB, 8080)
