"""A worker's budget counts each reply to a client that does not read once, as its memory does."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shards import write_generation
from support.two_kinds import KINDS, InProcessWorker
from test_serve import request

from lookupdb.keys import file_name

CLIENTS = 4
VALUE_BYTES = 1_100_000
GET, MGET, PING = request(b"GET", b"large"), request(b"MGET", *[b"large"] * 5), request(b"PING")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("large"), {"large": bytes(VALUE_BYTES)}) / file_name(0, 1)


@pytest.fixture
def traced() -> Iterator[None]:
    """Memory that Python allocates is counted."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kernels", KINDS)
@pytest.mark.parametrize(
    "asked",
    [GET * 5, MGET, (PING + GET) * 5, PING + MGET, request(b"ECHO", bytes(VALUE_BYTES))],
    ids=["gets", "mget", "other commands and gets", "another command and mget", "an echo"],
)
def test_clients_that_read_nothing_hold_what_is_counted_and_little_more(
    shard: Path, kernels: str, asked: bytes
) -> None:
    with InProcessWorker(shard, kernels) as worker:
        clients = [worker.connect(1 << 14) for _ in range(CLIENTS)]
        worker.take_turns(1)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for client in clients:
            worker.send(client, asked)
        worker.take_turns(10)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        counted = worker.worker.budget.total
        assert counted > CLIENTS * VALUE_BYTES / 2
        assert held < 1.2 * counted + 100_000, (held, counted)  # a bytearray grows by an eighth more than is asked for
