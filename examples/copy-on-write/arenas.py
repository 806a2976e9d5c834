"""Measures the memory that a process returns after nine of ten records are deleted at random, as from a cache: with
Python's own allocator, and with the C library's alone (PYTHONMALLOC=malloc).

  run arenas
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import materials
import memory
import options
import ways
from options import megabytes

_ALLOCATORS: Final = {"pymalloc": "Python's (pymalloc)", "malloc": "the C library's (malloc)"}
_STEPS: Final = ("nothing", "loaded", "90 % deleted", "malloc_trim", "the rest deleted", "malloc_trim again")
_ARENAS: Final = re.compile(r"# arenas allocated current\s*=\s*([\d,]+)")


def main() -> None:
    """Print resident memory at each step, for each allocator."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(_shrink(Path(sys.argv[2]))))
        return
    options.run(_measure, options.parser("arenas", str(__doc__)).parse_args())


def _measure(arguments: Namespace, folder: Path) -> None:
    options.need_memory(options.RECORD_BYTES * arguments.records, "ask for fewer --records")
    materials.make(folder, arguments.records, [])
    rows = []
    for allocator, title in _ALLOCATORS.items():
        words = [sys.executable, __file__, "--child", str(folder)]
        environment = {**os.environ, "PYTHONMALLOC": allocator}
        child = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        steps = json.loads(child.stdout)
        rows.append([title, *(megabytes(step["resident"]) for step in steps[1:])])
        if steps[1]["arenas"]:
            rows.append(["its arenas of 1 MiB", *(f"{step['arenas']:,}" for step in steps[1:])])
    options.print_table(["allocator", *_STEPS[1:]], rows)


def _shrink(folder: Path) -> list[dict[str, Any]]:
    """Return resident memory and arenas at each step."""
    c_library = ctypes.CDLL(None)
    records = {}
    steps = [_step()]
    records = dict(ways.load_dict(folder))
    steps.append(_step())
    keys = list(records)
    random.Random(1).shuffle(keys)
    for key in keys[: len(keys) * 9 // 10]:
        del records[key]
    del keys, key
    gc.collect()
    steps.append(_step())
    c_library.malloc_trim(0)
    steps.append(_step())
    records.clear()
    gc.collect()
    steps.append(_step())
    c_library.malloc_trim(0)
    steps.append(_step())
    return steps


def _step() -> dict[str, Any]:
    return {"resident": memory.read_memory().resident, "arenas": _count_arenas()}


def _count_arenas() -> int:
    """Return the number of pymalloc's arenas, which Python prints on standard error; 0 without pymalloc."""
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+") as printed:
        os.dup2(printed.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        printed.seek(0)
        found = _ARENAS.search(printed.read())
    return int(found[1].replace(",", "")) if found else 0


if __name__ == "__main__":
    main()
