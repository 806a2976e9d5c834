"""Every object that the operator writes, from data to data: no client, no clock.

All are whole, because server-side apply takes away what we leave out that we had written before. But for two:
``render_nudge`` is part of a pod, all that is ours of it; ``render_scale`` is applied in another manager's name.
"""

from __future__ import annotations

from lookupdb_operator.manifests.builder import adopted_address, build_digest, render_builder
from lookupdb_operator.manifests.delivery import uses_images
from lookupdb_operator.manifests.fields import find_changer, hash_held_fields, take_fingerprint
from lookupdb_operator.manifests.image_probe import has_image_volume, render_image_probe
from lookupdb_operator.manifests.metadata import content_mark, read_digest, read_table_version, write_mark
from lookupdb_operator.manifests.network_policy import guarding_policy, render_network_policies
from lookupdb_operator.manifests.passwords import is_made_once, password_key, render_key_secret
from lookupdb_operator.manifests.router_auth import render_router_keys, uses_service_accounts
from lookupdb_operator.manifests.routers import render_routers, router_replicas, with_replicas
from lookupdb_operator.manifests.routing_table import has_room_for_both, render_nudge, render_routing_table
from lookupdb_operator.manifests.shards import (
    field_manager,
    render_scale,
    render_service_and_budgets,
    render_shards,
    shard_digests,
    template_digest,
)
from lookupdb_operator.manifests.store_secret import render_store_secret
from lookupdb_operator.manifests.sync import render_sync

__all__ = [
    "adopted_address",
    "build_digest",
    "content_mark",
    "field_manager",
    "find_changer",
    "guarding_policy",
    "has_image_volume",
    "has_room_for_both",
    "hash_held_fields",
    "is_made_once",
    "password_key",
    "read_digest",
    "read_table_version",
    "render_builder",
    "render_image_probe",
    "render_key_secret",
    "render_network_policies",
    "render_nudge",
    "render_router_keys",
    "render_routers",
    "render_routing_table",
    "render_scale",
    "render_service_and_budgets",
    "render_shards",
    "render_store_secret",
    "render_sync",
    "router_replicas",
    "shard_digests",
    "take_fingerprint",
    "template_digest",
    "uses_images",
    "uses_service_accounts",
    "with_replicas",
    "write_mark",
]
