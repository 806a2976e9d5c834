"""Cutover: a new routing table takes effect once its endpoints have proven themselves; until then the old serves.

Afterwards the generation before can still be asked by name for PREVIOUS_SECONDS, as long as each of its shards has an
endpoint that answers: who reads many keys of one generation, in several requests, can finish.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lookupdb.keys import make_key_encoder
from lookupdb.router.counters import INDEX, TABLE_VERSION
from lookupdb.router.lookups import LookupReplicas, ServedGeneration
from lookupdb.router.servers.connection import ServerAddress
from lookupdb.router.servers.link import LinkState
from lookupdb.router.servers.proof import PasswordRef, ShardIdentity
from lookupdb.router.shards.lane import EndpointSettings
from lookupdb.router.shards.replicas import Endpoint, ShardReplicas
from lookupdb.router.table.routing_table import GenerationEntry, RoutingTable, ShardEntry

# Which routing table may follow which, and when. No I/O.


_CONTRADICTION: Final = "is in effect with other content"


def diagnose_refusal(new: RoutingTable, current: RoutingTable | None, uid: str | None = None) -> str | None:
    """Why ``new`` may not follow ``current`` in a router of the dataset with ``uid`` (None: of any), as a sentence;
    None when it may.

    Versions only grow, so that a late or repeated write cannot bring back shards that are being retired. Another
    dataset (also one deleted and made again: its uid differs) counts from its own beginning.
    """
    if uid is not None and new.dataset.uid != uid:
        return (
            f"it is the table of {new.dataset} with uid {new.dataset.uid!r}, and this router is of the dataset with "
            f"uid {uid!r}"
        )
    if current is None or new.dataset != current.dataset or new.version > current.version or new == current:
        return None
    if new.version == current.version:
        return f"{describe_contradiction(new.version)}; a change needs a greater version"
    return f"version {new.version} is older than version {current.version}, which is in effect"


def describe_contradiction(version: int) -> str:
    """The words of a refusal by which the operator knows that a router answers from another table ``version`` than it
    is given. Nothing but a greater version heals that."""
    return f"version {version} {_CONTRADICTION}"


def tells_contradiction(why: str) -> bool:
    """Whether ``why`` says so of any version."""
    return _CONTRADICTION in why


def awaited_shards(
    new: RoutingTable, proven: Iterable[bool], current: RoutingTable | None, current_proven: Iterable[bool]
) -> list[int]:
    """The shards that keep ``new`` from being put into effect; ``proven`` tells, shard by shard of the active entry,
    whether an endpoint has proven itself.

    A shard that another generation is to serve needs one. A shard of the same generation need only be no worse off
    than it is: one that is down before and after must not keep the others from their new addresses.
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
    """Whether the active generation of ``old``, which ``new`` has replaced, may still be asked for by name: of another
    dataset it may not, ``new`` may name it itself, and in a mixed table no generation is whole."""
    if new.dataset != old.dataset or new.is_mixed or old.is_mixed:
        return False
    return all(entry.generation != old.active for entry in new.entries)


def may_still_ask_for_previous(new: RoutingTable, old: RoutingTable, previous: RoutingTable) -> bool:
    """The same of the active generation of ``previous``, which came before that of ``old``: ``new`` has the generation
    of ``old``, of other servers say, and it is not the generation that has changed."""
    return new.active == old.active and may_ask_for_previous(new, previous)


# A routing table with its connections: its generations, their shards, and the endpoints behind them.
#
# Endpoints outlive tables: one that stands in the old and the new table under the same identity keeps its connection.


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


log = logging.getLogger(__name__)

READY_SECONDS: Final = 10.0
"""After a table has been in effect for so long, one shard that was reached is enough to be ready: others' keys are
better answered than none, and a shard that is down must not keep every new router out of service."""
PREVIOUS_SECONDS: Final = 10.0
"""The least for which its servers stay by default: ``drainSeconds``."""
WAITING: Final = "no routing table yet"
_MAX_REPORTED: Final = 20
"""Reports to the supervisor name at most so many endpoints."""
_RELOADS: Final = INDEX["reloads"]
_REFUSED: Final = INDEX["reloads_refused"]
_VERSION: Final = INDEX[TABLE_VERSION]
_ENDPOINTS: Final = INDEX["endpoints_ready"], INDEX["endpoints_unready"]
_CANDIDATE_ENDPOINTS: Final = INDEX["candidate_endpoints_ready"], INDEX["candidate_endpoints_unready"]


class TableUser(Protocol):
    """Who looks keys up in the table in effect."""

    live: LiveTable | None
    previous: RoutedGeneration | None
    """Was active before, and may still be asked by name."""


class Cutover:
    """Puts routing tables into effect in ``lookups``. ``on_change`` is called when ``status()`` has changed.

    With ``dataset_uid``, a table of any other dataset is refused, the first one too.
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
        """Of the text of the table in effect: of the last one, if several said the same."""
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._ready_timer: asyncio.TimerHandle | None = None
        self._may_lack_shards = False

    def offer(self, table: RoutingTable) -> None:
        """Put ``table`` into effect as soon as it can be; the newest table offered wins."""
        self._seen_version = table.version
        current = self._lookups.live
        why = diagnose_refusal(table, current.table if current else None, self._dataset_uid)
        if why:
            self.refuse(why)
            return
        self._error = None
        self._abandon()
        if current is None or table != current.table:
            self._next = self._connect(table)
        else:
            self._digest = table.digest
        self._close_unused()
        self._consider()

    def refuse(self, why: str) -> None:
        """Keep the table in effect, and log once ``why`` a new one cannot be used; ``status()`` says it too."""
        if why != self._error:
            self._counters[_REFUSED] += 1
            log.warning("routing table refused: %s", why, extra={"inEffect": self._counters[_VERSION]})
            self._error = why
            self._on_change()

    def status(self) -> dict[str, Any]:
        """What this worker reports: whose table and which version is in effect, the digest of its text, the version
        seen, and what is wrong."""
        live = self._lookups.live
        reported = self._next or live
        return {
            "datasetUid": live.table.dataset.uid if live else None,
            "tableVersion": live.table.version if live else None,
            "tableDigest": self._digest,
            "tableSeen": self._seen_version,
            "generation": live.table.active if live else None,
            "shardGenerations": live.mixture if live else None,
            "unreachedShards": live.unreached[:_MAX_REPORTED] if live else None,
            "error": self._error or self._waiting(),
            "endpoints": reported.problems(_MAX_REPORTED) if reported else [],
            "missingKeys": self._missing_keys(),
        }

    @property
    def is_complete(self) -> bool:
        """Whether a table is in effect and each shard of its active generation has been reached at least once.

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

    def _missing_keys(self) -> list[str]:
        """Of passwords, by the keys' fingerprints: those that a table names and that no file holds now."""
        passwords = {ref for live in (self._next, self._lookups.live) if live for ref in live.passwords}
        return self._settings.link.passwords.list_missing(passwords)[:_MAX_REPORTED]

    def _waiting(self) -> str | None:
        if not self._next:
            return None if self._lookups.live else WAITING
        awaited = self._awaited_shards(self._next)
        if not awaited:  # it takes effect in a moment
            return None
        shards = ", ".join(map(str, awaited[:_MAX_REPORTED]))
        why = self._next.password_failure(awaited)
        waits = f"version {self._next.table.version} waits for an endpoint to prove itself of shard {shards}"
        return f"{waits}: {why}" if why else waits

    def _awaited_shards(self, new: LiveTable) -> list[int]:
        current = self._lookups.live
        return awaited_shards(
            new.table,
            new.proven,
            current.table if current else None,
            current.proven if current else (),
        )

    def _connect(self, table: RoutingTable) -> LiveTable:
        live = self._pool.connect(table)
        for endpoint in live.endpoints():
            endpoint.observers.append(self._on_endpoint_change)
        return live

    def _release(self, live: LiveTable) -> None:
        for endpoint in live.endpoints():
            endpoint.observers.remove(self._on_endpoint_change)
        live.close()

    def _on_endpoint_change(self) -> None:
        """Consider soon, once for all changes of this iteration of the event loop."""
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
        if old:
            self._succeed(new, old)

    def _succeed(self, new: LiveTable, old: LiveTable) -> None:
        """Keep of ``old`` what may be asked for by name, or of the table before it, and retire what may not."""
        previous = self._previous
        if previous and may_still_ask_for_previous(new.table, old.table, previous.table):
            self._begin_retirement(old)
            return
        self._end_previous()
        if may_ask_for_previous(new.table, old.table):
            self._previous, self._lookups.previous = old, old.active
            self._previous_timer = self._loop.call_later(PREVIOUS_SECONDS, self._end_previous)
        else:
            self._begin_retirement(old)

    def _end_previous(self) -> None:
        """From now on the generation before cannot be asked for."""
        previous, self._previous, self._lookups.previous = self._previous, None, None
        if self._previous_timer:
            self._previous_timer.cancel()
            self._previous_timer = None
        if previous:
            self._begin_retirement(previous)
            self._count_endpoints()

    def _begin_retirement(self, old: LiveTable) -> None:
        # Whatever was asked of it has been answered, or given up, by then.
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
        """Release the next table: another has come before it could take effect."""
        if self._next:
            abandoned, self._next = self._next, None
            self._release(abandoned)

    def _close_unused(self) -> None:
        self._pool.close_unused(
            live for live in (self._lookups.live, self._next, self._previous, *self._retiring) if live
        )

    def _count_endpoints(self) -> None:
        live, previous = self._lookups.live, self._previous
        self._count(_ENDPOINTS, live.active_endpoints() if live else ())
        candidates = live.candidate_endpoints() if live else ()
        self._count(_CANDIDATE_ENDPOINTS, (*candidates, *(previous.active_endpoints() if previous else ())))

    def _count(self, gauges: tuple[int, int], endpoints: Iterable[Endpoint]) -> None:
        states = [endpoint.state is LinkState.READY for endpoint in endpoints]
        ready, unready = gauges
        self._counters[ready] = sum(states)
        self._counters[unready] = len(states) - sum(states)
