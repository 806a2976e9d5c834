"""Requests as the rights they need, and roles as the rights they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator.names import Kind

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, order=True)
class Need:
    """A right that a request needs."""

    verb: str
    resource: str
    """Group, plural and subresource: "apps/deployments", "/pods" (the core's group is empty), "g/things/status"."""
    namespace: str
    """Empty: all namespaces."""
    name: str
    """Empty: a collection."""


@dataclass(frozen=True, order=True)
class Grant:
    """One verb on one resource, as a rule of a role gives it."""

    verb: str
    resource: str
    namespace: str = ""
    """Empty: all namespaces."""
    names: tuple[str, ...] = ()
    """Empty: every name."""

    def covers(self, need: Need) -> bool:
        """Return whether it allows a request that needs ``need``. An object that is created has no name yet."""
        named = not self.names or (need.verb != "create" and need.name in self.names)
        where = self.namespace in ("", need.namespace)
        return (self.verb, self.resource) == (need.verb, need.resource) and where and named


def needs(method: str, kind: Kind, namespace: str, rest: list[str], *, watches: bool, exists: bool) -> Iterator[Need]:
    """The rights for a request on ``rest`` (name, subresource) of ``kind``. An apply of a new object needs two: the API
    server authorizes it as a patch and as a create."""
    name = rest[0] if rest else ""
    resource = "/".join((kind.group, kind.plural, *rest[1:]))
    if kind.name == "Namespace":
        namespace = name  # a Role in a namespace may refer to that namespace itself
    reads = "watch" if watches else "get" if name else "list"
    verbs = [reads if method == "GET" else _VERBS[method]]
    if method == "PATCH" and not exists:
        verbs.append("create")
    for verb in verbs:
        yield Need(verb, resource, namespace, name if method != "POST" else "")


def grants(roles: Iterable[dict[str, Any]]) -> set[Grant]:
    """The rights from ``roles``, which are bound to one subject."""
    return {
        Grant(verb, f"{group}/{resource}", role["metadata"].get("namespace", ""), tuple(rule.get("resourceNames", ())))
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
