"""`python -m benchmarks.peers.loaders KIND SOURCE TARGET`: load the dataset elsewhere, as a Python programmer would.

Each runs in its own process, so that time and memory are its own.
"""

from __future__ import annotations

import pickle
import sqlite3
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import orjson
import redis

PIPELINE: Final = 1_000
"""SETs sent at once: more are not faster."""


def records(source: Path) -> Iterator[tuple[str, bytes]]:
    """Customer, and the products as JSON."""
    with source.open("rb") as file:
        for line in file:
            record = orjson.loads(line)
            yield record["customer"], orjson.dumps(record["products"])


def into_redis(source: Path, port: str) -> None:
    """Pipelined SET; redis-py with hiredis, which parses the answers in C."""
    client = redis.Redis(port=int(port))
    rows = records(source)
    while chunk := list(islice(rows, PIPELINE)):
        pipeline = client.pipeline(transaction=False)
        for key, value in chunk:
            pipeline.set(key, value)
        pipeline.execute()


def into_pickle(source: Path, path: str) -> None:
    """A dict of customer to JSON text. Text, because each bytes object of orjson would keep a page of heap."""
    with Path(path).open("wb") as file:
        pickle.dump({key: value.decode() for key, value in records(source)}, file, protocol=pickle.HIGHEST_PROTOCOL)


def into_sqlite(source: Path, path: str) -> None:
    """One table, clustered by key, in one transaction, without a journal."""
    Path(path).unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
    database.executemany("INSERT INTO records VALUES (?, ?)", records(source))
    database.commit()
    database.close()


_LOADERS: Final[dict[str, Callable[[Path, str], None]]] = {
    "redis": into_redis,
    "pickle": into_pickle,
    "sqlite": into_sqlite,
}

if __name__ == "__main__":
    _LOADERS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
