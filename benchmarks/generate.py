"""`python -m benchmarks.generate KIND --rows N --out PATH [--seed S]`: write one of the examples' datasets."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks import generators


def main() -> None:
    """Write the requested file, and print its size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__)
    parser.add_argument("kind", choices=list(generators.KINDS))
    parser.add_argument("--rows", type=int, required=True, metavar="N")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH")
    parser.add_argument("--seed", type=int, default=generators.SEED, metavar="S")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        parser.error(f"--rows must be at least 1, found {arguments.rows}")
    started = time.monotonic()
    size = generators.write(arguments.kind, arguments.rows, arguments.out, arguments.seed)
    seconds = time.monotonic() - started
    print(f"{arguments.out}: {arguments.rows:,} rows, {size / 1e6:,.1f} MB, in {seconds:.1f} s")


if __name__ == "__main__":
    main()
