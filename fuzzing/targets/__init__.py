"""All targets, by the sender of the bytes: clients of routers, shard servers and the gateway; the servers that answer;
writers of files; the API server and pods."""

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
