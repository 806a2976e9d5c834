"""nutcracker (twemproxy): a sharding proxy for Redis, in C."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
import yaml

from benchmarks.load import script
from benchmarks.machine import BenchError
from benchmarks.processes import Server, free_port

_LOADED_AT_ONCE: Final = 500


def start(log: Path, core: int, redis_ports: Sequence[int]) -> tuple[Server, int]:
    """nutcracker in front of the Redis servers, and its port."""
    port = free_port()
    pool = {
        "listen": f"127.0.0.1:{port}",
        "redis": True,
        "hash": "fnv1a_64",
        "distribution": "ketama",
        "preconnect": True,
        "auto_eject_hosts": False,
        "servers": [f"127.0.0.1:{redis_port}:1 shard{i}" for i, redis_port in enumerate(redis_ports)],
    }
    path = log.with_suffix(".yaml")
    path.write_text(yaml.safe_dump({"lookup": pool}))
    words = ["nutcracker", "--conf-file", str(path), "--stats-addr", "127.0.0.1", "--stats-port", str(free_port())]

    server = Server(words, log, core=core)
    server.wait_for_port(port)
    return server, port


def fill(port: int, source: Path) -> int:
    """SET every record of a recommendations file through the proxy, which decides where each lives. Return the
    number."""
    records, waiting = 0, []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, source.open("rb") as file:
        for line in file:
            record = orjson.loads(line)
            waiting.append(script.command(b"SET", record["customer"].encode(), orjson.dumps(record["products"])))
            if len(waiting) == _LOADED_AT_ONCE:
                records += _set(connection, waiting)
                waiting.clear()
        return records + _set(connection, waiting)


def _set(connection: socket.socket, commands: list[bytes]) -> int:
    connection.sendall(b"".join(commands))
    expected = b"+OK\r\n" * len(commands)
    answer = b""
    while len(answer) < len(expected):
        part = connection.recv(65536)
        if not part:
            raise BenchError("nutcracker closed the connection while it was filled")
        answer += part
    if answer != expected:
        raise BenchError(f"nutcracker refused a SET: {answer[:200]!r}")
    return len(commands)
