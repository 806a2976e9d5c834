"""A routing table with its connections: its generations, their shards, and the endpoints behind them.

Endpoints outlive tables: one that stands in the old and the new table under the same identity keeps its connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lookupdb.keys import make_key_encoder
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.identity import ShardIdentity
from lookupdb.route.shards.endpoint import Endpoint
from lookupdb.route.shards.replicas import ShardReplicas
from lookupdb.route.shards.settings import EndpointSettings
from lookupdb.route.table.routing_table import GenerationEntry, RoutingTable


@dataclass(frozen=True, slots=True, eq=False)
class RoutedGeneration(ServedGeneration):
    """One generation with its shards' connections."""

    shards: tuple[ShardReplicas, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LiveTable:
    """``table`` with connections. Made by ``EndpointPool.connect``, ended by ``close``."""

    table: RoutingTable
    active: RoutedGeneration
    generations: dict[str, RoutedGeneration]

    @property
    def proven(self) -> list[bool]:
        """Of each shard of the active generation, whether an endpoint is ready now."""
        return [shard.is_proven for shard in self.active.shards]

    @property
    def unreached(self) -> list[int]:
        """The shards of the active generation of which no endpoint has ever been ready."""
        return [shard.number for shard in self.active.shards if not shard.was_proven]

    def endpoints(self) -> Iterator[Endpoint]:
        """Of all generations and shards."""
        yield from self.active_endpoints()
        yield from self.candidate_endpoints()

    def active_endpoints(self) -> Iterator[Endpoint]:
        """Of the active generation."""
        return _endpoints((self.active,))

    def candidate_endpoints(self) -> Iterator[Endpoint]:
        """Of the generations that are asked for by name: nothing waits for them."""
        return _endpoints(self._candidates())

    def problems(self, most: int) -> list[dict[str, Any]]:
        """Endpoints that are not ready, at most so many, with why; those of the active generation first."""
        found: list[dict[str, Any]] = []
        for generation in (self.active, *self._candidates()):
            for shard in generation.shards:
                for endpoint in shard.describe():
                    if endpoint["state"] != "ready" and len(found) < most:
                        found.append({"generation": generation.name, "shard": shard.number, **endpoint})
        return found

    def close(self) -> None:
        """Stop observing the endpoints."""
        for generation in self.generations.values():
            for shard in generation.shards:
                shard.close()

    def _candidates(self) -> Iterator[RoutedGeneration]:
        return (generation for generation in self.generations.values() if generation is not self.active)


def _endpoints(generations: Iterable[RoutedGeneration]) -> Iterator[Endpoint]:
    return (endpoint for generation in generations for shard in generation.shards for endpoint in shard.endpoints)


@dataclass(slots=True)
class EndpointPool:
    """All endpoints that are connected or being connected."""

    settings: EndpointSettings
    _endpoints: dict[tuple[ShardIdentity, ServerAddress], Endpoint] = field(default_factory=dict)

    def connect(self, table: RoutingTable) -> LiveTable:
        """``table`` with its endpoints, of which new ones begin to connect."""
        generations = {entry.generation: self._connect_generation(table, entry) for entry in table.entries}
        return LiveTable(table, generations[table.active], generations)

    def close_unused(self, tables: Iterable[LiveTable]) -> None:
        """Close the endpoints that are in none of ``tables``."""
        needed = {endpoint for live in tables for endpoint in live.endpoints()}
        for key, endpoint in list(self._endpoints.items()):
            if endpoint not in needed:
                del self._endpoints[key]
                endpoint.close()

    def _connect_generation(self, table: RoutingTable, entry: GenerationEntry) -> RoutedGeneration:
        return RoutedGeneration(
            name=entry.generation,
            value_format=entry.value_format,
            records=entry.records,
            built_at=entry.built_at,
            encode=make_key_encoder(entry.normalize),
            normalize=tuple(entry.normalize),
            shards=tuple(self._connect_shard(table, entry, number) for number in range(len(entry.shards))),
        )

    def _connect_shard(self, table: RoutingTable, entry: GenerationEntry, number: int) -> ShardReplicas:
        identity = ShardIdentity(
            dataset=str(table.dataset),
            uid=table.dataset.uid,
            generation=entry.generation,
            shard=number,
            shards=len(entry.shards),
            normalize=entry.normalize,
            value_format=entry.value_format,
        )
        endpoints = [self._connect_endpoint(address, identity) for address in entry.shards[number].endpoints]
        return ShardReplicas(number, endpoints, self.settings)

    def _connect_endpoint(self, address: ServerAddress, identity: ShardIdentity) -> Endpoint:
        endpoint = self._endpoints.get((identity, address))
        if endpoint is None:
            endpoint = self._endpoints[identity, address] = Endpoint(address, identity, self.settings)
            endpoint.start()
        return endpoint
