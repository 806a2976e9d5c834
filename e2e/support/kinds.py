"""The kinds of objects that stories look through, joined by commas as kubectl takes them, and what is there of them."""

from __future__ import annotations

from typing import Final

from e2e.support.kubectl import find

WRITTEN: Final = (
    "jobs,statefulsets,deployments,services,configmaps,secrets,poddisruptionbudgets,networkpolicies,"
    "horizontalpodautoscalers"
)
"""What the operator writes for a dataset."""
BROUGHT: Final = "pods,replicasets,controllerrevisions,endpointslices,persistentvolumeclaims"
"""What Kubernetes makes of it."""
OF_A_DATASET: Final = f"{WRITTEN},{BROUGHT}"
INSTALLED: Final = f"{OF_A_DATASET},cronjobs,serviceaccounts,roles,rolebindings"
"""What stands in a namespace with a release and its datasets."""
_OF_EVERY_NAMESPACE: Final = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
"""Made by the cluster, a moment after the namespace."""


def there(namespace: str, kinds: str) -> set[str]:
    """What is in a namespace, as kind/name, whatever its labels: what has lost them may be left behind too."""
    found = {f"{item['kind']}/{item['metadata']['name']}" for item in find(kinds, namespace)}
    return found - _OF_EVERY_NAMESPACE


def nothing_but(there_: set[str], expected: set[str]) -> bool:
    """True, to be waited for; an AssertionError that names what is there beside what is expected."""
    assert not there_ - expected, sorted(there_ - expected)
    return True
