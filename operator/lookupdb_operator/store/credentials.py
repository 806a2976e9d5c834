"""The credentials of the chart's own store: generated once, at random, and never changed."""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.api.cluster import Cluster

log = logging.getLogger(__name__)

_ID_BYTES: Final = 10  # hex: 20 characters, as AWS has them
_SECRET_BYTES: Final = 20  # hex: 40


async def ensure_credentials(cluster: Cluster, namespace: str, name: str) -> None:
    """Create the Secret ``name`` if there is none. Store and operator read it; nobody else knows the credentials."""
    if await cluster.get_secret(namespace, name) is not None:
        return
    if await cluster.create_secret(_credentials(namespace, name)):
        log.info("created Secret %s/%s with credentials for the store", namespace, name)


def _credentials(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": dict(names.OPERATOR_LABELS),
        },
        "type": "Opaque",
        "stringData": {
            "AWS_ACCESS_KEY_ID": secrets.token_hex(_ID_BYTES),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(_SECRET_BYTES),
        },
    }
