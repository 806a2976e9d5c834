"""Flask under gunicorn with a gevent worker, the dataset in the worker's own heap (see flask_app)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from benchmarks.processes import Server, free_port

_START_SECONDS: Final = 180
"""It reads all data before it listens."""


def start(log: Path, core: int, source: Path) -> tuple[Server, int]:
    """gunicorn with one worker (it has one core), and its port."""
    port = free_port()
    words = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--worker-class", "gevent"]
    words += ["--workers", "1", "--worker-connections", "1000", "--keep-alive", "75", "--timeout", "180"]
    environment = {**os.environ, "BENCH_SOURCE": str(source)}
    server = Server(
        [*words, "--log-level", "warning", "benchmarks.peers.flask_app:app"], log, core=core, environment=environment
    )
    server.wait_for(lambda: b"dataset is loaded" in log.read_bytes(), "its dataset was loaded", _START_SECONDS)
    server.wait_for_port(port)
    return server, port
