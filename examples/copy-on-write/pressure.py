"""Measures what the kernel reclaims when memory is short. A process reads all records, asks the kernel to reclaim what
it can of the process (MADV_PAGEOUT), and reads all again.

  run pressure
"""

from __future__ import annotations

import ctypes
from argparse import Namespace
from collections import deque
from pathlib import Path
from typing import Final

import materials
import memory
import options
import ways
from options import megabytes

_PAGEOUT: Final = 21
"""MADV_PAGEOUT of madvise, in Linux 5.4 and newer."""


def main() -> None:
    """Print the resident memory of each way before and after, and when all records were read again."""
    options.run(_measure, options.parser("pressure", str(__doc__)).parse_args())


def _measure(arguments: Namespace, folder: Path) -> None:
    options.need_memory(options.RECORD_BYTES * arguments.records, "ask for fewer --records")
    materials.make(folder, arguments.records, ["lookupdb"])
    rows = [[ways.WAYS[name].title, *_reclaim(name, folder)] for name in ("dict", "lookupdb")]
    options.print_table(["", "resident, all read", "reclaimed", "all read again"], rows)
    print(f"\nSwap: {megabytes(options.read_meminfo('SwapTotal'))}. With swap, the dict goes there and back.")


def _reclaim(name: str, folder: Path) -> list[str]:
    def measure() -> list[int]:
        records = ways.WAYS[name].hold(folder)
        sizes = [_read(records)]
        _page_out()
        return [*sizes, memory.read_memory().resident, _read(records)]

    return [megabytes(size) for size in memory.in_child(measure)]


def _read(records: ways.Records) -> int:
    """Return the resident bytes after all records were read in turn."""
    deque(records.values(), maxlen=0)
    return memory.read_memory().resident


def _page_out() -> None:
    """Have the kernel reclaim every mapping that it can; it refuses the others."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGEOUT)


if __name__ == "__main__":
    main()
