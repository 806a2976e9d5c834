"""Look keys up in a dataset, from Python: a client of the router's HTTP API (docs/how-to/client.md).

    from lookupdb.client import Client

    with Client("http://airports-router") as airports:
        airports.get("KJFK")                # the value, or None if no record has the key
        airports.get_many(codes).found      # many at once, from one generation

``AsyncClient`` is the same for asyncio. A key is found, missing, or unavailable. Unavailable is raised if the key's
shard cannot be reached now. The modules, in the order of a lookup:

async_client, sync_client    the public classes; the one for threads is generated from the one for asyncio
core                         decisions without I/O: which lookups share a batch, parts of a large call, retries; cache
async_transport, sync_transport    batches and connections
wire                         requests and answers as bytes, and the meaning of an answer
settings                     a client's arguments, its token and its certificates
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lookupdb.client.sync_client import Client, Lookups
from lookupdb.client.wire import DatasetDescription, Lookup, LookupResults
from lookupdb.errors import InvalidAnswer, LookupFailed, RequestRefused, Unavailable, UnknownGeneration

if TYPE_CHECKING:
    from lookupdb.client.async_client import AsyncClient, AsyncLookups

__all__ = [
    "AsyncClient",
    "AsyncLookups",
    "Client",
    "DatasetDescription",
    "InvalidAnswer",
    "Lookup",
    "LookupFailed",
    "LookupResults",
    "Lookups",
    "RequestRefused",
    "Unavailable",
    "UnknownGeneration",
]


def __getattr__(name: str) -> Any:
    """Import AsyncClient on first use: asyncio takes as long to import as everything else here, and as much memory."""
    if name in ("AsyncClient", "AsyncLookups"):
        from lookupdb.client import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
