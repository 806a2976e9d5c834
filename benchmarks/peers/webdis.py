"""webdis: an HTTP front to Redis, in C."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.processes import Server, free_port


def start(log: Path, core: int, redis_port: int) -> tuple[Server, int]:
    """webdis in front of the Redis at ``redis_port``, and its port."""
    port = free_port()
    settings = {
        "redis_host": "127.0.0.1",
        "redis_port": redis_port,
        "http_host": "127.0.0.1",
        "http_port": port,
        "threads": 1,  # it has one core
        "pool_size": 20,  # its default
        "daemonize": False,
        "verbosity": 0,
        "logfile": str(log.with_suffix(".webdis.log")),
    }
    path = log.with_suffix(".json")
    path.write_text(json.dumps(settings))
    server = Server(["webdis", str(path)], log, core=core)
    server.wait_for_port(port)
    return server, port


def get_path(key: str) -> str:
    """The path of a GET of the bare value, webdis's cheapest form."""
    return f"/GET/{key}.txt"


def batch_path(keys: list[str]) -> str:
    """The path of a GET of many keys."""
    return f"/MGET/{'/'.join(keys)}"
