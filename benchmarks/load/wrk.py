"""Runs wrk with real keys of the dataset. All exist, so that any status but 2xx is an error."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import processes
from benchmarks.load.sample import Sample
from benchmarks.machine import LOAD_CORE, BenchError

_SCRIPT: Final = Path(__file__).with_name("wrk.lua")


def write_requests(path: Path, requests: Sequence[bytes]) -> Path:
    """Write complete HTTP ``requests`` as wrk.lua reads them."""
    with path.open("wb") as file:
        for request in requests:
            file.write(b"%d\n%b" % (len(request), request))
    return path


def run(port: int, requests: Path, *, connections: int, seconds: float, start: int = 0, scheme: str = "http") -> Sample:
    """Load 127.0.0.1:``port`` from one thread, beginning at request ``start``. Raises BenchError on any error. Does not
    verify certificates of https."""
    words = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s", "-s", str(_SCRIPT)]
    words += [f"{scheme}://127.0.0.1:{port}", "--", str(requests), str(start)]
    before = _children_seconds()
    text = processes.output(processes.pinned(words, LOAD_CORE), timeout=seconds + 60)
    busy = _children_seconds() - before
    line = json.loads(text.strip().splitlines()[-1])
    if line["errors"] or not line["requests"]:
        raise BenchError(f"wrk counted {line['errors']} errors in {line['requests']} requests to port {port}:\n{text}")
    seconds = line["seconds"]
    return Sample(line["requests"] / seconds, seconds, min(1.0, busy / seconds), line["p50_us"], line["p99_us"])


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
