"""The operator's settings that are the same for all datasets, from its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_IDENTITY: Final = "lookupdb/lookupdb"
POD_SECURITY: Final[Mapping[str, int]] = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
"""User and groups of every process, as in the image. OpenShift assigns its own and accepts no others; leave them out
there."""
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - a pod's own addresses
LISTEN_ADDRESSES: Final = (ANY_ADDRESS, "::")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one operator."""

    image: str
    """The image of builders, shard servers and routers, unless a dataset names another."""
    store: str
    """URL of the store: s3://, gs://, az://."""
    cluster: str
    """This cluster's prefix in the store; the uid of the kube-system namespace by default."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    identity: str = DEFAULT_IDENTITY
    """``namespace/name`` of this installation; only one acts on a dataset."""
    network_policies: bool = True
    """True to write NetworkPolicies."""
    router_resp: bool = True
    """True if routers also speak the Redis protocol, on a separate port."""
    router_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may send lookups to routers; empty: anyone."""
    admin_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may read admin ports: the operator and metric scrapers."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Additional labels of every pod."""
    pod_security: Mapping[str, int] = field(default_factory=lambda: POD_SECURITY)
    """runAsUser, runAsGroup and fsGroup of every pod; the cluster chooses missing ones."""
    pod_host: str = ANY_ADDRESS
    """Listen address of shard servers and routers; ``::`` for pods with IPv6 addresses."""
    shard_key: bytes = field(default=b"", repr=False)
    """The release's key, which shard passwords are derived from; empty: no passwords. It is secret and never shown."""
    gateway: str = ""
    """URL of the gateway, which accepts namespace tokens of builders and fetchers. Empty: they reach the store
    directly, with its credentials."""

    announces: bool = False
    """True if the operator can announce active generations through the gateway."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The environment for reaching the store, as it is now. Empty behind a gateway."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables such as AWS_ACCESS_KEY_ID, without prefix."""
    digest: str = ""
    """Changes with the environment; empty if there is none."""
    problem: str | None = None
    """Why there is no access, as a sentence."""
