"""The Secret through which builders and fetchers in a dataset's namespace reach the store."""

from __future__ import annotations

import base64
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.config import StoreAccess
from lookupdb_operator.manifests.metadata import render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset

PREFIX: Final = "LOOKUPDB_STORE_"
"""Of every variable, so that the store's credentials are not taken for the source's, nor the other way round."""


def render_store_secret(dataset: ObservedDataset, access: StoreAccess) -> Manifest:
    """Of ``access``, as environment variables.

    It is ``data`` and not ``stringData``: what is left out of that stays, because it is not ours to server-side apply.
    """
    data = {
        PREFIX + name: base64.b64encode(value.encode()).decode() for name, value in sorted(access.environment.items())
    }
    return stamp(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": render_metadata(dataset, names.store_secret(dataset.name, dataset.uid)),
            "type": "Opaque",
            "data": data,
        }
    )
