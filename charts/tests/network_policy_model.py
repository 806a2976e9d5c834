"""The connections that NetworkPolicies allow, by the rules of Kubernetes' documentation; nothing here enforces them.

A policy isolates the pods that its ``podSelector`` selects in its own namespace, for each of its ``policyTypes``. An
isolated pod may receive, or send, the union of what the rules of its policies allow. A connection needs both sides: the
egress of its source and the ingress of its destination. The model refuses what Kubernetes' API server would refuse.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

INGRESS: Final = "Ingress"
EGRESS: Final = "Egress"
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label of every namespace with its own name."""
_PEER_MEMBERS: Final = {"podSelector", "namespaceSelector", "ipBlock"}
_PORT_MEMBERS: Final = {"port", "endPort", "protocol"}
_RULE_MEMBERS: Final = {INGRESS: {"from", "ports"}, EGRESS: {"to", "ports"}}

Json = Any


@dataclass(frozen=True, slots=True)
class Port:
    """A named port of a pod."""

    number: int
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A pod; or, without a namespace, an address outside of the cluster."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, Port] = field(default_factory=dict)
    address: str = ""


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """The namespaces of a cluster with their labels, and its NetworkPolicies."""

    namespaces: Mapping[str, Mapping[str, str]]
    policies: Sequence[Json]
    _isolating: dict[tuple[str, Endpoint], list[Json]] = field(default_factory=dict, init=False, repr=False)

    def allows(self, source: Endpoint, destination: Endpoint, port: int, protocol: str = "TCP") -> bool:
        """Return whether ``source`` can connect to a port of ``destination``. No policy separates a pod from itself."""
        if source is destination:
            return True
        asked = Port(port, protocol)
        return self._passes(EGRESS, source, destination, destination, asked) and self._passes(
            INGRESS, destination, source, destination, asked
        )

    def _passes(self, direction: str, pod: Endpoint, peer: Endpoint, destination: Endpoint, port: Port) -> bool:
        """Return whether the policies of ``pod`` allow connections from or to ``peer``."""
        isolating = self._isolating.get((direction, pod))
        if isolating is None:  # found once, for all other pods
            isolating = [policy for policy in self.policies if self._isolates(policy, pod, direction)]
            self._isolating[direction, pod] = isolating
        return not isolating or any(
            self._rule_allows(rule, direction, policy["metadata"]["namespace"], peer, destination, port)
            for policy in isolating
            for rule in policy["spec"].get(direction.lower()) or ()
        )

    def _isolates(self, policy: Json, pod: Endpoint, direction: str) -> bool:
        return (
            policy["metadata"]["namespace"] == pod.namespace
            and direction in policy_types(policy["spec"])
            and selects(policy["spec"].get("podSelector") or {}, pod.labels)
        )

    def _rule_allows(
        self, rule: Json, direction: str, namespace: str, peer: Endpoint, destination: Endpoint, port: Port
    ) -> bool:
        """Return whether a rule allows it. A rule with no peers allows everybody, one with no ports allows all
        ports."""
        _refuse_others("a rule", rule, _RULE_MEMBERS[direction])
        peers, ports = rule.get("from" if direction == INGRESS else "to") or (), rule.get("ports") or ()
        return (not peers or any(self._is_peer(each, namespace, peer) for each in peers)) and (
            not ports or any(_is_port(each, destination, port) for each in ports)
        )

    def _is_peer(self, peer: Json, namespace: str, endpoint: Endpoint) -> bool:
        """Return whether a peer matches. With both selectors, both must; a pod selector alone is of the policy's own
        namespace."""
        _refuse_others("a peer", peer, _PEER_MEMBERS)
        present = {name for name in _PEER_MEMBERS if peer.get(name) is not None}
        if not present or ("ipBlock" in present and len(present) > 1):
            raise ValueError(f"expected a peer with selectors or with an ipBlock, found {peer}")
        if "ipBlock" in present:
            return _is_in_block(peer["ipBlock"], endpoint.address)
        if not endpoint.namespace:
            return False
        if "namespaceSelector" in present:
            is_there = selects(peer["namespaceSelector"], self._namespace_labels(endpoint.namespace))
        else:
            is_there = endpoint.namespace == namespace
        return is_there and ("podSelector" not in present or selects(peer["podSelector"], endpoint.labels))

    def _namespace_labels(self, name: str) -> Mapping[str, str]:
        return {**self.namespaces[name], NAMESPACE_NAME: name}


def policy_types(spec: Json) -> set[str]:
    """Return the directions that a policy isolates: those it names, else ingress, and egress if it has such rules."""
    named = spec.get("policyTypes")
    return set(named) if named else {INGRESS, *([EGRESS] if spec.get("egress") else [])}


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects ``labels``. An empty one selects everything."""
    _refuse_others("a selector", selector, {"matchLabels", "matchExpressions"})
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    key, operator = str(expression["key"]), str(expression["operator"])
    values: list[str] = expression.get("values") or []
    if (operator in {"In", "NotIn"}) != bool(values):
        raise ValueError(f"expected values with In and NotIn, and with nothing else, found {expression}")
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":  # also true without the label
        return labels.get(key) not in values
    if operator not in {"Exists", "DoesNotExist"}:
        raise ValueError(f"expected In, NotIn, Exists or DoesNotExist, found {expression}")
    return (key in labels) == (operator == "Exists")


def _is_port(rule: Json, destination: Endpoint, port: Port) -> bool:
    """Return whether a port matches. A name is of a port of the destination; without a port it means all of its
    protocol."""
    _refuse_others("a port", rule, _PORT_MEMBERS)
    first: int | str | None = rule.get("port")
    last: int | None = rule.get("endPort")
    if last is not None and (not isinstance(first, int) or last < first):
        raise ValueError(f"expected endPort behind a port that is a number, found {rule}")
    if rule.get("protocol", "TCP") != port.protocol:
        return False
    if isinstance(first, str):
        return destination.ports.get(first) == port
    return first is None or port.number in range(first, 1 + (first if last is None else last))


def _is_in_block(block: Json, address: str) -> bool:
    """Return whether an address is in the block. Whether pods match an address depends on the network; here they do."""
    network = ipaddress.ip_network(block["cidr"])
    excepted = [ipaddress.ip_network(each) for each in block.get("except") or ()]
    for each in excepted:
        if each.version != network.version or not each.subnet_of(network) or each == network:  # type: ignore[arg-type]
            raise ValueError(f"expected blocks within {network}, found {each}")
    if not address:
        return False
    found = ipaddress.ip_address(address)
    return found in network and not any(found in each for each in excepted)


def _refuse_others(what: str, members: Iterable[str], known: set[str]) -> None:
    """Refuse unknown fields, which might allow what the model denies."""
    if others := set(members) - known:
        raise ValueError(f"expected {what} of {sorted(known)}, found {sorted(others)}")
