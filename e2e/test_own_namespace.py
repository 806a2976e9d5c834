"""A team installs lookupdb for its own namespace alone, which enforces the restricted pod security standard: it has a
Role there and no right elsewhere, and a gateway of its own; and the cluster's operator leaves the team's dataset alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.support import helm, kinds, restricted
from e2e.support.fault import merge
from e2e.support.kubectl import find, find_everywhere, kubectl, until
from e2e.support.story import LDS, Story

pytestmark = pytest.mark.side_by_side

RELEASE: Final = "team"
FULLNAME: Final = f"{RELEASE}-lookupdb"
GATEWAY: Final = f"{FULLNAME}-gateway"
"""The gateway's ServiceAccount: it may read the cluster's public keys, as all may, and nothing else."""
OPERATOR: Final = "lookupdb.dev/operator"
RIGHTS: Final = (
    ("list", "", "pods"),
    ("list", "lookupdb.dev", "lookupdatasets"),
    ("create", "batch", "jobs"),
    ("list", "", "configmaps"),
)
"""Rights of an operator where its datasets are."""
KEPT: Final = {
    f"Secret/{FULLNAME}-store",
    f"Secret/{FULLNAME}-shard-key",
    f"ConfigMap/{FULLNAME}-living",
    f"Pod/{FULLNAME}-test-lookup",
}
"""Objects that outlive the release: those that the operator has made, and the pod of helm's test."""


def test_a_release_for_its_own_restricted_namespace_needs_no_right_elsewhere(new_story: Callable[..., Story]) -> None:
    story = new_story("own-namespace", labels=restricted.LABELS)
    keys = story.source("records", version="v1", records=300)
    before = _list_objects(story)
    helm.install(RELEASE, story.namespace, _release_values(story))
    assert _cluster_objects(story) == []

    manifest = story.dataset("records", "records", shards=2, router={"drainSeconds": 0})
    identity = f"{story.namespace}/{RELEASE}"
    manifest["metadata"]["annotations"] = {OPERATOR: identity}
    story.apply(manifest)
    assert story.wait_settled("records")["operator"] == identity
    story.check_version("records", keys, "v1")
    told = helm.helm("test", RELEASE, "--logs", "--timeout", "2m", namespace=story.namespace)
    assert "Phase:          Succeeded" in told
    assert keys[0] in told
    assert restricted.find_refusals(story.namespace) == []

    assert [right for right in RIGHTS if not _is_allowed(story, *right, story.namespace)] == []
    assert [right for right in RIGHTS if _is_allowed(story, *right, "")] == [], "in all namespaces"
    assert not _is_allowed(story, "get", "", "secrets", story.namespace), "but for its store's, which is named"
    assert not _is_allowed(story, "patch", "", "secrets", story.namespace), "it may make its store's, and change none"
    assert [right for right in RIGHTS if _is_allowed(story, *right, story.namespace, GATEWAY)] == []
    assert not _is_allowed(story, "get", "", "secrets", story.namespace, GATEWAY)
    assert not _is_allowed(story, "get", "", "namespaces", "")

    story.delete(LDS, "records")
    helm.helm("uninstall", RELEASE, "--wait", "--timeout", "2m", namespace=story.namespace)
    until(
        lambda: kinds.check_nothing_but(_list_objects(story), before | KEPT),
        seconds=120,
        what="all of the release collected",
    )


def _release_values(story: Story) -> dict[str, Any]:
    """The values of the release under test, and so its image, without anything that is the cluster's."""
    own = {
        "watchNamespaces": [story.namespace],
        "crds": {"enabled": False},
        "rbac": {"aggregate": False},
        "clusterId": story.namespace,
        "store": {"embedded": {"persistence": {"keep": False}}},
        "test": {"dataset": "records", "key": "key-00000"},
    }
    return merge(helm.values(), own)


def _cluster_objects(story: Story) -> list[str]:
    """The release's objects outside of its namespace."""
    release = f"app.kubernetes.io/instance={RELEASE}"
    found = find("clusterroles,clusterrolebindings", selector=release) + find_everywhere("roles,rolebindings", release)
    return [
        f"{item['kind']}/{item['metadata']['name']}"
        for item in found
        if item["metadata"].get("namespace") != story.namespace
    ]


def _is_allowed(story: Story, verb: str, group: str, resource: str, namespace: str, account: str = FULLNAME) -> bool:
    """Whether a ServiceAccount of the release, its operator's unless another is named, has this right, as ``kubectl
    auth can-i`` asks; no namespace means all of them."""
    spec = {
        "user": f"system:serviceaccount:{story.namespace}:{account}",
        "groups": ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{story.namespace}"],
        "resourceAttributes": {"verb": verb, "group": group, "resource": resource, "namespace": namespace},
    }
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = json.loads(kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(asked)))
    return bool(answer["status"]["allowed"])


def _list_objects(story: Story) -> set[str]:
    return kinds.list_objects(story.namespace, kinds.OF_A_RELEASE)
