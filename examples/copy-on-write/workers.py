"""Compares ways to hold the same records behind gunicorn with pre-forked workers. While requests come in, the memory of
each process is sampled: pages shared by a fork become private when a reference count in them is written.

  run                                  a million records, a minute for each way: ten minutes, 7 GB of memory
  run --records 100000 --seconds 5     a quick look
  run --ways dict,lookupdb --folder /tmp/cow    keeps the files, so that the next run starts sooner

Ways: {ways}.
Writes memory.svg and samples.json into --out, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, Final

import materials
import options
import plot
import prefork
from callers import Callers
from memory import read_memory
from options import megabytes
from ways import SHELF, SOURCE, WAYS

_SAMPLES: Final = 120
"""Samples of each way; fewer if the kernel takes long to count."""


def main() -> None:
    """Measure each way, draw the plot, print the table."""
    parser = options.parser("workers", str(__doc__).format(ways=", ".join(WAYS)))
    parser.add_argument(
        "--seconds", type=float, default=60, metavar="S", help="seconds of requests for each way: 60 by default"
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="gunicorn workers: 4 by default")
    parser.add_argument("--rate", type=int, default=20_000, metavar="N", help="lookups a second: 20,000 by default")
    parser.add_argument("--batch", type=int, default=100, metavar="N", help="lookups a request: 100 by default")
    parser.add_argument("--ways", type=_parse_ways, default=list(WAYS), metavar="WAY,...", help="all by default")
    parser.add_argument("--out", type=Path, default=Path(".bench/copy-on-write"), metavar="FOLDER")
    options.run(_compare, parser.parse_args())


def _parse_ways(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(WAYS):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(WAYS)}")
    return names


def _compare(arguments: argparse.Namespace, folder: Path) -> None:
    options.need_memory(options.RECORD_BYTES * arguments.records * (arguments.workers + 1), "ask for fewer --records")
    _say(f"making {arguments.records:,} records in {folder}")
    materials.make(folder, arguments.records, arguments.ways)
    with (folder / SOURCE).open() as file:
        customers = [json.loads(line)["customer"] for line in file]
    results: dict[str, Any] = {}
    for name in arguments.ways:
        _say(f"{WAYS[name].title}: {arguments.seconds:g} s of requests")
        results[name] = _measure(name, folder, customers, arguments)
    report = {
        "records": arguments.records,
        "workers": arguments.workers,
        "rate": arguments.rate,
        "python": platform.python_version(),
        "shelf": _shelf_format(folder),
        "ways": results,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "samples.json").write_text(json.dumps(report))
    (arguments.out / "memory.svg").write_text(plot.draw(report))
    _print(report)
    _say(f"{arguments.out}/memory.svg is drawn from {arguments.out}/samples.json")


def _measure(name: str, folder: Path, customers: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the samples of one way, beginning before the first request."""
    with prefork.serving(name, folder, arguments.workers) as service:
        samples = [_sample(service, 0.0, 0)]
        busy, began = service.server.cpu_seconds(), time.monotonic()
        with Callers(service.port, customers, arguments.rate, arguments.batch) as callers:
            while (seconds := time.monotonic() - began) < arguments.seconds:
                time.sleep(min(arguments.seconds / _SAMPLES, arguments.seconds - seconds))
                callers.check()
                samples.append(_sample(service, time.monotonic() - began, callers.answered))
        busy = service.server.cpu_seconds() - busy
        return {"title": WAYS[name].title, "samples": samples, "cpu_us": busy * 1e6 / max(1, callers.answered)}


def _sample(service: prefork.Service, seconds: float, lookups: int) -> dict[str, Any]:
    """Return the current private and shared bytes of each worker, and the resident bytes of all processes together."""
    master = read_memory(service.server.pid)
    workers = [read_memory(pid) for pid in service.workers]
    return {
        "seconds": round(seconds, 2),
        "lookups": lookups,
        "private": [worker.private for worker in workers],
        "shared": [worker.shared for worker in workers],
        "anonymous": sum(process.anonymous for process in [master, *workers]),
        "file": sum(process.file for process in [master, *workers]),
    }


def _print(report: dict[str, Any]) -> None:
    head = ["way", "private, each worker, before", "after", "all processes, before", "after", "of it page cache"]
    rows = []
    for way in report["ways"].values():
        first, last = way["samples"][0], way["samples"][-1]
        rows.append(
            [
                way["title"],
                _each(first),
                _each(last),
                megabytes(first["anonymous"] + first["file"]),
                megabytes(last["anonymous"] + last["file"]),
                megabytes(last["file"]),
                f"{last['lookups']:,}",
                f"{way['cpu_us']:.0f} µs",
            ]
        )
    options.print_table([*head, "lookups", "CPU a lookup"], rows)


def _each(sample: dict[str, Any]) -> str:
    return megabytes(sum(sample["private"]) / len(sample["private"]))


def _shelf_format(folder: Path) -> str | None:
    import dbm

    return dbm.whichdb(str(folder / SHELF))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
