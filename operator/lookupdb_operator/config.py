"""The settings of an operator that are the same for all datasets, from its command line. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_IDENTITY: Final = "lookupdb/lookupdb"
POD_SECURITY: Final[Mapping[str, int]] = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
"""User and groups of every process, as in the image. A cluster that assigns users to each namespace, as OpenShift does,
accepts no others: there they are left out."""
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - a pod's own addresses
LISTEN_ADDRESSES: Final = (ANY_ADDRESS, "::")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one operator."""

    image: str
    """Of builders, shard servers and routers, unless a dataset names another."""
    store: str
    """URL of the store: s3://, gs://, az://."""
    cluster: str
    """This cluster's prefix in the store: the uid of the kube-system namespace, unless another is given."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    identity: str = DEFAULT_IDENTITY
    """``namespace/name`` of this installation; a dataset is acted on by one only."""
    network_policies: bool = True
    """Whether to write NetworkPolicies."""
    router_resp: bool = True
    """Whether routers speak the Redis protocol, too, on a port of its own."""
    router_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may send lookups to routers; empty: anyone."""
    admin_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may read admin ports: the operator, and who scrapes metrics."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of every pod."""
    pod_security: Mapping[str, int] = field(default_factory=lambda: POD_SECURITY)
    """runAsUser, runAsGroup and fsGroup of every pod; the cluster chooses what is left out."""
    pod_host: str = ANY_ADDRESS
    """Where shard servers and routers listen: ``::`` where pods have IPv6 addresses."""
    shard_key: bytes = field(default=b"", repr=False)
    """The release's key, from which the passwords of shard servers are derived; empty: they ask for none. It is secret,
    and never shown; ``store.shard_key`` reads it from the cluster."""
    gateway: str = ""
    """URL of the gateway before the store, to which builders and fetchers show a token of their namespace. Empty: they
    reach the store themselves, with its credentials."""

    announces: bool = False
    """Whether the operator can announce active generations through the gateway."""

    @property
    def store_of_pods(self) -> str:
        """URL of the store as builders and fetchers know it."""
        return self.gateway or self.store


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The environment in which a builder or fetcher reaches the store, as it is now. Behind a gateway it needs none."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """AWS_ACCESS_KEY_ID and the like, without prefix."""
    digest: str = ""
    """Changes when the environment does; empty when there is none."""
    problem: str | None = None
    """Why there is none, as a sentence."""
