"""`python -m benchmarks`: measure, print, and after a full run write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import machine, report, targets
from benchmarks.arena import Arena
from benchmarks.machine import BenchError
from benchmarks.results import Result
from benchmarks.rows import ROWS, Row
from benchmarks.settings import FULL, QUICK

_ROOT: Final = Path(__file__).parents[1]
_FOLDER: Final = _ROOT / ".bench"
_REPORT: Final = _ROOT / "docs" / "benchmarks.md"


def main() -> int:
    """Run what the arguments ask for. Return 0 after a measurement, whatever its result, and 1 without one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped on exit
    arguments = _arguments()
    if arguments.list:
        print("\n".join(f"{row.name:14} {row.title}" for row in ROWS))
        return 0
    rows = [row for row in ROWS if not arguments.only or row.name in arguments.only]
    try:
        machine.require({program for row in rows for program in row.needs})
        _run(rows, arguments)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure lookupdb against its peers.")
    names = [row.name for row in ROWS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="this row (may be repeated)")
    parser.add_argument(
        "--quick", action="store_true", help="less data and shorter rounds, to check that everything runs"
    )
    parser.add_argument("--list", action="store_true", help="list the rows")
    return parser.parse_args()


def _run(rows: list[Row], arguments: argparse.Namespace) -> None:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", flush=True)

    if not machine.is_quiet():
        say("the machine is busy with something else: do not believe these figures, and not even the ratios")
    settings = QUICK if arguments.quick else FULL
    results: dict[str, Result] = {}
    with Arena(settings, _FOLDER, say) as arena:
        for row in rows:
            say(f"{row.name}: {row.title}")
            for result in row.measure(arena):
                results[result.name] = result
                print(f"\n{result.title}\n{report.figures(result)}\n", flush=True)
    verdicts = targets.verdicts(results)
    print(report.must_reach(verdicts))
    date = datetime.now(UTC)
    text = report.markdown(
        results,
        verdicts,
        settings=settings,
        date=f"{date:%Y-%m-%d %H:%M} UTC",
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]) if sys.argv[1:] else "make bench",
        seconds=time.monotonic() - started,
        machine=machine.describe(),
        versions=machine.versions(),
    )
    _keep(date, results, verdicts)
    whole = len(rows) == len(ROWS) and not arguments.quick
    path = _REPORT if whole else _FOLDER / "benchmarks.md"
    path.write_text(text)
    say(f"written to {path.relative_to(_ROOT)}")


def _keep(date: datetime, results: dict[str, Result], verdicts: list[targets.Verdict]) -> None:
    """Return every round of every side as JSON."""
    members = {
        "date": date.isoformat(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "results": [dataclasses.asdict(result) for result in results.values()],
        "mustReach": [{"what": v.target.what, "value": v.value, "verdict": v.word} for v in verdicts],
    }
    (_FOLDER / f"results-{date:%Y%m%dT%H%M%SZ}.json").write_text(json.dumps(members, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
