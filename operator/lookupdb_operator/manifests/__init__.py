"""Every object that the operator writes, from data to data: no client, no clock.

All are whole, because server-side apply takes away what we leave out that we had written before. But for two:
``synced`` is part of a pod, all that is ours of it; ``scaled`` is applied in another manager's name.
"""

from __future__ import annotations

from lookupdb_operator.manifests.build import build_digest, builder
from lookupdb_operator.manifests.fields import find_changer, fingerprint, held_fields
from lookupdb_operator.manifests.metadata import digest_of, mark_of
from lookupdb_operator.manifests.network_policy import network_policies
from lookupdb_operator.manifests.router import router_replicas, routers, with_replicas
from lookupdb_operator.manifests.routing_table import routing_table, synced
from lookupdb_operator.manifests.secret import store_secret
from lookupdb_operator.manifests.shards import (
    field_manager,
    scaled,
    service_and_budgets,
    shard_stamps,
    shards,
    template_digest,
)

__all__ = [
    "build_digest",
    "builder",
    "digest_of",
    "field_manager",
    "find_changer",
    "fingerprint",
    "held_fields",
    "mark_of",
    "network_policies",
    "router_replicas",
    "routers",
    "routing_table",
    "scaled",
    "service_and_budgets",
    "shard_stamps",
    "shards",
    "store_secret",
    "synced",
    "template_digest",
    "with_replicas",
]
