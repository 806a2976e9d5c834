"""The uids of all objects by the API server's own list, with which the cache is compared.

An informer that has to list again does not learn what was deleted meanwhile; this comparison shows it.
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator import kinds, names
from lookupdb_operator.api.client import METADATA_ONLY, Api
from lookupdb_operator.kinds import Kind

_PAGE: Final = 500


class Listing:
    """Lists what is watched, in ``namespaces`` or, when there are none, everywhere."""

    def __init__(self, api: Api, namespaces: tuple[str, ...] = ()) -> None:
        self._api = api
        self._namespaces = namespaces or ("",)

    async def list_uids(self, kind: Kind) -> frozenset[str]:
        """The uid of every watched object of ``kind``. Raises what ``api`` raises; NotFound for an unknown kind."""
        found: set[str] = set()
        for namespace in self._namespaces:
            query = {"limit": str(_PAGE)}
            if kind != kinds.DATASET:
                query["labelSelector"] = names.DATASET
            more = ""
            while True:
                page = await self._api.request(
                    "GET",
                    kind.path(namespace),
                    subject=f"all {kind.plural}",
                    query=query | ({"continue": more} if more else {}),
                    accept=METADATA_ONLY,
                )
                found.update(item["metadata"]["uid"] for item in page.get("items") or ())
                more = page.get("metadata", {}).get("continue", "")
                if not more:
                    break
        return frozenset(found)

    async def is_discovered(self, kind: Kind) -> bool:
        """Whether the API server names ``kind`` among what it has: some time after a CustomResourceDefinition was
        made. Raises what ``api`` raises."""
        groups = await self._api.request("GET", "/apis", subject="the groups of the API")
        versions = {version["groupVersion"] for group in groups["groups"] for version in group["versions"]}
        if kind.api_version not in versions:
            return False
        resources = await self._api.request(
            "GET", f"/apis/{kind.api_version}", subject=f"the resources of {kind.api_version}"
        )
        return kind.plural in {resource["name"] for resource in resources["resources"]}
