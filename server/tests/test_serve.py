"""A shard server as its users meet it: real processes, real clients."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from docs_tools import reference
from support.command_line import run_here
from support.metrics import without_dataset
from support.process_table import is_running
from support.shards import Running, serving, write_generation
from support.two_kinds import InProcessWorker
from support.waiting import until

from lookupdb import native
from lookupdb.cli import serve
from lookupdb.keys import file_name
from lookupdb.shard import commands

RECORDS = {f"key {number}": b"value %d" % number for number in range(500)}


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("plain"), RECORDS, shards=1, normalize=("strip",), uid="u-1")


@pytest.fixture(scope="module")
def server(generation: Path) -> Iterator[Running]:
    with serving(generation, "--max-connections", "40", by_command_line=True) as running:
        yield running


@contextlib.contextmanager
def connected(server: Running, worker: int = 0, **settings: Any) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.ports[worker], socket_timeout=60, **settings) as client:
        yield client


def connect(server: Running, worker: int = 0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.ports[worker]), timeout=60)


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def exchange(server: Running, data: bytes) -> bytes:
    """Everything the server answers to ``data``, until it closes; we send no more."""
    with connect(server) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read()


def admin(server: Running, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.admin}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(server: Running) -> dict[str, float]:
    lines = without_dataset(admin(server, "/metrics")[1]).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def await_growth(server: Running, before: dict[str, float], expected: dict[str, float]) -> None:
    """Wait until these counters have grown by so much since ``before``: an answer can be here before it is counted."""

    def growth() -> dict[str, float]:
        after = metrics(server)
        return {name: after[f"lookupdb_shard_{name}"] - before.get(f"lookupdb_shard_{name}", 0.0) for name in expected}

    with contextlib.suppress(AssertionError):
        until(lambda: growth() == expected, "what was asked is counted", seconds=20)
    assert growth() == expected


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_unmodified(server: Running, protocol: int) -> None:
    with connected(server, protocol=protocol, client_name="test") as client:
        assert client.ping()
        assert client.get("key 1") == b"value 1"
        assert client.get("nothing") is None
        assert client.mget("key 1", "nothing", "key 2") == [b"value 1", None, b"value 2"]
        assert client.exists("key 1", "nothing", "key 1") == 2
        assert client.dbsize() == 500
        assert client.echo("hello") == b"hello"
        assert client.client_getname() in (b"test", "test")
        assert client.config_get("save") == {"save": ""}
        assert client.info("keyspace")["db0"]["keys"] == 500
        pipeline = client.pipeline(transaction=False)
        for key in RECORDS:
            pipeline.get(key)
        assert pipeline.execute() == list(RECORDS.values())
        with pytest.raises(redis.ReadOnlyError):
            client.set("key 1", "other")


def test_keys_that_cannot_exist_are_missing(server: Running) -> None:
    with connected(server) as client:
        assert client.mget("", "k" * 511, "k" * 512, "k" * 5000, "\r\n") == [None] * 5
        assert [client.get(""), client.get("k" * 512)] == [None, None]


def test_a_batch_larger_than_a_read_is_answered_in_order(server: Running) -> None:
    keys = [f"key {number % 600}" for number in range(50_000)]
    with connected(server) as client:
        assert client.mget(keys) == [RECORDS.get(key) for key in keys]


def test_inline_and_mixed_requests_are_answered_in_order(server: Running) -> None:
    data = b"PING\r\n" + request(b"GET", b"key 1") + request(b"get", b"key 2") + b"ECHO 'a b'\r\n"
    assert exchange(server, data) == b"+PONG\r\n$7\r\nvalue 1\r\n$7\r\nvalue 2\r\n$3\r\na b\r\n"


def test_refusals_are_those_of_redis(server: Running) -> None:
    for sent, answer in (
        (request(b"exec"), b"-ERR EXEC without MULTI\r\n"),
        (request(b"FOO", b"a"), b"-ERR unknown command 'FOO', with args beginning with: 'a' \r\n"),
        (
            request(b"SCAN", b"0"),
            b"-ERR unknown command 'SCAN': the shard server lists no keys. DBSIZE counts them; "
            b"lookupdb.open() in Python lists those of a generation on its machine\r\n",
        ),
        (request(b"GET"), b"-ERR wrong number of arguments for 'get' command\r\n"),
        (request(b"DEL", b"a"), b"-READONLY a shard is immutable: build a new generation of the dataset\r\n"),
        (request(b"SELECT", b"1"), b"-ERR DB index is out of range\r\n"),
        (request(b"HELLO", b"4"), b"-NOPROTO unsupported protocol version\r\n"),
        (request(b"QUIT") + request(b"PING"), b"+OK\r\n"),
        (request(b"RESET"), b"+RESET\r\n"),
        (b"*1\r\n:5\r\n" + request(b"PING"), b"-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"*2000000000\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
    ):
        assert exchange(server, sent) == answer


def test_a_protocol_error_closes_the_connection(server: Running) -> None:
    with connect(server) as client:
        client.sendall(b"*1\r\n:5\r\n")
        assert client.makefile("rb").read() == b"-ERR Protocol error: expected '$', got ':'\r\n"


def test_identity_is_told_in_the_names_the_router_compares(server: Running) -> None:
    lines = exchange(server, request(b"INFO", b"lookupdb")).decode().split("\r\n")[2:]
    assert [line for line in lines if line] == [
        "format_version:1",
        "dataset:default/sample",
        "dataset_uid:u-1",
        "generation:g1",
        "shard:0",
        "shards:1",
        "records:500",
        "normalize:strip",
        "value_format:raw",
    ]


def await_silence(server: Running) -> dict[str, float]:
    """The counters once all earlier clients are gone, and everything that they asked is counted."""
    until(lambda: metrics(server)["lookupdb_shard_open_connections"] == 0, "earlier clients are gone")
    return metrics(server)


def test_one_connection_too_many_is_told_so(server: Running) -> None:
    await_silence(server)
    with contextlib.ExitStack() as open_:
        clients = [open_.enter_context(connect(server)) for _ in range(41)]
        answers = []
        for client in clients:
            client.sendall(request(b"PING"))
            answers.append(client.recv(100))
        assert answers.count(b"+PONG\r\n") == 40
        assert answers.count(b"-ERR max number of clients reached\r\n") == 1
    await_silence(server)


def test_metrics_count_what_was_asked(server: Running) -> None:
    before = await_silence(server)
    exchange(server, request(b"GET", b"key 1") + request(b"GET", b"no"))
    exchange(server, request(b"MGET", b"key 1", b"key 2", b"no") + request(b"FOO"))
    lookups = {"lookups_total": 5.0, "misses_total": 2.0}
    await_growth(server, before, {**lookups, "commands_total": 4, "errors_total": 1, "connections_total": 2})
    after = metrics(server)
    assert after["lookupdb_shard_sent_bytes_total"] - before["lookupdb_shard_sent_bytes_total"] > 50
    assert after["lookupdb_shard_records"] == 500
    assert after["lookupdb_shard_ready"] == 1
    assert 0 < after["lookupdb_shard_resident_bytes"] <= after["lookupdb_shard_file_bytes"]
    assert 1e6 < after['lookupdb_shard_private_bytes{process="worker-0"}'] < 30e6


def test_help_lists_every_command() -> None:
    listed = re.search(r"can ask: ([A-Z\s]+)\.", serve.command.help or "")
    assert listed
    assert {name.encode() for name in listed[1].split()} == set(commands.COMMANDS)


def test_every_metric_is_documented(server: Running) -> None:
    text = reference.make_metrics_page()
    families = {line.split()[2] for line in admin(server, "/metrics")[1].splitlines() if line.startswith("# TYPE")}
    assert families
    assert {name for name in families if f"`{name}`" not in text and f"`{name}_bucket`" not in text} == set()


def test_status_says_what_is_served_and_how_the_workers_are(server: Running) -> None:
    status = orjson.loads(admin(server, "/status")[1])
    assert status["state"] == "ready"
    assert status["workers"][0]["report"]["kernels"] == native.kind()
    assert status["ports"] == server.ports
    assert status["serves"]["generation"] == "g1"
    assert [worker["state"] for worker in status["workers"]] == ["ready"]
    assert status["verified"]["bytes"] == status["file"]["bytes"]
    assert admin(server, "/healthz") == (200, "ok\n")
    assert admin(server, "/readyz") == (200, "ready\n")


def test_a_worker_imports_nothing_it_does_not_need() -> None:
    """Memory is paid for in every worker: neither the command line nor builders nor admin ports belong there."""
    program = "from lookupdb.process import leave_out_tls; leave_out_tls(); import lookupdb.shard.worker, sys; "
    program += "print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert {"lmdb", "zstandard"} <= set(loaded)
    unwanted = {
        "asyncio",
        "uvloop",
        "aiohttp",
        "click",
        "rich",
        "duckdb",
        "obstore",
        "hiredis",
        "jsonschema",
        "opentelemetry",
        "prometheus_client",
        "ctypes",
        "_hashlib",
        "_ssl",
    }
    assert unwanted & set(loaded) == set()


def test_values_of_any_size_compressed_or_not_are_answered_alike(tmp_path: Path) -> None:
    records = {f"k{number}": bytes([65 + number % 26]) * (3 ** (number % 14)) for number in range(100)}
    records["empty"] = b""
    keys = [key.encode() for key in (*records, "missing")]
    replies = b"".join(b"$%d\r\n%b\r\n" % (len(value), value) for value in records.values()) + b"$-1\r\n"
    for compression in ("none", "zstd"):
        generation = write_generation(tmp_path / compression, records, compression=compression)
        with InProcessWorker(generation / file_name(0, 1), native.kind()) as worker:
            batch, alone = worker.connect(), worker.connect()
            worker.send(batch, request(b"MGET", *keys))
            assert worker.replies(batch) == b"*%d\r\n" % len(keys) + replies
            worker.send(alone, b"".join(request(b"GET", key) for key in keys))
            assert worker.replies(alone) == replies


def test_each_worker_has_a_port_and_a_directory_of_shards_needs_a_number(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, RECORDS, shards=3)
    with serving(generation, shard=2, workers=2) as server:
        assert len(set(server.ports)) == 2
        for worker in range(2):
            with connected(server, worker) as client:
                assert client.info("lookupdb")["shard"] == 2
        assert metrics(server)["lookupdb_shard_connections_total"] >= 2


def test_workers_beyond_the_last_port_are_refused(generation: Path) -> None:
    """They used to get other ports: a free one, or ports from 1 on."""
    run = run_here("serve", str(generation), "--port", "65535", "--workers", "3")
    assert run.returncode == 2
    told = b"error: 3 workers from port 65535 on need ports up to 65537, and 65535 is the last one\n"
    assert run.stderr.startswith(told)


def test_a_password_is_asked_for_before_anything_else(generation: Path, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    with serving(generation, "--password-file", str(secret)) as server:
        assert exchange(server, request(b"GET", b"key 1")) == b"-NOAUTH Authentication required.\r\n"
        assert exchange(server, request(b"AUTH", b"wrong") + request(b"INFO")).count(b"-") == 3
        both = request(b"AUTH", b"s3cret") + request(b"GET", b"key 1")
        assert exchange(server, both) == b"+OK\r\n$7\r\nvalue 1\r\n"
        with connected(server, password="s3cret", protocol=3) as client:
            assert client.get("key 1") == b"value 1"


def test_a_client_that_does_not_read_costs_little_memory_and_is_cut(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, {"big": b"x" * 1_000_000})
    with serving(generation, "--slow-seconds", "1") as server, connect(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request(b"GET", b"big") * 300)
        with connected(server) as client:
            assert len(client.get("big") or b"") == 1_000_000
        worker = 'lookupdb_shard_private_bytes{process="worker-0"}'
        assert metrics(server)[worker] < 30e6
        until(lambda: metrics(server)["lookupdb_shard_connections_cut_total"] == 1, "the slow client is cut")


def test_a_client_that_reads_slowly_gets_everything_although_the_server_stops(tmp_path: Path) -> None:
    value = os.urandom(1_000_000)
    with serving(write_generation(tmp_path, {"big": value})) as server:
        with connect(server) as slow, connect(server) as late:
            slow.sendall(request(b"GET", b"big") * 20 + request(b"PING"))
            slow.shutdown(socket.SHUT_WR)
            time.sleep(0.1)
            assert slow.makefile("rb").read() == (b"$1000000\r\n%b\r\n" % value) * 20 + b"+PONG\r\n"
            late.sendall(request(b"MGET", *[b"big"] * 20))
            start = late.recv(1000)
            server.process.terminate()
            assert start + late.makefile("rb").read() == b"*20\r\n" + (b"$1000000\r\n%b\r\n" % value) * 20
        assert server.process.wait(60) == 0


def test_an_idle_client_is_closed(generation: Path) -> None:
    with serving(generation, "--idle-seconds", "0.5") as server, contextlib.ExitStack() as exit_stack:

        def answered() -> socket.socket | None:
            """A client that has had an answer. On a busy machine one may be idle before it comes to ask."""
            client = exit_stack.enter_context(connect(server))
            with contextlib.suppress(ConnectionError):
                client.sendall(request(b"PING"))
                if client.recv(100) == b"+PONG\r\n":
                    return client
            return None

        client = until(answered, "a client is answered")
        assert client is not None
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""


def test_a_killed_worker_is_back_on_its_port_and_ends_with_its_supervisor(
    generation: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(generation) as server:
        assert f"ready ports={server.ports} admin={server.admin} kernels={native.kind()}\n" in capfd.readouterr().err
        with connected(server) as client:
            client.get("key 1")
        await_growth(server, {}, {"lookups_total": 1})
        pid = orjson.loads(admin(server, "/status")[1])["workers"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        with connected(server) as client:
            assert client.get("key 1") == b"value 1"
        until(lambda: admin(server, "/readyz")[0] == 200, "ready again")
        await_growth(server, {}, {"worker_restarts_total": 1, "lookups_total": 2})
        pid = orjson.loads(admin(server, "/status")[1])["workers"][0]["pid"]
        server.kill()
        server.process.wait()
        until(lambda: not is_running(pid), "the worker has ended")


class Asker(threading.Thread):
    """A client that asks one request after the other until the server ends the connection, with a ``pause`` between."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.pause = 0.05
        self.whole = 0
        self.broken = ""

    def run(self) -> None:
        sent = request(b"GET", b"key 1") * 3
        expected = b"$7\r\nvalue 1\r\n" * 3
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
                stream = client.makefile("rb")
                while True:
                    client.sendall(sent)
                    answer = stream.read(len(expected))
                    if not answer:
                        return
                    assert answer == expected
                    self.whole += 1
                    time.sleep(self.pause)
        except (OSError, AssertionError) as error:
            self.broken = repr(error)


def test_stopping_under_load_loses_no_reply(generation: Path) -> None:
    with serving(generation, drain_seconds=4) as server:
        askers = [Asker(server.ports[0]) for _ in range(4)]
        for asker in askers:
            asker.start()
        until(lambda: all(asker.whole > 5 for asker in askers), "all ask")
        server.process.terminate()
        terminated_at = time.monotonic()
        until(lambda: admin(server, "/readyz") == (503, "draining\n"), "no longer ready")
        before = [asker.whole for asker in askers]
        until(lambda: all(now.whole > was for now, was in zip(askers, before, strict=True)), "still served")
        with connect(server) as late:
            late.sendall(request(b"PING"))
            assert late.recv(100) == b"+PONG\r\n"
        until(lambda: time.monotonic() > terminated_at + 3.8, "the drain time is almost over")
        for asker in askers:
            asker.pause = 0
        for asker in askers:
            asker.join(60)
        assert [asker.broken for asker in askers] == [""] * 4
        assert server.process.wait(60) == 0
