"""The admin port with clients that hold connections, and with figures that do not arrive. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lookupdb.process import admin, listeners
from lookupdb.process.admin import MAX_CONNECTIONS, AdminPort, Collector, MetricFamily, gauge


class SlowCollector:
    """Figures that arrive when the test allows it."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.collections = 0

    def collect(self) -> Iterator[MetricFamily]:
        self.collections += 1
        self.may_answer.wait(30)
        yield gauge("slow", "A figure.", 1)


@contextlib.asynccontextmanager
async def serving(*collectors: Collector, status: Callable[[], Mapping[str, Any]] = dict) -> AsyncIterator[int]:
    listener = listeners.bind("127.0.0.1", 0)
    server = await AdminPort(explain_unready=lambda: None, status=status, collectors=collectors).start(listener)
    try:
        yield listeners.bound_port(listener)
    finally:
        await server.cleanup()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_clients_that_hold_connections_keep_no_probe_away() -> None:
    async with serving() as port:
        with contextlib.ExitStack() as exit_stack:
            clients = []
            for number in range(5 * MAX_CONNECTIONS):
                client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 60)
                clients.append(exit_stack.enter_context(client))
                client.sendall(b"GET /metrics HTTP/1.1\r\n" if number % 2 else b"")
            for _ in range(3):
                assert await asyncio.to_thread(get, port, "/readyz") == (200, "ready\n")
            closed = [client for client in clients if await asyncio.to_thread(is_closed, client)]
            assert len(closed) >= 4 * MAX_CONNECTIONS


async def test_clients_that_take_no_answers_keep_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", most)
    async with serving(status=lambda: {"figures": "x" * (8 << 20)}) as port:
        with contextlib.ExitStack() as exit_stack:
            before = open_descriptors()
            clients = 3 * most
            for _ in range(clients):
                client = exit_stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await asyncio.to_thread(client.connect, ("127.0.0.1", port))
                client.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
                await asyncio.to_thread(client.recv, 1)
            assert await asyncio.to_thread(get, port, "/readyz") == (200, "ready\n")
            deadline = time.monotonic() + 60
            while open_descriptors() - before - clients > most:  # each client's own end is open here too
                assert time.monotonic() < deadline, "connections that were to be closed are still open"
                await asyncio.sleep(0.01)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_closed(client: socket.socket) -> bool:
    client.settimeout(0.01)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def test_scrapes_that_wait_share_one_look_and_the_port_answers_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "METRICS_SECONDS", 0.2)
    slow = SlowCollector()
    collections_before = 0
    async with serving(slow.collect) as port:
        collections_before = slow.collections
        scrapes = await asyncio.gather(*(asyncio.to_thread(get, port, "/metrics") for _ in range(4)))
        assert [status for status, _ in scrapes] == [503] * 4
        assert (await asyncio.to_thread(get, port, "/readyz"))[0] == 200
        assert slow.collections == collections_before + 1
        slow.may_answer.set()
        assert "slow 1.0" in (await asyncio.to_thread(get, port, "/metrics"))[1]


async def test_a_status_with_a_path_that_is_no_utf8_has_escapes() -> None:
    folder = os.fsdecode(b"/f\xfflder")
    async with serving(status=lambda: {"folder": folder, "tables": [{"file": folder}]}) as port:
        code, body = await asyncio.to_thread(get, port, "/status")
    assert (code, json.loads(body)) == (200, {"folder": "/f\\udcfflder", "tables": [{"file": "/f\\udcfflder"}]})
