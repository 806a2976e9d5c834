"""A team installs lookupdb for its own namespace, which enforces the restricted pod security standard.

The release has a Role there, a gateway of its own, and no right elsewhere. The cluster's operator ignores the team's
dataset.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.support import helm, kinds, restricted
from e2e.support.fault import merge
from e2e.support.kubectl import find, find_everywhere, kubectl, until
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

RELEASE: Final = "team"
FULLNAME: Final = f"{RELEASE}-lookupdb"
GATEWAY: Final = f"{FULLNAME}-gateway"
"""The gateway's ServiceAccount. It may read the cluster's public keys, as everybody may, and nothing else."""
OPERATOR: Final = "lookupdb.dev/operator"
RIGHTS: Final = (
    ("list", "", "pods"),
    ("list", "lookupdb.dev", "lookupdatasets"),
    ("create", "batch", "jobs"),
    ("list", "", "configmaps"),
)
"""Rights of an operator in the namespaces of its datasets."""
KEPT: Final = {
    f"Secret/{FULLNAME}-store",
    f"Secret/{FULLNAME}-shard-key",
    f"ConfigMap/{FULLNAME}-living",
    f"Pod/{FULLNAME}-test-lookup",
}
"""Objects that outlive the release: those that the operator created, and the pod of helm's test."""


def test_a_release_for_its_own_restricted_namespace_needs_no_right_elsewhere(
    new_scenario: Callable[..., Scenario],
) -> None:
    scenario = new_scenario("own-namespace", labels=restricted.LABELS)
    keys = scenario.source("records", version="v1", records=300)
    before = _list_objects(scenario)
    helm.install(RELEASE, scenario.namespace, _release_values(scenario))
    assert _cluster_objects(scenario) == []

    manifest = scenario.dataset("records", "records", shards=2, router={"drainSeconds": 0})
    identity = f"{scenario.namespace}/{RELEASE}"
    manifest["metadata"]["annotations"] = {OPERATOR: identity}
    scenario.apply(manifest)
    assert scenario.wait_settled("records")["operator"] == identity
    scenario.check_version("records", keys, "v1")
    result = helm.helm("test", RELEASE, "--logs", "--timeout", "2m", namespace=scenario.namespace)
    assert "Phase:          Succeeded" in result
    assert keys[0] in result
    assert restricted.find_refusals(scenario.namespace) == []

    assert [right for right in RIGHTS if not _is_allowed(scenario, *right, scenario.namespace)] == []
    assert [right for right in RIGHTS if _is_allowed(scenario, *right, "")] == [], "in all namespaces"
    assert not _is_allowed(scenario, "get", "", "secrets", scenario.namespace), "but for its store's, which is named"
    assert not _is_allowed(scenario, "patch", "", "secrets", scenario.namespace), (
        "it may make its store's, and change none"
    )
    assert [right for right in RIGHTS if _is_allowed(scenario, *right, scenario.namespace, GATEWAY)] == []
    assert not _is_allowed(scenario, "get", "", "secrets", scenario.namespace, GATEWAY)
    assert not _is_allowed(scenario, "get", "", "namespaces", "")

    scenario.delete(LDS, "records")
    helm.helm("uninstall", RELEASE, "--wait", "--timeout", "2m", namespace=scenario.namespace)
    until(
        lambda: kinds.check_nothing_but(_list_objects(scenario), before | KEPT),
        seconds=120,
        what="all of the release collected",
    )


def _release_values(scenario: Scenario) -> dict[str, Any]:
    """Return the values of the release under test, and thus its image, without cluster-wide parts."""
    own = {
        "watchNamespaces": [scenario.namespace],
        "crds": {"enabled": False},
        "rbac": {"aggregate": False},
        "clusterId": scenario.namespace,
        "store": {"embedded": {"persistence": {"keep": False}}},
        "test": {"dataset": "records", "key": "key-00000"},
    }
    return merge(helm.values(), own)


def _cluster_objects(scenario: Scenario) -> list[str]:
    """Return the release's objects outside of its namespace."""
    release = f"app.kubernetes.io/instance={RELEASE}"
    found = find("clusterroles,clusterrolebindings", selector=release) + find_everywhere("roles,rolebindings", release)
    return [
        f"{item['kind']}/{item['metadata']['name']}"
        for item in found
        if item["metadata"].get("namespace") != scenario.namespace
    ]


def _is_allowed(
    scenario: Scenario, verb: str, group: str, resource: str, namespace: str, account: str = FULLNAME
) -> bool:
    """Return whether a ServiceAccount of the release, by default the operator's, has this right, as ``kubectl auth
    can-i`` would. An empty namespace means all."""
    spec = {
        "user": f"system:serviceaccount:{scenario.namespace}:{account}",
        "groups": ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{scenario.namespace}"],
        "resourceAttributes": {"verb": verb, "group": group, "resource": resource, "namespace": namespace},
    }
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = json.loads(kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(asked)))
    return bool(answer["status"]["allowed"])


def _list_objects(scenario: Scenario) -> set[str]:
    return kinds.list_objects(scenario.namespace, kinds.OF_A_RELEASE)
