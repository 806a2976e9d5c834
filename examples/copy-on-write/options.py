"""What all commands of the demonstration share: options, folder, exit codes."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.machine import BenchError

RECORD_BYTES: Final = 1_600
"""An upper bound of a record's bytes in a dict, by `run objects`."""
COMMANDS: Final = """commands, each with its own --help:
  run workers    gunicorn's workers answer requests: whose memory grows? (the default)
  run objects    what Python's objects add to the bytes of the records
  run writes     what copies pages shared by a fork: garbage collection, reading
  run reload     memory while new records replace the old
  run arenas     what returns to the system when nine of ten records are deleted
  run pressure   what the kernel reclaims when memory is short
docs/concepts/memory.md explains the figures.
"""


def parser(topic: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every command has."""
    parser = argparse.ArgumentParser(
        prog=f"run {topic}",
        description=description,
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=_positive, default=1_000_000, metavar="N", help="1,000,000 by default")
    parser.add_argument(
        "--folder", type=Path, help="keeps the generated files, for the next run; by default they are removed"
    )
    return parser


def run(command: Callable[[argparse.Namespace, Path], None], arguments: argparse.Namespace) -> None:
    """Run ``command`` with its folder, and exit. Ctrl-C and SIGTERM also end the processes that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with ExitStack() as cleanup:
            folder = arguments.folder or Path(
                cleanup.enter_context(tempfile.TemporaryDirectory(prefix="copy-on-write-"))
            )
            folder = folder.absolute() / str(arguments.records)
            folder.mkdir(parents=True, exist_ok=True)
            command(arguments, folder)
    except KeyboardInterrupt:
        print("interrupted: everything that was started has ended", file=sys.stderr)
        sys.exit(130)
    except (BenchError, subprocess.CalledProcessError) as problem:
        sys.exit(f"run: {problem}")


def need_memory(needed: int, advice: str) -> None:
    """Raise BenchError if less than ``needed`` bytes of memory are available."""
    available = read_meminfo("MemAvailable")
    if available < needed:
        raise BenchError(
            f"this needs about {megabytes(needed)} of memory, {megabytes(available)} are available: {advice}"
        )


def read_meminfo(name: str) -> int:
    """Return the bytes in the line ``name`` of /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def megabytes(size: float) -> str:
    """Format ``size`` bytes: 1,234 MB."""
    number = size / 1e6
    return f"{number:,.0f} MB" if number >= 10 else f"{number:.1f} MB"


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for cells in [head, ["---"] * len(head), *rows]:
        print(f"| {' | '.join(cells)} |")


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number
