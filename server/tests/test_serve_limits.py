"""Limits on the memory and time that hostile clients can cost a worker, with real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from support.cpu_time import worked_seconds
from support.shards import Running, serving, write_generation
from support.waiting import until
from test_serve import admin, connect, connected, exchange, metrics, request

from lookupdb.shard.commands import BEFORE_AUTH_BYTES
from lookupdb.shard.limits import ServerLimits

pytestmark = pytest.mark.long

PASSWORD = "s3cret"
AUTH = request(b"AUTH", PASSWORD.encode())
MEMORY = 'lookupdb_shard_private_bytes{process="worker-0"}'
HELD = ServerLimits().max_held_bytes


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("plain"), {f"key {n}": b"value %d" % n for n in range(500)})


@pytest.fixture(scope="module")
def guarded_server(generation: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that wants a password, of 40 connections: 10 of clients that have not shown it."""
    secret = tmp_path_factory.mktemp("secret") / "password"
    secret.write_text(PASSWORD)
    with serving(generation, "--password-file", str(secret), "--max-connections", "40") as running:
        yield running


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has closed the connection, after reading the rest."""
    client.setblocking(False)
    try:
        while data := client.recv(1 << 20):
            assert data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


class TestBeforeAuth:
    @pytest.mark.parametrize(
        ("sent", "answer"),
        [
            (b"*17\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
            (b"*2\r\n$4\r\nAUTH\r\n$4096\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
            (b"*3\r\n$4\r\nAUTH\r\n$4000\r\n", b""),
            (b"AUTH " + b"x" * 5000, b"-ERR Protocol error: too big inline request\r\n"),
            (b"*2\r\n$" + b"1" * 5000, b"-ERR Protocol error: too big bulk count string\r\n"),
        ],
        ids=["a big array", "a giant bulk", "one that fits", "a long line", "a long length"],
    )
    def test_only_little_can_be_said(self, guarded_server: Running, sent: bytes, answer: bytes) -> None:
        assert exchange(guarded_server, sent) == answer

    def test_with_the_password_the_limits_are_wide_also_for_what_comes_in_the_same_breath(
        self, guarded_server: Running
    ) -> None:
        many = request(b"MGET", *[b"key 1"] * 5000)
        assert exchange(guarded_server, AUTH + many) == b"+OK\r\n*5000\r\n" + b"$7\r\nvalue 1\r\n" * 5000

    def test_a_client_that_says_nothing_or_something_now_and_then_is_closed_soon(self, guarded_server: Running) -> None:
        with (
            connect(guarded_server) as silent_client,
            connect(guarded_server) as slow_client,
            connect(guarded_server) as authenticated,
        ):
            authenticated.sendall(AUTH)
            assert authenticated.recv(100) == b"+OK\r\n"
            started = time.monotonic()
            slow_client.sendall(b"*2\r\n")
            until(lambda: is_closed(silent_client) and is_closed(slow_client), "they are closed", 30)
            assert time.monotonic() - started > 3
            authenticated.sendall(request(b"GET", b"key 1"))
            assert authenticated.recv(100) == b"$7\r\nvalue 1\r\n"

    def test_after_reset_the_password_is_to_be_shown_again_soon(self, guarded_server: Running) -> None:
        with connect(guarded_server) as client:
            client.sendall(AUTH + request(b"RESET") + request(b"GET", b"key 1"))
            expected = b"+OK\r\n+RESET\r\n-NOAUTH Authentication required.\r\n"
            assert client.makefile("rb").read(len(expected)) == expected
            until(lambda: is_closed(client), "it is closed", 30)

    def test_clients_without_the_password_take_no_place_from_those_with_it(self, guarded_server: Running) -> None:
        with contextlib.ExitStack() as exit_stack:
            authenticated = exit_stack.enter_context(connect(guarded_server))
            authenticated.sendall(AUTH)
            assert authenticated.recv(100) == b"+OK\r\n"
            strangers = [exit_stack.enter_context(connect(guarded_server)) for _ in range(200)]
            for _ in range(29):
                client = exit_stack.enter_context(connect(guarded_server))
                client.sendall(AUTH + request(b"GET", b"key 1"))
                assert client.makefile("rb").read(18) == b"+OK\r\n$7\r\nvalue 1\r\n"
            assert metrics(guarded_server)["lookupdb_shard_open_connections"] <= 40
            assert sum(map(is_closed, strangers)) >= 190
            authenticated.sendall(request(b"PING"))
            assert authenticated.recv(100) == b"+PONG\r\n"

    def test_refusals_that_nobody_reads_take_no_memory(self, guarded_server: Running) -> None:
        before = metrics(guarded_server)[MEMORY]
        with contextlib.ExitStack() as exit_stack:
            for _ in range(10):
                client = exit_stack.enter_context(connect(guarded_server))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    while True:
                        client.send(b"GET x\r\n" * 5000)
            assert metrics(guarded_server)[MEMORY] < before + 50 * BEFORE_AUTH_BYTES + 2e6


_BIG = [b"big"] * 50
_FIELDS = b'{"a":"%b"}' % (b"x" * 2_999_992)


@pytest.mark.parametrize(
    "asked",
    [
        request(b"MGET", *_BIG),
        b"".join(request(b"GETRANGE", key, b"0", b"-1") for key in _BIG),
        b"".join(request(b"HGETALL", key) for key in _BIG),
        request(b"MULTI") + b"".join(request(b"HMGET", key, b"a", b"b") for key in _BIG) + request(b"EXEC"),
    ],
    ids=["MGET", "GETRANGE", "HGETALL", "EXEC"],
)
def test_slow_readers_of_large_replies_hold_no_more_together_than_the_budget(tmp_path: Path, asked: bytes) -> None:
    """Each of a hundred clients must still get more than 1 MiB of a value, beyond what its socket has taken."""
    generation = write_generation(tmp_path, {"big": _FIELDS}, value_format="json")
    with serving(generation) as server, contextlib.ExitStack() as exit_stack:
        before = metrics(server)[MEMORY]
        for _ in range(100):
            slow_client = exit_stack.enter_context(connect(server))
            slow_client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow_client.sendall(asked)
        with connected(server) as client:
            for _ in range(20):
                assert len(client.get("big") or b"") == 3_000_000
        until(lambda: metrics(server)["lookupdb_shard_connections_cut_total"], "some are cut off")
        assert metrics(server)[MEMORY] < before + 2 * HELD + 16e6  # half of it is what the allocator keeps


def test_requests_that_do_not_end_hold_no_more_together_than_the_budget(generation: Path) -> None:
    with serving(generation) as server, contextlib.ExitStack() as exit_stack:
        before = metrics(server)[MEMORY]
        for _ in range(20):
            client = exit_stack.enter_context(connect(server))
            with contextlib.suppress(ConnectionError):
                client.sendall(b"*100000\r\n" + b"$80\r\n%b\r\n" % (b"x" * 80) * 80_000)
        with connected(server) as other:
            assert other.get("key 1") == b"value 1"
        assert metrics(server)[MEMORY] < before + 3 * HELD + 16e6


def test_transactions_that_do_not_end_hold_no_more_together_than_the_budget(generation: Path) -> None:
    with serving(generation) as server, contextlib.ExitStack() as exit_stack:
        before = metrics(server)[MEMORY]
        for _ in range(40):
            client = exit_stack.enter_context(connect(server))
            with contextlib.suppress(ConnectionError):
                client.sendall(request(b"MULTI") + request(b"GET", b"x" * 80) * 20_000)
        with connected(server) as other:
            assert other.get("key 1") == b"value 1"
            queueing: Any = other.client()  # type: ignore[no-untyped-call]
            queueing.execute_command("MULTI")
            for _ in range(8):
                queueing.execute_command("ECHO", b"x" * 1_000_000)
            with pytest.raises(redis.ResponseError, match="the transaction is larger than 8388608 bytes"):
                queueing.execute_command("ECHO", b"x" * 1_000_000)
            with pytest.raises(redis.exceptions.ExecAbortError):
                queueing.execute_command("EXEC")
            queueing.close()
        until(lambda: metrics(server)["lookupdb_shard_connections_cut_total"], "some are cut off")
        assert metrics(server)[MEMORY] < before + 3 * HELD + 16e6


def test_one_clients_large_request_does_not_keep_others_waiting(tmp_path: Path) -> None:
    """The request reads 50,000 values of 100 KB, which takes a second."""
    keys = [b"key %d" % number for number in range(100)]
    records = {key.decode(): bytes([65 + n % 26]) * 100_000 for n, key in enumerate(keys)}
    generation = write_generation(tmp_path, records, compression="zstd")
    shares: list[float] = []
    with serving(generation) as server:
        while min(shares, default=1.0) > 1 / 3 and len(shares) < 5:  # a busy machine may keep this client from asking
            shares.append(longest_wait(server, request(b"EXISTS", *keys * 500), b":50000\r\n", records))
    assert min(shares) < 1 / 3, shares


def longest_wait(server: Running, large_request: bytes, expected: bytes, records: dict[str, bytes]) -> float:
    """Return the longest wait of a client that asks for one key after another, as a share of the time in which a large
    request is answered, both in the worker's processor time. 1.0 if it could ask only a few times."""
    with connect(server) as heavy, connected(server) as client:
        heavy.settimeout(120)
        pid = orjson.loads(admin(server, "/status")[1])["workers"][0]["pid"]
        started = worked_seconds(pid)
        heavy.sendall(large_request)
        answer: list[bytes] = []
        reader = threading.Thread(target=lambda: answer.append(heavy.recv(100)))
        reader.start()
        waits: list[float] = []
        while reader.is_alive():
            asked_at = worked_seconds(pid)
            assert client.get("key 7") == records["key 7"]
            waits.append(worked_seconds(pid) - asked_at)
        reader.join()
        assert answer == [expected]
        return max(waits) / (worked_seconds(pid) - started) if len(waits) > 10 else 1.0


@pytest.mark.parametrize(
    ("words", "beginning"),
    [
        ([b"HELLO", b"2", *[b"SETNAME", b"me"] * 49_000], b"-ERR Syntax error in HELLO: expected at most 16 words"),
        ([b"INFO", *[b"memory", b"server"] * 49_000], b"$"),
    ],
    ids=["hello", "info"],
)
def test_words_that_are_repeated_without_end_keep_nobody_waiting(
    generation: Path, words: list[bytes], beginning: bytes
) -> None:
    """Reading either once took so long that the worker was killed as hung."""
    with serving(generation) as server:
        answer = exchange(server, request(*words))
        assert answer.startswith(beginning)
        assert len(answer) < 1000
        assert exchange(server, request(b"GET", b"key 1")) == b"$7\r\nvalue 1\r\n"
