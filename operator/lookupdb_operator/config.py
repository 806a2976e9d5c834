"""What an operator is told by its command line: the same for all datasets. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_IDENTITY: Final = "lookupdb/lookupdb"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one operator."""

    image: str
    """Of builders, shard servers and routers, unless a dataset names another."""
    store: str
    """URL of the store: s3://, gs://, az://."""
    cluster: str
    """The part of the store that is this cluster's: from the kube-system namespace's uid."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    identity: str = DEFAULT_IDENTITY
    """``namespace/name`` of this installation; a dataset is acted on by one only."""
    network_policies: bool = True
    """Whether to write NetworkPolicies."""
    router_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may ask routers; none given: anyone."""
    admin_clients: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicy peers that may read admin ports: the operator, and who scrapes metrics."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of every pod."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The environment in which a builder or fetcher reaches the store, as it is now."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """AWS_ACCESS_KEY_ID and the like, without prefix."""
    digest: str = ""
    """Changes when the environment does; empty when there is none."""
    problem: str | None = None
    """Why there is none, as a sentence."""
