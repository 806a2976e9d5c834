"""The delete protection: what it refuses and allows, by its own expressions, as an API server evaluates them."""

from __future__ import annotations

from typing import Any

import pytest

from chart_support import NAMESPACE, Rendered, Values, render
from lookupdb.dataset import schema
from lookupdb_operator import names

ANNOTATION = "lookupdb.dev/delete-protection"
NAME = f"{NAMESPACE}-lookupdb-delete-protection"
DATASET = {"group": names.GROUP, "version": names.VERSION, "resource": names.PLURAL}
SERVING: Any = {"metadata": {"name": "shops", "labels": {}}, "status": {"phase": "Active"}}
ENDING: Any = {"metadata": {"name": "shops", "deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.fixture(scope="module")
def policy() -> Any:
    return render().get_object("ValidatingAdmissionPolicy", NAME)["spec"]


def dataset(**annotations: str) -> Any:
    metadata: dict[str, Any] = {"name": "people", "namespace": "shops"}
    return {"metadata": metadata | ({"annotations": annotations} if annotations else {})}


def answer(policy: Any, old: Any, namespace: Any, kind: str = names.KIND, resource: Any = None) -> str | None:
    """Return why the deletion of ``old`` is refused; None if it is not."""
    context: dict[str, Any] = {
        "object": None,
        "oldObject": old,
        "namespaceObject": namespace,
        "request": {"kind": {"kind": kind}, "resource": resource or DATASET},
    }
    evaluate = schema.load_cel().evaluate
    if not all(evaluate(condition["expression"], context) for condition in policy["matchConditions"]):
        return None
    variables: dict[str, Any] = {}
    for variable in policy["variables"]:
        variables[variable["name"]] = evaluate(variable["expression"], context | {"variables": variables})
    (validation,) = policy["validations"]
    if evaluate(validation["expression"], context | {"variables": variables}):
        return None
    return str(evaluate(validation["messageExpression"], context | {"variables": variables}))


def test_a_dataset_that_is_protected_is_not_deleted_and_the_refusal_says_how_to_lift_that(policy: Any) -> None:
    assert answer(policy, dataset(**{ANNOTATION: "true"}), SERVING) == (
        "LookupDataset people is protected from deletion. To remove the protection: "
        f"kubectl annotate lookupdatasets.lookupdb.dev people -n shops {ANNOTATION}-"
    )


@pytest.mark.parametrize("value", ["yes", "True", "1", ""])
def test_whatever_the_annotation_says_but_false_protects(policy: Any, value: str) -> None:
    assert answer(policy, dataset(**{ANNOTATION: value}), SERVING) is not None


@pytest.mark.parametrize("old", [dataset(), dataset(other="true"), dataset(**{ANNOTATION: "false"})])
def test_what_is_not_protected_goes(policy: Any, old: Any) -> None:
    assert answer(policy, old, SERVING) is None


def test_what_is_protected_goes_with_its_namespace_which_would_else_end_never(policy: Any) -> None:
    assert answer(policy, dataset(**{ANNOTATION: "true"}), ENDING) is None


@pytest.mark.parametrize(
    ("kind", "resource", "name"),
    [
        ("Namespace", {"group": "", "resource": "namespaces"}, "shops"),
        (
            "CustomResourceDefinition",
            {"group": "apiextensions.k8s.io", "resource": "customresourcedefinitions"},
            "lookupdatasets.lookupdb.dev",
        ),
    ],
)
def test_what_takes_datasets_with_it_is_protected_by_the_same_annotation(
    policy: Any, kind: str, resource: Any, name: str
) -> None:
    qualified = f"{resource['resource']}.{resource['group']}".rstrip(".")
    protected = {"metadata": {"name": name, "annotations": {ANNOTATION: "true"}}}
    said = answer(policy, protected, None, kind, resource)
    assert said is not None
    assert said.endswith(f": kubectl annotate {qualified} {name} {ANNOTATION}-")
    assert answer(policy, {"metadata": {"name": name}}, None, kind, resource) is None


def test_deletions_alone_are_looked_at_and_of_nothing_else(policy: Any) -> None:
    """It fails closed, so it must look at few deletions."""
    rules = policy["matchConstraints"]["resourceRules"]
    assert policy["failurePolicy"] == "Fail"
    assert {tuple(rule["operations"]) for rule in rules} == {("DELETE",)}
    assert {(*rule["apiGroups"], *rule["resources"], *rule.get("resourceNames", ())) for rule in rules} == {
        (names.GROUP, names.PLURAL),
        ("", "namespaces"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    }


def test_another_crd_goes_whatever_it_is_annotated_with(policy: Any) -> None:
    other = {"metadata": {"name": "others.example.com", "annotations": {ANNOTATION: "true"}}}
    resource = {"group": "apiextensions.k8s.io", "resource": "customresourcedefinitions"}
    assert answer(policy, other, None, "CustomResourceDefinition", resource) is None


def test_no_rule_goes_by_names_which_the_deletion_of_a_collection_does_not_have(policy: Any) -> None:
    assert not any("resourceNames" in rule for rule in policy["matchConstraints"]["resourceRules"])


def is_there(rendered: Rendered) -> bool:
    policies = rendered.names("ValidatingAdmissionPolicy")
    bindings = rendered.find_all("ValidatingAdmissionPolicyBinding")
    assert {binding["spec"]["policyName"] for binding in bindings} == policies
    assert all(binding["spec"]["validationActions"] == ["Deny"] for binding in bindings)
    return bool(policies)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"watchNamespaces": ["one"]}, True),
        ({"crds": {"enabled": False}}, False),
        ({"crds": {"enabled": False}, "deleteProtection": {"enabled": True}}, True),
        ({"deleteProtection": {"enabled": False}}, False),
    ],
)
def test_the_release_that_has_the_crd_has_it_unless_told_otherwise(values: Values, expected: bool) -> None:
    """A release that may create no cluster objects has no CRD either; of several releases, one has both."""
    assert is_there(render(values)) is expected
