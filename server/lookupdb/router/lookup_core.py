"""The entry to the lookup core.

``find`` takes one key, ``find_many`` a batch. Each picks the generation, encodes and groups the keys by shard, submits
them to the shards' replicas and watches their deadlines. The waiter gets exactly one call.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from typing import Any, Final

from lookupdb.keys import InvalidKey, shard_number
from lookupdb.process.worker import make_observer
from lookupdb.router.batch_keys import BatchKeys, ShardKeys
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.counters import INDEX
from lookupdb.router.cutover import LiveTable, RoutedGeneration
from lookupdb.router.lookups import (
    CANDIDATE_KEYS_UNAVAILABLE,
    KEYS_UNAVAILABLE,
    NO_TABLE,
    OVERLOADED,
    BatchWaiter,
    LookupReplicas,
    RequestDeadlines,
    ScatterGather,
    ShardSlice,
    SingleKey,
    Waiter,
)

_MISSING: Final = INDEX["keys_missing"]


class LookupCore:
    """Finds keys in the routing table in effect, ``live``, which a cutover replaces in one assignment."""

    def __init__(self, limits: RouterLimits, counters: memoryview, budget: RouterBudget) -> None:
        self.live: LiveTable | None = None
        self.previous: RoutedGeneration | None = None
        """The active generation before the last cutover, which clients can still request by name."""
        self.counters = counters
        self.observe = make_observer(counters)
        self.budget = budget
        self.make_key: Callable[[bytes, Waiter, LookupReplicas, float], SingleKey] = SingleKey
        self.make_slice: Callable[[ShardKeys, ScatterGather, LookupReplicas, float], ShardSlice] = ShardSlice
        """``make_key`` and ``make_slice`` make the pending lookups. Those of a traced request record when they end."""
        deadlines = RequestDeadlines(limits.deadline_milliseconds, limits.hedge_milliseconds / 1000, counters)
        self._watch, self._choose_watch = deadlines.own.add, deadlines.choose_watch
        self._now = asyncio.get_running_loop().time

    def find(self, key: str, waiter: Waiter, generation: str | None = None, *, deadline_ms: int | None = None) -> None:
        """Look up ``key`` in the active generation or the named one.

        Calls the waiter within the router's deadline, or within ``deadline_ms`` if that is less, possibly before this
        returns. A key that no record can have (``keys.InvalidKey``) is missing.
        """
        live = self.live
        if live is None:
            self.counters[KEYS_UNAVAILABLE] += 1
            waiter.unavailable(NO_TABLE)
            return
        chosen = live.active if generation is None else self._find_generation(live, generation)
        if chosen is None:
            waiter.unknown_generation(generation or "", live.active)
            return
        try:
            encoded = chosen.encode(key)
        except InvalidKey:
            self.counters[_MISSING] += 1
            waiter.missing(chosen)
            return
        if self.budget.used > self.budget.limit:
            self.counters[KEYS_UNAVAILABLE if chosen is live.active else CANDIDATE_KEYS_UNAVAILABLE] += 1
            waiter.unavailable(OVERLOADED)
            return
        shards = chosen.shards
        shard = shards[shard_number(encoded, len(shards))]
        lookup = self.make_key(encoded, waiter, shard, self._now())
        shard.submit(lookup)
        if not lookup.is_done:
            (self._watch if deadline_ms is None else self._choose_watch(deadline_ms))(lookup)

    def find_many(
        self,
        keys: BatchKeys,
        waiter: BatchWaiter,
        generation: str | None = None,
        *,
        are_single: bool = False,
        deadline_ms: int | None = None,
    ) -> ScatterGather | None:
        """Look up all ``keys`` in the active generation or the named one, all from one routing table.

        May call the waiter before this returns. ``are_single``: the keys are separate lookups of one key each, which
        the budget treats like ``find``, not like a batch. The returned lookup, if any, may be abandoned until the
        waiter is called.
        """
        live = self.live
        if live is None:
            self.counters[KEYS_UNAVAILABLE] += len(keys)
            waiter.unavailable(NO_TABLE)
            return None
        chosen = live.active if generation is None else self._find_generation(live, generation)
        if chosen is None:
            waiter.unknown_generation(generation or "", live.active)
            return None
        if self.budget.used > (self.budget.limit if are_single else self.budget.batch_mark):
            self.counters[KEYS_UNAVAILABLE if chosen is live.active else CANDIDATE_KEYS_UNAVAILABLE] += len(keys)
            waiter.unavailable(OVERLOADED)
            return None
        gather = ScatterGather(keys, waiter, chosen, self.budget)
        slices = self._slices(keys, gather, chosen)
        if chosen.is_mixed:
            gather.generation = chosen.select(shard_slice.replicas for shard_slice in slices)
        if not slices:
            gather.finish()
            return None
        gather.await_slices(slices)
        watch = self._watch if deadline_ms is None else self._choose_watch(deadline_ms)
        for shard_slice in slices:
            shard_slice.replicas.submit(shard_slice)
            if not shard_slice.is_done:
                watch(shard_slice)
        return gather

    def _find_generation(self, live: LiveTable, name: str) -> RoutedGeneration | None:
        """Return the generation called ``name`` if all its shards are served."""
        previous = self.previous
        return live.generations.get(name) or (previous if previous and previous.name == name else None)

    def describe_dataset(self) -> dict[str, Any] | None:
        """Return the dataset in effect as ``GET /v1/dataset`` answers it, or None without a routing table."""
        live = self.live
        if live is None:
            return None
        table, entry = live.table, live.table.active_entry
        layouts = dict.fromkeys(entry.shard_generations, (entry.key_columns, entry.separator))
        layouts |= {other.generation: (other.key_columns, other.separator) for other in table.entries}
        age = time.time() - datetime.datetime.fromisoformat(live.built_at).timestamp()
        described = {
            "namespace": table.dataset.namespace,
            "name": table.dataset.name,
            "generation": entry.generation,
            "records": entry.records,
            "shards": len(entry.shards),
            "builtAt": live.built_at,
            "ageSeconds": round(max(0.0, age), 3),
            "candidates": [other.generation for other in table.entries if other.generation != table.active],
        }
        named = {name: {"columns": columns, "separator": by} for name, (columns, by) in layouts.items() if columns}
        if named:
            described["keys"] = named
        if live.mixture:
            described["shardGenerations"] = live.mixture
        return described

    def _slices(self, keys: BatchKeys, gather: ScatterGather, generation: RoutedGeneration) -> list[ShardSlice]:
        """Return the pending lookups of ``keys``, each for one shard and no larger than a batch.

        Keys that no record can have are left out.
        """
        shards, now, make_slice = generation.shards, self._now(), self.make_slice
        slices: list[ShardSlice] = []
        key_count = 0
        for shard_keys in keys.group(generation.encode, generation.normalize, len(shards)):
            shard, count = shards[shard_keys.shard], len(shard_keys)
            most = shard.slice_keys
            key_count += count
            if count <= most:
                slices.append(make_slice(shard_keys, gather, shard, now))
            else:
                pieces = (shard_keys.cut(start, most) for start in range(0, count, most))
                slices += [make_slice(piece, gather, shard, now) for piece in pieces]
        if key_count < gather.key_count:
            self.counters[_MISSING] += gather.key_count - key_count
        return slices
