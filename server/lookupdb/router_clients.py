"""``spec.router.clients``: whether its networks are such, which no schema can tell. The operator lets them in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lookupdb.errors import InvalidManifest

_HINT = "give the first address of a network, / and how many of its bits count, such as 10.1.0.0/16 or 2001:db8::/32"

_LEADING_ZERO: Final = re.compile("/0[0-9]")

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def check_router_clients(clients: Sequence[Mapping[str, Any]]) -> None:
    """Check that a cluster would take each ``ipBlock``: one that it refuses would leave the policy of before in force,
    and nobody would know. Raises InvalidManifest, whose message begins with the field."""
    for number, client in enumerate(clients):
        if "ipBlock" in client:
            _check_block(client["ipBlock"], f"router.clients[{number}].ipBlock")


def _check_block(block: Mapping[str, Any], field: str) -> None:
    network = _parse_network(block["cidr"], f"{field}.cidr")
    for number, text in enumerate(block.get("except", ())):
        left_out = _parse_network(text, f"{field}.except[{number}]")
        if not _is_part(left_out, network):
            raise InvalidManifest(
                f"{field}.except[{number}] is no smaller network within {block['cidr']}, found {text}",
                hint="leave out a part of ipBlock.cidr",
            )


def _parse_network(text: str, field: str) -> _Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidManifest(f"{field} is no network, found {text!r}: {error}", hint=_HINT) from error
    is_mapped = isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped is not None
    if is_mapped or _LEADING_ZERO.search(text):
        why = "an IPv4 network is written as such" if is_mapped else "the number of bits begins with 0"
        raise InvalidManifest(f"{field} is no network, found {text!r}: {why}", hint=_HINT)
    return network


def _is_part(left_out: _Network, network: _Network) -> bool:
    if left_out.prefixlen <= network.prefixlen:
        return False
    if isinstance(left_out, ipaddress.IPv4Network):
        return isinstance(network, ipaddress.IPv4Network) and left_out.subnet_of(network)
    return isinstance(network, ipaddress.IPv6Network) and left_out.subnet_of(network)
