"""Every name that the operator gives: objects, labels, annotations, ports, paths in pods. The one place for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from lookupdb.dataset import schema

_CRD = schema.crd()["spec"]
GROUP: Final[str] = _CRD["group"]
VERSION: Final[str] = _CRD["versions"][0]["name"]
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final[str] = _CRD["names"]["kind"]
PLURAL: Final[str] = _CRD["names"]["plural"]

FIELD_MANAGER: Final = "lookupdb-operator"

# Labels. Every object that the operator makes carries DATASET, by which the operator watches it.
DATASET: Final = f"{GROUP}/dataset"
DATASET_UID: Final = f"{GROUP}/dataset-uid"
"""The dataset's uid: a recreated dataset has the same name, and must not share pods with the deleted one."""
GENERATION: Final = f"{GROUP}/generation"
ROLLOUT: Final = f"{GROUP}/rollout"
SHARD: Final = f"{GROUP}/shard"
PASSWORD_KEY: Final = f"{GROUP}/password-key"
"""On a StatefulSet: the fingerprint of the key that its servers' passwords are derived from."""
APP: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
SYNC_LABEL: Final = f"{GROUP}/sync"
"""On pods that run `lookupdb sync`, including a user's own: the gateway's NetworkPolicy admits them."""
OPERATOR_LABELS: Final[Mapping[str, str]] = {APP: "lookupdb", MANAGED_BY: FIELD_MANAGER}
"""Labels of the operator's own objects, which belong to no dataset."""

BUILDER: Final = "builder"
SHARDS: Final = "shard"
ROUTER: Final = "router"
EXECUTOR: Final = "executor"
"""Executors of a build by Spark. The builder, which is Spark's driver, creates their pods."""
PUSHER: Final = "pusher"
"""The component that pushes a rollout's images."""
SYNC: Final = "sync"
"""The component that keeps the active generation in a folder of each node."""
DIFF: Final = "diff"
"""A comparison of two generations, started by a person. The operator does not manage it."""
LOAD: Final = "load"
"""A load test of the routers, started by a person. The operator does not manage it."""

# Annotations.
DIGEST: Final = f"{GROUP}/digest"
"""Digest of the object as the operator wrote it: an object with an equal digest is not written again."""
FIELDS: Final = f"{GROUP}/fields"
"""The hash that the operator's fields have in the API server, unless somebody else changed them."""
TABLE_VERSION: Final = f"{GROUP}/table-version"
"""On the routing table: its version. On router pods: a change makes the kubelet sync the table at once."""
REFRESH: Final = f"{GROUP}/refresh"
"""Set by the user on a dataset: a new value requests a build from the current source."""
OVERRIDE_GATES: Final = f"{GROUP}/override-gates"
"""Set by the user on a dataset: the generation to roll out although a gate failed."""
PROMOTE: Final = f"{GROUP}/promote"
"""Set by the user on a dataset: the generation that may take effect. With promotion Manual, any other waits."""
REJECT: Final = f"{GROUP}/reject"
"""Set by the user on a dataset: the generation that must not be served."""
OPERATOR: Final = f"{GROUP}/operator"
"""Set by the user on a dataset: the identity of the only operator that may act on it."""

# Ports; equal to the defaults of lookupdb itself.
ROUTER_PORT: Final = 8080
RESP_PORT: Final = 6379
"""The routers' Redis port, on pods and Services; the default of Redis."""
RESP: Final = "redis"
"""The name of that port."""
HTTP_PORT: Final = 80
"""The default port of http URLs."""
HTTPS_PORT: Final = 443
"""The default port of https URLs."""
SHARD_PORT: Final = 7000
"""The port of the first worker; worker i listens on it + i."""
ADMIN_PORT: Final = 9090
DRIVER_PORT: Final = 7078
"""The port of Spark's driver, in a builder."""
BLOCKS_PORT: Final = 7079
"""The port of Spark's block managers, in drivers and executors: results, broadcasts and shuffled rows."""
OPERATOR_PORT: Final = 8081
"""The port of the operator's own health and metrics."""

_UID_DIGITS: Final = 8
"""Digits of a uid in a name: 32 random bits."""
_NUMBER_DIGITS: Final = 9
"""Maximum number of digits of a generation or rollout in a status and the store; a label may hold more."""
_LARGEST_RECOVERED: Final = 10**8
"""Ignore larger numbers in labels: somebody else wrote them, and they would use up the numbers."""

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{8}")
_OF_ROLLOUT: Final = re.compile(r"-(r[1-9][0-9]{0,8})(?:-s[0-9]+|-push)?\Z")
_OF_BUILD: Final = re.compile(r"-(g[1-9][0-9]{0,8})-build\Z")

# Paths in pods.
DATA_PATH: Final = "/data"
"""In a shard server: the generation's folder; with delivery by Volume, the root of that volume."""
DATA_VOLUME: Final = "data"
"""The volume mounted there."""
SYNC_PATH: Final = "/lookups"
"""In pods that run `lookupdb sync`: the root of its folders."""
SCRATCH_PATH: Final = "/scratch"
SOURCE_PATH: Final = "/source"
"""In a builder: spec.source.volume, read-only."""
DATASET_PATH: Final = "/etc/lookupdb/dataset"
DATASET_FILE: Final = "dataset.yaml"
EXECUTOR_FILE: Final = "executor.yaml"
"""In a builder that is Spark's driver: the template of its executors' pods."""
TABLE_PATH: Final = "/etc/lookupdb/table"
TABLE_FILE: Final = "routing-table.json"
PASSWORD_KEYS_PATH: Final = "/etc/lookupdb/password-keys"  # noqa: S105 - the name of a folder
"""In routers: keys that shard passwords are derived from, each in a file named by its fingerprint."""
TLS_PATH: Final = "/etc/lookupdb/tls"
TLS_CERTIFICATE: Final = "tls.crt"
TLS_KEY: Final = "tls.key"
"""In routers: the members of a Secret of type kubernetes.io/tls."""
TLS_CLIENT_CA_PATH: Final = "/etc/lookupdb/tls-client-ca"
TOKENS_PATH: Final = "/etc/lookupdb/tokens"
"""In routers: the Secret with the hashes of clients' tokens."""
KEYS_PATH: Final = "/etc/lookupdb/keys"
"""In routers: the public keys of the cluster's service accounts."""
KEYS_FILE: Final = "jwks.json"
REGISTRY_PATH: Final = "/etc/lookupdb/registry"
REGISTRY_FILE: Final = "config.json"
"""In image pushers: the registry's credentials, in Docker's format."""
REGISTRY_CA_PATH: Final = "/etc/lookupdb/registry-ca"
REGISTRY_CA_FILE: Final = "ca.crt"
"""In image pushers: trusted CAs for registries' certificates."""
STORE_TOKEN_PATH: Final = f"/var/run/secrets/{GROUP}/store"
"""In builders and fetchers: the folder of the token for the gateway."""
STORE_TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file
STORE_TOKEN_VOLUME: Final = "store-token"  # noqa: S105 - the name of a volume


def build(dataset: str, generation: str) -> str:
    """A build's Job and the ConfigMap it reads: ``airports-g12-build``."""
    return f"{dataset}-{generation}-build"


def command_job(dataset: str, command: str, suffix: str) -> str:
    """The Job of a person's ``diff``, ``prune`` or ``load``: ``airports-diff-x7k2p``."""
    return f"{dataset}-{command}-{suffix}"


def rollout(dataset: str, rollout: str) -> str:
    """A rollout's headless Service: ``airports-r34``."""
    return f"{dataset}-{rollout}"


def shard_set(dataset: str, rollout: str, shard: int) -> str:
    """A shard's StatefulSet and PodDisruptionBudget: ``airports-r34-s3``."""
    return f"{dataset}-{rollout}-s{shard}"


def push(dataset: str, rollout: str) -> str:
    """The Job that pushes a rollout's images: ``airports-r34-push``."""
    return f"{dataset}-{rollout}-push"


def read_rollout(name: str) -> str:
    """Return ``r34`` for ``airports-r34`` and ``airports-r34-s3``; empty if the name is not of a rollout. Names, unlike
    labels, cannot be edited."""
    found = _OF_ROLLOUT.search(name)
    return found[1] if found else ""


def read_build(name: str) -> str:
    """Return ``g12`` for ``airports-g12-build``; empty if the name is not of a build."""
    found = _OF_BUILD.search(name)
    return found[1] if found else ""


def read_shard(name: str) -> int | None:
    """Return 3 for ``airports-r34-s3``; None if the name is not of a shard."""
    _, mark, digits = name.rpartition("-s")
    return int(digits) if mark and digits.isascii() and digits.isdigit() else None


def router(dataset: str) -> str:
    """The router's Deployment, Service, PodDisruptionBudget, autoscaler: ``airports-router``."""
    return f"{dataset}-router"


def sync(dataset: str) -> str:
    """The DaemonSet that keeps the active generation on nodes: ``airports-sync``."""
    return f"{dataset}-sync"


def routing_table(dataset: str) -> str:
    """The ConfigMap with the routing table: ``airports-routing-table``."""
    return f"{dataset}-routing-table"


def router_keys(dataset: str) -> str:
    """The ConfigMap with the keys that verify service accounts on routers: ``airports-router-keys``."""
    return f"{dataset}-router-keys"


def store_secret(dataset: str, uid: str) -> str:
    """The Secret with the store's address and credentials: ``airports-store-8d3f6b1a``. The operator cannot read it, so
    part of the dataset's uid makes the name unique."""
    return f"{dataset}-store-{uid[:_UID_DIGITS]}"


def password_key_secret(dataset: str, fingerprint: str) -> str:
    """The Secret with the dataset's shard password key: ``airports-router-8d3f6b1a``. The operator cannot read it, so
    the fingerprint in the name ensures one content for each name."""
    return f"{dataset}-router-{fingerprint}"


def store_audience(identity: str) -> str:
    """The audience of tokens for one installation's gateway: ``lookupdb-store:lookupdb/lookupdb``. Other installations
    and the API server reject them."""
    return f"lookupdb-store:{identity}"


def network_policy(dataset: str, component: str) -> str:
    """The NetworkPolicy for pods of one component: ``airports-shard``."""
    return f"{dataset}-{component}"


def pod_host(dataset: str, rollout_name: str, shard: int, replica: int, namespace: str) -> str:
    """The host of a shard pod in a routing table: absolute, but without the last dot, which some resolvers reject."""
    return f"{shard_set(dataset, rollout_name, shard)}-{replica}.{rollout(dataset, rollout_name)}.{namespace}.svc"


def endpoint(dataset: str, namespace: str, port: int = HTTP_PORT, *, is_encrypted: bool = False) -> str:
    """The URL of a dataset's router Service."""
    scheme, usual = ("https", HTTPS_PORT) if is_encrypted else ("http", HTTP_PORT)
    return f"{scheme}://{router(dataset)}.{namespace}.svc" + ("" if port == usual else f":{port}")


def generation_name(number: int) -> str:
    """Return ``g12`` for 12."""
    return f"g{number}"


def rollout_name(number: int) -> str:
    """Return ``r34`` for 34."""
    return f"r{number}"


@lru_cache(maxsize=1024)
def read_number(name: str) -> int:
    """Return 12 for ``g12``, 34 for ``r34``; 0 if the name is not one of these."""
    digits = name[1:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _NUMBER_DIGITS else 0


def recover_number(label: str) -> int:
    """Return ``read_number`` of an object's label, to restore a lost status; 0 if it is so large that too few numbers
    would remain."""
    number = read_number(label)
    return number if number <= _LARGEST_RECOVERED else 0


def recover_password_key(label: str) -> str:
    """Return the fingerprint in an object's label; empty if it is not one."""
    return label if _FINGERPRINT.fullmatch(label) else ""


def labels(dataset: str, uid: str, component: str | None = None) -> dict[str, str]:
    """Return the labels of objects of ``dataset``, or of its ``component``."""
    common = {APP: "lookupdb", INSTANCE: dataset, MANAGED_BY: FIELD_MANAGER, DATASET: dataset, DATASET_UID: uid}
    return common | ({COMPONENT: component} if component else {})


def selector(
    dataset: str, uid: str, component: str, rollout: str | None = None, shard: int | None = None
) -> dict[str, str]:
    """Return the label selector of a component, a rollout, or a shard."""
    chosen = {DATASET: dataset, DATASET_UID: uid, COMPONENT: component}
    if rollout is not None:
        chosen[ROLLOUT] = rollout
    if shard is not None:
        chosen[SHARD] = str(shard)
    return chosen


# The kinds of objects that are written, watched or read, and their API paths. They are fixed: discovery could fail when
# an aggregated API is unavailable, and would stop the operator.


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    name: str
    api_version: str
    plural: str
    watched: bool = False
    """True if objects of this kind with the label DATASET are watched."""
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within its group."""
        return self.api_version.rpartition("/")[2]

    def make(self, metadata: Mapping[str, Any], **members: Any) -> dict[str, Any]:
        """Return an object of this kind."""
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": metadata, **members}

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the collection in ``namespace`` (or in all), of one object, or of its subresource."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        rest = "".join(f"/{quote(part, safe='')}" for part in (self.plural, name, subresource) if part)
        return root + where + rest


DATASET_KIND: Final = Kind(KIND, API_VERSION, PLURAL)
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
    DATASET_KIND,
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
"""Kinds watched by label, besides DATASET_KIND, which is always watched."""

_BY_NAME: Final = {kind.name: kind for kind in ALL}


def find_kind(name: str) -> Kind:
    """Return the kind ``name``. Raises KeyError if the operator does not use it."""
    return _BY_NAME[name]
