"""Measures actions that copy pages shared by a fork. A child of a process that holds the dict does one thing, and its
private memory is read before and after. Nothing changes the dict.

  run writes
"""

from __future__ import annotations

import gc
import json
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import materials
import memory
import options
import ways
from options import megabytes


def main() -> None:
    """Print what each action copies."""
    options.run(_measure, options.parser("writes", str(__doc__)).parse_args())


def _measure(arguments: Namespace, folder: Path) -> None:
    options.need_memory(options.RECORD_BYTES * arguments.records, "ask for fewer --records")
    materials.make(folder, arguments.records, [])
    records = ways.load_dict(folder)
    held = memory.read_memory().resident
    actions: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "looks through one list of each 100": partial(_read, records, _look_through, step=100),
        "looks through one of each 10": partial(_read, records, _look_through, step=10),
        "looks through all": partial(_read, records, _look_through),
        "products[:5] of all": partial(_read, records, lambda products: products[:5]),
        "json.dumps(products) of all": partial(_read, records, json.dumps),
        "list(records), all keys": partial(list, records),
        "gc.collect()": gc.collect,
    }
    rows = [[name, *_act(action)] for name, action in actions.items()]
    gc.freeze()
    for name in ("gc.collect()", "looks through all"):
        rows.append([f"{name}, after gc.freeze()", *_act(actions[name])])
    options.print_table([f"a child of a process with {megabytes(held)}", "private before", "after"], rows)


def _act(action: Callable[[], object]) -> list[str]:
    """Return the private memory of a child before and after the action."""

    def measure() -> list[int]:
        before = memory.read_memory().private
        action()
        return [before, memory.read_memory().private]

    return [megabytes(size) for size in memory.in_child(measure)]


def _read(records: ways.Records, read: Callable[[list[str]], object], step: int = 1) -> None:
    """Read one of each ``step`` values. Iterating over keys would write to each key; iterating over values does not."""
    for products in islice(records.values(), None, None, step):
        read(products)


def _look_through(products: list[str]) -> bool:
    """Compare each product, as a service does that leaves out sold-out ones."""
    return any(product == "" for product in products)


if __name__ == "__main__":
    main()
