"""`python -m benchmarks.peers.in_process PLAN`: compare lookups within this process, on its core.

The plan is JSON: files, a folder for each of our sides, keys, rounds and seconds. First compares each side's answers
with the expected ones. Prints the keys a second of each round, for each measure and side.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import orjson

import lookupdb
from benchmarks.results import LMDB, OURS, PYTHON_UNCOMPRESSED, UNCOMPRESSED
from lookupdb import native

Lookup = Callable[[list[str]], object]
"""Looks up some keys."""

_KINDS: Final = {OURS: ("zstd", "1"), UNCOMPRESSED: ("none", "1"), PYTHON_UNCOMPRESSED: ("none", "0")}
"""Side → the compression of its generation, and its kernels."""
_CHUNK: Final = 1000
"""Keys between two looks at the clock."""


def fill(path: Path, records: Iterator[tuple[str, bytes]]) -> None:
    """Open a plain LMDB file of ``records``, as usual with py-lmdb."""
    options: dict[str, Any] = {"subdir": False, "lock": False, "sync": False, "map_size": 1 << 36}
    with lmdb.open(str(path), **options) as env, env.begin(write=True) as txn:
        for key, value in records:
            txn.put(key.encode(), value)
    path.chmod(0o444)


def open_ours(folder: str, kernels: str) -> Any:
    """Open the mapping with these kernels. It has nothing to follow, but checks as often as if it had."""
    os.environ[native.VARIABLE] = kernels
    return lookupdb.open(folder)


def make_measures(plan: dict[str, Any]) -> dict[str, dict[str, Lookup]]:
    """Measure → side → its lookup function."""
    txn: Any = lmdb.open(plan["lmdb"], subdir=False, readonly=True, lock=False).begin()
    raw = {side: open_ours(plan["raw"][kind], kernels) for side, (kind, kernels) in _KINDS.items()}
    decoded = {side: open_ours(plan["json"][kind], kernels) for side, (kind, kernels) in _KINDS.items()}
    return {
        "raw": {LMDB: lambda keys: get_plain(txn.get, keys), **{side: one_by_one(raw[side]) for side in raw}},
        "json": {LMDB: lambda keys: get_json(txn.get, keys), **{side: one_by_one(decoded[side]) for side in decoded}},
        "many": {LMDB: lambda keys: get_plain(txn.get, keys), **{side: together(raw[side]) for side in raw}},
    }


def get_plain(get: Callable[[bytes], bytes], keys: list[str]) -> list[bytes]:
    """Look up with py-lmdb."""
    return [get(key.encode()) for key in keys]


def get_json(get: Callable[[bytes], bytes], keys: list[str]) -> list[Any]:
    """Look up with py-lmdb, and decode with orjson."""
    loads = orjson.loads
    return [loads(get(key.encode())) for key in keys]


def one_by_one(mapping: Any) -> Lookup:
    """Look up with ``mapping[key]``."""
    return lambda keys: [mapping[key] for key in keys]


def together(mapping: Any) -> Lookup:
    """Look up with ``get_many`` of 100 keys."""

    def look_up(keys: list[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(keys), 100):
            found.extend(mapping.get_many(keys[start : start + 100]).values())
        return found

    return look_up


def run_round(look_up: Lookup, keys: list[str], seconds: float) -> float:
    """Return keys a second; keys are asked for in turn, again and again."""
    done, place, started = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        chunk = keys[place : place + _CHUNK]
        look_up(chunk)
        done += len(chunk)
        place = (place + _CHUNK) % len(keys)
    return done / elapsed


def check(measures: dict[str, dict[str, Lookup]], keys: list[str], values: list[bytes]) -> None:
    """Raises AssertionError if a side's answers differ from the expected ones."""
    parsed = [orjson.loads(value) for value in values]
    for measure, sides in measures.items():
        for side, look_up in sides.items():
            assert look_up(keys) == (parsed if measure == "json" else values), (measure, side)


def main(plan: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return measure → side → the rate of each round. Sides take turns."""
    measures, keys = make_measures(plan), plan["keys"]
    rates: dict[str, dict[str, list[float]]] = {}
    check(measures, keys[:5000], [value.encode() for value in plan["values"][:5000]])
    for measure, sides in measures.items():
        rates[measure] = {side: [] for side in sides}
        for number in range(-1, plan["rounds"]):  # the first one warms up, and does not count
            for side, look_up in sides.items():
                rate = run_round(look_up, keys, plan["seconds"])
                if number >= 0:
                    rates[measure][side].append(rate)
    return rates


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(main(orjson.loads(Path(sys.argv[1]).read_bytes()))))
