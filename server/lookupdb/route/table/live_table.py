"""A routing table with its connections: its generations, their shards, and the endpoints behind them.

Endpoints outlive tables: one that stands in the old and the new table under the same identity keeps its connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lookupdb.keys import make_key_encoder
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.lookups.pending import LookupReplicas
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.identity import ShardIdentity
from lookupdb.route.servers.passwords import PasswordRef
from lookupdb.route.shards.endpoint import Endpoint
from lookupdb.route.shards.replicas import ShardReplicas
from lookupdb.route.shards.settings import EndpointSettings
from lookupdb.route.table.routing_table import GenerationEntry, RoutingTable, ShardEntry

_TAG_DIGITS: Final = 16
_MAX_COMBINATIONS: Final = 64
"""Of generations of a mixed table, that are remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class RoutedGeneration(ServedGeneration):
    """One generation with its shards' connections; in a mixed table, all that serve its shards."""

    shards: tuple[ShardReplicas, ...]
    _combinations: dict[frozenset[ServedGeneration], ServedGeneration] = field(default_factory=dict)

    @property
    def is_mixed(self) -> bool:
        """Whether several generations serve the shards."""
        return len(self.names) > 1

    def select(self, shards: Iterable[LookupReplicas]) -> ServedGeneration:
        """What an answer comes from that ``shards`` of it gave; all of it when none did."""
        generations = frozenset(shard.generation for shard in shards)
        if len(generations) == 1:
            return next(iter(generations))
        if not generations or len(generations) == len(self.names):
            return self
        return self._combinations.get(generations) or self._combine(generations)

    def _combine(self, generations: frozenset[ServedGeneration]) -> ServedGeneration:
        """The new entry of ``_combinations``."""
        if len(self._combinations) >= _MAX_COMBINATIONS:
            self._combinations.clear()
        found = {generation.name for generation in generations}
        names = tuple(name for name in self.names if name in found)
        combined = ServedGeneration(names, self.value_format, self.encode, self.normalize)
        self._combinations[generations] = combined
        return combined


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LiveTable:
    """``table`` with connections. Made by ``EndpointPool.connect``, ended by ``close``."""

    table: RoutingTable
    active: RoutedGeneration
    generations: dict[str, RoutedGeneration]
    """Those that can be asked for by name: none of a mixed table, because none is whole."""
    mixture: dict[str, int] | None
    """How many shards each generation of a mixed table serves; None of another."""
    built_at: str
    """When the oldest generation that serves a shard of the active entry was built: ISO 8601, with its time zone."""

    @property
    def proven(self) -> list[bool]:
        """Of each shard of the active entry, whether an endpoint is ready now."""
        return [shard.is_proven for shard in self.active.shards]

    @property
    def unreached(self) -> list[int]:
        """The shards of the active entry of which no endpoint has ever been ready."""
        return [shard.number for shard in self.active.shards if not shard.was_proven]

    def endpoints(self) -> Iterator[Endpoint]:
        """Of all generations and shards."""
        yield from self.active_endpoints()
        yield from self.candidate_endpoints()

    def active_endpoints(self) -> Iterator[Endpoint]:
        """Of the active generation, or what serves its shards."""
        return _endpoints((self.active,))

    def candidate_endpoints(self) -> Iterator[Endpoint]:
        """Of the generations that are asked for by name: nothing waits for them."""
        return _endpoints(self._candidates())

    @property
    def passwords(self) -> set[PasswordRef]:
        """Those that its servers ask for."""
        shards = (shard for entry in self.table.entries for shard in entry.shards)
        return {shard.password for shard in shards if shard.password}

    def password_failure(self, shards: Collection[int]) -> str:
        """Which server of ``shards`` of the active entry is not usable on account of its password, and why; empty when
        none is known."""
        for number in shards:
            for endpoint in self.active.shards[number].endpoints:
                failure = endpoint.last_failure or ""
                if "password" in failure:
                    return f"{endpoint.address} {failure}"
        return ""

    def problems(self, most: int) -> list[dict[str, Any]]:
        """Endpoints that are not ready, at most so many, with why; those of the active generation first."""
        found: list[dict[str, Any]] = []
        for generation in (self.active, *self._candidates()):
            for shard in generation.shards:
                for endpoint in shard.describe():
                    if endpoint["state"] != "ready" and len(found) < most:
                        found.append({"generation": shard.generation.name, "shard": shard.number, **endpoint})
        return found

    def close(self) -> None:
        """Stop observing the endpoints."""
        for generation in (self.active, *self._candidates()):
            for shard in generation.shards:
                shard.close()

    def _candidates(self) -> Iterator[RoutedGeneration]:
        return (generation for generation in self.generations.values() if generation is not self.active)


def _endpoints(generations: Iterable[RoutedGeneration]) -> Iterator[Endpoint]:
    return (endpoint for generation in generations for shard in generation.shards for endpoint in shard.endpoints)


def _make_tag(table: RoutingTable, entry: GenerationEntry, shard: ShardEntry) -> str:
    """Return the entity tag of values of the generation of ``shard``. All routers have the same one, and no other
    generation has it: not one of the same name after its dataset was deleted and made again, nor another dataset's."""
    about = (table.dataset, table.dataset.uid, shard.generation, shard.built_at, shard.content, entry.value_format)
    digest = hashlib.sha256("\0".join(map(str, about)).encode()).hexdigest()
    return f'"{shard.generation}-{digest[:_TAG_DIGITS]}"'


@dataclass(slots=True)
class EndpointPool:
    """All endpoints that are connected or being connected."""

    settings: EndpointSettings
    _endpoints: dict[tuple[ShardIdentity, ServerAddress], Endpoint] = field(default_factory=dict)

    def connect(self, table: RoutingTable) -> LiveTable:
        """``table`` with its endpoints, of which new ones begin to connect."""
        generations = {entry.generation: self._connect_generation(table, entry) for entry in table.entries}
        entry = table.active_entry
        active = generations[table.active]
        if table.is_mixed:
            return LiveTable(table, active, {}, entry.shard_generations, entry.oldest_built_at)
        return LiveTable(table, active, generations, None, entry.built_at)

    def close_unused(self, tables: Iterable[LiveTable]) -> None:
        """Close the endpoints that are in none of ``tables``."""
        needed = {endpoint for live in tables for endpoint in live.endpoints()}
        for key, endpoint in list(self._endpoints.items()):
            if endpoint not in needed:
                del self._endpoints[key]
                endpoint.close()

    def _connect_generation(self, table: RoutingTable, entry: GenerationEntry) -> RoutedGeneration:
        names = tuple(entry.shard_generations)
        about = (entry.value_format, make_key_encoder(entry.normalize), entry.normalize)
        tags = {shard.generation: _make_tag(table, entry, shard) for shard in entry.shards}
        served = {name: ServedGeneration((name,), *about, etag=tags[name]) for name in names}
        shards = tuple(
            self._connect_shard(table, entry, number, served[shard.generation])
            for number, shard in enumerate(entry.shards)
        )
        return RoutedGeneration(names, *about, shards)

    def _connect_shard(
        self, table: RoutingTable, entry: GenerationEntry, number: int, generation: ServedGeneration
    ) -> ShardReplicas:
        identity = ShardIdentity(
            dataset=str(table.dataset),
            uid=table.dataset.uid,
            generation=generation.name,
            shard=number,
            shards=len(entry.shards),
            normalize=entry.normalize,
            value_format=entry.value_format,
            password=entry.shards[number].password,
        )
        endpoints = [self._connect_endpoint(address, identity) for address in entry.shards[number].endpoints]
        is_candidate = entry.generation != table.active
        return ShardReplicas(number, generation, endpoints, self.settings, is_candidate=is_candidate)

    def _connect_endpoint(self, address: ServerAddress, identity: ShardIdentity) -> Endpoint:
        endpoint = self._endpoints.get((identity, address))
        if endpoint is None:
            endpoint = self._endpoints[identity, address] = Endpoint(address, identity, self.settings)
            endpoint.start()
        return endpoint
