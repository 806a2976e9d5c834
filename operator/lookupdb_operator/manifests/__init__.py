"""All objects that the operator writes, as pure functions: no client, no clock.

Manifests are complete, because server-side apply removes what was left out. Two are partial: ``render_nudge``
returns a pod's annotation, and another manager applies ``render_scale``.
"""

from __future__ import annotations

from lookupdb_operator.manifests.objects import (
    content_mark,
    find_changer,
    hash_held_fields,
    is_made_once,
    password_key,
    read_digest,
    read_table_version,
    render_key_secret,
    render_store_secret,
    take_fingerprint,
    write_mark,
)
from lookupdb_operator.manifests.pods import adopted_address, build_digest, has_builder_image, render_builder
from lookupdb_operator.manifests.routers import (
    has_room_for_both,
    render_nudge,
    render_router_keys,
    render_routers,
    render_routing_table,
    scale_routers,
    uses_service_accounts,
)
from lookupdb_operator.manifests.shards import (
    field_manager,
    guarding_policy,
    has_image_volume,
    render_image_probe,
    render_network_policies,
    render_scale,
    render_service_and_budgets,
    render_shards,
    render_sync,
    shard_digests,
    template_digest,
    uses_images,
)
