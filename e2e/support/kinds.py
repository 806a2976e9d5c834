"""Kinds of objects that scenarios list, joined by commas as for kubectl."""

from __future__ import annotations

from typing import Final

from e2e.support.kubectl import find

WRITTEN: Final = (
    "jobs,statefulsets,deployments,services,configmaps,secrets,poddisruptionbudgets,networkpolicies,"
    "horizontalpodautoscalers"
)
"""Kinds that the operator creates for a dataset."""
DERIVED: Final = "pods,replicasets,controllerrevisions,endpointslices,persistentvolumeclaims"
"""Kinds that Kubernetes creates from them."""
OF_A_DATASET: Final = f"{WRITTEN},{DERIVED}"
OF_A_RELEASE: Final = f"{OF_A_DATASET},cronjobs,serviceaccounts,roles,rolebindings"
"""Kinds in a namespace with a release and its datasets."""
_OF_EVERY_NAMESPACE: Final = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
"""Objects that the cluster creates a moment after the namespace."""


def list_objects(namespace: str, kinds: str) -> set[str]:
    """Return the objects of a namespace as kind/name, whatever their labels: an object without labels may be left
    behind too."""
    found = {f"{item['kind']}/{item['metadata']['name']}" for item in find(kinds, namespace)}
    return found - _OF_EVERY_NAMESPACE


def check_nothing_but(found: set[str], expected: set[str]) -> bool:
    """Return True, for ``until``. Raises AssertionError with the objects of ``found`` that are not ``expected``."""
    assert not found - expected, sorted(found - expected)
    return True
