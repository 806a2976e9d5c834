"""Kinds of objects that stories list, joined by commas as kubectl takes them."""

from __future__ import annotations

from typing import Final

from e2e.support.kubectl import find

WRITTEN: Final = (
    "jobs,statefulsets,deployments,services,configmaps,secrets,poddisruptionbudgets,networkpolicies,"
    "horizontalpodautoscalers"
)
"""The operator writes these for a dataset."""
DERIVED: Final = "pods,replicasets,controllerrevisions,endpointslices,persistentvolumeclaims"
"""Kubernetes makes these of them."""
OF_A_DATASET: Final = f"{WRITTEN},{DERIVED}"
OF_A_RELEASE: Final = f"{OF_A_DATASET},cronjobs,serviceaccounts,roles,rolebindings"
"""The kinds in a namespace with a release and its datasets."""
_OF_EVERY_NAMESPACE: Final = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
"""The cluster makes these a moment after the namespace."""


def list_objects(namespace: str, kinds: str) -> set[str]:
    """The objects of a namespace, as kind/name, whatever their labels: one that lost them may be left behind too."""
    found = {f"{item['kind']}/{item['metadata']['name']}" for item in find(kinds, namespace)}
    return found - _OF_EVERY_NAMESPACE


def check_nothing_but(found: set[str], expected: set[str]) -> bool:
    """True, for ``until``; raises AssertionError with the objects of ``found`` that are not ``expected``."""
    assert not found - expected, sorted(found - expected)
    return True
