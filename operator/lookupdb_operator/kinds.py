"""Every kind of object that is written, watched or read, and where the API server has it. Fixed: nothing is discovered,
so that an unavailable aggregated API cannot stop the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from lookupdb_operator import names


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind."""

    name: str
    api_version: str
    plural: str
    watched: bool = False
    """Whether objects of this kind with the label ``names.DATASET`` are watched."""
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core's."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within its group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of the collection in ``namespace`` (or in all), of one object, or of its subresource."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        rest = "".join(f"/{quote(part, safe='')}" for part in (self.plural, name, subresource) if part)
        return root + where + rest


DATASET: Final = Kind(names.KIND, names.API_VERSION, names.PLURAL)
JOB: Final = Kind("Job", "batch/v1", "jobs", watched=True)
STATEFUL_SET: Final = Kind("StatefulSet", "apps/v1", "statefulsets", watched=True)
POD: Final = Kind("Pod", "v1", "pods", watched=True)
CONFIG_MAP: Final = Kind("ConfigMap", "v1", "configmaps", watched=True)
SERVICE: Final = Kind("Service", "v1", "services", watched=True)
DEPLOYMENT: Final = Kind("Deployment", "apps/v1", "deployments", watched=True)
DAEMON_SET: Final = Kind("DaemonSet", "apps/v1", "daemonsets", watched=True)

DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets", watched=True)
AUTOSCALER: Final = Kind("HorizontalPodAutoscaler", "autoscaling/v2", "horizontalpodautoscalers", watched=True)
NETWORK_POLICY: Final = Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies", watched=True)
SECRET: Final = Kind("Secret", "v1", "secrets")
EVENT: Final = Kind("Event", "v1", "events")
NAMESPACE: Final = Kind("Namespace", "v1", "namespaces", namespaced=False)

ALL: Final = (
    DATASET,
    JOB,
    STATEFUL_SET,
    POD,
    CONFIG_MAP,
    SERVICE,
    DEPLOYMENT,
    DAEMON_SET,
    DISRUPTION_BUDGET,
    AUTOSCALER,
    NETWORK_POLICY,
    SECRET,
    EVENT,
    NAMESPACE,
)
WATCHED: Final = tuple(kind for kind in ALL if kind.watched)
"""By label, in addition to DATASET, all of which are watched."""
OTHERS: Final = tuple(kind for kind in WATCHED if kind not in (JOB, STATEFUL_SET, POD))
"""Those of which only existence and digest are observed (``model.ExistingObject``)."""

_BY_NAME: Final = {kind.name: kind for kind in ALL}


def find_kind(name: str) -> Kind:
    """The kind ``name``. Raises KeyError for one that the operator has nothing to do with."""
    return _BY_NAME[name]
