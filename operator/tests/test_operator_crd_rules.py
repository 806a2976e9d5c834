"""The cost of the CRD's rules, as an API server estimates it from the bounds of the fields that they read.

The estimate here is a rough one, for the functions in use: ``matches`` costs the field's length times the pattern's,
``contains`` the field's length, everything else one. A rule's cost is multiplied by the iterations of its loop, and by
the number of places where it holds. For the most expensive rules it is within some per cent of Kubernetes 1.34. Types
and syntax are not checked: only an API server knows whether a rule compiles, and every scenario of ``e2e/`` begins by
giving it the CRD.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from lookupdb.dataset import schema

RULE_BUDGET: Final = 10_000_000
"""For one rule, in all its places; Kubernetes' own limit."""
TOTAL_BUDGET: Final = 100_000_000
BYTES_A_CHARACTER: Final = 4
BYTES_READ_FOR_ONE: Final = 10
PATTERN_CHARACTERS_FOR_ONE: Final = 4

_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'")
_FIELD = re.compile(r"\bself(?:\.\w+(?![\w(]))*")
_LOOP = re.compile(r"(self(?:\.\w+)*|\[[^]]*\])\.(?:all|exists|exists_one|filter|map)\((\w+),")
_SEARCH = re.compile(r"(?:\bstring\()?(\b[\w.]+)\)?\.(matches|contains)\(('(?:[^'\\]|\\.)*')\)")

Node = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A rule, the field it belongs to, and the number of its places; None: unknown."""

    text: str
    node: Node
    path: str
    places: int | None


def list_rules(node: Node, path: str = "", places: int | None = 1) -> Iterator[Rule]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield Rule(rule["rule"], node, path, places)
    for name, child in node.get("properties", {}).items():
        yield from list_rules(child, f"{path}.{name}", places)
    for member, bound in (("items", "maxItems"), ("additionalProperties", "maxProperties")):
        if isinstance(node.get(member), dict):
            most = node.get(bound)
            yield from list_rules(node[member], f"{path}[]", None if places is None or most is None else places * most)


def find_field(rule: Rule, expression: str) -> Node:
    """Return the field ``self.a.b`` of ``rule``."""
    node = rule.node
    for name in expression.split(".")[1:]:
        node = node["properties"][name]
    return node


def bound_of(node: Node) -> int | None:
    """Return the length bound of a field; 1 if it has no length, None if it has no bound."""
    if "enum" in node:
        return max(len(str(value)) for value in node["enum"])
    if node.get("type") == "array":
        return node.get("maxItems")
    if isinstance(node.get("additionalProperties"), dict):
        return node.get("maxProperties")
    if node.get("type") == "string" or node.get("x-kubernetes-int-or-string"):
        return node.get("maxLength")
    return 1


def unbounded_fields(rule: Rule) -> list[str]:
    """Return the unbounded fields that ``rule`` reads or belongs to."""
    fields = sorted(set(_FIELD.findall(_LITERAL.sub("''", rule.text))))
    found = [f"{rule.path}: {field}" for field in fields if bound_of(find_field(rule, field)) is None]
    return found if rule.places is not None else [*found, f"{rule.path}: in how many places it holds"]


def estimate(rule: Rule) -> int:
    """Return the highest cost of ``rule``, whose fields are all bounded."""
    rounds, variables = 1, {}
    for iterated, variable in _LOOP.findall(rule.text):
        node = find_field(rule, iterated) if iterated.startswith("self") else {}
        rounds *= (bound_of(node) or 1) if node else iterated.count(",") + 1
        variables[variable] = node.get("items", {})  # keys of a map are free, as in Kubernetes
    cost = len(re.findall(r"\w+", _LITERAL.sub("", rule.text)))
    for searched, function, pattern in _SEARCH.findall(rule.text):
        node = variables.get(searched, {}) if searched in variables else find_field(rule, searched)
        length = math.ceil(((bound_of(node) or 0) * BYTES_A_CHARACTER + 1) / BYTES_READ_FOR_ONE) if node else 1
        cost += length * (math.ceil((len(pattern) - 2) / PATTERN_CHARACTERS_FOR_ONE) if function == "matches" else 1)
    assert rule.places is not None
    return rule.places * rounds * cost


def is_too_dear(resource: Node) -> bool:
    costs = [estimate(rule) for rule in list_rules(resource)]
    return max(costs) > RULE_BUDGET or sum(costs) > TOTAL_BUDGET


RULES = tuple(list_rules(schema.resource_schema()))


def test_there_are_rules() -> None:
    assert len(RULES) > 50
    assert any(rule.places != 1 for rule in RULES)


def test_all_that_a_rule_reads_is_bounded() -> None:
    unbounded = {f"{rule.path}: {rule.text}": unbounded_fields(rule) for rule in RULES}
    assert {text: fields for text, fields in unbounded.items() if fields} == {}


def test_all_rules_together_stay_within_what_an_api_server_allows() -> None:
    """Simplify a rule that comes near, or lower a bound: another server may count differently."""
    costs = {f"{rule.path}: {rule.text}": estimate(rule) for rule in RULES}
    assert {text: cost for text, cost in costs.items() if cost > RULE_BUDGET // 3} == {}
    assert sum(costs.values()) < TOTAL_BUDGET // 3


@pytest.mark.parametrize(
    ("before", "after", "is_accepted"),
    [
        pytest.param(None, None, True, id="none"),
        pytest.param({"url": "s3://a/b"}, {"url": "s3://a/b"}, True, id="the same"),
        pytest.param({"url": "s3://a/b"}, {"url": "s3://a/b", "secretName": "new"}, True, id="another Secret"),
        pytest.param({"url": "s3://a/b"}, {"url": "s3://a/c"}, False, id="another place"),
        pytest.param({"url": "s3://a/b"}, None, False, id="taken away"),
        pytest.param(None, {"url": "s3://a/b"}, False, id="set"),
    ],
)
def test_where_generations_are_stays_as_long_as_the_dataset(
    before: Node | None, after: Node | None, is_accepted: bool
) -> None:
    (rule,) = (rule for rule in RULES if "oldSelf" in rule.text)
    specs: list[Node] = [{"key": {}} if store is None else {"key": {}, "store": store} for store in (before, after)]
    context = schema.load_cel().Context({"oldSelf": specs[0], "self": specs[1]})
    assert schema.load_cel().compile(rule.text).execute(context) is is_accepted


def test_a_rule_of_changes_holds_for_no_manifest_of_a_laptop() -> None:
    resource = {
        "apiVersion": schema.api_version(),
        "kind": "LookupDataset",
        "metadata": {"name": "people"},
        "spec": {"source": {"url": "a.csv"}, "key": {"columns": ["id"]}, "store": {"url": "s3://a/b"}},
    }
    assert schema.complete_resource(resource)["spec"]["store"] == {"url": "s3://a/b"}


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        *((url, True) for url in ("s3://b", "gs://b/", "az://b.c_d-e/p/q/", "s3://b/year=2026/.hidden/a..b")),
        *(
            (f"s3://{rest}", False)
            for rest in ("", "../b", "b/../c", "b/.", "b//c", "b/x\0y", "u:p%40b/x", "b/x\ny", "b/x?y")
        ),
        ("http://b/x", False),
    ],
)
def test_a_store_of_a_datasets_own_is_a_bucket_that_can_be_reached(url: str, is_accepted: bool) -> None:
    (rule,) = (rule for rule in RULES if "(s3|gs|az)" in rule.text)
    context = schema.load_cel().Context({"self": url})
    assert schema.load_cel().compile(rule.text).execute(context) is is_accepted


def changed(path: str, **members: int | None) -> Node:
    """Return the CRD with other bounds; None removes one."""
    resource = copy.deepcopy(schema.resource_schema())
    node = resource
    for name in path.split("."):
        node = node["items"] if name == "[]" else node["properties"][name]
    node.update(members)
    return resource


@pytest.mark.parametrize(
    ("path", "member", "accepted", "refused"),
    [
        ("spec.source.urls", "maxItems", 950, 1050),
        ("spec.source.urls.[]", "maxLength", 7600, 8400),
        ("spec.source.url", "maxLength", 1_900_000, 2_200_000),
        ("spec.refresh.schedule", "maxLength", 900_000, 1_050_000),
    ],
)
def test_the_estimate_agrees_with_that_of_kubernetes(path: str, member: str, accepted: int, refused: int) -> None:
    """Kubernetes 1.34 accepted the CRD with the first bounds, and refused it with the second."""
    assert not is_too_dear(changed(path, **{member: accepted}))
    assert is_too_dear(changed(path, **{member: refused}))


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("spec.source.urls", "maxItems"),
        ("spec.source.urls.[]", "maxLength"),
        ("spec.serving.pod.labels", "maxProperties"),
    ],
)
def test_a_bound_that_is_taken_away_is_seen(path: str, member: str) -> None:
    resource = changed(path, **{member: None})
    assert [field for rule in list_rules(resource) for field in unbounded_fields(rule)]
