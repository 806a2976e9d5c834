"""The command: fuzz, and print the number of inputs of each target. Exits with 1 when a promise was broken."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from fuzzing.mutate import inputs
from fuzzing.target import Target
from fuzzing.targets import TARGETS

FOLDER: Final = Path(".bench/fuzzing")
"""Inputs that reach new code, and those that broke a promise."""
_LOOK_EVERY: Final = 64


def main() -> int:
    """Fuzz each target for its share of the time."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("seconds", type=float, help="total time, shared by the targets")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one or more of {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of random inputs")
    parser.add_argument("--random", action="store_true", help="do not use atheris")
    options = parser.parse_args()
    unknown = set(options.targets) - set(names)
    if unknown:
        parser.error(f"there is no target {sorted(unknown)[0]!r}; expected one of {', '.join(names)}")
    chosen = [target for target in TARGETS if target.name in options.targets or not options.targets]
    is_guided = not options.random and importlib.util.find_spec("atheris") is not None
    if not is_guided:
        print("inputs are random" if options.random else "no atheris here: inputs are random", flush=True)
    seconds = options.seconds / len(chosen)
    codes = [
        _run_guided(target, seconds) if is_guided else _fuzz_randomly(target, seconds, options.seed)
        for target in chosen
    ]
    return max(codes)


def _fuzz_randomly(target: Target, seconds: float, seed: int) -> int:
    ends_at, tried = time.monotonic() + seconds, 0
    for data in inputs(target, seed):
        if tried % _LOOK_EVERY == 0 and time.monotonic() > ends_at:
            break
        try:
            target.check(data)
        except Exception:
            path = FOLDER / f"{target.name}-broken"
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"{target.name}: broken by {data!r}, kept in {path}", flush=True)
            raise
        tried += 1
    print(f"{target.name}: {tried:,} inputs", flush=True)
    return 0


def _run_guided(target: Target, seconds: float) -> int:
    """libFuzzer ends its process, so run it in a child."""
    command = [sys.executable, "-m", "fuzzing.guided", str(max(1, round(seconds))), target.name, str(FOLDER)]
    return 1 if subprocess.run(command, check=False).returncode else 0


if __name__ == "__main__":
    sys.exit(main())
