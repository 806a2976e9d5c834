"""Measures a process while new records replace the old. A dict is parsed again, and swapped when it is complete; a
mapping of lookupdb switches to the next generation, which another process has built. Both answer meanwhile.

  run reload
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks import generators

import lookupdb
import materials
import memory
import options
import ways
from options import megabytes


def main() -> None:
    """Print the resident memory of each way before, at most, and after."""
    options.run(_measure, options.parser("reload", str(__doc__)).parse_args())


def _measure(arguments: Namespace, folder: Path) -> None:
    options.need_memory(2 * options.RECORD_BYTES * arguments.records, "ask for fewer --records")
    materials.make(folder, arguments.records, ["lookupdb"])
    tomorrow = folder / "tomorrow"
    materials.make_source(tomorrow, arguments.records, generators.SEED + 1)
    options.print_table(
        ["", "resident before", "at most", "after", "of it mapped files"],
        [
            ["dict, parsed again", *memory.in_child(lambda: _reload_dict(folder, tomorrow))],
            ["lookupdb.open()", *memory.in_child(lambda: _follow(folder, tomorrow))],
        ],
    )


def _reload_dict(today: Path, tomorrow: Path) -> list[str]:
    service = {"records": ways.load_dict(today)}
    return _watch(lambda: service.update(records=ways.load_dict(tomorrow)))


def _follow(today: Path, tomorrow: Path) -> list[str]:
    mapping = lookupdb.open(ways.dataset_folder(today), refresh_seconds=None)
    _read(mapping)
    materials.make_generation(today, tomorrow)
    try:
        return _watch(lambda: (mapping.reload(), _read(mapping)))
    finally:
        shutil.rmtree(mapping.facts.folder)  # keep only today's generation in the folder


def _read(records: ways.Records) -> int:
    """Read every value, so that all pages are in memory. Return the number of values."""
    return sum(1 for _ in records.values())


def _watch(change: Callable[[], object]) -> list[str]:
    """Return resident memory before the change, at most, and after it."""
    before = memory.read_memory()
    memory.reset_peak()
    change()
    after = memory.read_memory()
    return [megabytes(size) for size in (before.resident, memory.peak_resident(), after.resident, after.file)]


if __name__ == "__main__":
    main()
