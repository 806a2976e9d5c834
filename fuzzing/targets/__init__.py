"""All targets, by who sends the bytes: clients of the router, of shard servers, of the gateway; shard servers,
gateways, routers and registries that answer; files that others write; the API server and pods, as the operator reads
them.
"""

from __future__ import annotations

from typing import Final

from fuzzing.target import Target
from fuzzing.targets import client, files, gateway, http, kubernetes, registry, resp

TARGETS: Final[tuple[Target, ...]] = (
    *http.TARGETS,
    *resp.TARGETS,
    *files.TARGETS,
    *gateway.TARGETS,
    *client.TARGETS,
    *kubernetes.TARGETS,
    *registry.TARGETS,
)
