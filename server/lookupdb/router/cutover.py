"""Cutover: puts a new routing table into effect once its endpoints are verified; the old table serves until then.

``diagnose_refusal`` (of ``routing_table``) and ``awaited_shards`` decide whether and when a table may follow another.
``EndpointPool`` connects a table and gives a ``LiveTable``. ``Cutover`` replaces the table in effect.

Afterwards clients can request the previous generation by name for PREVIOUS_SECONDS, while each of its shards has an
endpoint. So a client that reads one generation in several requests can finish.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lookupdb.keys import make_key_encoder
from lookupdb.router.counters import INDEX, TABLE_VERSION
from lookupdb.router.lane import EndpointSettings
from lookupdb.router.link import ShardIdentity
from lookupdb.router.lookups import LookupReplicas, ServedGeneration
from lookupdb.router.replicas import Endpoint, ShardReplicas
from lookupdb.router.routing_table import GenerationEntry, RoutingTable, diagnose_refusal
from lookupdb.router.server_connection import ServerAddress


def awaited_shards(
    new: RoutingTable, proven: Iterable[bool], current: RoutingTable | None, current_proven: Iterable[bool]
) -> list[int]:
    """Return the shards that keep ``new`` from taking effect. ``proven`` has an entry for each shard of the active
    entry: whether an endpoint is verified.

    A shard that changes its generation needs a verified endpoint. Any other shard needs one only if it
    has one now: a shard that is down must not keep the others from their new addresses.
    """
    if current is None:
        return []
    shards, current_shards = new.active_entry.shards, current.active_entry.shards
    if new.dataset != current.dataset or len(shards) != len(current_shards):
        return [number for number, is_proven in enumerate(proven) if not is_proven]
    states = zip(shards, proven, current_shards, current_proven, strict=True)
    return [
        number
        for number, (shard, is_proven, current_shard, was_proven) in enumerate(states)
        if not is_proven and (was_proven or shard.generation != current_shard.generation)
    ]


def may_ask_for_previous(new: RoutingTable, old: RoutingTable) -> bool:
    """Return whether clients may still request the active generation of ``old``, the table that ``new`` has replaced.
    They may not if the dataset differs, ``new`` names the generation itself, or a table is mixed, so that no generation
    is complete."""
    if new.dataset != old.dataset or new.is_mixed or old.is_mixed:
        return False
    return all(entry.generation != old.active for entry in new.entries)


def may_still_ask_for_previous(new: RoutingTable, old: RoutingTable, previous: RoutingTable) -> bool:
    """Return whether clients may still request the active generation of ``previous``, the table before ``old``. They
    may only if ``new`` keeps the generation of ``old``, for example with other servers.
    """
    return new.active == old.active and may_ask_for_previous(new, previous)


# A routing table with its connections. Endpoints that appear in the old and the new table under the same identity keep
# their connections.


_TAG_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class RoutedGeneration(ServedGeneration):
    """One generation, or all that serve the shards of a mixed table, with their connections."""

    shards: tuple[ShardReplicas, ...]

    @property
    def is_mixed(self) -> bool:
        """Return whether several generations serve the shards."""
        return len(self.names) > 1

    def select(self, shards: Iterable[LookupReplicas]) -> ServedGeneration:
        """Return the source of an answer from ``shards``; without shards, this generation."""
        generations = {shard.generation for shard in shards}
        if len(generations) == 1:
            return generations.pop()
        if not generations or len(generations) == len(self.names):
            return self
        found = {generation.name for generation in generations}
        names = tuple(name for name in self.names if name in found)
        return ServedGeneration(names, self.value_format, self.encode, self.normalize)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LiveTable:
    """``table`` with connections, made by ``EndpointPool.connect`` and ended by ``close``."""

    table: RoutingTable
    active: RoutedGeneration
    generations: dict[str, RoutedGeneration]
    """Generations that clients can request by name: none of a mixed table, because none is complete."""
    mixture: dict[str, int] | None
    """The number of shards that each generation of a mixed table serves; None for other tables."""
    built_at: str
    """Build time of the oldest generation that serves a shard of the active entry: ISO 8601 with time zone."""

    @property
    def proven(self) -> list[bool]:
        """Return whether an endpoint is ready, for each shard of the active entry."""
        return [shard.is_proven for shard in self.active.shards]

    @property
    def unreached(self) -> list[int]:
        """The shards of the active entry that never had a ready endpoint."""
        return [shard.number for shard in self.active.shards if not shard.was_proven]

    @property
    def candidates(self) -> list[RoutedGeneration]:
        """The generations that serve only requests by name; no cutover waits for them."""
        return [generation for generation in self.generations.values() if generation is not self.active]

    def endpoints(self) -> Iterator[Endpoint]:
        """Return the endpoints of all generations and shards."""
        return _list_endpoints((self.active, *self.candidates))

    def problems(self, most: int) -> list[dict[str, Any]]:
        """Return at most ``most`` endpoints that are not ready, with reasons; those of the active generation first."""
        found = [
            {
                "generation": shard.generation.name,
                "shard": shard.number,
                "endpoint": str(endpoint.address),
                "why": endpoint.link.last_failure,
            }
            for generation in (self.active, *self.candidates)
            for shard in generation.shards
            for endpoint in shard.endpoints
            if not endpoint.link.is_ready
        ]
        return found[:most]

    def close(self) -> None:
        """Stop observing the endpoints."""
        for generation in (self.active, *self.candidates):
            for shard in generation.shards:
                shard.close()


def _list_endpoints(generations: Iterable[RoutedGeneration]) -> Iterator[Endpoint]:
    """Yield the endpoints of all shards of ``generations``."""
    return (endpoint for generation in generations for shard in generation.shards for endpoint in shard.endpoints)


@dataclass(slots=True)
class EndpointPool:
    """All connected and connecting endpoints."""

    settings: EndpointSettings
    _endpoints: dict[tuple[ShardIdentity, ServerAddress], Endpoint] = field(default_factory=dict)

    def connect(self, table: RoutingTable) -> LiveTable:
        """Return ``table`` with its endpoints; new ones start to connect."""
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
        served: dict[str, ServedGeneration] = {}
        shards: list[ShardReplicas] = []
        for number, shard in enumerate(entry.shards):
            if shard.generation not in served:
                # All routers compute the same tag. A generation of the same name in a recreated dataset, or in another
                # one, has a different tag.
                of_tag = (table.dataset, table.dataset.uid, shard.generation, shard.built_at, shard.content)
                digest = hashlib.sha256("\0".join(map(str, (*of_tag, entry.value_format))).encode()).hexdigest()
                etag = f'"{shard.generation}-{digest[:_TAG_DIGITS]}"'
                served[shard.generation] = ServedGeneration((shard.generation,), *about, etag=etag)
            identity = ShardIdentity(
                dataset=str(table.dataset),
                uid=table.dataset.uid,
                generation=shard.generation,
                shard=number,
                shards=len(entry.shards),
                normalize=entry.normalize,
                value_format=entry.value_format,
                password=shard.password,
            )
            endpoints = []
            for address in shard.endpoints:
                endpoint = self._endpoints.get((identity, address))
                if endpoint is None:
                    endpoint = self._endpoints[identity, address] = Endpoint(address, identity, self.settings)
                    endpoint.link.start()
                endpoints.append(endpoint)
            is_candidate = entry.generation != table.active
            generation = served[shard.generation]
            shards.append(ShardReplicas(number, generation, endpoints, self.settings, is_candidate=is_candidate))
        return RoutedGeneration(names, *about, tuple(shards))


log = logging.getLogger(__name__)

READY_SECONDS: Final = 10.0
"""Once a table was in effect for this long, the router is ready if it has reached one shard: a shard that is down must
not keep every new router out of service."""
PREVIOUS_SECONDS: Final = 10.0
"""The default ``drainSeconds``, for which the old servers stay."""
WAITING: Final = "no routing table yet"
_MAX_REPORTED: Final = 20
"""Limit of endpoints that a report to the supervisor names."""
_RELOADS: Final = INDEX["reloads"]
_REFUSED: Final = INDEX["reloads_refused"]
_VERSION: Final = INDEX[TABLE_VERSION]
_ENDPOINTS: Final = INDEX["endpoints_ready"], INDEX["endpoints_unready"]
_CANDIDATE_ENDPOINTS: Final = INDEX["candidate_endpoints_ready"], INDEX["candidate_endpoints_unready"]


class TableUser(Protocol):
    """The user of the table in effect."""

    live: LiveTable | None
    previous: RoutedGeneration | None
    """The previously active generation, which clients can still request by name."""


class Cutover:
    """Puts routing tables into effect in ``lookups``. Calls ``on_change`` when ``status()`` has changed.

    With ``dataset_uid``, it refuses every table of another dataset, including the first.
    """

    def __init__(
        self,
        lookups: TableUser,
        settings: EndpointSettings,
        on_change: Callable[[], None],
        dataset_uid: str | None = None,
    ) -> None:
        self._lookups = lookups
        self._settings = settings
        self._counters = settings.link.counters
        self._on_change = on_change
        self._dataset_uid = dataset_uid
        self._pool = EndpointPool(settings)
        self._next: LiveTable | None = None
        self._previous: LiveTable | None = None
        self._previous_timer: asyncio.TimerHandle | None = None
        self._retiring: list[LiveTable] = []
        self._error: str | None = None
        self._seen_version: int | None = None
        self._digest: str | None = None
        """Digest of the text of the table in effect: the latest text if several mean the same."""
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._ready_timer: asyncio.TimerHandle | None = None
        self._may_lack_shards = False

    def offer(self, table: RoutingTable) -> None:
        """Put ``table`` into effect as soon as possible. The latest offer wins."""
        self._seen_version = table.version
        current = self._lookups.live
        why = diagnose_refusal(table, current.table if current else None, self._dataset_uid)
        if why:
            self.refuse(why)
            return
        self._error = None
        self._abandon()
        if current is None or table != current.table:
            live = self._pool.connect(table)
            for endpoint in live.endpoints():
                endpoint.observers.append(self._on_endpoint_change)
            self._next = live
        else:
            self._digest = table.digest
        self._close_unused()
        self._consider()

    def refuse(self, why: str) -> None:
        """Keep the table in effect. Log once why a new one cannot be used, and report it in ``status()``."""
        if why != self._error:
            self._counters[_REFUSED] += 1
            log.warning("routing table refused: %s", why, extra={"inEffect": self._counters[_VERSION]})
            self._error = why
            self._on_change()

    def status(self) -> dict[str, Any]:
        """Return the worker's report: the table in effect, the version seen, and problems."""
        live = self._lookups.live
        reported = self._next or live
        entries = [entry for offered in (self._next, live) if offered for entry in offered.table.entries]
        passwords = {shard.password for entry in entries for shard in entry.shards if shard.password}
        return {
            "dataset": str(live.table.dataset) if live else None,
            "datasetUid": live.table.dataset.uid if live else None,
            "tableVersion": live.table.version if live else None,
            "tableDigest": self._digest,
            "tableSeen": self._seen_version,
            "generation": live.table.active if live else None,
            "shardGenerations": live.mixture if live else None,
            "unreachedShards": live.unreached[:_MAX_REPORTED] if live else None,
            "error": self._error or self._waiting(),
            "endpoints": reported.problems(_MAX_REPORTED) if reported else [],
            "missingKeys": self._settings.link.passwords.list_missing(passwords)[:_MAX_REPORTED],
        }

    @property
    def is_complete(self) -> bool:
        """Return whether a table is in effect and each shard of its active generation was reached at least once.

        READY_SECONDS after the first table took effect, one shard is enough.
        """
        live = self._lookups.live
        if live is None:
            return False
        unreached = live.unreached
        return not unreached or (self._may_lack_shards and len(unreached) < len(live.active.shards))

    def close(self) -> None:
        """Close all connections."""
        if self._ready_timer:
            self._ready_timer.cancel()
        self._abandon()
        self._end_previous()
        self._lookups.live = None
        self._pool.close_unused(())

    def _waiting(self) -> str | None:
        if not self._next:
            return None if self._lookups.live else WAITING
        awaited = self._awaited_shards(self._next)
        if not awaited:  # the table is about to take effect
            return None
        shards = ", ".join(map(str, awaited[:_MAX_REPORTED]))
        waits = f"version {self._next.table.version} waits for an endpoint to be verified for shard {shards}"
        for number in awaited:
            for endpoint in self._next.active.shards[number].endpoints:
                failure = endpoint.link.last_failure or ""
                if "password" in failure:
                    return f"{waits}: {endpoint.address} {failure}"
        return waits

    def _awaited_shards(self, new: LiveTable) -> list[int]:
        current = self._lookups.live
        return awaited_shards(
            new.table, new.proven, current.table if current else None, current.proven if current else ()
        )

    def _release(self, live: LiveTable) -> None:
        for endpoint in live.endpoints():
            endpoint.observers.remove(self._on_endpoint_change)
        live.close()

    def _on_endpoint_change(self) -> None:
        """Call ``_consider`` soon, once for all changes of this event loop iteration."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._consider)

    def _consider(self) -> None:
        self._is_scheduled = False
        if self._previous and not all(self._previous.proven):
            self._end_previous()
        new = self._next
        if new and not self._awaited_shards(new):
            self._take_over(new)
        self._count_endpoints()
        self._on_change()

    def _take_over(self, new: LiveTable) -> None:
        old, self._lookups.live, self._next = self._lookups.live, new, None
        self._digest = new.table.digest
        counters = self._counters
        counters[_RELOADS] += 1
        counters[_VERSION] = new.table.version
        log.info("routing table in effect", extra={"tableVersion": new.table.version, "generation": new.active.name})
        if not self._ready_timer:
            self._ready_timer = self._loop.call_later(READY_SECONDS, self._accept_unreached_shards)
        if old is None:
            return
        # Keep the table whose generation clients may request by name, and retire the other.
        previous = self._previous
        if not previous or not may_still_ask_for_previous(new.table, old.table, previous.table):
            self._end_previous()
            if may_ask_for_previous(new.table, old.table):
                self._previous, self._lookups.previous = old, old.active
                self._previous_timer = self._loop.call_later(PREVIOUS_SECONDS, self._end_previous)
                return
        self._begin_retirement(old)

    def _end_previous(self) -> None:
        previous, self._previous, self._lookups.previous = self._previous, None, None
        if self._previous_timer:
            self._previous_timer.cancel()
            self._previous_timer = None
        if previous:
            self._begin_retirement(previous)
            self._count_endpoints()

    def _begin_retirement(self, old: LiveTable) -> None:
        # After the deadline, all its lookups have ended.
        self._retiring.append(old)
        self._loop.call_later(self._settings.deadline_seconds, self._retire, old)

    def _accept_unreached_shards(self) -> None:
        self._may_lack_shards = True
        self._on_change()

    def _retire(self, old: LiveTable) -> None:
        self._retiring.remove(old)
        self._release(old)
        self._close_unused()

    def _abandon(self) -> None:
        """Release the next table, which another one has replaced before it took effect."""
        if self._next:
            abandoned, self._next = self._next, None
            self._release(abandoned)

    def _close_unused(self) -> None:
        self._pool.close_unused(
            live for live in (self._lookups.live, self._next, self._previous, *self._retiring) if live
        )

    def _count_endpoints(self) -> None:
        live, previous = self._lookups.live, self._previous
        active = (live.active,) if live else ()
        candidates = (*(live.candidates if live else ()), *((previous.active,) if previous else ()))
        for (ready, unready), generations in ((_ENDPOINTS, active), (_CANDIDATE_ENDPOINTS, candidates)):
            states = [endpoint.link.is_ready for endpoint in _list_endpoints(generations)]
            for gauge, count in ((ready, sum(states)), (unready, len(states) - sum(states))):
                self._counters[gauge] = count
