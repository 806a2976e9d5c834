"""The router's lookup core within the test's own loop: tables, waiters that remember, endpoints' settings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from lookupdb.router import routing_table as tables
from lookupdb.router.batch_keys import UNAVAILABLE, BatchValues
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.counters import INDEX, NAMES
from lookupdb.router.cutover import Cutover
from lookupdb.router.lane import EndpointSettings
from lookupdb.router.link import LinkSettings, ShardIdentity
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import Problem, ServedGeneration
from lookupdb.router.routing_table import RoutingTable
from support.batches import list_values, make_keys
from support.waiting import soon

BUILT_AT = "2026-11-20T00:00:00Z"


def entry(shards: Sequence[Sequence[Any]], generation: str = "g1", **members: Any) -> dict[str, Any]:
    """One generation of a routing table; ``shards`` are lists of endpoints, as ``host:port`` or ServerAddress."""
    return {
        "generation": generation,
        "rollout": "r" + generation[1:],
        "records": 3,
        "bytes": 4096,
        "builtAt": BUILT_AT,
        "normalize": [],
        "valueFormat": "raw",
        "shards": [{"endpoints": [str(endpoint) for endpoint in endpoints]} for endpoints in shards],
        **members,
    }


def mixed(target: dict[str, Any], source: dict[str, Any], shards: Collection[int]) -> dict[str, Any]:
    """The entry of ``target`` while its ``shards`` are still served as in the entry ``source``."""
    of_source = {"generation": source["generation"], "builtAt": source["builtAt"]}
    places = [
        {**of_source, **source["shards"][number]} if number in shards else shard
        for number, shard in enumerate(target["shards"])
    ]
    return {**target, "shards": places}


def table_file(*entries: dict[str, Any], version: int = 1, **members: Any) -> bytes:
    """A routing table file's content; the first entry is active."""
    is_mixed = any("generation" in shard for entry in entries for shard in entry["shards"])
    return orjson.dumps(
        {
            "formatVersion": 2 if is_mixed else 1,
            "version": version,
            "dataset": {"namespace": "default", "name": "sample", "uid": "local"},
            "active": entries[0]["generation"],
            "generations": entries,
            **members,
        }
    )


def table(*entries: dict[str, Any], version: int = 1, **members: Any) -> RoutingTable:
    """Parse the same table."""
    return tables.parse_table(table_file(*entries, version=version, **members))


def identity(shard: int = 0, shards: int = 1, generation: str = "g1", **members: Any) -> ShardIdentity:
    """The identity that an endpoint of ``table``'s dataset must prove."""
    given = {"dataset": "default/sample", "uid": "local", "normalize": (), "value_format": "raw", **members}
    return ShardIdentity(generation=generation, shard=shard, shards=shards, **given)


class Answer:
    """A Waiter and a BatchWaiter that keeps its result; ``await`` it to get the result.

    bytes (found), None (missing), a list (done), Problem (unavailable), the unknown generation's name as str, or as
    int the limit that the values exceed.
    """

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.generation: str | None = None

    def __await__(self) -> Any:
        return self.future.__await__()

    def _tell(self, what: Any, generation: ServedGeneration | None = None) -> None:
        self.generation = generation.name if generation else None
        self.future.set_result(what)  # raises if it is called twice

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        self._tell(value, generation)

    def missing(self, generation: ServedGeneration) -> None:
        self._tell(None, generation)

    def too_large(self, limit: int) -> None:
        self._tell(limit)

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        found = list_values(values)
        assert (problem is not None) == (UNAVAILABLE in found) == bool(values.unavailable_count)
        assert size == sum(len(value) for value in found if isinstance(value, bytes))
        assert any(value is not UNAVAILABLE for value in found) or not found
        self._tell(found, generation)

    def unavailable(self, problem: Problem) -> None:
        self._tell(problem)

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        self._tell(name, active)


SHORT_DEADLINE = 400
"""In milliseconds, for tests in which the deadline passes."""
LIMITS = RouterLimits(
    deadline_milliseconds=10_000,  # passes in no test, however busy the machine
    hedge_milliseconds=0,
    max_keys=1000,
    max_body_bytes=1 << 20,
    max_connections=1000,
    max_queued_keys=20_000,
    header_timeout_seconds=10,
    idle_timeout_seconds=75,
    write_timeout_seconds=30,
)


@dataclass
class Core:
    """Lookups and their cutover, as a router's worker has them. ``close()`` at the end."""

    limits: RouterLimits = LIMITS
    counters: memoryview = field(default_factory=lambda: memoryview(bytearray(8 * len(NAMES))).cast("Q"))
    dataset_uid: str | None = None
    budget_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        self.budget = RouterBudget(self.budget_bytes)
        self.lookups = LookupCore(self.limits, self.counters, self.budget)
        link = LinkSettings(self.counters, random.Random(1), self.budget)
        settings = EndpointSettings(self.limits.deadline_seconds, self.limits.max_queued_keys, link)
        self.cutover = Cutover(self.lookups, settings, lambda: None, self.dataset_uid)

    def count(self, name: str) -> int:
        """One of the counters."""
        return self.counters[INDEX[name]]

    async def serve(self, routing_table: RoutingTable) -> None:
        """Put a table into effect, and wait until all of its shards are reached."""
        self.cutover.offer(routing_table)
        await soon(
            lambda: self.cutover.is_complete and self.cutover.status()["tableVersion"] == routing_table.version,
            f"routing table {routing_table.version} is in effect",
        )

    def find(self, key: str, generation: str | None = None, *, deadline_ms: int | None = None) -> Answer:
        """One lookup."""
        answer = Answer()
        self.lookups.find(key, answer, generation, deadline_ms=deadline_ms)
        return answer

    def find_many(
        self,
        keys: list[str],
        generation: str | None = None,
        *,
        are_single: bool = False,
        deadline_ms: int | None = None,
    ) -> Answer:
        """One batch."""
        answer = Answer()
        batch_keys = make_keys(keys)
        self.lookups.find_many(batch_keys, answer, generation, are_single=are_single, deadline_ms=deadline_ms)
        return answer

    def close(self) -> None:
        """Close all connections."""
        self.cutover.close()
