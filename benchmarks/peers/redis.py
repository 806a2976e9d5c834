"""Redis: one server of all the data, or several empty ones behind nutcracker. Nothing is saved to disk."""

from __future__ import annotations

from pathlib import Path

import redis

from benchmarks.processes import Server, free_port


def start(log: Path, core: int | None) -> tuple[Server, int]:
    """An empty Redis, and its port."""
    port = free_port()
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = Server([*words, "--daemonize", "no", "--dir", str(log.parent)], log, core=core)
    server.wait_for_port(port)
    return server, port


def used_memory(port: int) -> int:
    """Return the bytes that Redis reports for its data and structures."""
    with redis.Redis(port=port) as client:
        used: int = client.info("memory")["used_memory"]
        return used


def empty(port: int) -> None:
    """Drop all data."""
    with redis.Redis(port=port) as client:
        client.flushall()
