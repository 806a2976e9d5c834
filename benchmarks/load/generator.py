"""Compiles and runs load.c: a generator in Python would be slower than the server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import processes
from benchmarks.load.sample import Sample
from benchmarks.machine import LOAD_CORE, BenchError

_SOURCE: Final = Path(__file__).with_name("load.c")


def compiled(folder: Path) -> Path:
    """The program, compiled into ``folder`` unless it is there already."""
    program = folder / f"load-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        processes.output(["cc", "-O2", "-o", str(program), str(_SOURCE)])
    return program


def run(
    program: Path,
    port: int | Sequence[int],
    script: Path,
    *,
    connections: int,
    depth: int = 1,
    seconds: float = 0,
    requests: int = 0,
    core: int | None = LOAD_CORE,
) -> Sample:
    """Load 127.0.0.1:``port`` for ``seconds``, or with this many ``requests``. Raises BenchError on a wrong answer."""
    amount = f"-{requests}" if requests else f"{seconds}"
    ports = str(port) if isinstance(port, int) else ",".join(map(str, port))
    words = [str(program), ports, str(connections), str(depth), amount, str(script)]
    line = json.loads(processes.output(processes.pinned(words, core), timeout=seconds + 300))
    if not line["requests"]:
        raise BenchError(f"the server at port {ports} answered nothing in {seconds} s")
    return Sample(line["requests"] / line["seconds"], line["seconds"], line["busy"], line["p50_us"], line["p99_us"])
