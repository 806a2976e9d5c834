"""Lookups in the caller's process, against py-lmdb on a plain file of the same records, in turns on one core."""

from __future__ import annotations

import sys
from typing import Any, Final

import orjson

from benchmarks.arena import SHARDS, Arena
from benchmarks.machine import SERVER_CORE
from benchmarks.peers import in_process, loaders
from benchmarks.processes import output, pinned
from benchmarks.results import LMDB, Result, single

_TITLES: Final = {
    "raw": "mapping[key], raw values",
    "json": "mapping[key], JSON decoded",
    "many": "get_many of 100, raw values",
}
_NOTE: Final = (
    "Here and in the next two tables: one process on one core, all pages in memory, random keys of type str. py-lmdb: "
    "txn.get(key.encode()), and orjson.loads for JSON. Answers are compared first."
)


def measure(arena: Arena) -> list[Result]:
    """Keys one by one, with raw values and with JSON, and a hundred at a time."""
    plan = arena.run / "in-process.plan"
    plan.write_bytes(orjson.dumps(_make_plan(arena)))
    rounds = arena.settings.rounds * arena.settings.seconds
    words = [sys.executable, "-m", "benchmarks.peers.in_process", str(plan)]
    rates = orjson.loads(output(pinned(words, SERVER_CORE), timeout=120 + 20 * rounds))
    return [
        Result(
            name=f"in-process-{name}",
            title=f"In process: {title}",
            unit="keys/s",
            sides={side: single(*rounds) for side, rounds in rates[name].items()},
            note=_NOTE if name == "raw" else "",
            baselines=(LMDB,),
        )
        for name, title in _TITLES.items()
    ]


def _make_plan(arena: Arena) -> dict[str, Any]:
    plain = arena.run / "plain.lmdb"
    if not plain.exists():
        arena.say("filling a plain LMDB file")
        in_process.fill(plain, loaders.records(arena.source))
    kinds = ("none", "zstd")
    return {
        "lmdb": str(plain),
        "json": {kind: str(arena.generation(shards=SHARDS, compression=kind).folder) for kind in kinds},
        "raw": {kind: str(arena.raw_generation(shards=SHARDS, compression=kind).folder) for kind in kinds},
        "keys": [key.decode() for key in arena.pairs.keys],
        "values": [value.decode() for value in arena.pairs.values],
        "rounds": arena.settings.rounds,
        "seconds": arena.settings.seconds / 2,
    }
