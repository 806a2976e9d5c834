"""Requests as what RBAC is asked for, and roles as what it answers with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator.names import Kind

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, order=True)
class Need:
    """What a request has to be granted."""

    verb: str
    resource: str
    """Group, plural and subresource: "apps/deployments", "/pods" (the core's group is empty), "g/things/status"."""
    namespace: str
    """Empty: all of them."""
    name: str
    """Empty: of a collection."""


@dataclass(frozen=True, order=True)
class Grant:
    """One verb on one resource, as a rule of a role gives it."""

    verb: str
    resource: str
    namespace: str = ""
    """Empty: in all of them."""
    names: tuple[str, ...] = ()
    """Empty: whatever the name."""

    def covers(self, need: Need) -> bool:
        """Whether a request that needs ``need`` may be made. No name is known yet of what is created."""
        named = not self.names or (need.verb != "create" and need.name in self.names)
        where = self.namespace in ("", need.namespace)
        return (self.verb, self.resource) == (need.verb, need.resource) and where and named


def needs(method: str, kind: Kind, namespace: str, rest: list[str], *, watches: bool, exists: bool) -> Iterator[Need]:
    """Of a request on ``rest`` (name, subresource) of ``kind``. An apply of what does not exist needs two: the API
    server authorizes it as a patch, and then as a create."""
    name = rest[0] if rest else ""
    resource = "/".join((kind.group, kind.plural, *rest[1:]))
    if kind.name == "Namespace":
        namespace = name  # a Role in a namespace may speak of that namespace itself
    reads = "watch" if watches else "get" if name else "list"
    verbs = [reads if method == "GET" else _VERBS[method]]
    if method == "PATCH" and not exists:
        verbs.append("create")
    for verb in verbs:
        yield Need(verb, resource, namespace, name if method != "POST" else "")


def grants(roles: Iterable[dict[str, Any]]) -> set[Grant]:
    """What ``roles``, Roles and ClusterRoles that are bound to one subject, give it."""
    return {
        Grant(verb, f"{group}/{resource}", role["metadata"].get("namespace", ""), tuple(rule.get("resourceNames", ())))
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
