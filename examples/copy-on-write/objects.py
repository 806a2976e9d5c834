"""Measures the bytes that Python's objects add to records: a record as JSON, as objects, and in lookupdb's files.

run objects
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import materials
import memory
import options
import ways
from options import megabytes


def main() -> None:
    """Print the size of a record and of all records."""
    options.run(_measure, options.parser("objects", str(__doc__)).parse_args())


def _measure(arguments: Namespace, folder: Path) -> None:
    options.need_memory(options.RECORD_BYTES * arguments.records, "ask for fewer --records")
    materials.make(folder, arguments.records, ["lookupdb"])
    source = (folder / ways.SOURCE).stat().st_size
    files = sum(file.stat().st_size for file in ways.dataset_folder(folder).rglob("*.lmdb"))
    found = memory.in_child(lambda: _load(folder))
    rows = [
        ["the source, JSON lines", source],
        ["objects, by sys.getsizeof", found["objects"]],
        ["resident memory that the dict takes", found["resident"]],
        ["lookupdb's files", files],
    ]
    options.print_table(
        ["", "bytes a record", f"{arguments.records:,} records"],
        [[name, f"{size / arguments.records:,.0f}", megabytes(size)] for name, size in rows],
    )
    print(f"\nThe first record: {found['record']}")


def _load(folder: Path) -> dict[str, Any]:
    before = memory.read_memory().resident
    records = ways.load_dict(folder)
    resident = memory.read_memory().resident - before
    key, products = next(iter(records.items()))
    return {
        "objects": sys.getsizeof(records) + sum(map(_size, records.items())),
        "resident": resident,
        "record": (
            f"{len(json.dumps({'customer': key, 'products': products}, separators=(',', ':')))} bytes of JSON, "
            f"{2 + len(products)} objects: a key of {sys.getsizeof(key)} bytes, a list of {sys.getsizeof(products)}, "
            f"{len(products)} strings of {sys.getsizeof(products[0])}"
        ),
    }


def _size(record: tuple[str, list[str]]) -> int:
    """Return the bytes of all objects of a record, without unused space in pools and arenas."""
    key, products = record
    return sys.getsizeof(key) + sys.getsizeof(products) + sum(map(sys.getsizeof, products))


if __name__ == "__main__":
    main()
