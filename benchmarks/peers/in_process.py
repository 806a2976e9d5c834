"""`python -m benchmarks.peers.in_process PLAN`: lookups in this one process, side by side, on the core that it has.

The plan is JSON: files, a folder for each of ours, the keys, and how often and how long. Prints, for each measure and
side, the keys a second of each round. Before that each side's answers are compared with those expected.
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
"""Looks all of some keys up."""

_KINDS: Final = {OURS: ("zstd", "1"), UNCOMPRESSED: ("none", "1"), PYTHON_UNCOMPRESSED: ("none", "0")}
"""Side → the compression of its generation, and its kernels."""
_CHUNK: Final = 1000
"""Keys that are looked up between two looks at the clock."""


def fill(path: Path, records: Iterator[tuple[str, bytes]]) -> None:
    """A plain LMDB file of ``records``, as one would write it with py-lmdb."""
    options: dict[str, Any] = {"subdir": False, "lock": False, "sync": False, "map_size": 1 << 36}
    with lmdb.open(str(path), **options) as env, env.begin(write=True) as txn:
        for key, value in records:
            txn.put(key.encode(), value)
    path.chmod(0o444)


def open_ours(folder: str, kernels: str) -> Any:
    """The mapping, with these kernels, which follows nothing but looks as often as it would."""
    os.environ[native.VARIABLE] = kernels
    return lookupdb.open(folder)


def make_measures(plan: dict[str, Any]) -> dict[str, dict[str, Lookup]]:
    """Measure → side → how it looks keys up."""
    txn: Any = lmdb.open(plan["lmdb"], subdir=False, readonly=True, lock=False).begin()
    raw = {side: open_ours(plan["raw"][kind], kernels) for side, (kind, kernels) in _KINDS.items()}
    decoded = {side: open_ours(plan["json"][kind], kernels) for side, (kind, kernels) in _KINDS.items()}
    return {
        "raw": {LMDB: lambda keys: get_plain(txn.get, keys), **{side: one_by_one(raw[side]) for side in raw}},
        "json": {LMDB: lambda keys: get_json(txn.get, keys), **{side: one_by_one(decoded[side]) for side in decoded}},
        "many": {LMDB: lambda keys: get_plain(txn.get, keys), **{side: together(raw[side]) for side in raw}},
    }


def get_plain(get: Callable[[bytes], bytes], keys: list[str]) -> list[bytes]:
    """By py-lmdb."""
    return [get(key.encode()) for key in keys]


def get_json(get: Callable[[bytes], bytes], keys: list[str]) -> list[Any]:
    """By py-lmdb, decoded by orjson."""
    loads = orjson.loads
    return [loads(get(key.encode())) for key in keys]


def one_by_one(mapping: Any) -> Lookup:
    """By ``mapping[key]``."""
    return lambda keys: [mapping[key] for key in keys]


def together(mapping: Any) -> Lookup:
    """By ``get_many`` of 100 keys."""

    def look_up(keys: list[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(keys), 100):
            found.extend(mapping.get_many(keys[start : start + 100]).values())
        return found

    return look_up


def run_round(look_up: Lookup, keys: list[str], seconds: float) -> float:
    """Keys a second, of keys one after the other, and again from the first."""
    done, place, started = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        chunk = keys[place : place + _CHUNK]
        look_up(chunk)
        done += len(chunk)
        place = (place + _CHUNK) % len(keys)
    return done / elapsed


def check(measures: dict[str, dict[str, Lookup]], keys: list[str], values: list[bytes]) -> None:
    """Raises AssertionError if a side's answers are others than those expected."""
    parsed = [orjson.loads(value) for value in values]
    for measure, sides in measures.items():
        for side, look_up in sides.items():
            assert look_up(keys) == (parsed if measure == "json" else values), (measure, side)


def main(plan: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Measure → side → the rate of each round. Sides take turns."""
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
